//! Limits of the ZooKeeper client and the embedded server: a full request queue, clients that do not read, 10,000
//! events per second. In the test's process and in real time.
//!
//! Sizes are small by default; NODEPOOL_LIMITS=full uses the sizes of doc/reliability.md.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use nodepool_zk::client::connect;
use nodepool_zk::locks::lock;
use nodepool_zk::mirror::mirror::Mirror;
use nodepool_zk::{Connection, SessionState, Zk, paths};
use testkit::embedded_zk::raw_client::{RawClient, op};
use testkit::scale_parameters::{SCALE_TIMEOUT, Stopwatch, size};
use testkit::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;
use zookeeper_server::types::{CreateMode, ZkError};

/// Maximum number of requests that a session queues while disconnected.
const QUEUED_REQUESTS: usize = 50_000;
/// More requests than a client that reads no replies can send.
const UNREAD_REQUESTS: usize = 1_000_000;
/// Maximum number of requests that the server accepts from such a client: 32 large replies in the queue, the replies of
/// 100 kB in the buffers of the connection (ten megabytes by default on Linux), and a margin.
const MAX_ACCEPTED: usize = 300;
/// A sender that makes no progress for this time is blocked.
const STALL_TIME: Duration = Duration::from_secs(1);
/// Minimum rate of watch events.
const MIN_EVENTS_PER_SECOND: f64 = 10_000.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_request_queue_rejects_more_and_drains_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let server = testkit::embedded_zk::start(directory.path()).await;
    let mut options = testkit::embedded_zk::options(directory.path());
    options.first_port = server.address().port();
    let mut client = testkit::embedded_zk::client(options.first_port);
    client.session_timeout = Duration::from_secs(40);
    let zk = connect(client).await.unwrap();
    zk.create("/counter", Bytes::new(), CreateMode::Persistent).await.unwrap();
    server.stop().await;
    let mut state = zk.session();
    state.wait_for(|state| *state == SessionState::Suspended).await.unwrap();

    let mut measured = Stopwatch::start(&format!("{QUEUED_REQUESTS} requests and 1,000 more without a connection"));
    let mut waiting: Vec<_> = (0..QUEUED_REQUESTS - 1).map(|_| zk.exists("/counter")).collect();
    let last = zk.create("/last", Bytes::new(), CreateMode::Persistent);
    let refused = join_all((0..1_000).map(|_| zk.exists("/counter"))).await;
    let reason = "too many requests are waiting for a connection, the request was not sent";
    assert!(refused.iter().all(|answer| matches!(answer, Err(ZkError::Unknown(text)) if text == reason)));
    let text = refused[0].as_ref().unwrap_err().to_string();
    assert_eq!(text, format!("connection to ZooKeeper lost: {reason}"), "the outcome is known");
    measured.lap("queued, and the rest rejected");
    let server = zookeeper_server::EmbeddedServer::start(options).await.unwrap();
    let first = waiting.remove(0).await;
    assert!(first.unwrap().is_some());
    last.await.unwrap();
    let answers = join_all(waiting).await;
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Some(_)))), "each request has a reply");
    measured.lap("replies after the server restarted");
    assert!(zk.exists("/last").await.unwrap().is_some(), "the session continues");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_delays_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let server = testkit::embedded_zk::start(directory.path()).await;
    let zk = connect(testkit::embedded_zk::client(server.address().port())).await.unwrap();
    zk.create("/large", Bytes::from(vec![b'x'; 100_000]), CreateMode::Persistent).await.unwrap();
    let mut measured = Stopwatch::start(&format!("{UNREAD_REQUESTS} requests whose replies are not read"));
    let (address, before) = (server.address(), testkit::scale_parameters::resident());
    let mut stalled = RawClient::open(address, 40_000).await;
    let sent = Arc::new(AtomicUsize::new(0));
    let sending = tokio::spawn({
        let sent = sent.clone();
        async move {
            for _ in 0..UNREAD_REQUESTS {
                stalled
                    .send(op::GET_DATA, |body| {
                        body.text("/large").flag(false);
                    })
                    .await;
                sent.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    // Another client is served meanwhile.
    for round in 0..500 {
        zk.set("/large", Bytes::from(vec![b'y'; 100_000]), round).await.unwrap();
    }
    measured.lap("500 writes of another client");
    // All replies would need more than two gigabytes.
    assert!(
        testkit::scale_parameters::resident() < before + 300,
        "{} MB, before {before} MB",
        testkit::scale_parameters::resident()
    );
    // Further requests fill the buffers of the connection.
    let mut last = (0, Instant::now());
    wait::until("the client to be blocked", SCALE_TIMEOUT, async || {
        let now = sent.load(Ordering::Relaxed);
        if now != last.0 {
            last = (now, Instant::now());
        }
        last.1.elapsed() > STALL_TIME
    })
    .await;
    let (sent, received) = (sent.load(Ordering::Relaxed), packets_received(address).await);
    measured.lap(&format!("{sent} requests sent, {received} packets read from all clients"));
    assert!(!sending.is_finished() && sent < UNREAD_REQUESTS, "all {UNREAD_REQUESTS} were accepted");
    // The other client sent 501 requests, its handshake and a few pings.
    assert!(received < 501 + MAX_ACCEPTED, "{received} packets were read");
    sending.abort();
    server.stop().await;
}

/// Number of packets received from all clients, according to `mntr`.
async fn packets_received(address: SocketAddr) -> usize {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"mntr").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let line = answer.lines().find_map(|line| line.strip_prefix("zk_packets_received\t"));
    line.and_then(|number| number.parse().ok()).expect("mntr reports the number of packets")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_watch_events_a_second() {
    let (nodes, rounds) = (size(200, 1_000), size(20, 300));
    let directory = tempfile::tempdir().unwrap();
    let server = testkit::embedded_zk::start(directory.path()).await;
    let options = || testkit::embedded_zk::client(server.address().port());
    let writer: Zk = connect(options()).await.unwrap();
    lock::make_path(&writer, paths::NODES).await.unwrap();
    let record =
        |round: usize| Bytes::from(format!(r#"{{"state": "ready", "provider": "p", "hostname": "round-{round}"}}"#));
    let path = |node: usize| format!("{}/{node:010}", paths::NODES);
    join_all((0..nodes).map(|node| writer.create(&path(node), record(0), CreateMode::Persistent))).await;
    let reader: Zk = connect(options()).await.unwrap();
    let mirror = Mirror::start(reader, &tokio::runtime::Handle::current()).await.unwrap();
    let events = nodes * rounds;
    let mut measured = Stopwatch::start(&format!("{events} events"));
    let started_at = Instant::now();
    for round in 1..=rounds {
        let written = join_all((0..nodes).map(|node| writer.set(&path(node), record(round), -1))).await;
        assert!(written.iter().all(Result::is_ok));
    }
    let per_second = events as f64 / started_at.elapsed().as_secs_f64();
    measured.lap(&format!("written, {per_second:.0} a second"));
    if testkit::scale_parameters::is_full() {
        assert!(per_second >= MIN_EVENTS_PER_SECOND, "{per_second:.0} a second");
    }
    let newest = format!("round-{rounds}");
    let is_newest = async || {
        let snapshot = mirror.snapshot();
        snapshot.nodes().filter(|(_, node)| node.record.hostname.as_deref() == Some(newest.as_str())).count() == nodes
    };
    wait::until("the snapshot to be current", SCALE_TIMEOUT, is_newest).await;
    measured.lap("the snapshot is current");
    drop(mirror);
    server.stop().await;
}
