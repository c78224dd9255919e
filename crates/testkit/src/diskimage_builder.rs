//! The real diskimage-builder: where its commands are, and whether they can run on this machine.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

/// Whether loop devices exist: diskimage-builder mounts its image by one, and some containers lack them.
pub fn has_loop_devices() -> bool {
    let found = Command::new("sudo").args(["-n", "losetup", "-f"]).output();
    let has = found.is_ok_and(|output| output.status.success());
    if !has {
        let line = "SKIPPED: no loop devices, so diskimage-builder cannot run here\n";
        // Written to the stream itself, because the test harness hides the output of a test that passes.
        std::io::stderr().write_all(line.as_bytes()).expect("standard error is open in a test");
    }
    has
}

/// Directory of disk-image-create: that of the Python interpreter with diskimage-builder.
pub fn tools() -> PathBuf {
    let python = PathBuf::from(crate::real::setting("NODEPOOL_TEST_PYTHON"));
    python.parent().expect("an interpreter has a parent directory").to_owned()
}
