//! Harness of the live page: a launcher with a coordinator, views of the page, and replies that a script may change.

use std::sync::Arc;
use std::time::Duration;

use crate::browser::{Browser, Viewport};
use bytes::Bytes;
use nodepool_zk::Connection;
use nodepool_zk::client::RealConnection;
use testkit::daemon_process::{Coordinator, Daemon, WorkDir};
use zookeeper_server::types::CreateMode;

pub const DESKTOP: Viewport = Viewport { name: "desktop", width: 1280, height: 900, dark: false };

pub const PHONE: Viewport = Viewport { name: "phone", width: 390, height: 844, dark: false };

pub const TIMEOUT: Duration = Duration::from_secs(60);

const CONFIG: &str = "labels: [{name: small}]\nproviders:\n- name: lab\n  driver: fake\n  cloud: fake\n  region-name: r\n\
    \x20 cloud-images: [{name: fake-image-id, username: zuul}]\n  pools:\n  - name: main\n    max-servers: 3\n\
    \x20   host-key-checking: false\n    labels: [{name: small, cloud-image: fake-image-id, min-ram: 1}]\n";

pub struct LivePageHarness {
    pub work_dir: WorkDir,
    pub zk: Arc<RealConnection>,
    pub launcher: Daemon,
    pub coordinator: Coordinator,
}

impl LivePageHarness {
    pub async fn new() -> Self {
        let work_dir = WorkDir::new("");
        let coordinator = Coordinator::start(&work_dir.path("coordinator")).await;
        let servers = format!("zookeeper-servers: [{{host: 127.0.0.1, port: {}}}]\n", coordinator.port);
        work_dir.configure(&(servers + CONFIG));
        let launcher = work_dir.launcher(&["-f"]);
        work_dir.wait_until_ready().await;
        let zk = coordinator.session().await;
        Self { work_dir, zk, launcher, coordinator }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.work_dir.web_port.number)
    }

    pub async fn put(&self, path: &str, record: &str) {
        for (slash, _) in path.match_indices('/').skip(1) {
            let _ = self.zk.create(&path[..slash], Bytes::new(), CreateMode::Persistent).await;
        }
        let data = Bytes::copy_from_slice(record.as_bytes());
        if self.zk.exists(path).await.unwrap().is_some() {
            self.zk.set(path, data, -1).await.unwrap();
        } else {
            self.zk.create(path, data, CreateMode::Persistent).await.unwrap();
        }
    }

    /// Writes a node of a provider without a pool, which no launcher changes.
    pub async fn put_node(&self, number: u32, state: &str, more: &str) {
        let record = format!(
            r#"{{"state": "{state}", "state_time": 1700000000.0, "provider": "elsewhere", "pool": "main", "type": ["small"]{more}}}"#
        );
        self.put(&format!("/nodepool/nodes/{number:010}"), &record).await;
    }
}

pub async fn assert_console_is_empty(browser: &Browser) {
    let messages: Vec<String> =
        browser.console().await.into_iter().filter(|line| !line.starts_with("\"INFO\"")).collect();
    assert!(messages.is_empty(), "{messages:#?}");
}

/// Waits until the condition holds in the page.
pub async fn wait_until_true(browser: &Browser, condition: &str) {
    let script = format!("return Boolean({condition})");
    testkit::wait::until(condition, TIMEOUT, async || browser.run(&script).await == true).await;
}

/// Interposed between the page and its launcher: stubs replies by prefix of their address, and drops events.
pub const INTERPOSER: &str = r"
    window.between = { stubs: {}, ignored: new Set(), missed: 0, requests: 0 };

    const realFetch = window.fetch;
    window.fetch = (address, options) => {
        const real = () => realFetch(address, options);
        const stub = Object.keys(between.stubs).find((start) => String(address).startsWith(start));
        return stub ? between.stubs[stub](real) : real();
    };
    window.EventSource = class extends EventSource {
        constructor(address) { super(address); between.stream = this; }
        addEventListener(name, listener) {
            super.addEventListener(name, (event) => { if (between.ignored.has(name)) between.missed += 1; else listener(event); });
        }
    };
    between.hold = () => new Promise((release) => { between.release = release; });
";

pub async fn open_interposed(harness: &LivePageHarness, view: &str, script: &str) -> Browser {
    let browser = Browser::start(DESKTOP).await;
    browser.run_before_page_scripts(&format!("{INTERPOSER}{script}")).await;
    browser.open(&harness.url(view)).await;
    browser
}

/// Waits until the launcher's API includes the node.
pub async fn wait_until_api_shows(harness: &LivePageHarness, id: &str) {
    let is_shown = async || harness.work_dir.get("/api/state").await.is_some_and(|(_, state)| state.contains(id));
    testkit::wait::until("the node in /api/state", TIMEOUT, is_shown).await;
}
