//! The client against Apache ZooKeeper: the store contract, chroots, connections that come and go, sessions that end.

mod contract;
mod ensemble;

use std::time::Duration;

use bytes::Bytes;
use ensemble::{Ensemble, eventually};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use nodepool::zk::session::{ConnectError, ConnectOptions, connect, connect_until};
use nodepool::zk::{Connection, CreateMode, EventKind, SessionState, Zk, ZkError};

struct Real(ConnectOptions);

impl contract::Server for Real {
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
async fn the_client_keeps_the_contract_with_and_without_a_chroot() {
    if !ensemble::available() {
        return;
    }
    let server = Ensemble::single().await;
    contract::run(&Real(server.options())).await;
    // zookeeper.md check 22: made on demand
    contract::run(&Real(ConnectOptions { chroot: "/np".into(), ..server.options() })).await;
    let outside = connect(server.options()).await.unwrap();
    let (names, _) = outside.children("/np").await.unwrap();
    assert!(!names.is_empty() && names.iter().all(|name| name.starts_with("contract-")), "{names:?}");
    let refused = connect(ConnectOptions { chroot: "/missing/np".into(), ..server.options() }).await;
    assert!(matches!(refused, Err(ConnectError::NoChrootParent(_))));
}

/// A session with an ephemeral, a watch, and a second session that changes things.
struct Scene {
    zk: std::sync::Arc<nodepool::zk::session::RealConnection>,
    stream: futures::stream::BoxStream<'static, nodepool::zk::WatchEvent>,
    ephemeral: String,
    session_id: i64,
}

impl Scene {
    async fn set(options: ConnectOptions) -> Self {
        let zk = connect(options).await.unwrap();
        let (ephemeral, _) = zk.create("/mine", Bytes::new(), CreateMode::Ephemeral).await.unwrap();
        let _ = zk.create("/watched", Bytes::new(), CreateMode::Persistent).await;
        let stream = zk.watch("/watched").await.unwrap();
        let session_id = zk.session_id();
        Self { zk, stream, ephemeral, session_id }
    }

    async fn reaches(&self, wanted: SessionState) {
        let mut state = self.zk.session();
        let reached = tokio::time::timeout(Duration::from_secs(40), state.wait_for(|state| *state == wanted));
        reached.await.unwrap_or_else(|_| panic!("never {wanted:?}")).unwrap();
    }

    async fn hears(&mut self, kind: EventKind, path: &str) {
        let heard = async {
            while let Some(event) = self.stream.next().await {
                if (event.kind, event.path.as_str()) == (kind, path) {
                    return;
                }
            }
            panic!("the stream ended");
        };
        tokio::time::timeout(Duration::from_secs(40), heard).await.unwrap_or_else(|_| panic!("no {kind:?} {path}"));
    }

