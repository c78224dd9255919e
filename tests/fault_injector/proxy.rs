//! The wire between a launcher and a ZooKeeper server, which can be cut, one way too, and made slow.

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

/// What becomes of bytes. What is not let through is held, as by the retransmissions of TCP, and arrives when the wire is whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LinkState {
    Up,
    /// Silently, both ways.
    Blocked,
    /// The server is heard and does not hear.
    BlockedToServer,
    /// The server hears and is not heard.
    BlockedToClient,
    /// Connections end, and new ones are refused.
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

/// How often a wire that was not whole held something up, or refused it.
pub type MessageCount = Arc<AtomicUsize>;

/// The sessions that whoever connects has been told of.
pub type Sessions = Arc<Mutex<BTreeSet<i64>>>;

/// What somebody minds of what goes over a wire.
#[derive(Clone, Default)]
pub struct LinkStats {
    pub affected_messages: MessageCount,
    pub sessions: Sessions,
}

/// Listens until it is dropped.
pub struct Proxy {
    pub address: String,
    task: JoinHandle<()>,
}

impl Proxy {
    /// On the way to this server.
    pub async fn start(server: String, link: watch::Receiver<LinkState>, stats: LinkStats) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        let address = listener.local_addr().expect("a listener has an address").to_string();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                // Connections that are over are forgotten.
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

async fn connection(client: TcpStream, server: String, mut link: watch::Receiver<LinkState>, seen: LinkStats) {
    // Whoever connects through a wire that is cut waits.
    let is_up = link.clone().wait_for(|wire| wire.delay(Direction::ToServer).is_some()).await.is_ok();
    let Ok(server) = TcpStream::connect(server).await else { return };
    // Small messages that wait for each other are what this protocol consists of.
    if !is_up || client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = forward(from_client, to_server, link.clone(), Direction::ToServer, &seen) => {}
        () = forward(from_server, to_client, link.clone(), Direction::ToClient, &seen) => {}
        _ = link.wait_for(|wire| *wire == LinkState::Reset) => drop(seen.affected_messages.fetch_add(1, Ordering::Relaxed)),
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
        let delay = match link.wait_for(|wire| wire.delay(direction).is_some()).await {
            Ok(wire) => wire.delay(direction).unwrap_or_default(),
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

/// Bytes with which a server begins until the session is said: the length, the protocol's version, the timeout, and the session itself.
const CONNECT_REPLY_BYTES: usize = 4 + 4 + 4 + 8;

/// None where it is not there yet, or there is none any more.
fn session_id(connect_reply: &[u8]) -> Option<i64> {
    let number = connect_reply.get(CONNECT_REPLY_BYTES - 8..CONNECT_REPLY_BYTES)?;
    Some(i64::from_be_bytes(number.try_into().expect("these are eight bytes"))).filter(|session| *session != 0)
}
