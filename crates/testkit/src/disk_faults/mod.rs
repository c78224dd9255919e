//! Disk faults: slow fsync and full file systems.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{programs, real};
use tempfile::TempDir;

/// Preloaded library that delays the fsync calls of programs.
pub struct SlowDisk {
    home: TempDir,
}

impl SlowDisk {
    pub fn build() -> SlowDisk {
        let home = tempfile::Builder::new()
            .prefix("nodepool-test-disk-")
            .tempdir()
            .expect("temporary directories can be created");
        let source = programs::repository().join("crates/testkit/src/disk_faults/slow_disk.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(home.path().join("slow_disk.so")).arg(source);
        assert!(compiler.status().is_ok_and(|status| status.success()), "cc cannot build the library");
        let disk = SlowDisk { home };
        disk.set_delay_ms(0);
        disk
    }

    /// Sets the delay of each fsync.
    pub fn set_delay_ms(&self, milliseconds: u64) {
        let next = self.home.path().join("next");
        std::fs::write(&next, milliseconds.to_string()).expect("the directory is writable");
        std::fs::rename(&next, self.home.path().join("slow")).expect("the directory is writable");
    }

    /// Number of delayed fsync calls.
    pub fn sync_count(&self) -> u64 {
        std::fs::metadata(self.home.path().join("waits")).map_or(0, |file| file.len())
    }

    pub fn environment(&self) -> Vec<(String, PathBuf)> {
        let variables = [("LD_PRELOAD", "slow_disk.so"), ("SLOW_DISK", "slow"), ("SLOW_DISK_WAITS", "waits")];
        variables.map(|(name, file)| (name.to_owned(), self.home.path().join(file))).to_vec()
    }
}

/// Small file system in memory. Dropping it unmounts it.
pub struct SmallDisk {
    home: TempDir,
}

impl SmallDisk {
    /// Mounts a file system of this size. `None`, with a message on standard error, if the test may not mount one.
    pub fn mount(megabytes: usize) -> Option<SmallDisk> {
        let home = tempfile::Builder::new()
            .prefix("nodepool-test-disk-")
            .tempdir()
            .expect("temporary directories can be created");
        let size = format!("size={megabytes}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(home.path()).output();
        match mounted {
            Ok(done) if done.status.success() => Some(SmallDisk { home }),
            Ok(done) => skip(&String::from_utf8_lossy(&done.stderr)),
            Err(error) => skip(&error.to_string()),
        }
    }

    pub fn path(&self) -> &Path {
        self.home.path()
    }

    /// Fills the file system up to about this many free bytes.
    pub fn fill(&self, free_bytes: usize) {
        let mut file = File::create(self.filler()).expect("an empty file takes no space");
        let block = vec![0; 16 * 1024];
        loop {
            match file.write_all(&block) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => panic!("cannot fill the disk: {error}"),
            }
        }
        let length = file.metadata().expect("the file is open").len();
        file.set_len(length.saturating_sub(free_bytes as u64)).expect("a file can be made shorter");
    }

    pub fn empty(&self) {
        std::fs::remove_file(self.filler()).expect("the disk was filled before");
    }

    fn filler(&self) -> PathBuf {
        self.home.path().join("ballast")
    }
}

fn skip(error: &str) -> Option<SmallDisk> {
    // With NODEPOOL_REQUIRE_REAL=1 nothing is skipped.
    assert!(real::skipped(), "cannot mount a file system: {error}");
    let line = format!("it also needs the right to mount a file system: {error}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("standard error is open in a test");
    None
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A lazy unmount: processes that still use the file system keep it until they exit.
        let _ = Command::new("umount").arg("--lazy").arg(self.home.path()).status();
    }
}
