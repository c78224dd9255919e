//! The port of the services. It listens, except while the knob `refuse_connections` is set.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::Context;
use simulated_service::port::ReservedPort;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::http::{self, SharedSimulation, Signals};
use crate::tls;

pub struct ServicePort {
    port: ReservedPort,
}

impl ServicePort {
    /// Reserves this port, or any free one for 0. An acceptor makes it serve TLS.
    pub fn reserve(port: u16, acceptor: Option<TlsAcceptor>) -> anyhow::Result<Self> {
        Ok(Self { port: ReservedPort::reserve(port, acceptor)? })
    }

    /// The root URL of the services.
    pub fn base(&self) -> String {
        self.port.base()
    }

    pub fn listen(&self) -> anyhow::Result<TcpListener> {
        Ok(self.port.listen()?.into_std()?)
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
        let (plain, proxy) = match self.port.acceptor() {
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
