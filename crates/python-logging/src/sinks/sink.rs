//! Where log lines go: the standard streams, files that are rotated under us or by us, the system log.

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
    /// Since a line was written.
    dropped: Option<DroppedLines>,
}

/// Lines that could not be written, and why the first of them could not.
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
                OpenSink::Syslog(address.open().map_err(|source| LogError::Syslog { place: address_text, source })?)
            }
        };
        Ok(Self { plan, state: Mutex::new(State { open, dropped: None }) })
    }

    /// A line that cannot be written is lost. That is said on standard error, once until it goes again, and then here, too, for
    /// in the background nobody reads the former. `warning` makes a line of such a text.
    pub fn write(&self, line: &str, level: Level, warning: impl Fn(&str) -> String) {
        let problem = self.lock().write(&self.plan, line, level, warning);
        if let Some(problem) = problem
            && !matches!(self.plan, SinkPlan::Stdout | SinkPlan::Stderr)
        {
            let _ = io::stderr().write_all(format!("nodepool: {problem}\n").as_bytes());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What is to be said of it elsewhere.
    fn write(&mut self, plan: &SinkPlan, line: &str, level: Level, warning: impl Fn(&str) -> String) -> Option<String> {
        let was_broken = self.dropped.is_some();
        match self.try_write(plan, line, level, &warning) {
            Ok(None) => was_broken.then(|| format!("the log is written to {plan} again")),
            Ok(Some(problem)) => {
                // One more line that is lost makes no difference, for its text is not.
                let _ = self.open.write(plan, &warning(&problem), Level::WARNING);
                Some(problem)
            }
            Err(error) => {
                let dropped = self.dropped.get_or_insert_with(|| DroppedLines { lines: 0, reason: error.to_string() });
                dropped.lines += 1;
                (!was_broken).then(|| format!("the log cannot be written to {plan}, lines are lost: {error}"))
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
        // They came before this line.
        if let Some(dropped) = &self.dropped {
            problem = self.open.write(plan, &warning(&dropped.to_string()), Level::WARNING)?;
            self.dropped = None;
        }
        Ok(self.open.write(plan, line, level)?.or(problem))
    }
}

impl OpenSink {
    /// What is said is what went wrong beside the line.
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
    fn a_file_is_emptied_once_and_with_its_first_line_if_it_is_to_be() {
        let folder = tempfile::tempdir().unwrap();
        for opened in [OpenMode::Immediate, OpenMode::Delayed] {
            let path = folder.path().join("nodepool.log");
            fs::write(&path, "of yesterday\n").unwrap();
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
    fn lines_that_were_lost_are_counted_and_told_of_where_they_would_be() {
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
    fn a_file_that_is_not_rotated_says_so_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodepool.log");
        fs::create_dir_all(folder.path().join("nodepool.log.1/of others")).unwrap();
        let plan = FilePlan { rotation: Rotation::BySize { max_bytes: 4, backups: 1 }, ..FilePlan::watched(&path) };
        let sink = Sink::open(SinkPlan::File(plan)).unwrap();
        for line in ["one\n", "two\n", "three\n"] {
            sink.write(line, Level::INFO, |text| format!("{}\n", text.replace(path.to_str().unwrap(), "LOG")));
        }
        let trouble = "the log file LOG cannot be rotated, it grows: Is a directory (os error 21)\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("one\ntwo\n{trouble}three\n"));
    }
}
