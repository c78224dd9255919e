//! Paths as people write them: `~` is the home directory.

use std::path::PathBuf;

/// With a leading `~` replaced, where there is a home directory.
pub fn expand_tilde(path: &str) -> PathBuf {
    match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => match std::env::var("HOME") {
            Ok(home) => PathBuf::from(format!("{home}{rest}")),
            Err(_) => PathBuf::from(path),
        },
        _ => PathBuf::from(path),
    }
}
