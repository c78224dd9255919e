//! A log file: reopened after another process moved it away, and rotated here by size or time.

use std::borrow::Cow;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::schedule::Schedule;

/// Suffix of a file while its backups are renumbered.
const ROTATING_SUFFIX: &str = "rotating";
/// Seconds after which a failed reopening or rotation is retried, and reported again.
const RETRY_INTERVAL_S: i64 = 60;

/// A log file as configured. It is reopened after another process moved it away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlan {
    pub path: PathBuf,
    pub write_mode: WriteMode,
    pub open_mode: OpenMode,
    pub rotation: Rotation,
}

/// Python's `mode`: whether the file of an earlier process is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    Append,
    Truncate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    Immediate,
    /// Python's `delay`: the file is created with the first line.
    Delayed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// Rotated by other programs, if at all.
    Never,
    /// Renamed to `.1`, `.2` … before it would reach a size; never if either number is 0.
    BySize { max_bytes: u64, backups: u32 },
    /// Renamed to a name with the time; 0 backups keeps all of them.
    ByTime { schedule: Schedule, backups: u32 },
}

pub struct OpenFile {
    file: File,
    /// Device and inode.
    identity: (u64, u64),
    /// Size before the next line.
    size: u64,
    /// The last line was written in part, so the next one starts with a line feed.
    has_partial_line: bool,
    /// Time of the next rotation by time.
    rotate_at_s: Option<i64>,
    /// End of the back-off after a failed rotation.
    backoff_until_s: Option<i64>,
}

impl FilePlan {
    pub fn watched(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            write_mode: WriteMode::Append,
            open_mode: OpenMode::Immediate,
            rotation: Rotation::Never,
        }
    }
}

impl OpenFile {
    /// Writes a line. Returns a problem with reopening or rotation, which does not prevent the write.
    pub fn write(&mut self, plan: &FilePlan, line: &str, now: impl Fn() -> i64) -> io::Result<Option<String>> {
        let problem = self.prepare(plan, line, now);
        self.append(line)?;
        Ok(problem)
    }

