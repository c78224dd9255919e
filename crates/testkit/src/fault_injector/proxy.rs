//! TCP proxy between a process and a ZooKeeper server: blocks one or both directions, resets and delays.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

/// State of a link. Blocked bytes are held, as by TCP retransmissions, and delivered when the link is up again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LinkState {
    Up,
    /// Both directions, silently.
    Blocked,
    /// Only the direction to the server.
    BlockedToServer,
    /// Only the direction to the client.
    BlockedToClient,
    /// Connections are closed, and new ones are refused.
    Reset,
    Delayed(Duration),
}

impl LinkState {
    fn delay(self, direction: Direction) -> Option<Duration> {
        match (self, direction) {
            (Self::Up, _)
            | (Self::BlockedToServer, Direction::ToClient)
            | (Self::BlockedToClient, Direction::ToServer) => Some(Duration::ZERO),
            (Self::Delayed(delay), _) => Some(delay),
            (Self::Blocked | Self::Reset | Self::BlockedToServer | Self::BlockedToClient, _) => None,
        }
    }
}

#[derive(Clone, Copy)]
enum Direction {
    ToServer,
    ToClient,
}

/// Number of messages that a link in another state than `Up` delayed or refused.
pub type MessageCount = Arc<AtomicUsize>;

/// Ids of the sessions that the server announced to connecting clients.
pub type Sessions = Arc<Mutex<BTreeSet<i64>>>;

/// Counters of a link.
#[derive(Clone, Default)]
pub struct LinkStats {
    pub affected_messages: MessageCount,
    pub sessions: Sessions,
}

/// Listens until dropped.
pub struct Proxy {
    pub address: String,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy for this server.
    pub async fn start(server: String, link: watch::Receiver<LinkState>, stats: LinkStats) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        let address = listener.local_addr().expect("a listener has an address").to_string();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                // Removes closed connections.
                while connections.try_join_next().is_some() {}
                let Ok((client, _)) = listener.accept().await else { continue };
                if *link.borrow() == LinkState::Reset {
                    stats.affected_messages.fetch_add(1, Ordering::Relaxed);
                } else {
                    connections.spawn(connection(client, server.clone(), link.clone(), stats.clone()));
                }
            }
        });
        Proxy { address, task }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn connection(client: TcpStream, server: String, mut link: watch::Receiver<LinkState>, stats: LinkStats) {
    // A connection through a blocked link waits.
    let is_up = link.clone().wait_for(|state| state.delay(Direction::ToServer).is_some()).await.is_ok();
    let Ok(server) = TcpStream::connect(server).await else { return };
    // The protocol consists of small messages that wait for each other.
    if !is_up || client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = forward(from_client, to_server, link.clone(), Direction::ToServer, &stats) => {}
        () = forward(from_server, to_client, link.clone(), Direction::ToClient, &stats) => {}
        _ = link.wait_for(|state| *state == LinkState::Reset) => drop(stats.affected_messages.fetch_add(1, Ordering::Relaxed)),
    }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut link: watch::Receiver<LinkState>,
    direction: Direction,
    stats: &LinkStats,
) {
    let (mut buffer, mut connect_reply) = (vec![0; 64 * 1024], Vec::new());
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if link.borrow().delay(direction) != Some(Duration::ZERO) {
            stats.affected_messages.fetch_add(1, Ordering::Relaxed);
        }
        let delay = match link.wait_for(|state| state.delay(direction).is_some()).await {
            Ok(state) => state.delay(direction).unwrap_or_default(),
            Err(_) => return,
        };
        sleep(delay).await;
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
        if matches!(direction, Direction::ToClient) && connect_reply.len() < CONNECT_REPLY_BYTES {
            connect_reply.extend_from_slice(&buffer[..read]);
            stats.sessions.lock().unwrap().extend(session_id(&connect_reply));
        }
    }
}

/// Bytes of a connect reply up to the session id: length, protocol version, timeout and session id.
const CONNECT_REPLY_BYTES: usize = 4 + 4 + 4 + 8;

/// `None` if the reply is incomplete, or the session has expired.
fn session_id(connect_reply: &[u8]) -> Option<i64> {
    let number = connect_reply.get(CONNECT_REPLY_BYTES - 8..CONNECT_REPLY_BYTES)?;
    Some(i64::from_be_bytes(number.try_into().expect("these are eight bytes"))).filter(|session| *session != 0)
}
