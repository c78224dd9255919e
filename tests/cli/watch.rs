//! `nodepool watch` in a pseudo terminal and in a pipe: it shows changes, and restores the terminal when it exits.
//!
//! The tests run the real program against the embedded coordinator. `script` of util-linux provides the pseudo
//! terminal; without it, the tests that need one are skipped.

use std::io::Write;
use std::num::NonZero;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use nodepool_zk::Connection;
use nodepool_zk::client::{ConnectOptions, RealConnection, connect};
use serde_json::Value;
use tempfile::TempDir;
use testkit::{programs, wait};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use zookeeper_server::types::CreateMode;
use zookeeper_server::{EmbeddedOptions, EmbeddedServer};

const DEADLINE: Duration = Duration::from_secs(60);
const LEAVE_SCREEN: &str = "\u{1b}[?1049l";

#[allow(clippy::disallowed_methods)] // a server needs the wall clock, and a test has no other place to read it
fn now_ms() -> i64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since_epoch.as_millis()).unwrap()
}

struct WatchHarness {
    home: TempDir,
    zk: Arc<RealConnection>,
    server: EmbeddedServer,
}

impl WatchHarness {
    async fn new() -> WatchHarness {
        let home = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions { data_dir: home.path().join("store"), first_port: 0, now_ms };
        let server = EmbeddedServer::start(options).await.unwrap();
        let port = server.address().port();
        let text = format!("{{zookeeper-servers: [{{host: 127.0.0.1, port: {port}}}], labels: [], providers: []}}");
        std::fs::write(home.path().join("nodepool.yaml"), text).unwrap();
        let zk = connect(ConnectOptions::plain("127.0.0.1", port)).await.unwrap();
        WatchHarness { home, zk, server }
    }

    async fn put(&self, path: &str, data: &str) {
        for (slash, _) in path.match_indices('/').skip(1) {
            let _ = self.zk.create(&path[..slash], Vec::new().into(), CreateMode::Persistent).await;
        }
        self.zk.create(path, data.to_owned().into(), CreateMode::Persistent).await.unwrap();
    }

    async fn put_node(&self, id: &str, label: &str) {
        let record = format!(r#"{{"state": "ready", "provider": "p", "type": ["{label}"]}}"#);
        self.put(&format!("/nodepool/nodes/{id}"), &record).await;
    }

    async fn stop(self) {
        self.zk.close().await;
        self.server.stop().await;
    }
}

const LINES: NonZero<u16> = NonZero::new(24).unwrap();
const COLUMNS: NonZero<u16> = NonZero::new(100).unwrap();

/// `nodepool watch` in a pseudo terminal. Its whole output is kept in a file.
struct TerminalSession {
    script: Child,
    keys: ChildStdin,
    typescript: std::path::PathBuf,
}

impl TerminalSession {
    fn start(harness: &WatchHarness) -> TerminalSession {
        let typescript = harness.home.path().join("typescript");
        // An earlier session may have left this file.
        let _ = std::fs::remove_file(&typescript);
        let view = format!(
            "stty rows {LINES} cols {COLUMNS}; echo pid $$; exec {} -c nodepool.yaml watch",
            programs::nodepool()
        );
        let mut command = Command::new("script");
        command.args(["--quiet", "--flush", "--return", "--command", &view]).arg(&typescript);
        command.current_dir(harness.home.path()).env("TERM", "xterm").env("SHELL", "/bin/sh").kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut script = command.spawn().unwrap();
        let keys = script.stdin.take().unwrap();
        TerminalSession { script, keys, typescript }
    }

    async fn send_keys(&mut self, keys: &str) {
        tokio::io::AsyncWriteExt::write_all(&mut self.keys, keys.as_bytes()).await.unwrap();
    }

    fn raw_output(&self) -> String {
        std::fs::read(&self.typescript).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        let output = self.raw_output();
        let pid = output.lines().find_map(|line| line.trim().strip_prefix("pid ")?.parse().ok()).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
    }

    /// Text on the screen. The raw output may lack it, because unchanged letters are not drawn again.
    fn screen(&self) -> String {
        let mut terminal = vt100::Parser::new(LINES, COLUMNS, 0);
        terminal.process(&std::fs::read(&self.typescript).unwrap_or_default());
        terminal.screen().contents()
    }

    async fn wait_for_text(&self, text: &str) {
        wait::until(text, DEADLINE, async || self.screen().contains(text)).await;
    }

