//! The port of an API. It listens, except while the knob `refuse_connections` is set.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use anyhow::Context;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::server::{Access, Service};

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 4096;

pub struct ReservedPort {
    /// A bound socket that never listens. It keeps the port while no listener exists: the system could give a free port
    /// to an outgoing connection.
    _reservation: TcpSocket,
    address: SocketAddr,
    acceptor: Option<TlsAcceptor>,
}

impl ReservedPort {
    /// Reserves this port, or any free one for 0. An acceptor makes it serve TLS.
    pub fn reserve(port: u16, acceptor: Option<TlsAcceptor>) -> anyhow::Result<Self> {
        let reservation = bound((Ipv4Addr::LOCALHOST, port).into());
        let reservation = reservation.with_context(|| format!("cannot listen on port {port}"))?;
        let address = reservation.local_addr()?;
        Ok(Self { _reservation: reservation, address, acceptor })
    }

    /// The URL of the API.
    pub fn base(&self) -> String {
        let scheme = if self.acceptor.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    pub fn acceptor(&self) -> Option<&TlsAcceptor> {
        self.acceptor.as_ref()
    }

    pub fn listen(&self) -> anyhow::Result<TcpListener> {
        let listener = bound(self.address).and_then(|socket| socket.listen(BACKLOG));
        listener.with_context(|| format!("cannot listen on {}", self.address))
    }

    /// Serves until listening fails. While connections are refused, the listener and all connections are closed.
    pub async fn serve<S: Service>(&self, mut listener: TcpListener, service: &Rc<S>) -> anyhow::Result<()> {
        let mut refusing = service.server().refusing();
        loop {
            tokio::select! {
                () = accept(&listener, self.acceptor.clone(), service, Access::Api) => {}
                changed = refusing.wait_for(|refusing| *refusing) => drop(changed?),
            }
            drop(listener);
            refusing.wait_for(|refusing| !refusing).await?;
            listener = self.listen()?;
        }
    }
}

/// Serves connections of this listener until the future is dropped. The connections end themselves.
pub async fn accept<S: Service>(
    listener: &TcpListener,
    acceptor: Option<TlsAcceptor>,
    service: &Rc<S>,
    access: Access,
) {
    loop {
        // A connection that closed before it was accepted does not end the server.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (acceptor, service) = (acceptor.clone(), service.clone());
        // The task ends with its connection, so the clients bound the number of tasks.
        tokio::task::spawn_local(async move {
            match acceptor {
                None => serve_connection(stream, service, access).await,
                Some(acceptor) => {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        serve_connection(stream, service, access).await;
                    }
                }
            }
        });
    }
}

async fn serve_connection<S: Service>(stream: impl AsyncRead + AsyncWrite + Unpin, service: Rc<S>, access: Access) {
    let mut refusing = service.server().refusing();
    let answers = service_fn(|request| service.clone().answer(request, access));
    let connection = http1::Builder::new().title_case_headers(true).serve_connection(TokioIo::new(stream), answers);
    tokio::select! {
        // An error is a connection that the client or a fault has closed.
        _ = connection => {}
        () = refused(&mut refusing), if access == Access::Api => {}
    }
}

async fn refused(refusing: &mut watch::Receiver<bool>) {
    // The sender lives as long as the server.
    let _ = refusing.wait_for(|refusing| *refusing).await;
}

/// A socket with this address. `SO_REUSEADDR` admits it beside the reservation and beside closed connections.
fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}
