//! File of an export: it is replaced atomically, because it may be the only copy of the data.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Writes a file that only its owner can read. The previous file remains until the new one is completely on the disk.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    match target(path)? {
        Target::Stream => OpenOptions::new().append(true).open(path)?.write_all(text.as_bytes()),
        Target::File(path) => replace(&path, text),
    }
}

/// Whether the file is a non-empty export, which an empty one must not replace.
pub fn holds_records(path: &Path) -> io::Result<bool> {
    let Target::File(path) = target(path)? else { return Ok(false) };
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let document: Option<Value> = serde_json::from_slice(&text).ok();
    Ok(document.and_then(|document| document.as_object().map(|records| !records.is_empty())).unwrap_or(false))
}

enum Target {
    /// The path after following symbolic links.
    File(PathBuf),
    /// A pipe, a terminal, or this process's own output.
    Stream,
}

fn target(path: &Path) -> io::Result<Target> {
    let is_own_output =
        ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"].iter().any(|prefix| path.starts_with(prefix));
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() && !is_own_output => Ok(Target::File(std::fs::canonicalize(path)?)),
        Ok(found) if found.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(_) => Ok(Target::Stream),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Target::File(path.to_owned())),
        Err(error) => Err(error),
    }
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let Some(name) = path.file_name() else { return Err(ErrorKind::IsADirectory.into()) };
    let temporary = format!(".{}.{}", name.to_string_lossy(), uuid::Uuid::new_v4().simple());
    let temporary = path.with_file_name(temporary);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let replaced = write_and_sync(file, text).and_then(|()| std::fs::rename(&temporary, path));
    if replaced.is_err() {
        // The earlier error is the one to report.
        let _ = std::fs::remove_file(&temporary);
    }
    replaced
}

fn write_and_sync(mut file: File, text: &str) -> io::Result<()> {
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
