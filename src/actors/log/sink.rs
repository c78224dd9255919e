//! Where log lines go: the standard streams, files that are rotated under us or by us, the system log.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use super::schedule::Schedule;
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

/// A file, which is opened anew when somebody moved it away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlan {
    pub path: PathBuf,
    pub begin: Begin,
    pub opened: Opened,
    pub rotation: Rotation,
}

/// What becomes of what an earlier process wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    Append,
    Empty,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    AtStart,
    /// Python's `delay`: there is no file before there is a line.
    WithFirstLine,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// That is others' business.
    Never,
    /// Moved to `.1`, `.2` … when it would reach a size; nothing is moved where one of both is 0.
    BySize { max_bytes: u64, backups: u32 },
    /// Moved to a name with the time; with 0 all of them are kept.
    ByTime { schedule: Schedule, backups: u32 },
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

struct OpenFile {
    file: File,
    /// Device and inode.
    identity: (u64, u64),
    size: u64,
    /// When it is to be rotated by time.
    due: Option<i64>,
}

impl FilePlan {
    pub fn followed(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), begin: Begin::Append, opened: Opened::AtStart, rotation: Rotation::Never }
    }
}

impl Sink {
    pub fn open(plan: SinkPlan) -> Result<Self, LogError> {
        let open = match &plan {
            SinkPlan::Stdout | SinkPlan::Stderr | SinkPlan::Nothing => Open::Nothing,
            SinkPlan::File(file) if file.opened == Opened::WithFirstLine => Open::Nothing,
            SinkPlan::File(file) => {
                let opened = open_file(file, file.begin, now());
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
            Ok(()) if self.is_broken.swap(false, Ordering::Relaxed) => {
                format!("nodepool: the log is written to {} again\n", self.plan)
            }
            _ => return,
        };
        let _ = io::stderr().write_all(complaint.as_bytes());
    }

    fn try_write(&self, line: &str, level: Level, now: impl Fn() -> i64) -> io::Result<()> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        match (&self.plan, &mut *open) {
            (SinkPlan::Stdout, _) => io::stdout().write_all(line.as_bytes()),
            (SinkPlan::Stderr, _) => io::stderr().write_all(line.as_bytes()),
            (SinkPlan::File(plan), Open::File(file)) => {
                follow(file, plan)?;
                rotate(file, plan, line, now)?;
                file.append(line)
            }
            (SinkPlan::File(plan), place) => {
                let mut file = open_file(plan, plan.begin, now())?;
                let written = file.append(line);
                *place = Open::File(file);
                written
            }
            (SinkPlan::Syslog { facility, .. }, Open::Syslog(open)) => open.send(*facility, level, line),
            (SinkPlan::Syslog { .. } | SinkPlan::Nothing, _) => Ok(()),
        }
    }
}

impl OpenFile {
    fn append(&mut self, line: &str) -> io::Result<()> {
        self.file.write_all(line.as_bytes())?;
        self.size += line.len() as u64;
        Ok(())
    }
}

/// The time of files and of their rotation; nothing else is decided by it.
fn now() -> i64 {
    chrono::Local::now().timestamp()
}

fn open_file(plan: &FilePlan, begin: Begin, now: i64) -> io::Result<OpenFile> {
    // What an earlier process wrote is due as if it were ours.
    let written = fs::metadata(&plan.path).and_then(|about| about.modified()).ok();
    let written = written.and_then(|time| i64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_secs()).ok());
    let due = match &plan.rotation {
        Rotation::ByTime { schedule, .. } => Some(schedule.next(written.unwrap_or(now))),
        Rotation::Never | Rotation::BySize { .. } => None,
    };
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    let file = options.open(&plan.path)?;
    let about = file.metadata()?;
    if begin == Begin::Empty && about.is_file() {
        file.set_len(0)?;
    }
    let size = if begin == Begin::Empty { 0 } else { about.len() };
    Ok(OpenFile { file, identity: (about.dev(), about.ino()), size, due })
}

/// As Python's WatchedFileHandler: looked at before each line, so that logrotate needs to tell nobody.
fn follow(file: &mut OpenFile, plan: &FilePlan) -> io::Result<()> {
    let there = fs::metadata(&plan.path).map(|about| (about.dev(), about.ino())).ok();
    if there != Some(file.identity) {
        let due = file.due;
        *file = open_file(plan, Begin::Append, now())?;
        file.due = due;
    }
    Ok(())
}

