//! The wire between a launcher and a ZooKeeper server, which can be cut, one way too, and made slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

/// What becomes of bytes. What is not let through is held, as by the retransmissions of TCP, and arrives when the wire is whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wire {
    Whole,
    /// Silently, both ways.
    Cut,
    /// The server is heard and does not hear.
    CutToServer,
    /// The server hears and is not heard.
    CutToClient,
    /// Connections end, and new ones are refused.
    Reset,
    Slow(Duration),
}

impl Wire {
    fn delay(self, direction: Direction) -> Option<Duration> {
        match (self, direction) {
            (Self::Whole, _) | (Self::CutToServer, Direction::ToClient) | (Self::CutToClient, Direction::ToServer) => {
                Some(Duration::ZERO)
            }
            (Self::Slow(delay), _) => Some(delay),
            (Self::Cut | Self::Reset | Self::CutToServer | Self::CutToClient, _) => None,
        }
    }
}

#[derive(Clone, Copy)]
enum Direction {
    ToServer,
    ToClient,
}

/// How often a wire that was not whole held something up, or refused it.
pub type Struck = Arc<AtomicUsize>;

/// Listens until it is dropped.
pub struct Proxy {
    pub address: String,
    task: JoinHandle<()>,
}

impl Proxy {
    /// On the way to this server.
    pub async fn start(server: String, wire: watch::Receiver<Wire>, struck: Struck) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        let address = listener.local_addr().expect("a listener has an address").to_string();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                // Connections that are over are forgotten.
                while connections.try_join_next().is_some() {}
                let Ok((client, _)) = listener.accept().await else { continue };
                if *wire.borrow() == Wire::Reset {
                    struck.fetch_add(1, Ordering::Relaxed);
                } else {
                    connections.spawn(connection(client, server.clone(), wire.clone(), struck.clone()));
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

async fn connection(client: TcpStream, server: String, mut wire: watch::Receiver<Wire>, struck: Struck) {
    // Whoever connects through a wire that is cut waits.
    let whole = wire.clone().wait_for(|wire| wire.delay(Direction::ToServer).is_some()).await.is_ok();
    let Ok(server) = TcpStream::connect(server).await else { return };
    // Small messages that wait for each other are what this protocol consists of.
    if !whole || client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = carry(from_client, to_server, wire.clone(), Direction::ToServer, &struck) => {}
        () = carry(from_server, to_client, wire.clone(), Direction::ToClient, &struck) => {}
        _ = wire.wait_for(|wire| *wire == Wire::Reset) => drop(struck.fetch_add(1, Ordering::Relaxed)),
    }
}

async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut wire: watch::Receiver<Wire>,
    direction: Direction,
    struck: &Struck,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if wire.borrow().delay(direction) != Some(Duration::ZERO) {
            struck.fetch_add(1, Ordering::Relaxed);
        }
        let delay = match wire.wait_for(|wire| wire.delay(direction).is_some()).await {
            Ok(wire) => wire.delay(direction).unwrap_or_default(),
            Err(_) => return,
        };
        sleep(delay).await;
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
