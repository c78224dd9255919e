//! Looks whether the configuration's files changed, and loads them if they did and are so for two looks: what somebody is just writing
//! may be a configuration all the same, with half of the images. Broken files are told once.

use std::future::Future;

use super::config_files::{self, LoadError, LoadError, LoadedConfig};
use super::context::LauncherOptions;

/// What is another file at each look is loaded all the same after so many: somebody may write it anew every second.
const MOST_LOOKS: u32 = 10;

pub struct ConfigWatch {
    stamp: ConfigStamp,
    /// A file that could not be loaded; said once, not every second.
    broken: Option<ConfigStamp>,
    /// What the last look saw and did not load, and how many looks in a row have found something else.
    pending: Option<(ConfigStamp, u32)>,
    loading: bool,
}

/// What a look has found.
pub struct Look(Found);

enum Found {
    /// What is in force.
    Known,
    /// What was broken before.
    Broken,
    /// It was different a moment ago.
    Changing(ConfigStamp),
    New(Box<Result<LoadedConfig, LoadError>>),
}

impl ConfigWatch {
    pub fn new(loaded: &LoadedConfig) -> Self {
        Self { stamp: loaded.stamp.clone(), broken: None, pending: None, loading: false }
    }

    /// Nothing while a look is under way. What it finds is to be given to `seen`.
    pub fn look(&mut self, options: &LauncherOptions) -> Option<impl Future<Output = Look> + 'static> {
        if std::mem::replace(&mut self.loading, true) {
            return None;
        }
        let (options, known, broken) = (options.clone(), self.stamp.clone(), self.broken.clone());
        let pending = self.pending.clone();
        Some(async move {
            let stamp = config_files::stamp(&options.files, &options.config, options.secure.as_deref()).await;
            if stamp == known {
                return Look(Found::Known);
            }
            if Some(&stamp) == broken.as_ref() {
                return Look(Found::Broken);
            }
            let is_settled = pending.is_some_and(|(before, looks)| before == stamp || looks >= MOST_LOOKS);
            if !is_settled {
                return Look(Found::Changing(stamp));
            }
            let loaded = options.load_again().await;
            let read = loaded.as_ref().map_or_else(|failure| &failure.stamp, |loaded| &loaded.stamp);
            Look(if *read == stamp { Found::New(Box::new(loaded)) } else { Found::Changing(read.clone()) })
        })
    }

    /// The new configuration, if there is one that can be used. A broken file keeps the running one.
    pub fn seen(&mut self, look: Look) -> Option<LoadedConfig> {
        self.loading = false;
        let loaded = match look.0 {
            Found::Known => {
                (self.broken, self.pending) = (None, None);
                return None;
            }
            Found::Broken => return None,
            Found::Changing(stamp) => {
                let looks = self.pending.take().map_or(1, |(_, looks)| looks + 1);
                self.pending = Some((stamp, looks));
                return None;
            }
            Found::New(loaded) => *loaded,
        };
        self.pending = None;
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
    async fn what_is_just_being_written_is_not_loaded() {
        let file = PathBuf::from("nodepool.yaml");
        let files = Arc::new(Mutex::new(BTreeMap::new()));
        let write = |text: &str| drop(files.lock().unwrap().insert(file.clone(), format!("{HEAD}{text}")));
        write("labels: [{name: a}]\n");
        let options = LauncherOptions { files: ConfigFileSource::InMemory(files.clone()), ..LauncherOptions::new(&file) };
        let mut watch = ConfigWatch::new(&options.load().await.unwrap());
        let mut look = async || {
            let look = watch.look(&options).expect("no other look is under way").await;
            watch.seen(look).map(|loaded| loaded.config.labels.len())
        };
        assert_eq!(look().await, None, "it is in force");
        for text in ["labels: []\n", "labels: [{name: a}, {name: b}]\n", "labels: [{name: a}, {name: b}, {name: c}]\n"]
        {
            write(text);
            assert_eq!(look().await, None, "it may not be all");
        }
        assert_eq!(look().await, Some(3));
        assert_eq!(look().await, None);
        // What is written anew all the time is loaded some time.
        let mut looks = 0;
        loop {
            looks += 1;
            write(&format!("labels: [{{name: a{looks}}}]\n"));
            match look().await {
                None => assert!(looks <= MOST_LOOKS),
                Some(labels) => break assert_eq!((labels, looks), (1, MOST_LOOKS + 1)),
            }
        }
        write("labels: [{name: a}, {name: b}, {name: c}]\n");
        assert_eq!((look().await, look().await), (None, Some(3)));
        // What was changed and changed back is in force all the time.
        write("labels: []\n");
        assert_eq!(look().await, None);
        write("labels: [{name: a}, {name: b}, {name: c}]\n");
        assert_eq!((look().await, look().await), (None, None));
    }
}
