//! `nodepool standalone` as a process: one command starts it, and the next one obtains nodes. Its data survives a kill,
//! and failures at start-up name their cause.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::sys::signal::Signal;
use nodepool_zk::Connection;
use nodepool_zk::client::{self, ConnectOptions};
use testkit::daemon_process::{Daemon, PROCESS_TIMEOUT, WorkDir, last_line, text};
use testkit::{programs, wait};
use zookeeper_server::types::CreateMode;

async fn standalone(work_dir: &WorkDir, arguments: &[&str]) -> Daemon {
    start_standalone(work_dir, programs::nodepool(), &[&["standalone"], arguments].concat()).await
}

/// Starts `nodepool standalone` by this command, and waits until its coordinator listens.
async fn start_standalone(work_dir: &WorkDir, command: &str, arguments: &[&str]) -> Daemon {
    // A second start in the same directory appends to the same log and may use the same port, so the lines are counted.
    let starts = |log: &str| log.matches("Coordinator 127.0.0.1:").count();
    let before = starts(&std::fs::read_to_string(work_dir.path("daemon.log")).unwrap_or_default());
    let daemon = work_dir.start(command, arguments);
    wait::until("the coordinator to listen", PROCESS_TIMEOUT, async || starts(&daemon.log()) > before).await;
    daemon
}

async fn has_ready_nodes(work_dir: &WorkDir, count: usize) {
    let list = async || {
        let command = work_dir.command(programs::nodepool(), &["list"]);
        let ended = tokio::process::Command::from(command).output().await.unwrap();
        text(&ended.stdout).matches("| ready |").count() == count
    };
    wait::until("the nodes to be ready", PROCESS_TIMEOUT, list).await;
}

#[tokio::test]
async fn standalone_serves_node_requests_of_the_cli() {
    let work_dir = WorkDir::new("");
    let mut daemon = standalone(&work_dir, &[]).await;
    let hint = "for this one machine only; to serve more, use an Apache ZooKeeper ensemble";
    assert_eq!(daemon.log().lines().filter(|line| line.contains(hint)).count(), 1, "{}", daemon.log());
    has_ready_nodes(&work_dir, 2).await;
    let arguments = ["request", "--label", "local", "--label", "local", "--wait", "20", "--", "env"];
    let used = work_dir.run(programs::nodepool(), &arguments);
    assert!(used.status.success(), "{}", text(&used.stderr));
    assert!(text(&used.stdout).contains("NODEPOOL_NODE_COUNT=2"), "{}", text(&used.stdout));
    let booted = work_dir
        .run(programs::nodepool(), &["request", "--label", "cloud", "--label", "cloud", "--wait", "20", "--", "env"]);
    assert!(text(&booted.stdout).contains("NODEPOOL_NODE_COUNT=2"), "{}", text(&booted.stderr));
    let list = async || {
        let listed = text(&work_dir.run(programs::nodepool(), &["list"]).stdout);
        !listed.contains("fake-cloud") && listed.contains("this-machine")
    };
    wait::until("the servers to be deleted", PROCESS_TIMEOUT, list).await;
    daemon.signal(Signal::SIGINT);
    assert!(daemon.wait_for_exit().await.success(), "{}", daemon.log());
}

#[tokio::test]
async fn standalone_builds_uploads_and_boots_images_unless_disabled() {
    let work_dir = WorkDir::new("");
    let mut daemon = standalone(&work_dir, &[]).await;
    let built = work_dir.run(programs::nodepool(), &["image-build", "--wait", "--uploads", "demo"]);
    assert!(built.status.success(), "{}", text(&built.stderr));
    assert!(text(&built.stdout).contains("is uploaded to fake-cloud as "), "{}", text(&built.stdout));
    let booted = work_dir.run(programs::nodepool(), &["request", "--label", "built", "--wait", "30", "--", "env"]);
    assert!(text(&booted.stdout).contains("NODEPOOL_NODE_COUNT=1"), "{}", text(&booted.stderr));
    daemon.signal(Signal::SIGINT);
    assert!(daemon.wait_for_exit().await.success(), "{}", daemon.log());
    let mut daemon = standalone(&work_dir, &["--no-builder"]).await;
    has_ready_nodes(&work_dir, 2).await;
    assert!(!work_dir.run(programs::nodepool(), &["image-build", "demo"]).status.success());
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.wait_for_exit().await.success());
}

