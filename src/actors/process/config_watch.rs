//! Configuration watch: loads the files again once they have changed and are complete. File events name both moments.
//! Polls find what events miss: two in a row must see the same changed state, because a file that is being written may
//! be a valid configuration with half of the images. A broken file is logged once.

use futures::{Stream, stream};

use super::config_files::LoadedConfig;
use super::config_status::{ConfigStatus, WatchedStamp};
use super::file_watch::FileWatch;
use super::files::ConfigFileSource;

/// Number of polls after which a file that changes before each poll is loaded anyway.
const MAX_POLLS: u32 = 10;

pub struct ConfigWatch {
    status: ConfigStatus,
    /// `None` for files in memory.
    files: Option<FileWatch>,
    /// Changed state that the last poll did not load, and the number of polls in a row that saw a different state.
    pending: Option<(WatchedStamp, u32)>,
    is_started: bool,
}

/// Reason for a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trigger {
    /// The interval has passed since the last poll.
    Interval,
    /// Drivers have read further files.
    FurtherFiles,
    /// Files have changed, and their writers have closed them.
    Complete,
}

impl ConfigWatch {
    pub fn new(status: ConfigStatus) -> Self {
        let files = match status.options.files {
            ConfigFileSource::OnDisk => Some(FileWatch::new()),
            ConfigFileSource::InMemory(_) => None,
        };
        Self { status, files, pending: None, is_started: false }
    }

    /// All configurations that are loaded from now on.
    pub fn into_stream(self) -> impl Stream<Item = LoadedConfig> {
        stream::unfold(self, |mut watch| async { Some((watch.next().await, watch)) })
    }

    /// Waits for the next usable configuration. With a broken file the active one is kept.
    pub async fn next(&mut self) -> LoadedConfig {
        loop {
            // Files may have changed between the load and the start of the watch.
            let trigger = if self.is_started { self.wait().await } else { Trigger::Interval };
            self.is_started = true;
            if let Some(files) = &self.files {
                files.renew(self.status.paths()).await;
            }
            if let Some(loaded) = self.poll(trigger).await {
                return loaded;
            }
        }
    }

