//! File watch: file events for a set of paths, so that a change is noticed within milliseconds. Events arrive for the
//! directories of the files and of all symbolic links on the way to them. Without watches, the caller's polls remain.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{ErrorKind, Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::watch;
use tracing::warn;

use super::files::run_on_blocking_pool;

/// Time without events after which a burst of changes is over.
const QUIET_TIME: Duration = Duration::from_millis(20);
/// Symbolic links on the way to a file; the kernel follows as many.
const MAX_LINKS: usize = 40;
/// Attempts to watch a path whose links change meanwhile. The next renewal makes further ones.
const MAX_ROUNDS: usize = 4;

/// Whether the fallback to polls was logged. The reason is the same for each session of a process.
static IS_FALLBACK_LOGGED: AtomicBool = AtomicBool::new(false);

pub struct FileWatch {
    watches: Arc<Mutex<Watches>>,
    observed: Arc<Observed>,
    changes: watch::Receiver<()>,
    /// Whether a change was received after which `settled` has not returned yet. It survives a cancelled wait.
    has_change: bool,
}

impl FileWatch {
    pub fn new() -> Self {
        let observed = Arc::new(Observed::default());
        let handler = observed.clone();
        let watcher = notify::recommended_watcher(move |event| handler.on_event(event));
        let watcher = watcher.map_err(|error| log_fallback(&error)).ok();
        Self::with(watcher, observed)
    }

    fn with(watcher: Option<RecommendedWatcher>, observed: Arc<Observed>) -> Self {
        let changes = observed.changes.subscribe();
        let watches = Watches { watcher, directories: BTreeMap::new() };
        Self { watches: Arc::new(Mutex::new(watches)), observed, changes, has_change: false }
    }

    /// Watches these paths from now on. Called before the files are read, because their links may have changed.
    pub async fn renew(&self, files: Vec<PathBuf>) {
        let (watches, observed) = (self.watches.clone(), self.observed.clone());
        run_on_blocking_pool(move || {
            watches.lock().unwrap_or_else(PoisonError::into_inner).renew(&files, &observed);
        })
        .await;
    }

    /// Resolves when files have changed, the burst of events is over, and no writer has a changed file open. Never
    /// resolves without watches.
    pub async fn settled(&mut self) {
        loop {
            // A wait for changes cannot fail, because `observed` keeps the sender.
            if !self.has_change {
                let _ = self.changes.changed().await;
                self.has_change = true;
            }
            while tokio::time::timeout(QUIET_TIME, self.changes.changed()).await.is_ok() {}
            self.has_change = false;
            if self.observed.lock().being_written.is_empty() {
                return;
            }
        }
    }

    /// Whether files have changed since `settled` returned, or are being written.
    pub fn has_new_change(&self) -> bool {
        self.changes.has_changed().unwrap_or(false) || !self.observed.lock().being_written.is_empty()
    }

    /// Forgets open files. A file that was changed by its path has no writer that would close it.
    pub fn forget_writers(&self) {
        self.observed.lock().being_written.clear();
    }
}

/// State that the event thread writes.
#[derive(Default)]
struct Observed {
    state: Mutex<ObservedState>,
    changes: watch::Sender<()>,
}

#[derive(Default)]
struct ObservedState {
    /// Directory entries on the way to the files. Other entries of the watched directories are ignored.
    entries: BTreeSet<PathBuf>,
    directories: BTreeSet<PathBuf>,
    /// Watched directories that were moved or deleted. Their watches and those below have ended.
    lost: BTreeSet<PathBuf>,
    /// Files that were changed and not yet closed. A half-written file may be a valid configuration.
    being_written: BTreeSet<PathBuf>,
}

impl Observed {
    fn lock(&self) -> MutexGuard<'_, ObservedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on_event(&self, event: notify::Result<Event>) {
        // After an error, events may be missing.
        if event.map_or(true, |event| self.lock().record(&event)) {
            self.changes.send_replace(());
        }
    }
}

impl ObservedState {
    /// Whether the event may concern one of the files.
    fn record(&mut self, event: &Event) -> bool {
        if event.need_rescan() {
            self.being_written.clear();
            return true;
        }
        let mut is_relevant = false;
        for path in &event.paths {
            is_relevant |= self.record_path(path, &event.kind);
        }
        is_relevant
    }