    /// Same session, ephemeral still there, events come again.
    async fn is_whole(&mut self, options: ConnectOptions) {
        self.hears(EventKind::Resync, "/watched").await;
        assert_eq!(self.zk.session_id(), self.session_id);
        let stat = self.zk.exists(&self.ephemeral).await.unwrap().expect("the ephemeral survives");
        assert_eq!(stat.ephemeral_owner, self.session_id);
        let other = connect(options).await.unwrap();
        let name = "/watched/n-";
        let (path, _) = other.create(name, Bytes::new(), CreateMode::PersistentSequential).await.unwrap();
        self.hears(EventKind::Created, &path).await;
        other.close().await;
    }
}

#[tokio::test]
async fn a_session_survives_the_loss_of_its_server_and_of_the_leader() {
    if !ensemble::available() {
        return;
    }
    let mut ensemble = Ensemble::three().await;
    let options = ensemble.options();
    let mut scene = Scene::set(options.clone()).await;
    let home = ensemble.home_of(scene.session_id).await.unwrap();
    ensemble.kill(home);
    scene.is_whole(options.clone()).await;
    ensemble.launch(home);
    ensemble.serving(home).await;
    let leader = ensemble.leader().await;
    ensemble.kill(leader);
    // Followers drop their clients while they elect, so this is always a new connection too.
    scene.is_whole(options.clone()).await;
    ensemble.launch(leader);
    ensemble.serving(leader).await;
    // A server that hangs with open connections, as behind a network that swallows packets.
    let home = ensemble.home_of(scene.session_id).await.unwrap();
    ensemble.freeze(home);
    scene.is_whole(ConnectOptions { session_timeout: Duration::from_secs(20), ..options.clone() }).await;
    ensemble.thaw(home);
    scene.zk.close().await;
}

// crates.md §2 traps 3 and 5
#[tokio::test]
async fn a_session_outlives_an_outage_longer_than_the_crate_believes() {
    if !ensemble::available() {
        return;
    }
    let mut server = Ensemble::single().await;
    let options = ConnectOptions { session_timeout: Duration::from_secs(1), ..server.options() };
    let mut scene = Scene::set(options.clone()).await;
    let (_, changed) = scene.zk.exists_and_watch("/nothing").await.unwrap();
    server.kill(0);
    scene.reaches(SessionState::Suspended).await;
    tokio::time::timeout(Duration::from_secs(5), changed).await.expect("one-shot watches resolve with the connection");
    let started = tokio::time::Instant::now();
    let refused = scene.zk.get("/watched").await;
    assert!(matches!(&refused, Err(ZkError::Unknown(text)) if text.contains("not sent")), "{refused:?}");
    assert!(started.elapsed() < Duration::from_secs(2), "bounded by the session timeout");
    // The outage has to last 1.4 session timeouts, which is when the crate gives up by itself.
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    server.launch(0);
    // Waits while suspended, in order, as soon as there is time enough for the server to come up.
    eventually("a request gets through", || {
        let created = scene.zk.create("/watched/late", Bytes::new(), CreateMode::Persistent);
        let read = scene.zk.get("/watched/late");
        async move {
            let _ = created.await;
            read.await.is_ok()
        }
    })
    .await;
    scene.is_whole(options).await;
    scene.zk.close().await;
}

#[tokio::test]
async fn a_session_that_somebody_ended_is_expired_for_good() {
    if !ensemble::available() {
        return;
    }
    let server = Ensemble::single().await;
    let mut scene = Scene::set(server.options()).await;
    // Whoever knows the credentials can end the session. Our client takes it back when it can, hence the repetition.
    let address = format!("127.0.0.1:{}", server.port());
    eventually("the thief ends the session", || {
        let thief = zookeeper_client::Client::connector().with_session(scene.zk.credentials()).with_fail_eagerly();
        let (address, state) = (address.clone(), scene.zk.session());
        async move {
            drop(thief.connect(&address).await);
            *state.borrow() == SessionState::Expired
        }
    })
    .await;
    scene.reaches(SessionState::Expired).await;
    assert_eq!(scene.zk.get("/watched").await.unwrap_err(), ZkError::SessionExpired);
    assert_eq!(scene.zk.watch("/watched").await.err(), Some(ZkError::SessionExpired));
    let ended = async { while scene.stream.next().await.is_some() {} };
    tokio::time::timeout(Duration::from_secs(5), ended).await.expect("the stream ends with the session");
    let other = connect(server.options()).await.unwrap();
    assert_eq!(other.exists("/mine").await.unwrap(), None, "its ephemerals are gone");
    tokio::time::timeout(Duration::from_secs(5), scene.zk.close()).await.expect("closing it is no work");
}

#[tokio::test]
async fn closing_and_dropping_end_the_session_at_once() {
    if !ensemble::available() {
        return;
    }
    let server = Ensemble::single().await;
    let options = ConnectOptions { session_timeout: Duration::from_secs(30), ..server.options() };
    let other = connect(options.clone()).await.unwrap();
    let scene = Scene::set(options.clone()).await;
    scene.zk.close().await;
    assert_eq!(other.exists("/mine").await.unwrap(), None);
    assert_eq!(scene.zk.get("/mine").await.unwrap_err(), ZkError::SessionExpired);
    let scene = Scene::set(options.clone()).await;
    let (_, gone) = other.exists_and_watch("/mine").await.unwrap();
    drop(scene);
    tokio::time::timeout(Duration::from_secs(3), gone).await.expect("a dropped session ends long before its timeout");
    assert_eq!(other.exists("/mine").await.unwrap(), None);
    // A server that hangs holds up nobody for ever.
    let scene = Scene::set(options).await;
    server.freeze(0);
    tokio::time::timeout(Duration::from_secs(6), scene.zk.close()).await.expect("closing has a limit");
    server.thaw(0);
}

// zookeeper.md R2 and the reload of zookeeper-servers
#[tokio::test]
async fn a_session_moves_to_other_servers_when_told() {
    if !ensemble::available() {
        return;
    }
    let ensemble = Ensemble::three().await;
    let all = ensemble.options();
    let one = |index: usize| vec![all.servers[index].clone()];
    let mut scene = Scene::set(ConnectOptions { servers: one(0), ..all.clone() }).await;
    assert_eq!(ensemble.home_of(scene.session_id).await, Some(0));
    scene.zk.set_servers(one(2));
    scene.is_whole(all.clone()).await;
    assert_eq!(ensemble.home_of(scene.session_id).await, Some(2));
    scene.zk.close().await;
}

#[tokio::test]
async fn connecting_goes_on_until_there_is_a_server_or_it_is_cancelled() {
    if !ensemble::available() {
        return;
    }
    let mut server = Ensemble::single().await;
    server.kill(0);
    let options = server.options();
    let refused = connect(options.clone()).await.err().expect("nobody is there").to_string();
    assert!(refused.contains(&format!("127.0.0.1:{}: connection refused", server.port())), "{refused}");
    let soon = tokio::time::sleep(Duration::from_millis(300));
    assert!(connect_until(options.clone(), soon).await.unwrap().is_none());
    let waiting = tokio::spawn(connect_until(options, std::future::pending()));
    server.launch(0);
    let connected = tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap().unwrap();
    connected.expect("not cancelled").close().await;
}

/// The client has threads of its own, so an arbiter that blocks or ends costs nobody the session.
#[test]
fn a_session_made_on_an_arbiter_survives_it() {
    if !ensemble::available() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(Ensemble::single());
    let options = ConnectOptions { session_timeout: Duration::from_secs(1), ..server.options() };
    let zk = actix_rt::System::new().block_on(async move {
        let zk = connect(options).await.unwrap();
        zk.create("/mine", Bytes::new(), CreateMode::Ephemeral).await.unwrap();
        // Three session timeouts during which this thread does nothing else.
        #[allow(clippy::disallowed_methods)]
        std::thread::sleep(Duration::from_secs(3));
        zk
    });
    runtime.block_on(async {
        let stat = zk.exists("/mine").await.unwrap().expect("still there");
        assert_eq!(stat.ephemeral_owner, zk.session_id());
        zk.close().await;
    });
}
