//! The port of the services. It listens, except while the knob `refuse_connections` is set.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::Context;
use tokio::net::TcpSocket;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::http::{self, SharedSimulation, Signals};
use crate::tls;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 4096;

pub struct ServicePort {
    /// A bound socket that never listens. It keeps the port while no listener exists: the system could give a free port
    /// to an outgoing connection.
    _reservation: TcpSocket,
    address: SocketAddr,
    acceptor: Option<TlsAcceptor>,
}

impl ServicePort {
    /// Reserves this port, or any free one for 0. An acceptor makes it serve TLS.
    pub fn reserve(port: u16, acceptor: Option<TlsAcceptor>) -> anyhow::Result<Self> {
        let reservation = bound((Ipv4Addr::LOCALHOST, port).into());
        let reservation = reservation.with_context(|| format!("cannot listen on port {port}"))?;
        let address = reservation.local_addr()?;
        Ok(Self { _reservation: reservation, address, acceptor })
    }

    /// The root URL of the services.
    pub fn base(&self) -> String {
        let scheme = if self.acceptor.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    pub fn listen(&self) -> anyhow::Result<TcpListener> {
        let listener = bound(self.address).and_then(|socket| socket.listen(BACKLOG)?.into_std());
        listener.with_context(|| format!("cannot listen on {}", self.address))
    }

    /// Serves until the server fails. While connections are refused, the listener and all connections are closed.
    pub async fn serve(
        self,
        mut listener: TcpListener,
        simulation: SharedSimulation,
        mut refusing: watch::Receiver<bool>,
    ) -> anyhow::Result<()> {
        loop {
            self.serve_until_refusing(listener, &simulation, &mut refusing).await?;
            refusing.wait_for(|refusing| !refusing).await?;
            listener = self.listen()?;
        }
    }

    async fn serve_until_refusing(
        &self,
        listener: TcpListener,
        simulation: &SharedSimulation,
        refusing: &mut watch::Receiver<bool>,
    ) -> anyhow::Result<()> {
        let (plain, proxy) = match &self.acceptor {
            None => (listener, None),
            Some(acceptor) => {
                let plain = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                let listener = tokio::net::TcpListener::from_std(listener)?;
                let proxy = tokio::spawn(tls::forward(listener, acceptor.clone(), plain.local_addr()?));
                (plain, Some(proxy))
            }
        };
        let server = http::run(plain, simulation, Signals::Ignore)?;
        let handle = server.handle();
        let mut running = tokio::spawn(server);
        tokio::select! {
            ended = &mut running => {
                ended?.context("the server failed")?;
                anyhow::bail!("the server ended");
            }
            changed = refusing.wait_for(|refusing| *refusing) => drop(changed?),
        }
        // Connections of the proxy end with those of the server.
        if let Some(proxy) = proxy {
            proxy.abort();
        }
        handle.stop(false).await;
        running.await?.context("the server failed")
    }
}

/// A socket with this address. `SO_REUSEADDR` admits it beside the reservation and beside closed connections.
fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}
