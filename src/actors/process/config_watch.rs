//! Looks whether the configuration's files changed, and loads them if they did and are so for two looks: what somebody is just writing
//! may be a configuration all the same, with half of the images. Broken files are told once.

use std::future::Future;

use super::config_files::{self, ConfigStamp, LoadError, LoadedConfig};
use super::context::LauncherOptions;

/// What is another file at each look is loaded all the same after so many: somebody may write it anew every second.
const MAX_POLLS: u32 = 10;

pub struct ConfigWatch {
    stamp: ConfigStamp,
    /// A file that could not be loaded; said once, not every second.
    broken: Option<ConfigStamp>,
    /// What the last look saw and did not load, and how many looks in a row have found something else.
    pending: Option<(ConfigStamp, u32)>,
    is_polling: bool,
}

/// What a look has found.
pub struct PollResult(FileState);

enum FileState {
    /// What is in force.
    Unchanged,
    /// What was broken before.
    StillBroken,
    /// It was different a moment ago.
    Changing(ConfigStamp),
    Loaded(Box<Result<LoadedConfig, LoadError>>),
}

impl ConfigWatch {
    pub fn new(loaded: &LoadedConfig) -> Self {
        Self { stamp: loaded.stamp.clone(), broken: None, pending: None, is_polling: false }
    }

    /// Nothing while a look is under way. What it finds is to be given to `seen`.
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

    /// The new configuration, if there is one that can be used. A broken file keeps the running one.
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

    // A provider's images were half of what they are for a moment, and the others were deleted from its cloud.
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
            let poll = watch.poll(&options).expect("no other poll is under way").await;
            watch.complete_poll(poll).map(|loaded| loaded.config.labels.len())
        };
        assert_eq!(poll().await, None, "it is in force");
        for text in ["labels: []\n", "labels: [{name: a}, {name: b}]\n", "labels: [{name: a}, {name: b}, {name: c}]\n"]
        {
            write(text);
            assert_eq!(poll().await, None, "it may not be all");
        }
        assert_eq!(poll().await, Some(3));
        assert_eq!(poll().await, None);
        // What is written anew all the time is loaded some time.
        let mut looks = 0;
        loop {
            looks += 1;
            write(&format!("labels: [{{name: a{looks}}}]\n"));
            match poll().await {
                None => assert!(looks <= MAX_POLLS),
                Some(labels) => break assert_eq!((labels, looks), (1, MAX_POLLS + 1)),
            }
        }
        write("labels: [{name: a}, {name: b}, {name: c}]\n");
        assert_eq!((poll().await, poll().await), (None, Some(3)));
        // What was changed and changed back is in force all the time.
        write("labels: []\n");
        assert_eq!(poll().await, None);
        write("labels: [{name: a}, {name: b}, {name: c}]\n");
        assert_eq!((poll().await, poll().await), (None, None));
    }
}
