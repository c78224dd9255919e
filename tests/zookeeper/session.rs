//! Client on Apache ZooKeeper: its contract, chroots, lost connections, expired sessions.

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use nodepool_zk::client::{self, ConnectError, ConnectOptions, connect, connect_until};
use nodepool_zk::{Connection, Reply, SessionState, Zk};
use testkit::real::zookeeper::{Ensemble, Options, Server};
use testkit::{real, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use zookeeper_server::types::{CreateMode, EventKind, ZkError};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Servers that grant sessions of 0.4 to 60 seconds.
fn settings() -> Options {
    Options { settings: vec!["maxSessionTimeout=60000".to_owned()], ..Options::short_sessions() }
}

/// `host:port,host:port` as options, with a session of four seconds.
fn options_of(addresses: &str) -> ConnectOptions {
    let mut options = ConnectOptions { session_timeout: Duration::from_secs(4), ..ConnectOptions::plain("", 0) };
    options.servers.clear();
    for address in addresses.split(',') {
        let (host, port) = address.rsplit_once(':').unwrap();
        options.servers.push(client::ServerAddress { host: host.to_owned(), port: port.parse().unwrap() });
    }
    options
}

/// The index of the server that a session is connected to.
async fn server_of_session(ensemble: &Ensemble, session_id: i64) -> usize {
    wait::until_some("a server to list the session", TIMEOUT, async || {
        for (index, server) in ensemble.servers.iter().enumerate() {
            let Ok(mut stream) = tokio::net::TcpStream::connect(server.plain_address()).await else { continue };
            let mut answer = String::new();
            let has_reply = stream.write_all(b"cons").await.is_ok() && stream.read_to_string(&mut answer).await.is_ok();
            if has_reply && answer.contains(&format!("sid=0x{session_id:x}")) {
                return Some(index);
            }
        }
        None
    })
    .await
}

struct RealClient(ConnectOptions);

impl testkit::zk_contract::Server for RealClient {
    fn connect(&self) -> BoxFuture<'static, Zk> {
        let options = self.0.clone();
        async move {
            let zk: Zk = connect(options).await.unwrap();
            zk
        }
        .boxed()
    }
}

#[tokio::test]
async fn the_client_fulfils_the_contract_with_and_without_a_chroot() {
    if real::skipped() {
        return;
    }
    let server = Server::start(settings()).await;
    testkit::zk_contract::run(&RealClient(options_of(&server.address()))).await;
    // A missing chroot is created.
    testkit::zk_contract::run(&RealClient(ConnectOptions { chroot: "/np".into(), ..options_of(&server.address()) }))
        .await;
    let outside = connect(options_of(&server.address())).await.unwrap();
    let (names, _) = outside.children("/np").await.unwrap();
    assert!(!names.is_empty() && names.iter().all(|name| name.starts_with("contract-")), "{names:?}");
    let refused = connect(ConnectOptions { chroot: "/missing/np".into(), ..options_of(&server.address()) }).await;
    assert!(matches!(refused, Err(ConnectError::NoChrootParent(_))));
}

/// A session with an ephemeral and a watch.
struct SessionHarness {
    zk: std::sync::Arc<nodepool_zk::client::RealConnection>,
    stream: futures::stream::BoxStream<'static, zookeeper_server::types::WatchEvent>,
    ephemeral: String,
    session_id: i64,
}

impl SessionHarness {
    async fn start(options: ConnectOptions) -> Self {
        let zk = connect(options).await.unwrap();
        let (ephemeral, _) = zk.create("/mine", Bytes::new(), CreateMode::Ephemeral).await.unwrap();
        let _ = zk.create("/watched", Bytes::new(), CreateMode::Persistent).await;
        let stream = zk.watch("/watched").await.unwrap();
        let session_id = zk.session_id();
        Self { zk, stream, ephemeral, session_id }
    }

    async fn wait_for_state(&self, expected: SessionState) {
        let mut state = self.zk.session();
        let reached = tokio::time::timeout(Duration::from_secs(40), state.wait_for(|state| *state == expected));
        reached.await.unwrap_or_else(|_| panic!("never reached {expected:?}")).unwrap();
    }

    async fn wait_for_event(&mut self, kind: EventKind, path: &str) {
        let received = tokio::time::timeout(Duration::from_secs(40), self.next_event_of(kind, path)).await;
        received.unwrap_or_else(|_| panic!("no {kind:?} {path}"));
    }

    async fn next_event_of(&mut self, kind: EventKind, path: &str) {
        while let Some(event) = self.stream.next().await {
            if (event.kind, event.path.as_str()) == (kind, path) {
                return;
            }
        }
        panic!("the stream ended");
    }

