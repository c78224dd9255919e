//! Expansion of `~` in paths to the home directory.

use std::path::PathBuf;

/// Replaces a leading `~` if `HOME` is set.
pub fn expand_tilde(path: &str) -> PathBuf {
    match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => match std::env::var("HOME") {
            Ok(home) => PathBuf::from(format!("{home}{rest}")),
            Err(_) => PathBuf::from(path),
        },
        _ => PathBuf::from(path),
    }
}
