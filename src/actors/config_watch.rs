//! Looks whether the configuration's files changed, and loads them if they did. Broken files are told once.

use std::future::Future;

use super::config_files::{self, LoadError, Loaded, Stamp};
use super::shared::LauncherOptions;

pub struct ConfigWatch {
    stamp: Stamp,
    /// A file that could not be loaded; said once, not every second.
    broken: Option<Stamp>,
    loading: bool,
}

/// What a look has found.
pub struct Look(Found);

enum Found {
    /// What is in force.
    Known,
    /// What was broken before.
    Broken,
    New(Box<Result<Loaded, LoadError>>),
}

impl ConfigWatch {
    pub fn new(loaded: &Loaded) -> Self {
        Self { stamp: loaded.stamp.clone(), broken: None, loading: false }
    }

    /// Nothing while a look is under way. What it finds is to be given to `seen`.
    pub fn look(&mut self, options: &LauncherOptions) -> Option<impl Future<Output = Look> + 'static> {
        if std::mem::replace(&mut self.loading, true) {
            return None;
        }
        let (options, known, broken) = (options.clone(), self.stamp.clone(), self.broken.clone());
        Some(async move {
            let stamp = config_files::stamp(&options.files, &options.config, options.secure.as_deref()).await;
            if stamp == known {
                return Look(Found::Known);
            }
            if Some(&stamp) == broken.as_ref() {
                return Look(Found::Broken);
            }
            Look(Found::New(Box::new(options.load_again().await)))
        })
    }

    /// The new configuration, if there is one that can be used. A broken file keeps the running one.
    pub fn seen(&mut self, look: Look) -> Option<Loaded> {
        self.loading = false;
        let loaded = match look.0 {
            Found::Known => {
                self.broken = None;
                return None;
            }
            Found::Broken => return None,
            Found::New(loaded) => *loaded,
        };
        match loaded {
            Ok(loaded) => {
                loaded.tell();
                (self.stamp, self.broken) = (loaded.stamp.clone(), None);
                Some(loaded)
            }
            Err(failure) => {
                failure.tell();
                self.broken = Some(failure.stamp);
                None
            }
        }
    }

    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }
}
