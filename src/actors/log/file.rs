//! A log file: opened anew when others moved it away, and moved away by us when it is full or its time has come.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::schedule::Schedule;

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

pub struct OpenFile {
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

impl OpenFile {
    pub fn write(&mut self, plan: &FilePlan, line: &str, now: impl Fn() -> i64) -> io::Result<()> {
        follow(self, plan)?;
        rotate(self, plan, line, now)?;
        self.append(line)
    }

    pub fn append(&mut self, line: &str) -> io::Result<()> {
        self.file.write_all(line.as_bytes())?;
        self.size += line.len() as u64;
        Ok(())
    }
}

/// The time of files and of their rotation; nothing else is decided by it.
pub fn now() -> i64 {
    chrono::Local::now().timestamp()
}

pub fn open(plan: &FilePlan, begin: Begin, now: i64) -> io::Result<OpenFile> {
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
        *file = open(plan, Begin::Append, now())?;
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
            *file = open(plan, Begin::Append, now())?;
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
            *file = open(plan, Begin::Append, now)?;
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

    const BEGAN: i64 = 1_706_933_106;

    struct Log {
        folder: tempfile::TempDir,
        plan: FilePlan,
        file: OpenFile,
    }

    impl Log {
        fn begun(rotation: Rotation) -> Log {
            let folder = tempfile::tempdir().unwrap();
            let plan = FilePlan { rotation, ..FilePlan::followed(folder.path().join("nodepool.log")) };
            let file = open(&plan, plan.begin, BEGAN).unwrap();
            Log { folder, plan, file }
        }

        fn write(&mut self, line: &str) {
            self.write_after(0, line);
        }

        fn write_after(&mut self, seconds: i64, line: &str) {
            self.file.write(&self.plan, line, || BEGAN + seconds).unwrap();
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        /// All files with their texts.
        fn holds(&self, expected: &[(&str, &str)]) {
            let name = |entry: &fs::DirEntry| entry.file_name().into_string().unwrap();
            let entries = fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap());
            let files = entries.filter(|entry| entry.path().is_file());
            let found: BTreeMap<String, String> =
                files.map(|entry| (name(&entry), fs::read_to_string(entry.path()).unwrap())).collect();
            let expected = expected.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_file_that_was_moved_away_is_opened_anew() {
        let mut log = Log::begun(Rotation::Never);
        log.write("one\n");
        fs::rename(&log.plan.path, log.path("nodepool.log.1")).unwrap();
        log.write("two\n");
        fs::remove_file(&log.plan.path).unwrap();
        log.write("three\n");
        log.holds(&[("nodepool.log", "three\n"), ("nodepool.log.1", "one\n")]);
    }

    #[test]
    fn a_full_file_is_rotated_and_the_oldest_forgotten() {
        let mut log = Log::begun(Rotation::BySize { max_bytes: 9, backups: 2 });
        for line in ["one....\n", "two....\n", "three..\n", "four...\n"] {
            log.write(line);
        }
        log.holds(&[("nodepool.log", "four...\n"), ("nodepool.log.1", "three..\n"), ("nodepool.log.2", "two....\n")]);
        // Somebody else's hands in between lose nothing.
        fs::remove_file(&log.plan.path).unwrap();
        log.write("five...\n");
        assert_eq!(fs::read_to_string(&log.plan.path).unwrap(), "five...\n");
    }

    #[test]
    fn a_file_is_rotated_by_time_and_bears_the_time_of_its_beginning() {
        let mut log = Log::begun(minutely());
        for (seconds, line) in [(0, "one\n"), (59, "two\n"), (60, "three\n"), (500, "four\n")] {
            log.write_after(seconds, line);
        }
        log.holds(&[("nodepool.log", "four\n"), ("nodepool.log.2024-02-03_04-06", "three\n")]);
    }

    fn minutely() -> Rotation {
        Rotation::ByTime { schedule: Schedule::parse("M", 1, Zone::Utc).unwrap(), backups: 1 }
    }
}
