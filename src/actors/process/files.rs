//! Source of configuration files: the disk, or memory in a simulation.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::io::AsyncReadExt;

use python_yaml::diagnostics::{Diagnostic, Severity};
use python_yaml::parse::MAX_BYTES;
use python_yaml::tree::{Position, python_quoted};

const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Source of configuration files. Clones of `InMemory` share their files.
#[derive(Clone, Debug, Default)]
pub enum ConfigFileSource {
    #[default]
    OnDisk,
    InMemory(Arc<Mutex<BTreeMap<PathBuf, String>>>),
}

impl ConfigFileSource {
    /// Reads a file. A missing file may be about to be replaced, so it is tried `attempts` times.
    pub async fn read(&self, path: &Path, attempts: u32) -> Result<FileRead, Diagnostic> {
        for _ in 1..attempts {
            match self.read_once(path).await {
                Err(error) if error.kind() == io::ErrorKind::NotFound => tokio::time::sleep(RETRY_INTERVAL).await,
                result => return result.map_err(|error| unreadable(path, &error))?,
            }
        }
        self.read_once(path).await.map_err(|error| unreadable(path, &error))?
    }

    async fn read_once(&self, path: &Path) -> io::Result<Result<FileRead, Diagnostic>> {
        let Self::InMemory(files) = self else { return on_disk(path).await };
        let text = files.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned();
        let text = text.ok_or_else(|| io::Error::from_raw_os_error(nix::libc::ENOENT))?;
        Ok(Ok(FileRead { stamp: FileStamp::new(None, text.as_bytes()), text }))
    }

    /// Runs CPU-bound work on a blocking thread. A simulation must not use other threads.
    pub async fn run_cpu_bound<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        match self {
            Self::OnDisk => run_on_blocking_pool(work).await,
            Self::InMemory(_) => work(),
        }
    }
}

/// Runs work on a blocking thread, so that it does not delay other actors.
pub async fn run_on_blocking_pool<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => panic!("the runtime ended while a configuration was read: {error}"),
        },
    }
}

/// Time, size and content hash of a file. The hash detects edits within one tick of the file system's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStamp {
    modified: Option<SystemTime>,
    bytes: u64,
    contents: u64,
}

impl FileStamp {
    fn new(modified: Option<SystemTime>, bytes: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        Self { modified, bytes: bytes.len() as u64, contents: hasher.finish() }
    }
}

/// State of a file that another part of the program reads. It detects changes without reading the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataStamp {
    file: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl MetadataStamp {
    /// `None` if there is no such file.
    pub fn read(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            file: (metadata.dev(), metadata.ino()),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// Text of a file, and a stamp to detect changes.
pub struct FileRead {
    pub text: String,
    pub stamp: FileStamp,
}

/// Reads a file. The outer error is an I/O error; the inner one describes a file that cannot be a configuration.
async fn on_disk(path: &Path) -> io::Result<Result<FileRead, Diagnostic>> {
    let refuse = |message: &str, help: &str| {
        Ok(Err(Diagnostic::error(Position::default(), message).help(help).in_file(&path.display().to_string())))
    };
    let metadata = tokio::fs::metadata(path).await?;
    // Reading a pipe without a writer would block forever. Pipes of a shell redirection have a writer.
    if !metadata.is_file() && !path.starts_with("/dev/fd") && path != Path::new("/dev/stdin") {
        return refuse("not a file", "the path names a directory, a pipe or a device");
    }
    let mut bytes = Vec::new();
    tokio::fs::File::open(path).await?.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).await?;
    if bytes.len() > MAX_BYTES {
        return refuse("file is too large", &format!("the limit is {MAX_BYTES} bytes"));
    }
    let stamp = FileStamp::new(metadata.modified().ok(), &bytes);
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Ok(FileRead { text, stamp })),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let line = error.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
            refuse("file is not UTF-8", &format!("the first invalid byte is in line {line}"))
        }
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Diagnostic {
    let text = error.to_string();
    let plain = text.split(" (os error").next().unwrap_or(&text);
    let quoted_path = python_quoted(&path.display().to_string());
    let message = match error.raw_os_error() {
        Some(code) => format!("[Errno {code}] {plain}: {quoted_path}"),
        None => format!("{plain}: {quoted_path}"),
    };
    Diagnostic::new(Severity::Error, Position::default(), message)
}
