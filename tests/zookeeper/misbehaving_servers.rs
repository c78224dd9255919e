//! Misbehaving servers: any data from the server leads to an error message, never to a panic or a hang.

use std::time::Duration;

use bytes::Bytes;
use nodepool_zk::client::{ConnectOptions, ServerAddress as Address, connect};
use nodepool_zk::{Connection, SessionState};
use testkit::real::zookeeper::{Ensemble, Options};
use testkit::{real, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use zookeeper_server::types::{CreateMode, ZkError};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The behavior of a server on a connection.
#[derive(Clone, Copy, Debug)]
enum ListenerBehavior {
    Closes,
    Silent,
    /// Replies with these bytes to every packet.
    Replies(&'static [u8]),
    /// Grants a session, then replies with these bytes.
    RepliesAfterHandshake(&'static [u8]),
}

/// The connect response: protocol 0, 2 s, session 1, a password of sixteen bytes, not read-only.
fn session_granted() -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(0_i32.to_be_bytes());
    body.extend(2_000_i32.to_be_bytes());
    body.extend(1_i64.to_be_bytes());
    body.extend(16_i32.to_be_bytes());
    body.extend([7; 16]);
    body.push(0);
    let mut packet = (body.len() as i32).to_be_bytes().to_vec();
    packet.extend(body);
    packet
}

/// The reply to the ping after the handshake.
fn ping_answered() -> Vec<u8> {
    let mut packet = 16_i32.to_be_bytes().to_vec();
    packet.extend((-2_i32).to_be_bytes());
    packet.extend(0_i64.to_be_bytes());
    packet.extend(0_i32.to_be_bytes());
    packet
}

async fn serve(mut stream: TcpStream, behavior: ListenerBehavior) -> std::io::Result<()> {
    let mut buffer = [0; 4096];
    let mut packets = 0;
    loop {
        if matches!(behavior, ListenerBehavior::Closes) || stream.read(&mut buffer).await? == 0 {
            return Ok(());
        }
        packets += 1;
        match behavior {
            ListenerBehavior::Closes | ListenerBehavior::Silent => {}
            ListenerBehavior::Replies(words) => stream.write_all(words).await?,
            ListenerBehavior::RepliesAfterHandshake(_) if packets == 1 => stream.write_all(&session_granted()).await?,
            ListenerBehavior::RepliesAfterHandshake(_) if packets == 2 => stream.write_all(&ping_answered()).await?,
            ListenerBehavior::RepliesAfterHandshake(words) => stream.write_all(words).await?,
        }
    }
}

async fn start(behavior: ListenerBehavior) -> ConnectOptions {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, behavior));
        }
    });
    ConnectOptions { session_timeout: Duration::from_secs(2), ..ConnectOptions::plain("127.0.0.1", port) }
}

#[tokio::test]
async fn a_server_that_is_not_zookeeper_is_rejected_with_a_reason() {
    let cases = [
        (ListenerBehavior::Closes, "the server close"),
        (ListenerBehavior::Silent, "accepts the connection but does not answer"),
        (ListenerBehavior::Replies(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "the answer is not from ZooKeeper"),
        (ListenerBehavior::Replies(&[0xff; 64]), "the answer is not from ZooKeeper"),
        (ListenerBehavior::Replies(&[0, 0, 0, 1, 0]), "the answer is not from ZooKeeper"),
        (ListenerBehavior::Replies(&[0x7f, 0xff, 0xff, 0xff, 0, 0]), "the answer is not from ZooKeeper"),
        (ListenerBehavior::Replies(&[0x15, 0x03, 0x03, 0, 2, 2, 80]), "wants TLS"),
    ];
    for (behavior, words) in cases {
        let options = start(behavior).await;
        let ended = tokio::time::timeout(Duration::from_secs(20), connect(options)).await;
        let error = ended.unwrap_or_else(|_| panic!("{behavior:?} hangs")).err().expect("it is rejected").to_string();
        assert!(error.contains(words), "{behavior:?}: {error}");
    }
}

#[tokio::test]
async fn invalid_replies_only_cost_the_connection() {
    let nonsense: [&[u8]; 5] = [
        &[0xff; 64],
        &[0, 0, 0, 3, 1, 2, 3],
        b"GET / HTTP/1.0\r\n\r\n",
        &[0; 64],
        &[0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0],
    ];
    for words in nonsense {
        let zk = connect(start(ListenerBehavior::RepliesAfterHandshake(words)).await).await.unwrap();
        assert_eq!(zk.session_id(), 1);
        let read = tokio::time::timeout(Duration::from_secs(10), zk.get("/x")).await.expect("a reply in time");
        assert!(matches!(read, Err(ZkError::Unknown(_) | ZkError::Protocol(_))), "{words:?}: {read:?}");
        let created = zk.create("/x", Bytes::new(), CreateMode::Persistent);
        let created = tokio::time::timeout(Duration::from_secs(10), created).await.expect("a reply in time");
        assert!(matches!(created, Err(ZkError::Unknown(_) | ZkError::Protocol(_))), "{words:?}: {created:?}");
        tokio::time::timeout(Duration::from_secs(10), zk.close()).await.expect("closing has a limit");
    }
}

#[tokio::test]
async fn a_read_only_server_is_reported_and_retried() {
    if real::skipped() {
        return;
    }
    let mut options = Options::short_sessions();
    options.settings.push("maxSessionTimeout=60000".to_owned());
    options.java.push("-Dreadonlymode.enabled=true".to_owned());
    let mut ensemble = Ensemble::start(3, options).await;
    let servers = ensemble.servers.iter().map(|server| {
        let (host, port) = server.address().rsplit_once(':').map(|(h, p)| (h.to_owned(), p.parse().unwrap())).unwrap();
        Address { host, port }
    });
    let options = ConnectOptions {
        servers: servers.collect(),
        session_timeout: Duration::from_secs(30),
        request_deadline: Some(Duration::from_secs(1)),
        ..ConnectOptions::plain("", 0)
    };
    let zk = connect(options.clone()).await.unwrap();
    zk.create("/mine", Bytes::new(), CreateMode::Ephemeral).await.unwrap();
    ensemble.kill(0);
    ensemble.kill(1);
    wait::until("the last server to be read-only", TIMEOUT, async || {
        ensemble.servers[2].role().await.as_deref() == Some("read-only")
    })
    .await;
    let last = ConnectOptions { servers: vec![options.servers[2].clone()], ..options };
    let refused = connect(last).await.err().expect("a read-only server is rejected").to_string();
    assert!(refused.contains("the server is read-only: it has lost its ensemble"), "{refused}");
    assert_eq!(*zk.session().borrow(), SessionState::Suspended);
    let set = zk.set("/mine", Bytes::new(), -1).await;
    assert!(matches!(set, Err(ZkError::Unknown(_) | ZkError::ReadOnly)), "{set:?}");
    // Less than the session timeout of 30 s has passed, so the session resumes with the ensemble.
    ensemble.start_again(0).await;
    wait::until("the session to resume", TIMEOUT, async || {
        zk.exists("/mine").await.is_ok_and(|stat| stat.is_some_and(|stat| stat.ephemeral_owner == zk.session_id()))
    })
    .await;
    zk.close().await;
}
