//! Tests of the test harness: its real servers and programs start, reply, fail and restart as other tests require.
//!
//! Most of them run services that `tests/run` installs: Apache ZooKeeper, kazoo and OpenSSH.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    panic::{AssertUnwindSafe, catch_unwind},
    process::Command,
    time::Duration,
};

use serde_json::json;
use testkit::{executable, programs};
use testkit::{
    real::{
        self,
        nodepool_process::NodepoolProcess,
        ports,
        python::{self, Interpreter},
        sshd::{self, KeyKind},
        tls,
        zookeeper::{self, Ensemble, Options, Server},
    },
    wait,
};
use tokio::{io::AsyncReadExt, net::TcpStream};
use zookeeper_client::{Acls, Client, CreateMode};

const DEADLINE: Duration = Duration::from_secs(20);

fn persistent() -> zookeeper_client::CreateOptions<'static> {
    CreateMode::Persistent.with_acls(Acls::anyone_all())
}

#[tokio::test]
#[should_panic(expected = "timed out after 30ms waiting for the impossible")]
async fn a_wait_timeout_names_the_condition() {
    wait::until("the impossible", Duration::from_millis(30), async || false).await;
}

#[tokio::test]
#[should_panic(expected = "waiting for an answer")]
async fn a_wait_times_out_although_the_condition_hangs() {
    wait::until("an answer", Duration::from_millis(30), std::future::pending).await;
}

#[test]
fn a_reserved_port_is_assigned_once() {
    let ports: Vec<_> = (0..50).map(|_| ports::reserve()).collect();
    let numbers: std::collections::BTreeSet<u16> = ports.iter().map(|port| port.number).collect();
    assert_eq!(numbers.len(), 50);
}

#[tokio::test]
async fn a_plain_server_keeps_its_data_through_a_kill() {
    if real::skipped() {
        return;
    }
    let mut server = Server::start(Options::short_sessions()).await;
    let before = server.zxid().await;
    let client = Client::connect(&server.address()).await.unwrap();
    client.create("/kept", b"data", &persistent()).await.unwrap();
    assert_eq!(server.zxid().await, before + 2, "one transaction opens the session, one creates the node");
    drop(client);

    server.kill();
    assert_eq!(server.role().await, None);
    server.start_again().await;
    assert_eq!(server.role().await.as_deref(), Some("standalone"));
    let client = Client::connect(&server.address()).await.unwrap();
    assert_eq!(client.get_data("/kept").await.unwrap().0, b"data");
    assert!(server.metrics().await["zk_packets_received"].parse::<u64>().unwrap() > 0);
    server.stop().await;
}

#[tokio::test]
async fn a_shared_server_gives_each_test_its_own_root() {
    if real::skipped() {
        return;
    }
    let server = zookeeper::shared().await;
    let (one, two) = (server.chroot("one").await, server.chroot("one").await);
    let client = Client::connect(&one).await.unwrap();
    client.create("/mine", b"", &persistent()).await.unwrap();
    let other = Client::connect(&two).await.unwrap();
    assert!(other.check_stat("/mine").await.unwrap().is_none());
}

#[tokio::test]
async fn kazoo_takes_a_lock_over_tls() {
    if real::skipped() {
        return;
    }
    let server = Server::start(Options::tls()).await;
    let paths = ["client.pem", "client.key", "ca.pem"].map(|name| tls::file(name).to_string_lossy().into_owned());
    let address = server.address();
    let arguments = [address.as_str(), &paths[0], &paths[1], &paths[2]];
    let mut one = python::spawn(Interpreter::Reference, "kazoo_lock.py", &arguments);
    let mut two = python::spawn(Interpreter::Reference, "kazoo_lock.py", &arguments);

    assert_eq!(one.call(json!({"do": "acquire", "path": "/lock"})).await, json!(true));
    assert_eq!(two.call(json!({"do": "acquire", "path": "/lock", "blocking": false})).await, json!(false));
    two.send(&json!({"do": "acquire", "path": "/lock", "timeout": 20})).await;
    wait::until("both to contend", DEADLINE, async || {
        one.call(json!({"do": "contenders", "path": "/lock"})).await == json!(["kazoo", "kazoo"])
    })
    .await;
    one.call(json!({"do": "release", "path": "/lock"})).await;
    assert_eq!(two.reply(DEADLINE).await, Ok(json!(true)));
    assert!(two.try_call(&json!({"do": "get", "path": "/absent"})).await.unwrap_err().starts_with("NoNodeError"));
    assert!(two.finish(DEADLINE).await.success());
}

#[tokio::test]
async fn a_tls_server_refuses_a_client_of_another_authority() {
    if real::skipped() {
        return;
    }
    let server = Server::start(Options::tls()).await;
    let connect = async |authority: &str, identity: &str| {
        let options = tls::client_options(authority, identity);
        Client::connector().with_tls(options).with_fail_eagerly().secure_connect(&server.address()).await.map(|_| ())
    };
    connect("ca.pem", "client").await.expect("the right authority and certificate connect");
    connect("ca.pem", "other-client").await.expect_err("the server knows no such client");
    connect("other-ca.pem", "client").await.expect_err("the client knows no such server");
}

#[tokio::test]
async fn an_ensemble_survives_the_loss_of_its_leader() {
    if real::skipped() {
        return;
    }
    let mut ensemble = Ensemble::start(3, Options::short_sessions()).await;
    let client = Client::connect(&ensemble.address()).await.unwrap();
    client.create("/kept", b"data", &persistent()).await.unwrap();
    drop(client);
    let first = ensemble.leader().await;
    ensemble.kill(first);
    let second = ensemble.leader().await;
    assert_ne!(first, second);
    let client = Client::connect(&ensemble.address()).await.unwrap();
    assert_eq!(client.get_data("/kept").await.unwrap().0, b"data");
    ensemble.start_again(first).await;
    assert_eq!(ensemble.servers[first].role().await.as_deref(), Some("follower"));
}

