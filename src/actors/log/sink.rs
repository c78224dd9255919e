//! Where log lines go: the standard streams, files that are rotated under us or by us, the system log.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::file::{self, FilePlan, OpenFile, Opened, now};
use super::syslog::{self, Address};
use super::{Level, LogError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkPlan {
    Stdout,
    Stderr,
    File(FilePlan),
    Syslog { address: Address, facility: u8 },
    Nothing,
}

impl std::fmt::Display for SinkPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SinkPlan::Stdout => f.write_str("standard output"),
            SinkPlan::Stderr => f.write_str("standard error"),
            SinkPlan::File(file) => file.path.display().fmt(f),
            SinkPlan::Syslog { address, .. } => address.fmt(f),
            SinkPlan::Nothing => f.write_str("nothing"),
        }
    }
}

/// An open sink. Lines of several threads do not mix.
pub struct Sink {
    plan: SinkPlan,
    open: Mutex<Open>,
    /// Whether the last line was lost.
    is_broken: AtomicBool,
}

enum Open {
    Nothing,
    File(OpenFile),
    Syslog(syslog::Open),
}

impl Sink {
    pub fn open(plan: SinkPlan) -> Result<Self, LogError> {
        let open = match &plan {
            SinkPlan::Stdout | SinkPlan::Stderr | SinkPlan::Nothing => Open::Nothing,
            SinkPlan::File(file) if file.opened == Opened::WithFirstLine => Open::Nothing,
            SinkPlan::File(file) => {
                let opened = file::open(file, file.begin, now());
                Open::File(opened.map_err(|source| LogError::Open { path: file.path.clone(), source })?)
            }
            SinkPlan::Syslog { address, .. } => {
                let place = address.to_string();
                Open::Syslog(address.open().map_err(|source| LogError::Syslog { place, source })?)
            }
        };
        Ok(Self { plan, open: Mutex::new(open), is_broken: AtomicBool::new(false) })
    }

    /// A line that cannot be written is lost. That is said on standard error, once until it goes again.
    pub fn write(&self, line: &str, level: Level) {
        let written = self.try_write(line, level, now);
        if matches!(self.plan, SinkPlan::Stdout | SinkPlan::Stderr) {
            return;
        }
        let complaint = match &written {
            Err(error) if !self.is_broken.swap(true, Ordering::Relaxed) => {
                format!("nodepool: the log cannot be written to {}, lines are lost: {error}\n", self.plan)
            }
            Ok(_) if self.is_broken.swap(false, Ordering::Relaxed) => {
                format!("nodepool: the log is written to {} again\n", self.plan)
            }
            Ok(Some(trouble)) => format!("nodepool: {trouble}\n"),
            Err(_) | Ok(None) => return,
        };
        let _ = io::stderr().write_all(complaint.as_bytes());
    }

    fn try_write(&self, line: &str, level: Level, now: impl Fn() -> i64) -> io::Result<Option<String>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        match (&self.plan, &mut *open) {
            (SinkPlan::Stdout, _) => io::stdout().write_all(line.as_bytes())?,
            (SinkPlan::Stderr, _) => io::stderr().write_all(line.as_bytes())?,
            (SinkPlan::File(plan), Open::File(file)) => return file.write(plan, line, now),
            (SinkPlan::File(plan), place) => {
                let mut file = file::open(plan, plan.begin, now())?;
                let written = file.append(line);
                *place = Open::File(file);
                written?;
            }
            (SinkPlan::Syslog { facility, .. }, Open::Syslog(open)) => open.send(*facility, level, line)?,
            (SinkPlan::Syslog { .. } | SinkPlan::Nothing, _) => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actors::log::file::Begin;
    use std::fs;

    #[test]
    fn a_file_is_emptied_once_and_with_its_first_line_if_it_is_to_be() {
        let folder = tempfile::tempdir().unwrap();
        for opened in [Opened::AtStart, Opened::WithFirstLine] {
            let path = folder.path().join("nodepool.log");
            fs::write(&path, "of yesterday\n").unwrap();
            let plan = FilePlan { begin: Begin::Empty, opened, ..FilePlan::followed(&path) };
            let sink = Sink::open(SinkPlan::File(plan)).unwrap();
            let is_emptied = fs::read_to_string(&path).unwrap().is_empty();
            assert_eq!(is_emptied, opened == Opened::AtStart);
            sink.write("one\n", Level::INFO);
            sink.write("two\n", Level::INFO);
            assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        }
    }
}