    /// Waits for the exit status, and asserts that the terminal's normal screen and its cursor are restored.
    async fn wait_for_exit(mut self) -> Option<i32> {
        let status = tokio::time::timeout(DEADLINE, self.script.wait()).await.unwrap().unwrap();
        let output = self.raw_output();
        let (_, after) = output.rsplit_once(LEAVE_SCREEN).expect("the view leaves the alternate screen");
        assert!(!after.contains("Labels"), "{after}");
        assert!(output.contains("\u{1b}[?25h"), "the cursor is visible");
        status.code()
    }
}

fn has_script() -> bool {
    let found = std::process::Command::new("script").arg("--version").output().is_ok();
    if !found {
        let _ = std::io::stderr().write_all(b"SKIPPED: `script` of util-linux is not installed\n");
    }
    found
}

#[tokio::test]
async fn the_watch_view_follows_changes_and_handles_keys() {
    if !has_script() {
        return;
    }
    let harness = WatchHarness::new().await;
    harness.put_node("0000000001", "first").await;
    let mut view = TerminalSession::start(&harness);
    view.wait_for_text("first").await;
    view.send_keys("2").await;
    view.wait_for_text("0000000001").await;
    harness.put_node("0000000002", "second").await;
    view.wait_for_text("0000000002").await;
    // Control characters of a record are escaped.
    harness.put_node("0000000003", "\\u001b[31mred\\u0007").await;
    view.wait_for_text("\\x1b[31mred\\x07").await;
    view.send_keys("/second\r").await;
    view.wait_for_text("filter:").await;
    view.send_keys("\u{1b}[Z\t\t").await;
    let request = r#"{"state": "requested", "node_types": ["a", "b"], "requestor": "zuul", "event_id": "e-v-e-n-t"}"#;
    view.send_keys("\u{1b}").await;
    harness.put("/nodepool/requests/200-0000000007", request).await;
    view.wait_for_text("e-v-e-n-t").await;
    harness.put("/nodepool/images/debian/request-build", "").await;
    view.send_keys("4").await;
    view.wait_for_text("pending").await;
    view.send_keys("q").await;
    assert_eq!(view.wait_for_exit().await, Some(0));
    assert!(harness.zk.exists("/nodepool/components").await.unwrap().is_none(), "reading creates nothing");
    harness.stop().await;
}

#[tokio::test]
async fn the_terminal_is_restored_after_ctrl_c_and_after_a_signal() {
    if !has_script() {
        return;
    }
    let harness = WatchHarness::new().await;
    let mut view = TerminalSession::start(&harness);
    view.wait_for_text("Labels").await;
    view.send_keys("\u{3}").await;
    assert_eq!(view.wait_for_exit().await, Some(0));
    let view = TerminalSession::start(&harness);
    view.wait_for_text("Labels").await;
    view.signal(Signal::SIGTERM);
    assert_eq!(view.wait_for_exit().await, Some(143));
    harness.stop().await;
}

#[tokio::test]
async fn a_lost_server_is_reported_and_retried() {
    if !has_script() {
        return;
    }
    let harness = WatchHarness::new().await;
    let mut view = TerminalSession::start(&harness);
    view.wait_for_text("Labels").await;
    harness.zk.close().await;
    harness.server.stop().await;
    view.wait_for_text("connection").await;
    view.send_keys("q").await;
    assert_eq!(view.wait_for_exit().await, Some(0));
}

#[tokio::test]
async fn in_a_pipe_each_change_is_a_line() {
    let harness = WatchHarness::new().await;
    harness.put_node("0000000001", "a").await;
    let mut command = Command::new(programs::nodepool());
    command.args(["-c", "nodepool.yaml", "watch"]).current_dir(harness.home.path()).kill_on_drop(true);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || -> Value {
        let line = tokio::time::timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap().unwrap();
        serde_json::from_str(&line).unwrap()
    };
    assert_eq!(next().await["connection"], "connected");
    let node = next().await;
    assert_eq!((&node["change"], &node["node"]["label"][0]), (&"existing".into(), &"a".into()));
    harness.put_node("0000000002", "b").await;
    let node = next().await;
    assert_eq!((&node["change"], &node["id"]), (&"created".into(), &"0000000002".into()));
    let in_use = r#"{"state": "in-use", "provider": "p", "type": ["b"]}"#;
    harness.zk.set("/nodepool/nodes/0000000002", in_use.into(), -1).await.unwrap();
    let node = next().await;
    assert_eq!((&node["change"], &node["node"]["state"]), (&"changed".into(), &"in-use".into()));
    harness.zk.delete("/nodepool/nodes/0000000001", -1).await.unwrap();
    let node = next().await;
    assert_eq!(
        (&node["change"], &node["kind"], &node["id"]),
        (&"deleted".into(), &"node".into(), &"0000000001".into())
    );
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    assert_eq!(tokio::time::timeout(DEADLINE, child.wait()).await.unwrap().unwrap().code(), Some(143));
    harness.stop().await;
}

#[tokio::test]
async fn watch_exits_when_its_output_is_closed() {
    let harness = WatchHarness::new().await;
    let mut command = Command::new(programs::nodepool());
    command.args(["-c", "nodepool.yaml", "watch"]).current_dir(harness.home.path()).kill_on_drop(true);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(tokio::time::timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap().unwrap().contains("existing"));
    // Nothing changes from here on, so the command must notice the closed pipe without a write.
    drop(lines);
    assert_eq!(tokio::time::timeout(DEADLINE, child.wait()).await.unwrap().unwrap().code(), Some(0));
    harness.stop().await;
}