    async fn wait(&mut self) -> Trigger {
        let settled = async {
            match &mut self.files {
                Some(files) => files.settled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = settled => Trigger::Complete,
            () = self.status.drivers_changed() => Trigger::FurtherFiles,
            () = tokio::time::sleep(self.status.options.config_check.to_duration()) => Trigger::Interval,
        }
    }

    async fn poll(&mut self, trigger: Trigger) -> Option<LoadedConfig> {
        let seen = self.status.read().await;
        if !self.status.is_unknown(&seen.config) && !self.status.needs_reopen(&seen).await {
            self.pending = None;
            self.forget_writers(trigger);
            self.status.confirm(seen);
            return None;
        }
        let is_complete = trigger == Trigger::Complete && seen.config.is_complete(&self.status.options);
        // Other polls may follow the previous one within milliseconds, while the file is still being written.
        let is_later = trigger == Trigger::Interval;
        let is_settled =
            self.pending.as_ref().is_some_and(|(before, polls)| is_later && *before == seen || *polls >= MAX_POLLS);
        if !is_complete && !is_settled {
            self.postpone(seen);
            return None;
        }
        let loaded = self.status.options.load_again().await;
        let read = loaded.as_ref().map_or_else(|failure| &failure.stamp, |loaded| &loaded.stamp);
        let is_interrupted = !is_settled && self.files.as_ref().is_some_and(FileWatch::has_new_change);
        if *read != seen.config || is_interrupted {
            self.postpone(WatchedStamp { config: read.clone(), ..seen });
            return None;
        }
        self.pending = None;
        self.forget_writers(trigger);
        match loaded {
            Ok(loaded) => {
                loaded.log_warnings();
                self.status.record_loaded(&loaded, seen);
                Some(loaded)
            }
            Err(failure) => {
                failure.log();
                self.status.record_broken(seen);
                None
            }
        }
    }

    fn postpone(&mut self, seen: WatchedStamp) {
        let polls = self.pending.take().map_or(1, |(_, polls)| polls + 1);
        self.pending = Some((seen, polls));
    }

    /// A poll has found the files unchanged for an interval, so the processes that have one open write no more.
    fn forget_writers(&self, trigger: Trigger) {
        if trigger == Trigger::Interval
            && let Some(files) = &self.files
        {
            files.forget_writers();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs::{self, File};
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::actors::process::config_status::DriverFiles;
    use crate::actors::process::context::LauncherOptions;
    use nodepool_driver::driver::NeedsReopen;
    use nodepool_model::records::time::Seconds;

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
        let mut watch = ConfigWatch::new(ConfigStatus::new(&options, &options.load().await.unwrap()));
        let mut poll = async || watch.poll(Trigger::Interval).await.map(|loaded| loaded.config.labels.len());
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

    fn yaml(labels: &[&str]) -> String {
        let labels: String = labels.iter().map(|label| format!("{{name: {label}}}, ")).collect();
        format!("{HEAD}labels: [{labels}]\n")
    }

    /// A watch of files on disk that makes no polls at intervals, so that only events cause loads.
    struct Watched {
        folder: tempfile::TempDir,
        watch: ConfigWatch,
    }

    impl Watched {
        async fn start(prepare: impl FnOnce(&Path, &mut LauncherOptions)) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let mut options = LauncherOptions::new(folder.path().join("nodepool.yaml"));
            options.config_check = Seconds(1e6);
            fs::write(&options.config, yaml(&["a"])).unwrap();
            prepare(folder.path(), &mut options);
            let mut watch = ConfigWatch::new(ConfigStatus::new(&options, &options.load().await.unwrap()));
            watch.files.as_ref().unwrap().renew(watch.status.paths()).await;
            watch.is_started = true;
            Self { folder, watch }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        /// Waits for the next configuration; returns its labels.
        async fn labels(&mut self) -> Vec<String> {
            self.watch.next().await.config.labels.keys().map(ToString::to_string).collect()
        }
    }

    /// Replaces the link `..data`, as Kubernetes does when a ConfigMap changes.
    fn swap_data(folder: &Path, version: &str, text: &str) {
        let target = format!("..{version}");
        fs::create_dir(folder.join(&target)).unwrap();
        fs::write(folder.join(&target).join("nodepool.yaml"), text).unwrap();
        symlink(&target, folder.join("..data_tmp")).unwrap();
        let before = fs::read_link(folder.join("..data")).ok();
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
        if let Some(before) = before {
            fs::remove_dir_all(folder.join(before)).unwrap();
        }
    }

    #[tokio::test]
    async fn events_load_a_file_that_is_written_renamed_or_created_again() {
        let mut watched = Watched::start(|_, _| {}).await;
        let file = watched.path("nodepool.yaml");
        fs::write(&file, yaml(&["b"])).unwrap();
        assert_eq!(watched.labels().await, ["b"]);
        fs::write(watched.path(".nodepool.yaml.swp"), yaml(&["c"])).unwrap();
        fs::rename(watched.path(".nodepool.yaml.swp"), &file).unwrap();
        assert_eq!(watched.labels().await, ["c"]);
        fs::remove_file(&file).unwrap();
        fs::write(&file, yaml(&["d"])).unwrap();
        assert_eq!(watched.labels().await, ["d"]);
        // A link instead of the file, and its target.
        fs::write(watched.path("target"), yaml(&["e"])).unwrap();
        fs::remove_file(&file).unwrap();
        symlink("target", &file).unwrap();
        assert_eq!(watched.labels().await, ["e"]);
        fs::write(watched.path("target"), yaml(&["f"])).unwrap();
        assert_eq!(watched.labels().await, ["f"]);
    }

    #[tokio::test]
    async fn events_follow_each_swap_of_a_config_map() {
        let mut watched = Watched::start(|folder, options| {
            fs::create_dir(folder.join("volume")).unwrap();
            swap_data(&folder.join("volume"), "1", &yaml(&["a"]));
            options.config = folder.join("volume/nodepool.yaml");
            symlink("..data/nodepool.yaml", &options.config).unwrap();
        })
        .await;
        for version in ["2", "3", "4"] {
            swap_data(&watched.path("volume"), version, &yaml(&[version]));
            assert_eq!(watched.labels().await, [version]);
        }
        fs::write(watched.path("volume/..4/nodepool.yaml"), yaml(&["5"])).unwrap();
        assert_eq!(watched.labels().await, ["5"]);
    }

    #[tokio::test]
    async fn events_follow_a_directory_that_is_moved_or_deleted() {
        let mut watched = Watched::start(|folder, options| {
            fs::create_dir_all(folder.join("etc/nodepool")).unwrap();
            options.config = folder.join("etc/nodepool/nodepool.yaml");
            fs::write(&options.config, yaml(&["a"])).unwrap();
        })
        .await;
        let write = |watched: &Watched, label: &str| {
            fs::create_dir_all(watched.path("new/nodepool")).unwrap();
            fs::write(watched.path("new/nodepool/nodepool.yaml"), yaml(&[label])).unwrap();
        };
        write(&watched, "b");
        fs::rename(watched.path("etc/nodepool"), watched.path("etc/old")).unwrap();
        fs::rename(watched.path("new/nodepool"), watched.path("etc/nodepool")).unwrap();
        assert_eq!(watched.labels().await, ["b"]);
        fs::remove_dir_all(watched.path("etc/nodepool")).unwrap();
        write(&watched, "c");
        fs::rename(watched.path("new/nodepool"), watched.path("etc/nodepool")).unwrap();
        assert_eq!(watched.labels().await, ["c"]);
        fs::write(watched.path("etc/nodepool/nodepool.yaml"), yaml(&["d"])).unwrap();
        assert_eq!(watched.labels().await, ["d"]);
    }

    #[tokio::test]
    async fn events_load_a_changed_secure_file() {
        let secure = |port: u16| format!("zookeeper-servers: [{{host: localhost, port: {port}}}]\n");
        let mut watched = Watched::start(|folder, options| {
            let path = folder.join("secure.conf");
            fs::write(&path, secure(2181)).unwrap();
            options.secure = Some(path);
        })
        .await;
        fs::write(watched.path("secure.conf"), secure(2182)).unwrap();
        assert_eq!(watched.watch.next().await.config.zookeeper.servers[0].port, 2182);
    }

    #[tokio::test]
    async fn a_file_is_loaded_once_its_writer_has_closed_it() {
        let mut watched = Watched::start(|_, _| {}).await;
        let path = watched.path("nodepool.yaml");
        let mut file = File::create(&path).unwrap();
        file.write_all(yaml(&["b"]).as_bytes()).unwrap();
        let files = watched.watch.files.as_ref().unwrap();
        let until_seen = async {
            while !files.is_being_written(&path) {
                tokio::task::yield_now().await;
            }
        };
        until_seen.await;
        assert!(watched.watch.poll(Trigger::Complete).await.is_none(), "a writer began after the last change");
        let rest = async {
            file.write_all(b"min-ready: [\n").unwrap();
            file.set_len(0).unwrap();
            fs::write(&path, yaml(&["c"])).unwrap();
            drop(file);
        };
        let (labels, ()) = tokio::join!(watched.labels(), rest);
        assert_eq!(labels, ["c"]);
    }

    #[tokio::test]
    async fn broken_contents_are_rejected_once_and_hold_no_job_back() {
        let mut watched = Watched::start(|_, _| {}).await;
        let (file, status) = (watched.path("nodepool.yaml"), watched.watch.status.clone());
        let active = status.config();
        assert!(status.may_begin(&active).await);
        fs::write(&file, "labels: [").unwrap();
        assert!(!status.may_begin(&active).await, "the change was not seen yet");
        let rejected = async {
            while !status.is_broken() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            _ = watched.watch.next() => panic!("a broken file was loaded"),
            () = rejected => {}
        }
        assert!(status.may_begin(&active).await);
        fs::write(&file, yaml(&["b"])).unwrap();
        assert_eq!(watched.labels().await, ["b"]);
        assert!(!status.is_broken());
        assert!(!status.may_begin(&active).await, "another configuration is active");
        assert!(status.may_begin(&status.config()).await);
    }

    #[tokio::test(start_paused = true)]
    async fn files_that_never_stop_changing_hold_no_job_back_forever() {
        let watched = Watched::start(|_, _| {}).await;
        let (file, status) = (watched.path("nodepool.yaml"), &watched.watch.status);
        let (active, mut held) = (status.config(), 0);
        loop {
            fs::write(&file, yaml(&[&format!("a{held}")])).unwrap();
            if status.may_begin(&active).await {
                break;
            }
            held += 1;
            tokio::time::advance(std::time::Duration::from_secs(1)).await;
        }
        assert_eq!(held, 11);
        // A later change is another matter.
        tokio::time::advance(std::time::Duration::from_secs(60)).await;
        assert!(!status.may_begin(&active).await);
    }

    #[tokio::test]
    async fn events_of_files_that_a_driver_reads_cause_its_check() {
        let mut watched = Watched::start(|_, _| {}).await;
        let (status, differs) = (watched.watch.status.clone(), Arc::new(AtomicBool::new(false)));
        let (clouds, result) = (watched.path("openstack/clouds.yaml"), differs.clone());
        let running =
            NeedsReopen { files: vec![clouds.clone()], check: Arc::new(move || result.load(Ordering::Relaxed)) };
        let failed = watched.path("failed.yaml");
        status.set_driver_files(DriverFiles { running: vec![running], failed: vec![failed.clone()] });
        let change = async {
            while status.is_unchecked() {
                tokio::task::yield_now().await;
            }
            differs.store(true, Ordering::Relaxed);
            fs::create_dir(clouds.parent().unwrap()).unwrap();
            fs::write(&clouds, "clouds: {}\n").unwrap();
        };
        let active = status.config();
        let (loaded, ()) = tokio::join!(watched.watch.next(), change);
        assert!(!Arc::ptr_eq(&active, &loaded.config));
        differs.store(false, Ordering::Relaxed);
        // A provider that failed to start may start now.
        fs::write(&failed, "clouds: {}\n").unwrap();
        watched.watch.next().await;
    }

    #[tokio::test]
    async fn a_poll_for_further_files_confirms_no_change() {
        let mut watched = Watched::start(|_, _| {}).await;
        watched.watch.files = None;
        fs::write(watched.path("nodepool.yaml"), yaml(&["b"])).unwrap();
        for trigger in [Trigger::Interval, Trigger::FurtherFiles, Trigger::FurtherFiles] {
            assert!(watched.watch.poll(trigger).await.is_none(), "the file may be incomplete");
        }
        assert!(watched.watch.poll(Trigger::Interval).await.is_some());
    }

    #[tokio::test]
    async fn without_events_two_polls_load_a_changed_file() {
        let mut watched = Watched::start(|_, options| options.config_check = Seconds(0.01)).await;
        watched.watch.files = Some(FileWatch::without_events());
        fs::write(watched.path("nodepool.yaml"), yaml(&["b"])).unwrap();
        assert_eq!(watched.labels().await, ["b"]);
    }
}
