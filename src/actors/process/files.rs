//! Where configuration files are read: on disk, or in memory where a simulation lives.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::io::AsyncReadExt;

use python_yaml::diagnostics::{Diagnostic, Severity};
use python_yaml::parse::MAX_BYTES;
use python_yaml::tree::{Position, python_quoted};

const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Clones of those in memory are the same files.
#[derive(Clone, Debug, Default)]
pub enum ConfigFileSource {
    #[default]
    OnDisk,
    InMemory(Arc<Mutex<BTreeMap<PathBuf, String>>>),
}

impl ConfigFileSource {
    /// A file that is not there may be about to be replaced, and is looked for so often.
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

    /// Long work on what was read. Where time is simulated no other thread may take part.
    pub async fn run_cpu_bound<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        match self {
            Self::OnDisk => run_on_blocking_pool(work).await,
            Self::InMemory(_) => work(),
        }
    }
}

/// On a thread where it holds nobody up.
pub async fn run_on_blocking_pool<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => panic!("the runtime ended while a configuration was read: {error}"),
        },
    }
}

/// Time and size change with nearly every edit; the contents tell of the edits within one tick of the clock.
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

/// A file, and how to tell it from a later one.
pub struct FileRead {
    pub text: String,
    pub stamp: FileStamp,
}

/// Outside: the system refused. Inside: the system gave something that is no configuration.
async fn on_disk(path: &Path) -> io::Result<Result<FileRead, Diagnostic>> {
    let refuse = |message: &str, help: &str| {
        Ok(Err(Diagnostic::error(Position::default(), message).help(help).in_file(&path.display().to_string())))
    };
    let metadata = tokio::fs::metadata(path).await?;
    // A pipe that nobody writes to would be waited for without end, unless the shell has just made it.
    if !metadata.is_file() && !path.starts_with("/dev/fd") && path != Path::new("/dev/stdin") {
        return refuse("not a file", "the path names a directory, a pipe or a device");
    }
    let mut bytes = Vec::new();
    tokio::fs::File::open(path).await?.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).await?;
    if bytes.len() > MAX_BYTES {
        return refuse("file is too large", &format!("{MAX_BYTES} bytes is the most this program reads"));
    }
    let stamp = FileStamp::new(metadata.modified().ok(), &bytes);
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Ok(FileRead { text, stamp })),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let line = error.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
            refuse("file is not UTF-8", &format!("the first byte that cannot be read is in line {line}"))
        }
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Diagnostic {
    let text = error.to_string();
    let plain = text.split(" (os error").next().unwrap_or(&text);
    let shown = python_quoted(&path.display().to_string());
    let message = match error.raw_os_error() {
        Some(code) => format!("[Errno {code}] {plain}: {shown}"),
        None => format!("{plain}: {shown}"),
    };
    Diagnostic::new(Severity::Error, Position::default(), message)
}
