//! Configuration watch: polls the files and loads them once two polls in a row see the same changed state. A file that
//! is being written may be a valid configuration with half of the images. A broken file is logged once.

use std::future::Future;

use super::config_files::{self, ConfigStamp, LoadError, LoadedConfig};
use super::context::LauncherOptions;

/// Number of polls after which a file that changes before each poll is loaded anyway.
const MAX_POLLS: u32 = 10;

pub struct ConfigWatch {
    stamp: ConfigStamp,
    /// State of files that could not be loaded, so that their errors are logged once and not at each poll.
    broken: Option<ConfigStamp>,
    /// Changed state that the last poll did not load, and the number of polls in a row that saw a different state.
    pending: Option<(ConfigStamp, u32)>,
    is_polling: bool,
}

/// Result of a poll.
pub struct PollResult(FileState);

enum FileState {
    /// The files are those of the active configuration.
    Unchanged,
    /// The files are those that already failed to load.
    StillBroken,
    /// The files differ from the previous poll.
    Changing(ConfigStamp),
    Loaded(Box<Result<LoadedConfig, LoadError>>),
}

impl ConfigWatch {
    pub fn new(loaded: &LoadedConfig) -> Self {
        Self { stamp: loaded.stamp.clone(), broken: None, pending: None, is_polling: false }
    }

    /// Starts a poll; `None` while another one runs. The caller passes the result to `complete_poll`.
    pub fn poll(&mut self, options: &LauncherOptions) -> Option<impl Future<Output = PollResult> + 'static> {
        if std::mem::replace(&mut self.is_polling, true) {
            return None;
        }
        let (options, current, broken) = (options.clone(), self.stamp.clone(), self.broken.clone());
        let pending = self.pending.clone();
        Some(async move {
            let stamp = config_files::stamp(&options.files, &options.config, options.secure.as_deref()).await;
            if stamp == current {
                return PollResult(FileState::Unchanged);
            }
            if Some(&stamp) == broken.as_ref() {
                return PollResult(FileState::StillBroken);
            }
            let is_settled = pending.is_some_and(|(before, polls)| before == stamp || polls >= MAX_POLLS);
            if !is_settled {
                return PollResult(FileState::Changing(stamp));
            }
            let loaded = options.load_again().await;
            let read = loaded.as_ref().map_or_else(|failure| &failure.stamp, |loaded| &loaded.stamp);
            PollResult(if *read == stamp {
                FileState::Loaded(Box::new(loaded))
            } else {
                FileState::Changing(read.clone())
            })
        })
    }

    /// The new configuration, if a usable one was loaded. With a broken file the active one is kept.
    pub fn complete_poll(&mut self, poll: PollResult) -> Option<LoadedConfig> {
        self.is_polling = false;
        let loaded = match poll.0 {
            FileState::Unchanged => {
                (self.broken, self.pending) = (None, None);
                return None;
            }
            FileState::StillBroken => return None,
            FileState::Changing(stamp) => {
                let polls = self.pending.take().map_or(1, |(_, polls)| polls + 1);
                self.pending = Some((stamp, polls));
                return None;
            }
            FileState::Loaded(loaded) => *loaded,
        };
        self.pending = None;
        match loaded {
            Ok(loaded) => {
                loaded.log_warnings();
                (self.stamp, self.broken) = (loaded.stamp.clone(), None);
                Some(loaded)
            }
            Err(failure) => {
                failure.log();
                self.broken = Some(failure.stamp);
                None
            }
        }
    }

    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::actors::process::files::ConfigFileSource;

    const HEAD: &str = "zookeeper-servers: [{host: localhost}]\n";

    // A half-written file listed half of a provider's images, and the other images were deleted from its cloud.
    #[tokio::test]
    async fn changing_file_is_not_loaded_until_it_is_stable() {
        let file = PathBuf::from("nodepool.yaml");
        let files = Arc::new(Mutex::new(BTreeMap::new()));
        let write = |text: &str| drop(files.lock().unwrap().insert(file.clone(), format!("{HEAD}{text}")));
        write("labels: [{name: a}]\n");
        let options =
            LauncherOptions { files: ConfigFileSource::InMemory(files.clone()), ..LauncherOptions::new(&file) };
        let mut watch = ConfigWatch::new(&options.load().await.unwrap());
        let mut poll = async || {
            let poll = watch.poll(&options).expect("no other poll is running").await;
            watch.complete_poll(poll).map(|loaded| loaded.config.labels.len())
        };
        assert_eq!(poll().await, None, "it is the active configuration");
        for text in ["labels: []\n", "labels: [{name: a}, {name: b}]\n", "labels: [{name: a}, {name: b}, {name: c}]\n"]
        {
            write(text);
            assert_eq!(poll().await, None, "the file may be incomplete");
        }
        assert_eq!(poll().await, Some(3));
        assert_eq!(poll().await, None);
        // A file that changes before each poll is loaded eventually.
        let mut polls = 0;
        loop {
            polls += 1;
            write(&format!("labels: [{{name: a{polls}}}]\n"));
            match poll().await {
                None => assert!(polls <= MAX_POLLS),
                Some(labels) => break assert_eq!((labels, polls), (1, MAX_POLLS + 1)),
            }
        }
        write("labels: [{name: a}, {name: b}, {name: c}]\n");
        assert_eq!((poll().await, poll().await), (None, Some(3)));
        // A change that is reverted before it is loaded has no effect.
        write("labels: []\n");
        assert_eq!(poll().await, None);
        write("labels: [{name: a}, {name: b}, {name: c}]\n");
        assert_eq!((poll().await, poll().await), (None, None));
    }
}