fn rotate(file: &mut OpenFile, plan: &FilePlan, line: &str, now: impl Fn() -> i64) -> io::Result<()> {
    match &plan.rotation {
        Rotation::Never => Ok(()),
        Rotation::BySize { max_bytes, backups } => {
            let is_full = file.size > 0 && file.size + line.len() as u64 >= *max_bytes;
            if *max_bytes == 0 || *backups == 0 || !is_full || !file.file.metadata()?.is_file() {
                return Ok(());
            }
            number_backups(&plan.path, *backups)?;
            *file = open_file(plan, Begin::Append, now())?;
            Ok(())
        }
        Rotation::ByTime { schedule, backups } => {
            let now = now();
            let Some(due) = file.due.filter(|due| now >= *due) else { return Ok(()) };
            file.due = Some(schedule.next(now));
            if !file.file.metadata()?.is_file() {
                return Ok(());
            }
            fs::rename(&plan.path, with_suffix(&plan.path, &schedule.suffix(due)))?;
            if *backups > 0 {
                forget_oldest(&plan.path, schedule, *backups);
            }
            let due = file.due;
            *file = open_file(plan, Begin::Append, now)?;
            file.due = due;
            Ok(())
        }
    }
}

fn number_backups(path: &Path, backups: u32) -> io::Result<()> {
    let numbered = |number: u32| with_suffix(path, &number.to_string());
    for number in (1..backups).rev() {
        if numbered(number).exists() {
            fs::rename(numbered(number), numbered(number + 1))?;
        }
    }
    fs::rename(path, numbered(1))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}

/// What cannot be removed stays, and the next rotation tries again.
fn forget_oldest(path: &Path, schedule: &Schedule, backups: u32) {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else { return };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let Ok(entries) = fs::read_dir(folder) else { return };
    let is_old = |file: &String| {
        file.strip_prefix(name).and_then(|rest| rest.strip_prefix('.')).is_some_and(|rest| schedule.is_suffix(rest))
    };
    let mut old: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).filter(is_old).collect();
    old.sort();
    let surplus = old.len().saturating_sub(backups as usize);
    old.into_iter().take(surplus).for_each(|file| drop(fs::remove_file(folder.join(file))));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actors::log::schedule::Zone;
    use std::collections::BTreeMap;

    /// All files of a folder with their texts.
    fn texts(folder: &Path) -> BTreeMap<String, String> {
        let name = |entry: &fs::DirEntry| entry.file_name().into_string().unwrap();
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        entries.map(|entry| (name(&entry), fs::read_to_string(entry.path()).unwrap())).collect()
    }

    fn found(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_file_that_was_moved_away_is_opened_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodepool.log");
        let sink = Sink::open(SinkPlan::File(FilePlan::followed(&path))).unwrap();
        sink.write("one\n", Level::INFO);
        fs::rename(&path, folder.path().join("nodepool.log.1")).unwrap();
        sink.write("two\n", Level::INFO);
        fs::remove_file(&path).unwrap();
        sink.write("three\n", Level::INFO);
        assert_eq!(texts(folder.path()), found(&[("nodepool.log", "three\n"), ("nodepool.log.1", "one\n")]));
    }

    #[test]
    fn a_full_file_is_rotated_and_the_oldest_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodepool.log");
        let rotation = Rotation::BySize { max_bytes: 9, backups: 2 };
        let sink = Sink::open(SinkPlan::File(FilePlan { rotation, ..FilePlan::followed(&path) })).unwrap();
        for line in ["one....\n", "two....\n", "three..\n", "four...\n"] {
            sink.write(line, Level::INFO);
        }
        let expected =
            [("nodepool.log", "four...\n"), ("nodepool.log.1", "three..\n"), ("nodepool.log.2", "two....\n")];
        assert_eq!(texts(folder.path()), found(&expected));
        // Somebody else's hands in between lose nothing.
        fs::remove_file(&path).unwrap();
        sink.write("five...\n", Level::INFO);
        assert_eq!(fs::read_to_string(&path).unwrap(), "five...\n");
    }

    #[test]
    fn a_file_is_rotated_by_time_and_bears_the_time_of_its_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodepool.log");
        let schedule = Schedule::parse("M", 1, Zone::Utc).unwrap();
        let rotation = Rotation::ByTime { schedule, backups: 1 };
        let plan = FilePlan { rotation, opened: Opened::WithFirstLine, ..FilePlan::followed(&path) };
        let sink = Sink::open(SinkPlan::File(plan)).unwrap();
        assert!(!path.exists());
        for (seconds, line) in [(0, "one\n"), (59, "two\n"), (60, "three\n"), (500, "four\n")] {
            sink.try_write(line, Level::INFO, || 1_706_933_106 + seconds).unwrap();
        }
        let expected = [("nodepool.log", "four\n"), ("nodepool.log.2024-02-03_04-06", "three\n")];
        assert_eq!(texts(folder.path()), found(&expected));
    }

    #[test]
    fn an_emptied_file_is_emptied_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodepool.log");
        fs::write(&path, "of yesterday\n").unwrap();
        let plan = FilePlan { begin: Begin::Empty, ..FilePlan::followed(&path) };
        let sink = Sink::open(SinkPlan::File(plan)).unwrap();
        sink.write("one\n", Level::INFO);
        sink.write("two\n", Level::INFO);
        assert_eq!(texts(folder.path()), found(&[("nodepool.log", "one\ntwo\n")]));
    }
}
