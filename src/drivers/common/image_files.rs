//! The images directory of a builder: its claimed builds, their files, their running processes and their logs.
//!
//! Only files of builds that this builder has claimed are removed, because foreign files may have any name.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, killpg};
use nix::sys::statvfs::statvfs;
use nix::unistd::{Pid, getpgid};

use nodepool_model::records::ids::{BuildId, ImageName};
use nodepool_model::records::image_build::BuildKey;

/// Contains one empty file for each build that this builder has started.
const CLAIMS_DIR: &str = ".builds";
const BUILDER_ID_FILE: &str = "builder_id.txt";
/// A disk with less free space counts as full: no image is smaller.
const MIN_FREE_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagesDir(PathBuf);

impl ImagesDir {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The id of this builder, which survives restarts; created at the first start.
    pub fn builder_id(&self) -> io::Result<String> {
        let path = self.0.join(BUILDER_ID_FILE);
        match fs::read_to_string(&path) {
            Ok(text) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
            Ok(_) => self.create_builder_id(&path),
            Err(error) if error.kind() == ErrorKind::NotFound => self.create_builder_id(&path),
            Err(error) => Err(error),
        }
    }

    /// Creates the file atomically: a truncated id would be the id of another builder.
    fn create_builder_id(&self, path: &Path) -> io::Result<String> {
        let (id, new) = (nodepool_rng::uuid().to_string(), self.0.join(format!("{BUILDER_ID_FILE}.new")));
        let mut file = fs::File::create(&new)?;
        file.write_all(id.as_bytes())?;
        file.sync_all()?;
        fs::rename(new, path)?;
        Ok(id)
    }

    /// The common prefix of a build's files; each file adds the suffix of its format.
    pub fn base(&self, key: &BuildKey) -> PathBuf {
        self.0.join(key.file_name())
    }

    pub fn file(&self, key: &BuildKey, format: &str) -> PathBuf {
        self.0.join(format!("{}.{format}", key.file_name()))
    }

    /// Records that this builder owns the build. Called before the build creates any file.
    pub fn claim(&self, key: &BuildKey) -> io::Result<()> {
        let folder = self.0.join(CLAIMS_DIR);
        fs::create_dir_all(&folder)?;
        fs::File::create(folder.join(key.file_name())).map(drop)
    }

    /// Builds that this builder started and whose files have not been removed.
    pub fn claimed(&self) -> io::Result<BTreeSet<BuildKey>> {
        let entries = match fs::read_dir(self.0.join(CLAIMS_DIR)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
            entries => entries?,
        };
        let mut claimed = BTreeSet::new();
        for entry in entries {
            if let Some((image, build)) = entry?.file_name().to_str().and_then(|name| name.rsplit_once('-')) {
                claimed.insert(BuildKey { image: ImageName::from(image), build: BuildId::from(build) });
            }
        }
        Ok(claimed)
    }

    /// Suffixes of the existing files of a build, such as `qcow2`, `qcow2.md5` and `d`.
    pub fn existing_suffixes(&self, key: &BuildKey) -> io::Result<BTreeSet<String>> {
        let prefix = format!("{}.", key.file_name());
        let mut found = BTreeSet::new();
        for entry in fs::read_dir(&self.0)? {
            let name = entry?.file_name();
            found.extend(name.to_str().and_then(|name| name.strip_prefix(&prefix)).map(str::to_owned));
        }
        Ok(found)
    }

    /// Kills the running processes of a build and removes all its files, the claim last. Ignores missing files.
    pub fn remove(&self, key: &BuildKey) -> io::Result<Vec<PathBuf>> {
        self.signal(key, Signal::SIGKILL);
        let (mut removed, mut failed) = (Vec::new(), None);
        for suffix in self.existing_suffixes(key)? {
            let path = self.file(key, &suffix);
            match remove_any(&path) {
                Ok(()) => removed.push(path),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        // The claim remains, so that the remaining files are removed later.
        if let Some(error) = failed {
            return Err(error);
        }
        ignore_not_found(fs::remove_file(self.0.join(CLAIMS_DIR).join(key.file_name())))?;
        Ok(removed)
    }

    /// Whether the disk is full.
    pub fn is_full(&self) -> bool {
        statvfs(&self.0).is_ok_and(|stats| stats.blocks_available() * stats.fragment_size() < MIN_FREE_BYTES)
    }

    /// The size of one format, in bytes on disk.
    pub fn size(&self, key: &BuildKey, format: &str) -> io::Result<u64> {
        let metadata = fs::metadata(self.file(key, format))?;
        Ok(metadata.blocks() * 512)
    }

    /// Removes one format of a build, with its checksums.
    pub fn remove_format(&self, key: &BuildKey, format: &str) -> io::Result<()> {
        ["", ".md5", ".sha256"].iter().try_for_each(|sum| remove_any(&self.file(key, &format!("{format}{sum}"))))
    }

    /// Asks the running processes of a build to terminate, so that they can unmount their file systems. False if there
    /// are none. A builder that was killed leaves its build running.
    pub fn request_termination(&self, key: &BuildKey) -> bool {
        self.signal(key, Signal::SIGTERM)
    }

    pub fn is_being_built(&self, key: &BuildKey) -> bool {
        !self.build_process_groups(key).is_empty()
    }

    fn signal(&self, key: &BuildKey, signal: Signal) -> bool {
        let groups = self.build_process_groups(key);
        for group in &groups {
            // A group that has just ended needs no signal.
            let _ = killpg(*group, signal);
        }
        !groups.is_empty()
    }

    /// The process groups of a build, recognised by the environment variable that names it.
    fn build_process_groups(&self, key: &BuildKey) -> BTreeSet<Pid> {
        let mark = format!("DIB_IMAGE_FILENAME={}\0", self.base(key).display());
        let Ok(processes) = fs::read_dir("/proc") else { return BTreeSet::new() };
        let ids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let ours = ids.filter(|id| {
            let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            environment.windows(mark.len()).any(|window| window == mark.as_bytes())
        });
        let groups: BTreeSet<Pid> = ours.filter_map(|id| getpgid(Some(Pid::from_raw(id))).ok()).collect();
        let own = getpgid(None).ok();
        groups.into_iter().filter(|group| Some(*group) != own).collect()
    }
}

/// Removes all but the newest `retention` logs of an image, and keeps at least one. A negative number keeps all.
pub fn prune_logs(folder: &Path, image: &ImageName, retention: i64) -> io::Result<Vec<PathBuf>> {
    let Ok(retention) = usize::try_from(retention) else { return Ok(Vec::new()) };
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut logs = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| is_log_of(name, image)) {
            logs.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    logs.sort();
    let surplus = logs.len().saturating_sub(retention.max(1));
    let old: Vec<PathBuf> = logs.into_iter().take(surplus).map(|(_, path)| path).collect();
    old.iter().try_for_each(|path| ignore_not_found(fs::remove_file(path)))?;
    Ok(old)
}

/// A build id consists of hexadecimal digits only, so `debian-11-…` belongs to the image `debian-11`, not to `debian`.
fn is_log_of(name: &str, image: &ImageName) -> bool {
    let id = name.strip_prefix(image.as_str()).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".log"));
    id.is_some_and(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn remove_any(path: &Path) -> io::Result<()> {
    let is_folder = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?.is_dir(),
    };
    ignore_not_found(if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) })
}