    fn record_path(&mut self, path: &Path, kind: &EventKind) -> bool {
        let is_entry = self.entries.contains(path);
        match kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => {
                self.being_written.remove(path);
                is_entry
            }
            // The own reads cause such events, too.
            EventKind::Access(_) => false,
            EventKind::Modify(ModifyKind::Data(_)) if is_entry => self.begin_write(path),
            EventKind::Create(_) if is_entry && is_empty_file(path) => self.begin_write(path),
            EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)) => {
                self.being_written.remove(path);
                let is_directory = self.directories.contains(path);
                if is_directory {
                    self.lost.insert(path.to_owned());
                }
                is_entry || is_directory
            }
            _ => is_entry,
        }
    }

    fn begin_write(&mut self, path: &Path) -> bool {
        self.being_written.insert(path.to_owned());
        true
    }
}

/// Whether a created entry is a file that its creator has not written yet. A link is complete when it is created.
fn is_empty_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0)
}

struct Watches {
    /// `None` if the system has no file events for this process.
    watcher: Option<RecommendedWatcher>,
    /// Watched directories, with device and inode at the time of the watch.
    directories: BTreeMap<PathBuf, (u64, u64)>,
}

impl Watches {
    fn renew(&mut self, files: &[PathBuf], observed: &Observed) {
        let Some(watcher) = &mut self.watcher else { return };
        for _ in 0..MAX_ROUNDS {
            let entries: BTreeSet<PathBuf> = files.iter().flat_map(|file| entries_on_the_way(file)).collect();
            let wanted: BTreeSet<PathBuf> =
                entries.iter().filter_map(|entry| entry.parent()).map(Path::to_owned).collect();
            let lost = {
                let mut state = observed.lock();
                (state.entries, state.directories) = (entries.clone(), wanted.clone());
                std::mem::take(&mut state.lost)
            };
            self.directories.retain(|directory, id| {
                let is_lost = lost.iter().any(|lost| directory.starts_with(lost));
                let is_kept = wanted.contains(directory) && !is_lost && identity(directory) == Some(*id);
                if !is_kept {
                    // This fails if the watch has ended with its directory.
                    let _ = watcher.unwatch(directory);
                }
                is_kept
            });
            let mut is_extended = false;
            for directory in &wanted {
                let Some(id) = identity(directory).filter(|_| !self.directories.contains_key(directory)) else {
                    continue;
                };
                match watcher.watch(directory, RecursiveMode::NonRecursive) {
                    Ok(()) => {
                        self.directories.insert(directory.clone(), id);
                        is_extended = true;
                    }
                    // Polls would not see more than events do.
                    Err(error) if is_unreachable(&error, directory, &entries) => {}
                    Err(error) => log_fallback(&error),
                }
            }
            // Before a directory is watched, its links may change without an event.
            if !is_extended {
                return;
            }
        }
    }
}

/// Whether no file can be read in the directory: it was deleted meanwhile, or is closed to this process, as the home
/// directory of root is, in which drivers search for files.
fn is_unreachable(error: &notify::Error, directory: &Path, entries: &BTreeSet<PathBuf>) -> bool {
    let is_readable = |entry: &PathBuf| entry.parent() == Some(directory) && fs::symlink_metadata(entry).is_ok();
    match &error.kind {
        ErrorKind::PathNotFound => true,
        ErrorKind::Io(error) if error.kind() == io::ErrorKind::PermissionDenied => !entries.iter().any(is_readable),
        _ => false,
    }
}

