//! Where log lines go: the standard streams, files that may be rotated under us or by us, the system log.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::{Level, LogError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkPlan {
    Stdout,
    Stderr,
    /// Appended to, and opened anew when somebody moved it away.
    WatchedFile(PathBuf),
    /// Moved to `.1`, `.2` … when it would grow beyond a size; nothing is moved where one of both is 0.
    RotatedFile {
        path: PathBuf,
        max_bytes: u64,
        backups: u32,
    },
    /// The system log at its local socket.
    Syslog {
        socket: PathBuf,
        facility: u8,
    },
    Nothing,
}

/// An open sink. Lines of several threads do not mix.
pub struct Sink {
    plan: SinkPlan,
    open: Mutex<Open>,
}

enum Open {
    Nothing,
    File { file: File, inode: u64, size: u64 },
    Socket(UnixDatagram),
}

impl Sink {
    pub fn open(plan: SinkPlan) -> Result<Self, LogError> {
        let open = match &plan {
            SinkPlan::Stdout | SinkPlan::Stderr | SinkPlan::Nothing => Open::Nothing,
            SinkPlan::WatchedFile(path) | SinkPlan::RotatedFile { path, .. } => {
                open_file(path).map_err(|source| LogError::Open { path: path.clone(), source })?
            }
            SinkPlan::Syslog { socket, .. } => UnixDatagram::unbound()
                .map(Open::Socket)
                .map_err(|source| LogError::Open { path: socket.clone(), source })?,
        };
        Ok(Self { plan, open: Mutex::new(open) })
    }

    /// A line that cannot be written is lost: there is no better place to complain than the one that just failed.
    pub fn write(&self, line: &str, level: Level) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = match &self.plan {
            SinkPlan::Stdout => io::stdout().write_all(line.as_bytes()),
            SinkPlan::Stderr => io::stderr().write_all(line.as_bytes()),
            SinkPlan::Nothing => Ok(()),
            SinkPlan::WatchedFile(path) => write_watched(&mut open, path, line),
            SinkPlan::RotatedFile { path, max_bytes, backups } => {
                rotate_if_full(&mut open, path, line, *max_bytes, *backups).and_then(|()| append(&mut open, line))
            }
            SinkPlan::Syslog { socket, facility } => send(&open, socket, *facility, level, line),
        };
    }
}

fn open_file(path: &Path) -> io::Result<Open> {
    let file = OpenOptions::new().append(true).create(true).open(path)?;
    let about = file.metadata()?;
    Ok(Open::File { file, inode: about.ino(), size: about.len() })
}

fn append(open: &mut Open, line: &str) -> io::Result<()> {
    if let Open::File { file, size, .. } = open {
        file.write_all(line.as_bytes())?;
        *size += line.len() as u64;
    }
    Ok(())
}

fn write_watched(open: &mut Open, path: &Path, line: &str) -> io::Result<()> {
    let there = fs::metadata(path).map(|about| about.ino()).ok();
    if let Open::File { inode, .. } = open
        && there != Some(*inode)
    {
        *open = open_file(path)?;
    }
    append(open, line)
}

fn rotate_if_full(open: &mut Open, path: &Path, line: &str, max_bytes: u64, backups: u32) -> io::Result<()> {
    let Open::File { size, .. } = open else { return Ok(()) };
    if max_bytes == 0 || backups == 0 || *size == 0 || *size + line.len() as u64 <= max_bytes {
        return Ok(());
    }
    let numbered = |number: u32| PathBuf::from(format!("{}.{number}", path.display()));
    for number in (1..backups).rev() {
        if numbered(number).exists() {
            fs::rename(numbered(number), numbered(number + 1))?;
        }
    }
    fs::rename(path, numbered(1))?;
    *open = open_file(path)?;
    Ok(())
}

fn send(open: &Open, socket: &Path, facility: u8, level: Level, line: &str) -> io::Result<()> {
    let Open::Socket(datagrams) = open else { return Ok(()) };
    let severity = match level {
        level if level >= Level::CRITICAL => 2,
        level if level >= Level::ERROR => 3,
        level if level >= Level::WARNING => 4,
        level if level >= Level::INFO => 6,
        _ => 7,
    };
    let message = format!("<{}>{}\0", u32::from(facility) * 8 + severity, line.trim_end_matches('\n'));
    datagrams.send_to(message.as_bytes(), socket).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_moved_away_is_opened_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodepool.log");
        let sink = Sink::open(SinkPlan::WatchedFile(path.clone())).unwrap();
        sink.write("one\n", Level::INFO);
        fs::rename(&path, folder.path().join("nodepool.log.1")).unwrap();
        sink.write("two\n", Level::INFO);
        assert_eq!(fs::read_to_string(folder.path().join("nodepool.log.1")).unwrap(), "one\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");
    }

    #[test]
    fn a_full_file_is_rotated_and_the_oldest_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodepool.log");
        let plan = SinkPlan::RotatedFile { path: path.clone(), max_bytes: 8, backups: 2 };
        let sink = Sink::open(plan).unwrap();
        for line in ["one....\n", "two....\n", "three..\n", "four...\n"] {
            sink.write(line, Level::INFO);
        }
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!((read("nodepool.log"), read("nodepool.log.1")), ("four...\n".to_owned(), "three..\n".to_owned()));
        assert_eq!(read("nodepool.log.2"), "two....\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn the_system_log_gets_facility_and_severity() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("log");
        let server = UnixDatagram::bind(&socket).unwrap();
        let sink = Sink::open(SinkPlan::Syslog { socket, facility: 3 }).unwrap();
        sink.write("hello\n", Level::ERROR);
        let mut buffer = [0; 64];
        let length = server.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"<27>hello\0");
    }
}
