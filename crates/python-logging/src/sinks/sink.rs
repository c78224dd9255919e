//! Sinks of log lines: the standard streams, files with rotation by others or by this process, the system log.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::file::{self, FilePlan, OpenFile, OpenMode, now};
use super::syslog::{self, Address};
use crate::{Level, LogError};

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
    state: Mutex<State>,
}

struct State {
    open: OpenSink,
    /// Lines dropped since the last one that was written.
    dropped: Option<DroppedLines>,
}

/// Lines that could not be written, and the error of the first of them.
struct DroppedLines {
    lines: u64,
    reason: String,
}

impl std::fmt::Display for DroppedLines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let DroppedLines { lines, reason } = self;
        match lines {
            1 => write!(f, "1 log line was lost: {reason}"),
            _ => write!(f, "{lines} log lines were lost: {reason}"),
        }
    }
}

enum OpenSink {
    Nothing,
    File(OpenFile),
    Syslog(syslog::SyslogConnection),
}

impl Sink {
    pub fn open(plan: SinkPlan) -> Result<Self, LogError> {
        let open = match &plan {
            SinkPlan::Stdout | SinkPlan::Stderr | SinkPlan::Nothing => OpenSink::Nothing,
            SinkPlan::File(file) if file.open_mode == OpenMode::Delayed => OpenSink::Nothing,
            SinkPlan::File(file) => {
                let opened = file::open(file, file.write_mode, now());
                OpenSink::File(opened.map_err(|source| LogError::Open { path: file.path.clone(), source })?)
            }
            SinkPlan::Syslog { address, .. } => {
                let address_text = address.to_string();
                OpenSink::Syslog(address.open().map_err(|source| LogError::Syslog { address: address_text, source })?)
            }
        };
        Ok(Self { plan, state: Mutex::new(State { open, dropped: None }) })
    }

    /// Writes a line. A line that cannot be written is lost.
    ///
    /// Returns a problem that the caller reports on standard error, once until a line is written again. The sink then
    /// reports it in the log as well, because nothing reads the standard error of a process in the background.
    /// `warning` formats the problem's text as a line.
    pub fn write(&self, line: &str, level: Level, warning: impl Fn(&str) -> String) -> Option<String> {
        let problem = self.lock().write(&self.plan, line, level, warning);
        problem.filter(|_| !matches!(self.plan, SinkPlan::Stdout | SinkPlan::Stderr))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns a problem to report outside this sink.
    fn write(&mut self, plan: &SinkPlan, line: &str, level: Level, warning: impl Fn(&str) -> String) -> Option<String> {
        let was_broken = self.dropped.is_some();
        match self.try_write(plan, line, level, &warning) {
            Ok(None) => was_broken.then(|| format!("logging to {plan} resumed")),
            Ok(Some(problem)) => {
                // If this line is lost, the caller still reports its text.
                let _ = self.open.write(plan, &warning(&problem), Level::WARNING);
                Some(problem)
            }
            Err(error) => {
                let dropped = self.dropped.get_or_insert_with(|| DroppedLines { lines: 0, reason: error.to_string() });
                dropped.lines += 1;
                (!was_broken).then(|| format!("cannot write to {plan}, log lines are dropped: {error}"))
            }
        }
    }

    fn try_write(
        &mut self,
        plan: &SinkPlan,
        line: &str,
        level: Level,
        warning: impl Fn(&str) -> String,
    ) -> io::Result<Option<String>> {
        let mut problem = None;
        // The report of dropped lines precedes the next line.
        if let Some(dropped) = &self.dropped {
            problem = self.open.write(plan, &warning(&dropped.to_string()), Level::WARNING)?;
            self.dropped = None;
        }
        Ok(self.open.write(plan, line, level)?.or(problem))
    }
}

impl OpenSink {
    /// Writes the line. Returns a problem that did not prevent that, such as a failed rotation.
    fn write(&mut self, plan: &SinkPlan, line: &str, level: Level) -> io::Result<Option<String>> {
        match (plan, &mut *self) {
            (SinkPlan::Stdout, _) => io::stdout().write_all(line.as_bytes())?,
            (SinkPlan::Stderr, _) => io::stderr().write_all(line.as_bytes())?,
            (SinkPlan::File(plan), OpenSink::File(file)) => return file.write(plan, line, now),
            (SinkPlan::File(plan), _) => {
                let mut file = file::open(plan, plan.write_mode, now())?;
                let written = file.append(line);
                *self = OpenSink::File(file);
                written?;
            }
            (SinkPlan::Syslog { facility, .. }, OpenSink::Syslog(open)) => open.send(*facility, level, line)?,
            (SinkPlan::Syslog { .. } | SinkPlan::Nothing, _) => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::file::{Rotation, WriteMode};
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn mode_w_truncates_the_file_once_when_it_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        for opened in [OpenMode::Immediate, OpenMode::Delayed] {
            let path = folder.path().join("nodepool.log");
            fs::write(&path, "from yesterday\n").unwrap();
            let plan = FilePlan { write_mode: WriteMode::Truncate, open_mode: opened, ..FilePlan::watched(&path) };
            let sink = Sink::open(SinkPlan::File(plan)).unwrap();
            let is_emptied = fs::read_to_string(&path).unwrap().is_empty();
            assert_eq!(is_emptied, opened == OpenMode::Immediate);
            for line in ["one\n", "two\n"] {
                sink.write(line, Level::INFO, str::to_owned);
            }
            assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        }
    }

    #[test]
    fn dropped_lines_are_counted_and_reported_in_the_log_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodepool.log");
        symlink("/dev/full", &path).unwrap();
        let sink = Sink::open(SinkPlan::File(FilePlan::watched(&path))).unwrap();
        let write = |line: &str| sink.write(line, Level::INFO, |text| format!("warning: {text}\n"));
        for line in ["one\n", "two\n"] {
            write(line);
        }
        fs::remove_file(&path).unwrap();
        for line in ["three\n", "four\n"] {
            write(line);
        }
        let lost = "warning: 2 log lines were lost: No space left on device (os error 28)\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{lost}three\nfour\n"));
    }

    #[test]
    fn a_failed_rotation_is_reported_in_the_file_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodepool.log");
        fs::create_dir_all(folder.path().join("nodepool.log.1/foreign")).unwrap();
        let plan = FilePlan { rotation: Rotation::BySize { max_bytes: 4, backups: 1 }, ..FilePlan::watched(&path) };
        let sink = Sink::open(SinkPlan::File(plan)).unwrap();
        for line in ["one\n", "two\n", "three\n"] {
            sink.write(line, Level::INFO, |text| format!("{}\n", text.replace(path.to_str().unwrap(), "LOG")));
        }
        let problem = "cannot rotate log file LOG, it keeps growing: Is a directory (os error 21)\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("one\ntwo\n{problem}three\n"));
    }
}