fn ignore_not_found(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "1e998824122a4ab296c43fedc6d46c1a";

    fn key(image: &str) -> BuildKey {
        BuildKey { image: image.into(), build: ID.into() }
    }

    fn touch(folder: &Path, names: &[&str]) {
        names.iter().for_each(|name| fs::write(folder.join(name), "x").unwrap());
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_builder_id_is_created_once_and_reused() {
        let folder = tempfile::tempdir().unwrap();
        let images = ImagesDir::new(folder.path());
        let id = images.builder_id().unwrap();
        assert_eq!(uuid::Uuid::parse_str(&id).unwrap().get_version_num(), 4);
        assert_eq!(images.builder_id().unwrap(), id);
        assert_eq!(fs::read_to_string(folder.path().join("builder_id.txt")).unwrap(), id);
        assert_eq!(names(folder.path()), ["builder_id.txt"]);
    }

    #[test]
    fn removing_a_build_removes_only_its_own_files() {
        let folder = tempfile::tempdir().unwrap();
        let images = ImagesDir::new(folder.path());
        images.claim(&key("debian")).unwrap();
        images.claim(&key("debian-arm")).unwrap();
        let ours = [".qcow2", ".qcow2.md5", ".qcow2.sha256", ".raw"].map(|suffix| format!("debian-{ID}{suffix}"));
        touch(folder.path(), &ours.each_ref().map(String::as_str));
        fs::create_dir_all(folder.path().join(format!("debian-{ID}.d/deep"))).unwrap();
        let others = ["notes-2024.txt", "debian-11.qcow2", &format!("debian-{ID}0.raw"), &format!("debian-{ID}")];
        touch(folder.path(), &others);
        assert_eq!(images.claimed().unwrap(), BTreeSet::from([key("debian"), key("debian-arm")]));
        assert_eq!(images.remove(&key("debian")).unwrap().len(), 5);
        assert_eq!(images.remove(&key("debian")).unwrap().len(), 0);
        let mut remaining: Vec<&str> = others.into_iter().chain([".builds"]).collect();
        remaining.sort_unstable();
        assert_eq!(names(folder.path()), remaining);
        assert_eq!(images.claimed().unwrap(), BTreeSet::from([key("debian-arm")]));
    }

    #[test]
    fn build_processes_are_killed_before_their_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let images = ImagesDir::new(folder.path());
        let mut command = std::process::Command::new("sleep");
        command.arg("1000").env("DIB_IMAGE_FILENAME", images.base(&key("debian")));
        let mut child = std::os::unix::process::CommandExt::process_group(&mut command, 0).spawn().unwrap();
        images.claim(&key("debian")).unwrap();
        images.remove(&key("other")).unwrap();
        assert!(child.try_wait().unwrap().is_none());
        images.remove(&key("debian")).unwrap();
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn prune_logs_keeps_the_newest_logs_and_ignores_other_images() {
        let folder = tempfile::tempdir().unwrap();
        let others = ["debian-11-abc.log", "debian-abc.log.bak", "debian-xyz.log"];
        touch(folder.path(), &others);
        for (number, name) in ["debian-a.log", "debian-b.log", "debian-c.log"].iter().enumerate() {
            touch(folder.path(), &[name]);
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000 + number as u64);
            fs::File::options().append(true).open(folder.path().join(name)).unwrap().set_modified(time).unwrap();
        }
        let prune = |retention| prune_logs(folder.path(), &"debian".into(), retention).unwrap().len();
        assert_eq!((prune(-1), prune(3), prune(2), prune(0)), (0, 0, 1, 1));
        assert_eq!(names(folder.path()), ["debian-11-abc.log", "debian-abc.log.bak", "debian-c.log", "debian-xyz.log"]);
    }
}
