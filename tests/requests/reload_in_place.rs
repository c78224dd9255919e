//! Reloads that keep TaskManagers and the registrations of pools.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use nodepool::actors::provider::jobs::ProviderHandle;
use nodepool::actors::provider::providers::{ExtraDrivers, StartProvider};
use nodepool_drivers::{OpenDriver, static_nodes};
use nodepool_model::config::ProviderConfig;
use nodepool_model::records::request::RequestState;
use python_yaml::diagnostics::Diagnostic;
use testkit::in_process_launcher::{Consumer, InProcessDaemon, on_paused_time, start_process, until, yaml};
use zookeeper_server::types::Stat;

/// The static driver, and the number of times it was opened: once for each TaskManager.
struct CountingDrivers(Arc<AtomicUsize>);

impl ExtraDrivers for CountingDrivers {
    fn names(&self) -> Vec<&'static str> {
        vec!["static"]
    }

    fn open(&self, section: &ProviderConfig, start: StartProvider) -> Result<ProviderHandle, Vec<Diagnostic>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(start.with(static_nodes::open(section)?))
    }
}

fn counted(text: &str) -> (InProcessDaemon, Arc<AtomicUsize>) {
    let (mut process, opened) = (InProcessDaemon::new(text), Arc::new(AtomicUsize::new(0)));
    let shared = Arc::get_mut(&mut process.shared).expect("no other handle exists yet");
    shared.drivers = Some(Box::new(CountingDrivers(opened.clone())));
    (process, opened)
}

/// The only registered pool: the name and the stat of its znode, its labels, and its id.
async fn pool(consumer: &Consumer) -> (String, Stat, Vec<String>, String) {
    let (mut names, _) = consumer.zk.children("/nodepool/components/pool").await.unwrap();
    assert_eq!(names.len(), 1);
    let name = names.remove(0);
    let (data, stat) = consumer.zk.get(&format!("/nodepool/components/pool/{name}")).await.unwrap();
    let record: serde_json::Value = serde_json::from_slice(&data).unwrap();
    let labels = serde_json::from_value(record["supported_labels"].clone()).unwrap();
    (name, stat, labels, record["id"].as_str().unwrap().to_owned())
}

/// Changes the files, and waits until the launcher uses them.
async fn loaded_after(process: &InProcessDaemon, change: impl FnOnce()) {
    let stamp = || process.shared.active_config().map(|loaded| loaded.stamp);
    let before = stamp();
    change();
    until("the file to be loaded", async || stamp() != before).await;
}

fn touch(process: &InProcessDaemon) {
    let later = SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    std::fs::File::options().append(true).open(&process.file).unwrap().set_modified(later).unwrap();
}

fn replace(process: &InProcessDaemon, text: &str) {
    let new = process.file.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, &process.file).unwrap();
}

#[test]
fn a_touched_file_replaces_no_task_manager_or_registration() {
    on_paused_time(async {
        let text = yaml("lab", &["name: fake-h1, labels: [a]"], "");
        let (process, opened) = counted(&text);
        let (zookeeper, consumer, process) = start_process(process, 1).await;
        let (before, zxid) = (pool(&consumer).await, zookeeper.last_zxid());
        loaded_after(&process, || touch(&process)).await;
        tokio::time::sleep(Duration::from_secs(300)).await;
        // A comment changes the file and nothing else.
        loaded_after(&process, || replace(&process, &format!("# A comment.\n{text}"))).await;
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(opened.load(Ordering::Relaxed), 1);
        assert_eq!(pool(&consumer).await, before);
        assert_eq!(zookeeper.last_zxid(), zxid, "nothing is written");
        let id = consumer.submit_labels(&["a"]).await;
        assert_eq!(consumer.wait_for_end(&id).await.state, RequestState::Fulfilled);
    });
}

#[test]
fn an_added_label_updates_the_existing_registration() {
    on_paused_time(async {
        let (process, opened) = counted(&yaml("lab", &["name: fake-h1, labels: [a]"], ""));
        let (_zookeeper, consumer, process) = start_process(process, 1).await;
        let (name, first, labels, id) = pool(&consumer).await;
        assert_eq!(labels, ["a"]);
        let more = yaml("lab", &["name: fake-h1, labels: [a, b]"], "");
        loaded_after(&process, || std::fs::write(&process.file, &more).unwrap()).await;
        until("the second label", async || pool(&consumer).await.2 == ["a", "b"]).await;
        // A configuration management system writes a new file and renames it.
        let most = yaml("lab", &["name: fake-h1, labels: [a, b]", "name: fake-h2, labels: [c]"], "");
        loaded_after(&process, || replace(&process, &most)).await;
        until("the third label", async || pool(&consumer).await.2 == ["a", "b", "c"]).await;
        let (same_name, last, _, same_id) = pool(&consumer).await;
        assert_eq!((same_name, same_id, last.czxid), (name, id, first.czxid), "the znode is updated, not recreated");
        assert_eq!(last.version, first.version + 2, "one write for each change");
        assert_eq!(opened.load(Ordering::Relaxed), 3, "a changed section has its own TaskManager");
        let request = consumer.submit_labels(&["c"]).await;
        assert_eq!(consumer.wait_for_end(&request).await.state, RequestState::Fulfilled);
    });
}