    /// Checks that the session and its ephemeral exist, and that events are received. A new quorum may break up once
    /// more, so requests that failed because of a lost connection are retried, within the session.
    async fn assert_usable(&mut self, options: ConnectOptions) {
        self.wait_for_event(EventKind::Resync, "/watched").await;
        assert_eq!(self.zk.session_id(), self.session_id);
        let stat = again(|| self.zk.exists(&self.ephemeral)).await.unwrap().expect("the ephemeral survives");
        assert_eq!(stat.ephemeral_owner, self.session_id);
        let other = wait::until_some("another session", TIMEOUT, async || connect(options.clone()).await.ok()).await;
        wait::until("an event of another session's write", TIMEOUT, async || {
            let name = "/watched/n-";
            let (path, _) = again(|| other.create(name, Bytes::new(), CreateMode::PersistentSequential)).await.unwrap();
            // A write during an outage is reported by a resync, not by an event.
            tokio::time::timeout(Duration::from_secs(5), self.next_event_of(EventKind::Created, &path)).await.is_ok()
        })
        .await;
        other.close().await;
    }
}

/// Retries an idempotent request until it has a definite result.
async fn again<T>(mut request: impl FnMut() -> Reply<T>) -> Result<T, ZkError> {
    wait::until_some("a reply", TIMEOUT, async || match request().await {
        Err(ZkError::Unknown(_)) => None,
        answer => Some(answer),
    })
    .await
}

#[tokio::test]
async fn a_session_survives_the_loss_of_its_server_and_of_the_leader() {
    if real::skipped() {
        return;
    }
    let mut ensemble = Ensemble::start(3, settings()).await;
    let options = options_of(&ensemble.address());
    let mut harness = SessionHarness::start(options.clone()).await;
    let home = server_of_session(&ensemble, harness.session_id).await;
    ensemble.kill(home);
    harness.assert_usable(options.clone()).await;
    ensemble.start_again(home).await;
    let leader = ensemble.leader().await;
    ensemble.kill(leader);
    // Followers drop their clients during an election, so this is always a new connection, too.
    harness.assert_usable(options.clone()).await;
    ensemble.start_again(leader).await;
    // A follower hangs with open connections, as behind a network that drops packets.
    let leader = ensemble.leader().await;
    let mut servers = options.servers.clone();
    let mut home = server_of_session(&ensemble, harness.session_id).await;
    while home == leader {
        servers.rotate_left(1);
        harness.zk.set_servers(servers.clone());
        harness.assert_usable(options.clone()).await;
        home = server_of_session(&ensemble, harness.session_id).await;
    }
    ensemble.servers[home].freeze();
    harness.assert_usable(options).await;
    ensemble.servers[home].thaw();
    harness.zk.close().await;
}

#[tokio::test]
async fn a_session_outlives_an_outage_beyond_its_client_timeout() {
    if real::skipped() {
        return;
    }
    let mut server = Server::start(settings()).await;
    let options = ConnectOptions { session_timeout: Duration::from_secs(3), ..options_of(&server.address()) };
    let mut harness = SessionHarness::start(options.clone()).await;
    let (_, changed) = harness.zk.exists_and_watch("/nothing").await.unwrap();
    server.kill();
    harness.wait_for_state(SessionState::Suspended).await;
    tokio::time::timeout(Duration::from_secs(15), changed).await.expect("one-shot watches resolve with the connection");
    let started = tokio::time::Instant::now();
    let refused = harness.zk.get("/watched").await;
    assert!(matches!(&refused, Err(ZkError::Unknown(text)) if text.contains("not sent")), "{refused:?}");
    assert!(started.elapsed() < Duration::from_secs(20), "bounded by the session timeout");
    // The outage has to exceed 1.4 session timeouts, after which the client crate gives up.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    server.start_again().await;
    // Requests made while suspended are sent in order with the new connection, within the session timeout.
    wait::until("a request to succeed", TIMEOUT, async || {
        let created = harness.zk.create("/watched/late", Bytes::new(), CreateMode::Persistent);
        let read = harness.zk.get("/watched/late");
        let _ = created.await;
        read.await.is_ok()
    })
    .await;
    harness.assert_usable(options).await;
    harness.zk.close().await;
}

