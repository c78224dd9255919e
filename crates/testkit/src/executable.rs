//! Executable files of tests.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes an executable file, in place of an earlier one.
///
/// Another process writes it: a file that this process has open for writing is inherited by every child that another
/// thread starts at that moment, and Linux executes no file that is open for writing.
pub fn install(path: &Path, text: &str) {
    let mut writer = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("coreutils are installed");
    let mut input = writer.stdin.take().expect("the input is a pipe");
    input.write_all(text.as_bytes()).expect("install reads its input");
    drop(input);
    assert!(writer.wait().expect("install ends").success(), "{} cannot be written", path.display());
}
