//! Times of change of the files that a driver reads besides its section.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use nodepool_driver::driver::NeedsReopen;

/// Files with their times of change; `None` for one that does not exist.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileStamps(Vec<(PathBuf, Option<SystemTime>)>);

impl FileStamps {
    /// Taken before the files are read, so that a concurrent write is detected later.
    pub fn read(files: Vec<PathBuf>) -> Self {
        let changed = |path: &PathBuf| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
        Self(files.into_iter().map(|path| (path.clone(), changed(&path))).collect())
    }

    /// Opens the driver again after a change of one of the files.
    pub fn needs_reopen(&self) -> NeedsReopen {
        let before = self.clone();
        let files: Vec<PathBuf> = self.0.iter().map(|(path, _)| path.clone()).collect();
        let checked = files.clone();
        NeedsReopen { files, check: Arc::new(move || Self::read(checked.clone()) != before) }
    }
}