#[tokio::test]
async fn standalone_data_survives_a_kill() {
    let work_dir = WorkDir::new("");
    let mut daemon = standalone(&work_dir, &["--data-dir", "nodepool-data"]).await;
    has_ready_nodes(&work_dir, 2).await;
    let listed = work_dir.run(programs::nodepool(), &["-o", "json", "list"]);
    let nodes: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let id = nodes[0]["id"].as_str().unwrap().to_owned();
    assert!(work_dir.run(programs::nodepool(), &["hold", &id]).status.success());
    daemon.kill();
    let _daemon = standalone(&work_dir, &["--data-dir", "nodepool-data"]).await;
    let listed = text(&work_dir.run(programs::nodepool(), &["list"]).stdout);
    let is_held = |line: &str| line.contains(&id) && line.contains("| hold ");
    assert!(listed.lines().any(is_held), "{listed}");
}

#[tokio::test]
async fn configured_zookeeper_servers_are_ignored_with_a_warning() {
    let provider = "labels: [{name: own}]\nproviders:\n  - name: here\n    driver: static\n    pools:\n      - name: main\n\
                    \x20       nodes: [{name: 127.0.0.1, labels: [own], host-key-checking: false}]\n";
    let work_dir = WorkDir::new(&format!("zookeeper-servers: [{{host: zk.invalid, port: 1}}]\n{provider}"));
    let mut daemon = standalone(&work_dir, &["-c", "nodepool.yaml"]).await;
    daemon.wait_for_log("zookeeper-servers and zookeeper-tls of nodepool.yaml are ignored").await;
    work_dir.wait_until_ready().await;
    has_ready_nodes(&work_dir, 1).await;
    // Commands in the same directory find its nodes.
    let listed = work_dir.run(programs::nodepool(), &["-o", "json", "list"]);
    let nodes: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let deleted = work_dir.run(programs::nodepool(), &["delete", "--now", nodes[0]["id"].as_str().unwrap()]);
    assert!(deleted.status.success(), "{}", text(&deleted.stderr));
    has_ready_nodes(&work_dir, 1).await;
    // A changed file is loaded, and the embedded coordinator stays in use.
    work_dir.configure(&format!(
        "zookeeper-servers: [{{host: other.invalid, port: 1}}]\n{}",
        provider.replace("here", "there")
    ));
    let moved = async || text(&work_dir.run(programs::nodepool(), &["list"]).stdout).contains("| there ");
    wait::until("the node of the new provider", PROCESS_TIMEOUT, moved).await;
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.wait_for_exit().await.success());
}

#[tokio::test]
async fn variables_are_expanded_and_files_are_private() {
    let work_dir = WorkDir::new("");
    let text = "webapp: {port: %(NODEPOOL_TEST_WEB_PORT), listen_address: 127.0.0.1}\nlabels: []\nproviders: []\n";
    work_dir.write("with-variable.yaml", text);
    let mut command = work_dir.command(programs::nodepool(), &["standalone", "-c", "with-variable.yaml"]);
    command.env("NODEPOOL_TEST_WEB_PORT", work_dir.web_port.number.to_string());
    let mut daemon = work_dir.start_command(command);
    work_dir.wait_until_ready().await;
    let written = work_dir.path("nodepool-data/nodepool.yaml");
    assert!(fs::read_to_string(&written).unwrap().contains(&format!("\"port\":{}", work_dir.web_port.number)));
    assert_eq!(fs::metadata(written).unwrap().permissions().mode() & 0o777, 0o600);
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.wait_for_exit().await.success());
}