/// The output of `ssh-keyscan` for a host, in the form of `Host::keys`.
fn scanned(host: &sshd::Host) -> Vec<String> {
    let address = host.address();
    let output = Command::new("ssh-keyscan")
        .args(["-T", "10", "-t", "rsa,ecdsa,ed25519", "-p", &address.port().to_string(), &address.ip().to_string()])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut keys: Vec<String> = text.lines().filter_map(|line| Some(line.split_once(' ')?.1.to_owned())).collect();
    keys.sort();
    keys
}

#[tokio::test]
async fn sshd_presents_its_current_keys() {
    if real::skipped() {
        return;
    }
    let mut host = sshd::Host::start(sshd::Options::at(7)).await;
    let first = host.keys();
    assert_eq!(first.len(), 3);
    assert_eq!(scanned(&host), first);
    host.change_keys().await;
    assert_eq!(scanned(&host), host.keys());
    assert!(host.keys().iter().all(|key| !first.contains(key)));
    host.stop();
    assert!(TcpStream::connect(host.address()).await.is_err());
}

#[tokio::test]
async fn sshd_presents_only_the_chosen_key_type() {
    if real::skipped() {
        return;
    }
    let host = sshd::Host::start(sshd::Options { keys: vec![KeyKind::Ed25519], ..sshd::Options::at(8) }).await;
    assert_eq!(scanned(&host), host.keys());
    assert!(host.keys()[0].starts_with("ssh-ed25519 "));
}

#[tokio::test]
async fn a_hanging_host_accepts_and_stays_silent() {
    let host = sshd::start_silent_host(IpAddr::V4(Ipv4Addr::LOCALHOST)).await;
    let mut stream = TcpStream::connect(host.address).await.unwrap();
    let silence = tokio::time::timeout(Duration::from_millis(50), stream.read_u8()).await;
    assert!(silence.is_err(), "the host replied or closed the connection: {silence:?}");
}

#[tokio::test]
async fn a_program_gets_its_configuration_and_its_log_is_kept() {
    // `sh -c` tries to execute the configuration, and reports that it is not permitted.
    let mut program = NodepoolProcess::start("/bin/sh", "labels: []\n", &[]);
    assert!(!program.wait(DEADLINE).await.success());
    assert!(program.log().contains("nodepool.yaml: Permission denied"), "{}", program.log());
    assert_eq!(std::fs::read_to_string(program.configuration()).unwrap(), "labels: []\n");
}

/// If the harness missed defects, the tests of defective programs would pass.
#[tokio::test]
async fn a_program_that_logs_a_defect_or_exits_fails_its_test() {
    let home = tempfile::tempdir().unwrap();
    let script = home.path().join("program");
    let killed = async |lines: &str| {
        executable::install(&script, &format!("#!/bin/sh\n{lines}"));
        let mut program = NodepoolProcess::start(script.to_str().unwrap(), "labels: []\n", &[]);
        program.wait_for_log("begins", DEADLINE).await;
        let pid = program.pid();
        if lines.ends_with("exit 3") {
            let stat = format!("/proc/{pid}/stat");
            let is_dead = async || std::fs::read_to_string(&stat).unwrap().contains(") Z ");
            wait::until("the program to exit on its own", DEADLINE, is_dead).await;
        }
        let killed = catch_unwind(AssertUnwindSafe(|| program.kill()));
        let failure = killed.err().map(|panic| *panic.downcast::<String>().expect("an assertion has a text"));
        let kept = programs::target_tmp().join(format!("program-{pid}.log"));
        assert_eq!(std::fs::remove_file(kept).is_ok(), failure.is_some(), "the log is kept only after a defect");
        failure
    };
    assert_eq!(killed("echo begins; exec sleep 60").await, None);
    let panics = "echo \"thread 'main' panicked at src/x.rs:1:2:\"; echo nothing there; echo begins; exec sleep 60";
    let failure = killed(panics).await.expect("a panic is detected");
    assert!(failure.contains("panicked at src/x.rs:1:2:\nnothing there"), "{failure}");
    let violation = "echo 'refused: would violate an invariant: two of them'; echo begins; exec sleep 60";
    let failure = killed(violation).await.expect("a violation is detected");
    assert!(failure.contains("an invariant: two of them"), "{failure}");
    let failure = killed("echo begins; exit 3").await.expect("an exit is detected");
    assert!(failure.contains("exited on its own (exit status: 3)"), "{failure}");
}

/// Processes that name this directory on their command line.
fn processes_naming(directory: &str) -> BTreeMap<String, String> {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok());
    processes
        .filter_map(|entry| {
            let command = std::fs::read(entry.path().join("cmdline")).ok()?;
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            command.contains(directory).then(|| (entry.file_name().to_string_lossy().into_owned(), command))
        })
        .collect()
}

#[tokio::test]
async fn a_dropped_server_leaves_neither_process_nor_directory() {
    if real::skipped() {
        return;
    }
    let server = Server::start(Options::default()).await;
    let home = server.home().to_owned();
    let name = home.to_string_lossy().into_owned();
    assert_eq!(processes_naming(&name).len(), 2, "the server and its guard process");
    drop(server);
    assert!(!home.exists());
    assert_eq!(processes_naming(&name), BTreeMap::new());
}