#[tokio::test]
async fn a_session_closed_by_others_stays_expired() {
    if real::skipped() {
        return;
    }
    let server = Server::start(settings()).await;
    let mut harness = SessionHarness::start(options_of(&server.address())).await;
    // A client with the session's credentials can close it. Our client may reconnect first, so the test repeats.
    let state = harness.zk.session();
    wait::until("the second client to close the session", TIMEOUT, async || {
        let second_session =
            zookeeper_client::Client::connector().with_session(harness.zk.credentials()).with_fail_eagerly();
        drop(second_session.connect(&server.address()).await);
        *state.borrow() == SessionState::Expired
    })
    .await;
    harness.wait_for_state(SessionState::Expired).await;
    assert_eq!(harness.zk.get("/watched").await.unwrap_err(), ZkError::SessionExpired);
    assert_eq!(harness.zk.watch("/watched").await.err(), Some(ZkError::SessionExpired));
    let ended = async { while harness.stream.next().await.is_some() {} };
    tokio::time::timeout(Duration::from_secs(5), ended).await.expect("the stream ends with the session");
    let other = connect(options_of(&server.address())).await.unwrap();
    assert_eq!(other.exists("/mine").await.unwrap(), None, "its ephemerals are deleted");
    tokio::time::timeout(Duration::from_secs(5), harness.zk.close())
        .await
        .expect("closing an expired session returns immediately");
}

#[tokio::test]
async fn closing_and_dropping_end_the_session_at_once() {
    if real::skipped() {
        return;
    }
    let server = Server::start(settings()).await;
    let options = ConnectOptions { session_timeout: Duration::from_secs(30), ..options_of(&server.address()) };
    let other = connect(options.clone()).await.unwrap();
    let harness = SessionHarness::start(options.clone()).await;
    harness.zk.close().await;
    assert_eq!(other.exists("/mine").await.unwrap(), None);
    assert_eq!(harness.zk.get("/mine").await.unwrap_err(), ZkError::SessionExpired);
    let harness = SessionHarness::start(options.clone()).await;
    let (_, deleted) = other.exists_and_watch("/mine").await.unwrap();
    drop(harness);
    tokio::time::timeout(Duration::from_secs(3), deleted)
        .await
        .expect("a dropped session ends long before its timeout");
    assert_eq!(other.exists("/mine").await.unwrap(), None);
    // A reply that is kept without being awaited does not delay the close either.
    let harness = SessionHarness::start(options.clone()).await;
    let replies = (harness.zk.get("/mine"), harness.zk.exists_and_watch("/mine"));
    tokio::time::timeout(Duration::from_secs(5), harness.zk.close()).await.expect("closing has a limit");
    assert_eq!(other.exists("/mine").await.unwrap(), None);
    drop(replies);
    // A hanging server delays the close by a bounded time only.
    let harness = SessionHarness::start(options).await;
    server.freeze();
    tokio::time::timeout(Duration::from_secs(6), harness.zk.close()).await.expect("closing has a limit");
    server.thaw();
}

// `zookeeper-servers` can be changed by a reload.
#[tokio::test]
async fn a_session_moves_to_reconfigured_servers() {
    if real::skipped() {
        return;
    }
    let ensemble = Ensemble::start(3, settings()).await;
    let all = options_of(&ensemble.address());
    let one = |index: usize| vec![all.servers[index].clone()];
    let mut harness = SessionHarness::start(ConnectOptions { servers: one(0), ..all.clone() }).await;
    assert_eq!(server_of_session(&ensemble, harness.session_id).await, 0);
    harness.zk.set_servers(one(2));
    harness.assert_usable(all.clone()).await;
    assert_eq!(server_of_session(&ensemble, harness.session_id).await, 2);
    harness.zk.close().await;
}

#[tokio::test]
async fn connecting_retries_until_success_or_cancellation() {
    if real::skipped() {
        return;
    }
    let mut server = Server::start(settings()).await;
    server.kill();
    let options = options_of(&server.address());
    let refused = connect(options.clone()).await.err().expect("no server is running").to_string();
    assert!(refused.contains(&format!("{}: connection refused", server.address())), "{refused}");
    let soon = tokio::time::sleep(Duration::from_millis(300));
    assert!(connect_until(options.clone(), soon).await.unwrap().is_none());
    let waiting = tokio::spawn(connect_until(options, std::future::pending()));
    server.start_again().await;
    let connected = tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap().unwrap();
    connected.expect("the attempt is not cancelled").close().await;
}

/// The client has its own threads, so its session does not depend on the arbiter that created it.
#[test]
fn a_session_created_on_an_arbiter_outlives_it() {
    if real::skipped() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(Server::start(settings()));
    let options = ConnectOptions { session_timeout: Duration::from_secs(1), ..options_of(&server.address()) };
    let zk = actix_rt::System::new().block_on(async move {
        let zk = connect(options).await.unwrap();
        zk.create("/mine", Bytes::new(), CreateMode::Ephemeral).await.unwrap();
        // Blocks this thread for three session timeouts.
        #[allow(clippy::disallowed_methods)]
        std::thread::sleep(Duration::from_secs(3));
        zk
    });
    runtime.block_on(async {
        let stat = zk.exists("/mine").await.unwrap().expect("the ephemeral still exists");
        assert_eq!(stat.ephemeral_owner, zk.session_id());
        zk.close().await;
    });
}