#[tokio::test]
async fn the_web_port_explains_why_a_request_waits() {
    let provider = "labels: [{name: own}]\nproviders:\n  - name: here\n    driver: static\n    pools:\n      - name: main\n\
                    \x20       nodes: [{name: 127.0.0.1, labels: [own], host-key-checking: false}]\n";
    let work_dir = WorkDir::new(provider);
    let _daemon = standalone(&work_dir, &["-c", "nodepool.yaml"]).await;
    has_ready_nodes(&work_dir, 1).await;
    let mut holder = work_dir.start(programs::nodepool(), &["request", "--label", "own", "--", "sleep", "600"]);
    has_ready_nodes(&work_dir, 0).await;
    let mut waiting = work_dir.start(programs::nodepool(), &["request", "--label", "own", "--", "true"]);
    let verdict = wait::until_some("a verdict", PROCESS_TIMEOUT, async || {
        let (status, body) = work_dir.get("/why/200-0000000001").await?;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str::<Vec<serde_json::Value>>(&body).unwrap().into_iter().next()
    })
    .await;
    assert_eq!((verdict["provider"].as_str(), verdict["pool"].as_str()), (Some("here"), Some("main")));
    assert!(verdict["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{verdict}");
    holder.signal(Signal::SIGTERM);
    holder.wait_for_exit().await;
    assert!(waiting.wait_for_exit().await.success());
}

#[tokio::test]
async fn an_embedded_zookeeper_write_failure_ends_the_process() {
    let work_dir = WorkDir::new("");
    let mut first = standalone(&work_dir, &[]).await; // the store must exist before the disk is full
    has_ready_nodes(&work_dir, 2).await;
    first.kill();
    // `ulimit -f` counts blocks of 512 bytes: a file cannot exceed 3 MiB, and the process survives the failed write.
    let script = "trap '' XFSZ; ulimit -f 6144; exec \"$0\" standalone";
    let mut daemon = start_standalone(&work_dir, "/bin/sh", &["-c", script, programs::nodepool()]).await;
    has_ready_nodes(&work_dir, 2).await;
    let log = daemon.log();
    let starts = log.rsplit("Coordinator 127.0.0.1:").next().expect("split yields at least one part");
    let port = starts.split(|letter: char| !letter.is_ascii_digit()).next().and_then(|digits| digits.parse().ok());
    let zk = client::connect(ConnectOptions::plain("127.0.0.1", port.unwrap())).await.unwrap();
    for index in 0..200 {
        let (path, data) = (format!("/full-{index}"), vec![b'x'; 50_000].into());
        if zk.create(&path, data, CreateMode::Persistent).await.is_err() {
            break;
        }
    }
    let status = daemon.wait_for_exit().await;
    assert_eq!(status.code(), Some(1), "{}", daemon.log());
    let log = daemon.log();
    // Threads that still use the coordinator may log after that line.
    assert!(log.lines().any(|line| line.starts_with("the coordinator stopped: ")), "{log}");
}

#[tokio::test]
async fn a_data_directory_is_used_by_one_process_at_a_time() {
    let work_dir = WorkDir::new("");
    let _daemon = standalone(&work_dir, &[]).await;
    let second = work_dir.run(programs::nodepool(), &["standalone"]);
    assert_eq!(second.status.code(), Some(1));
    assert!(last_line(&second).contains("is in use by another process"), "{}", last_line(&second));
}

#[test]
fn startup_errors_name_the_conflicting_path() {
    let work_dir = WorkDir::new("labels: [");
    work_dir.write("file", "not a directory");
    let cases: [(&[&str], &str); 4] = [
        (&["standalone", "--data-dir", "file"], "/file"),
        (&["standalone", "-c", "missing.yaml"], "missing.yaml"),
        (&["standalone", "-c", "nodepool.yaml"], "nodepool.yaml"),
        (&["-l", "missing.conf", "standalone"], "Unable to read logging config file at missing.conf"),
    ];
    for (arguments, message) in cases {
        let ended = work_dir.run(programs::nodepool(), arguments);
        assert_eq!(ended.status.code(), Some(1), "{arguments:?}");
        assert!(last_line(&ended).contains(message), "{arguments:?}: {}", text(&ended.stderr));
    }
}

/// Python programs can use the written client configuration: it names the TLS port, and its three files exist.
#[tokio::test]
async fn the_configuration_for_clients_names_the_tls_port_and_its_files() {
    let work_dir = WorkDir::new("");
    let daemon = standalone(&work_dir, &[]).await;
    let written = fs::read_to_string(work_dir.path("nodepool-data/nodepool.yaml")).unwrap();
    let yaml: serde_yaml::Value = serde_yaml::from_str(&written).unwrap();
    let port = yaml["zookeeper-servers"][0]["port"].as_u64().unwrap();
    assert!(daemon.log().contains(&format!("(TLS 127.0.0.1:{port})")), "{}", daemon.log());
    for file in ["cert", "key", "ca"] {
        let path = yaml["zookeeper-tls"][file].as_str().unwrap();
        assert!(Path::new(path).is_absolute() && Path::new(path).exists(), "{path}");
    }
    let validated = work_dir.run(programs::nodepool(), &["-c", "nodepool-data/nodepool.yaml", "config-validate"]);
    assert!(validated.status.success(), "{}", text(&validated.stderr));
}
