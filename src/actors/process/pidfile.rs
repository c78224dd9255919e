//! Pid file: a lock between two daemons of the same kind, and the process id for scripts that send signals.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

/// Time that a daemon waits for another one to exit.
pub const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The pid file of this process. It is deleted when it is dropped, at a regular exit. A file that remains after a crash
/// is detected as stale.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum PidFileError {
    #[error("another process (pid {pid}) holds the pid file {}; stop it or name another file with -p", path.display())]
    Held { path: PathBuf, pid: i32 },
    #[error("the pid file {} does not hold a process id; remove it if no other daemon uses it", path.display())]
    Garbled { path: PathBuf },
    #[error("cannot {action} the pid file {}; name a writable place with -p", path.display())]
    Unusable { action: &'static str, path: PathBuf, source: io::Error },
}

/// Owner of an existing file.
enum Owner {
    Alive(i32),
    Exited,
    Unknown,
}

impl PidFile {
    /// Waits for a running owner, deletes the file of an exited one, and writes our process id. Called before any
    /// runtime or thread exists, so it may sleep.
    pub fn acquire(path: &Path, timeout: Duration) -> Result<PidFile, PidFileError> {
        let attempts = timeout.as_millis() / POLL_INTERVAL.as_millis();
        for attempt in 0.. {
            match create(path) {
                Ok(()) => return Ok(PidFile { path: path.to_owned() }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(PidFileError::Unusable { action: "create", path: path.to_owned(), source }),
            }
            match owner(path)? {
                Owner::Exited => remove(path)?,
                Owner::Alive(pid) if attempt >= attempts => {
                    return Err(PidFileError::Held { path: path.to_owned(), pid });
                }
                // The owner may be writing its process id.
                Owner::Unknown if attempt >= attempts.min(5) => {
                    return Err(PidFileError::Garbled { path: path.to_owned() });
                }
                Owner::Alive(_) | Owner::Unknown => pause(),
            }
        }
        unreachable!("the loop ends by returning")
    }

    pub fn release(self) {
        drop(self);
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // The file may be deleted already. A file that cannot be deleted is detected as stale later.
        let _ = fs::remove_file(&self.path);
    }
}

fn create(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    // An empty file would prevent every later daemon from starting.
    writeln!(file, "{}", std::process::id()).inspect_err(|_| drop(fs::remove_file(path)))
}

fn owner(path: &Path) -> Result<Owner, PidFileError> {
    let text = match fs::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Owner::Exited),
        Err(source) => return Err(PidFileError::Unusable { action: "read", path: path.to_owned(), source }),
    };
    match text.trim().parse::<i32>() {
        Ok(pid) if pid > 0 => match kill(Pid::from_raw(pid), None) {
            Err(Errno::ESRCH) => Ok(Owner::Exited),
            // The process runs, even if this one has no permission to signal it.
            Ok(()) | Err(_) => Ok(Owner::Alive(pid)),
        },
        _ => Ok(Owner::Unknown),
    }
}

fn remove(path: &Path) -> Result<(), PidFileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(PidFileError::Unusable { action: "remove the stale", path: path.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

#[allow(clippy::disallowed_methods)] // No runtime with timers exists yet.
fn pause() {
    std::thread::sleep(POLL_INTERVAL);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temp_path() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodepool.pid");
        (folder, path)
    }

    #[test]
    fn file_holds_own_pid_and_is_removed_on_drop() {
        let (_folder, path) = temp_path();
        let held = PidFile::acquire(&path, Duration::ZERO).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        held.release();
        assert!(!path.exists());
    }

    #[test]
    fn live_owner_keeps_the_file() {
        let (_folder, path) = temp_path();
        let _held = PidFile::acquire(&path, Duration::ZERO).unwrap();
        let error = PidFile::acquire(&path, Duration::ZERO).unwrap_err();
        assert!(matches!(error, PidFileError::Held { pid, .. } if pid == std::process::id() as i32), "{error}");
    }

    // A restart works although the pid file exists.
    #[test]
    fn the_file_of_a_dead_process_is_taken_over() {
        let (_folder, path) = temp_path();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        fs::write(&path, format!("{pid}\n")).unwrap();
        let _held = PidFile::acquire(&path, Duration::ZERO).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
    }

    #[test]
    fn invalid_content_is_reported_and_kept() {
        let (_folder, path) = temp_path();
        for garbage in [&b"my notes"[..], b"", b"\xff\xfe", b"-1", b"99999999999999"] {
            fs::write(&path, garbage).unwrap();
            let error = PidFile::acquire(&path, Duration::ZERO).unwrap_err();
            assert!(matches!(error, PidFileError::Garbled { .. }), "{error}");
            assert_eq!(fs::read(&path).unwrap(), garbage);
        }
    }

    #[test]
    fn missing_directory_is_named() {
        let (folder, _) = temp_path();
        let error = PidFile::acquire(&folder.path().join("missing/nodepool.pid"), ACQUIRE_TIMEOUT).unwrap_err();
        assert!(error.to_string().contains("missing/nodepool.pid"), "{error}");
    }
}