fn identity(directory: &Path) -> Option<(u64, u64)> {
    fs::metadata(directory).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// The directory entries that decide which file a path names: each symbolic link on the way and the file itself, or the
/// first entry that does not exist. Their directories are paths without links.
fn entries_on_the_way(path: &Path) -> BTreeSet<PathBuf> {
    let mut entries = BTreeSet::new();
    let Ok(path) = std::path::absolute(path) else { return entries };
    let (mut directory, mut links) = (PathBuf::from("/"), 0);
    let mut rest: VecDeque<OsString> = path.components().map(|part| part.as_os_str().to_owned()).collect();
    while let Some(part) = rest.pop_front() {
        match Path::new(&part).components().next() {
            Some(Component::RootDir) => directory = PathBuf::from("/"),
            Some(Component::ParentDir) => drop(directory.pop()),
            Some(Component::Normal(_)) => {
                let entry = directory.join(&part);
                match fs::read_link(&entry) {
                    Ok(target) => {
                        entries.insert(entry);
                        links += 1;
                        if links > MAX_LINKS {
                            break;
                        }
                        for part in target.components().rev() {
                            rest.push_front(part.as_os_str().to_owned());
                        }
                    }
                    Err(_) if !rest.is_empty() && entry.is_dir() => directory = entry,
                    Err(_) => {
                        entries.insert(entry);
                        break;
                    }
                }
            }
            Some(Component::CurDir | Component::Prefix(_)) | None => {}
        }
    }
    entries
}

fn log_fallback(error: &notify::Error) {
    if !IS_FALLBACK_LOGGED.swap(true, Ordering::Relaxed) {
        warn!(
            target: "nodepool.NodePool",
            %error, "cannot watch the configuration files; changes are noticed by polls, within two seconds"
        );
    }
}

#[cfg(test)]
mod tests {
    use notify::event::{CreateKind, DataChange, MetadataKind, RemoveKind, RenameMode};

    use super::*;

    impl FileWatch {
        pub fn without_events() -> Self {
            Self::with(None, Arc::default())
        }

        pub fn is_being_written(&self, file: &Path) -> bool {
            self.observed.lock().being_written.contains(file)
        }
    }

    #[test]
    fn foreign_files_and_reads_are_no_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("nodepool.yaml"), "").unwrap();
        let mut state = ObservedState {
            entries: [path("nodepool.yaml")].into(),
            directories: [folder.path().to_owned()].into(),
            ..ObservedState::default()
        };
        let written = EventKind::Modify(ModifyKind::Data(DataChange::Any));
        let closed = EventKind::Access(AccessKind::Close(AccessMode::Write));
        let mut is_change = |kind: EventKind, path: PathBuf| {
            let is_relevant = state.record(&Event::new(kind).add_path(path));
            (is_relevant, state.being_written.len(), state.lost.len())
        };
        let created = EventKind::Create(CreateKind::File);
        for kind in [created, written, closed, EventKind::Remove(RemoveKind::File)] {
            assert_eq!(is_change(kind, path("other.log")), (false, 0, 0), "{kind:?}");
        }
        for mode in [AccessMode::Any, AccessMode::Read] {
            let kind = EventKind::Access(AccessKind::Close(mode));
            assert_eq!(is_change(kind, path("nodepool.yaml")), (false, 0, 0), "{kind:?}");
        }
        assert_eq!(is_change(created, path("nodepool.yaml")), (true, 1, 0));
        assert_eq!(is_change(closed, path("nodepool.yaml")), (true, 0, 0));
        assert_eq!(is_change(written, path("nodepool.yaml")), (true, 1, 0));
        let renamed = EventKind::Modify(ModifyKind::Name(RenameMode::To));
        assert_eq!(is_change(renamed, path("nodepool.yaml")), (true, 0, 0));
        let touched = EventKind::Modify(ModifyKind::Metadata(MetadataKind::Any));
        assert_eq!(is_change(touched, path("nodepool.yaml")), (true, 0, 0));
        assert_eq!(is_change(EventKind::Remove(RemoveKind::Folder), folder.path().to_owned()), (true, 0, 1));
    }

    #[test]
    fn a_directory_that_hides_its_files_causes_no_fallback() {
        let folder = tempfile::tempdir().unwrap();
        let entries = [folder.path().join("clouds.yaml")].into();
        let denied = notify::Error::io(io::ErrorKind::PermissionDenied.into());
        let limit = notify::Error::new(ErrorKind::MaxFilesWatch);
        let is_unreachable = |error| is_unreachable(error, folder.path(), &entries);
        assert!(is_unreachable(&denied) && !is_unreachable(&limit));
        fs::write(folder.path().join("clouds.yaml"), "").unwrap();
        assert!(!is_unreachable(&denied) && !is_unreachable(&limit));
    }

    #[test]
    fn a_path_depends_on_its_links_or_its_first_missing_entry() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let entries = |name: &str| -> Vec<String> {
            let entries = entries_on_the_way(&root.join(name));
            entries.iter().map(|entry| entry.strip_prefix(&root).unwrap().display().to_string()).collect()
        };
        fs::create_dir_all(root.join("volume/..1")).unwrap();
        fs::write(root.join("volume/..1/a.yaml"), "").unwrap();
        std::os::unix::fs::symlink("..1", root.join("volume/..data")).unwrap();
        std::os::unix::fs::symlink("..data/a.yaml", root.join("volume/a.yaml")).unwrap();
        std::os::unix::fs::symlink(root.join("volume"), root.join("etc")).unwrap();
        std::os::unix::fs::symlink("loop", root.join("loop")).unwrap();
        assert_eq!(entries("etc/../volume/a.yaml"), ["etc", "volume/..1/a.yaml", "volume/..data", "volume/a.yaml"]);
        assert_eq!(entries("none/of/these"), ["none"]);
        assert_eq!(entries("loop"), ["loop"]);
    }
}