    pub fn append(&mut self, line: &str) -> io::Result<()> {
        let own = if self.has_partial_line { Cow::Owned(format!("\n{line}")) } else { Cow::Borrowed(line) };
        let mut remaining = own.as_bytes();
        while !remaining.is_empty() {
            match self.file.write(remaining) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => {
                    self.has_partial_line = remaining[length - 1] != b'\n';
                    remaining = &remaining[length..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reopens and rotates the file if that is due. If this fails, the open file is used until an attempt succeeds.
    fn prepare(&mut self, plan: &FilePlan, line: &str, now: impl Fn() -> i64) -> Option<String> {
        let path = plan.path.display();
        let is_backing_off = self.backoff_until_s.is_some_and(|end| (end - RETRY_INTERVAL_S..end).contains(&now()));
        let outcome = match self.reopen_if_moved(plan, &now) {
            Err(error) => Err(format!("cannot reopen log file {path}, continuing with the old one: {error}")),
            Ok(()) if is_backing_off => Ok(()),
            Ok(()) => {
                let rotated = self.rotate(plan, line, &now);
                rotated.map_err(|error| format!("cannot rotate log file {path}, it keeps growing: {error}"))
            }
        };
        let problem = outcome.err().filter(|_| !is_backing_off)?;
        self.backoff_until_s = Some(now() + RETRY_INTERVAL_S);
        Some(problem)
    }

    /// As Python's WatchedFileHandler does: the file is checked before each line, so that logrotate need not signal
    /// this process.
    fn reopen_if_moved(&mut self, plan: &FilePlan, now: impl Fn() -> i64) -> io::Result<()> {
        match fs::metadata(&plan.path) {
            Ok(metadata) if (metadata.dev(), metadata.ino()) == self.identity => {
                // Other processes may write to it, and a line may have been written in part.
                self.size = metadata.len();
                Ok(())
            }
            Ok(_) | Err(_) => self.reopen(plan, now()),
        }
    }

    fn reopen(&mut self, plan: &FilePlan, now: i64) -> io::Result<()> {
        let opened = open(plan, WriteMode::Append, now)?;
        *self = OpenFile { rotate_at_s: self.rotate_at_s, backoff_until_s: self.backoff_until_s, ..opened };
        Ok(())
    }

    fn rotate(&mut self, plan: &FilePlan, line: &str, now: impl Fn() -> i64) -> io::Result<()> {
        match &plan.rotation {
            Rotation::Never => Ok(()),
            Rotation::BySize { max_bytes, backups } => {
                let is_full = self.size > 0 && self.size + line.len() as u64 >= *max_bytes;
                if *max_bytes == 0 || *backups == 0 || !is_full || !self.file.metadata()?.is_file() {
                    return Ok(());
                }
                rotate_by_number(&plan.path, *backups)?;
                self.reopen(plan, now())
            }
            Rotation::ByTime { schedule, backups } => {
                let now = now();
                let Some(due) = self.rotate_at_s.filter(|due| now >= *due) else { return Ok(()) };
                let next = Some(schedule.next(now));
                let old = with_suffix(&plan.path, &schedule.suffix(due));
                // The name is taken by a process that shares the file, or by the hour that occurs twice in autumn.
                if old.exists() || !self.file.metadata()?.is_file() {
                    self.rotate_at_s = next;
                    return Ok(());
                }
                fs::rename(&plan.path, old)?;
                if *backups > 0 {
                    delete_oldest_backups(&plan.path, schedule, *backups);
                }
                self.rotate_at_s = next;
                self.reopen(plan, now)
            }
        }
    }
}

/// Wall-clock time, for the names and the rotation of files only.
pub fn now() -> i64 {
    chrono::Local::now().timestamp()
}

pub fn open(plan: &FilePlan, write_mode: WriteMode, now: i64) -> io::Result<OpenFile> {
    // A file of an earlier process is rotated when it would have been by that process.
    let modified = fs::metadata(&plan.path).and_then(|metadata| metadata.modified()).ok();
    let modified = modified.and_then(|time| i64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_secs()).ok());
    let due = match &plan.rotation {
        Rotation::ByTime { schedule, .. } => Some(schedule.next(modified.unwrap_or(now))),
        Rotation::Never | Rotation::BySize { .. } => None,
    };
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    let file = options.open(&plan.path)?;
    let metadata = file.metadata()?;
    if write_mode == WriteMode::Truncate && metadata.is_file() {
        file.set_len(0)?;
    }
    let size = if write_mode == WriteMode::Truncate { 0 } else { metadata.len() };
    Ok(OpenFile {
        file,
        identity: (metadata.dev(), metadata.ino()),
        size,
        has_partial_line: false,
        rotate_at_s: due,
        backoff_until_s: None,
    })
}

/// Moves the file aside first: if that fails, repeated attempts must not delete a backup.
fn rotate_by_number(path: &Path, backups: u32) -> io::Result<()> {
    let rotating = with_suffix(path, ROTATING_SUFFIX);
    if rotating.is_file() {
        // Left by a process that was killed.
        shift_backups(path, backups, &rotating)?;
    }
    fs::rename(path, &rotating)?;
    shift_backups(path, backups, &rotating).inspect_err(|_| {
        // Restores the name that readers expect. If that fails, the next rotation numbers the file.
        if !path.exists() {
            let _ = fs::rename(&rotating, path);
        }
    })
}

fn shift_backups(path: &Path, backups: u32, newest: &Path) -> io::Result<()> {
    let numbered = |number: u32| with_suffix(path, &number.to_string());
    for number in (1..backups).rev() {
        if numbered(number).exists() {
            fs::rename(numbered(number), numbered(number + 1))?;
        }
    }
    fs::rename(newest, numbered(1))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}

/// A file that cannot be deleted is retried at the next rotation.
fn delete_oldest_backups(path: &Path, schedule: &Schedule, backups: u32) {
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
    use crate::sinks::schedule::ClockZone;
    use std::collections::BTreeMap;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    const START: i64 = 1_706_933_106;

    struct Log {
        folder: tempfile::TempDir,
        plan: FilePlan,
        file: OpenFile,
    }

    impl Log {
        fn new(rotation: Rotation) -> Log {
            let folder = tempfile::tempdir().unwrap();
            let plan = FilePlan { rotation, ..FilePlan::watched(folder.path().join("nodepool.log")) };
            let file = open(&plan, plan.write_mode, START).unwrap();
            Log { folder, plan, file }
        }

        fn write(&mut self, line: &str) {
            self.write_after(0, line);
        }

        fn write_after(&mut self, seconds: i64, line: &str) {
            assert_eq!(self.problem_after(seconds, line), None);
        }

        fn problem_after(&mut self, seconds: i64, line: &str) -> Option<String> {
            self.file.write(&self.plan, line, || START + seconds).unwrap()
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        /// All files with their texts.
        fn assert_files(&self, expected: &[(&str, &str)]) {
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
    fn a_file_that_was_moved_away_is_reopened() {
        let mut log = Log::new(Rotation::Never);
        log.write("one\n");
        fs::rename(&log.plan.path, log.path("nodepool.log.1")).unwrap();
        log.write("two\n");
        fs::remove_file(&log.plan.path).unwrap();
        log.write("three\n");
        log.assert_files(&[("nodepool.log", "three\n"), ("nodepool.log.1", "one\n")]);
    }

    #[test]
    fn a_partial_line_is_ended_before_the_next_one() {
        let mut log = Log::new(Rotation::Never);
        let (write_end, mut read_end) = UnixStream::pair().unwrap();
        write_end.set_nonblocking(true).unwrap();
        log.file.file = File::from(OwnedFd::from(write_end));
        let long = "x".repeat(8 << 20);
        log.file.append(&long).unwrap_err();
        // Nothing of this one is written.
        log.file.append("lost\n").unwrap_err();
        let mut buffer = vec![0; long.len()];
        let mut length = read_end.read(&mut buffer).unwrap();
        read_end.set_nonblocking(true).unwrap();
        while let Ok(more) = read_end.read(&mut buffer) {
            length += more;
        }
        assert!(length < long.len(), "{length}");
        for line in ["one\n", "two\n"] {
            log.file.append(line).unwrap();
        }
        let length = read_end.read(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"\none\ntwo\n");
    }

    #[test]
    fn lines_of_other_processes_count_for_the_size() {
        let mut log = Log::new(Rotation::BySize { max_bytes: 9, backups: 1 });
        log.write("one\n");
        OpenOptions::new().append(true).open(&log.plan.path).unwrap().write_all(b"theirs\n").unwrap();
        log.write("two\n");
        log.assert_files(&[("nodepool.log", "two\n"), ("nodepool.log.1", "one\ntheirs\n")]);
    }

    #[test]
    fn a_full_file_is_rotated_and_the_oldest_backup_deleted() {
        let mut log = Log::new(Rotation::BySize { max_bytes: 9, backups: 2 });
        for line in ["one....\n", "two....\n", "three..\n", "four...\n"] {
            log.write(line);
        }
        log.assert_files(&[
            ("nodepool.log", "four...\n"),
            ("nodepool.log.1", "three..\n"),
            ("nodepool.log.2", "two....\n"),
        ]);
        // A file that another process deleted in between loses nothing.
        fs::remove_file(&log.plan.path).unwrap();
        log.write("five...\n");
        assert_eq!(fs::read_to_string(&log.plan.path).unwrap(), "five...\n");
    }

    #[test]
    fn a_failed_rotation_loses_neither_lines_nor_backups() {
        let mut log = Log::new(Rotation::BySize { max_bytes: 9, backups: 3 });
        fs::write(log.path("nodepool.log.1"), "older\n").unwrap();
        // Directories block the renaming of the backups, then of the file itself.
        for name in ["nodepool.log.2", "nodepool.log.rotating"] {
            fs::create_dir_all(log.path(name).join("foreign")).unwrap();
        }
        fs::write(log.path("nodepool.log.3"), "oldest\n").unwrap();
        log.write("one....\n");
        let problem = log.problem_after(0, "two....\n").unwrap();
        assert!(problem.contains("nodepool.log, it keeps growing: "), "{problem}");
        log.write_after(59, "three..\n");
        fs::remove_dir_all(log.path("nodepool.log.rotating")).unwrap();
        assert!(log.problem_after(60, "four...\n").is_some());
        let lines = "one....\ntwo....\nthree..\nfour...\n";
        log.assert_files(&[("nodepool.log", lines), ("nodepool.log.1", "older\n"), ("nodepool.log.3", "oldest\n")]);
        fs::remove_dir_all(log.path("nodepool.log.2")).unwrap();
        log.write_after(120, "five...\n");
        let expected = [("nodepool.log.1", lines), ("nodepool.log.2", "older\n"), ("nodepool.log.3", "oldest\n")];
        log.assert_files(&[&[("nodepool.log", "five...\n")], &expected[..]].concat());
    }

    #[test]
    fn a_file_that_a_killed_process_moved_is_numbered_at_next_rotation() {
        let mut log = Log::new(Rotation::BySize { max_bytes: 9, backups: 2 });
        fs::write(log.path("nodepool.log.rotating"), "older\n").unwrap();
        log.write("one....\n");
        log.write("two....\n");
        log.assert_files(&[
            ("nodepool.log", "two....\n"),
            ("nodepool.log.1", "one....\n"),
            ("nodepool.log.2", "older\n"),
        ]);
    }

    #[test]
    fn a_file_that_cannot_be_reopened_receives_all_lines() {
        let mut log = Log::new(every_minute());
        log.write("one\n");
        let moved = log.path("moved");
        fs::rename(&log.plan.path, &moved).unwrap();
        fs::create_dir(&log.plan.path).unwrap();
        let problem = log.problem_after(1, "two\n").unwrap();
        assert!(problem.contains("continuing with the old one: Is a directory"), "{problem}");
        log.write_after(2, "three\n");
        log.assert_files(&[("moved", "one\ntwo\nthree\n")]);
    }

    #[test]
    fn a_file_rotated_by_time_is_named_after_its_start() {
        let mut log = Log::new(every_minute());
        for (seconds, line) in [(0, "one\n"), (59, "two\n"), (60, "three\n"), (500, "four\n")] {
            log.write_after(seconds, line);
        }
        log.assert_files(&[("nodepool.log", "four\n"), ("nodepool.log.2024-02-03_04-06", "three\n")]);
    }

    #[test]
    fn an_old_file_is_not_overwritten() {
        let mut log = Log::new(every_minute());
        fs::write(log.path("nodepool.log.2024-02-03_04-05"), "from another process\n").unwrap();
        for (seconds, line) in [(0, "one\n"), (60, "two\n"), (61, "three\n")] {
            log.write_after(seconds, line);
        }
        let old = ("nodepool.log.2024-02-03_04-05", "from another process\n");
        log.assert_files(&[("nodepool.log", "one\ntwo\nthree\n"), old]);
        log.write_after(120, "four\n");
        log.assert_files(&[("nodepool.log", "four\n"), ("nodepool.log.2024-02-03_04-06", "one\ntwo\nthree\n")]);
    }

    fn every_minute() -> Rotation {
        Rotation::ByTime { schedule: Schedule::parse("M", 1, ClockZone::Utc).unwrap(), backups: 1 }
    }
}
