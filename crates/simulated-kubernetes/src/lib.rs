//! A simulated Kubernetes or OpenShift API over HTTP: the objects that drivers of node pools create, with adjustable
//! knobs and injectable faults. See doc/simulated-kubernetes.md.

mod api;
mod cluster;
mod faults;
mod options;
mod server;

use std::net::Ipv4Addr;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;

use crate::api::simulation::Simulation;
use crate::cluster::cluster::Cluster;
use crate::server::http::{Access, Server};
use crate::server::port::{self, ApiPort};
use crate::server::tls::Authority;

pub use crate::options::Options;

/// Serves until the process ends; prints the address once it listens. All work is done on one thread, so that equal
/// sequences of calls have equal results.
pub async fn run(options: Options) -> anyhow::Result<()> {
    LocalSet::new().run_until(serve(options)).await
}

async fn serve(options: Options) -> anyhow::Result<()> {
    options.check()?;
    let authority = Authority::new()?;
    let port = ApiPort::reserve(options.port, options.tls.then_some(authority.acceptor))?;
    let base = port.base();
    let control = TcpListener::bind((Ipv4Addr::LOCALHOST, options.control_port)).await;
    let control = control.with_context(|| format!("cannot listen on port {}", options.control_port))?;
    let control_base = format!("http://{}", control.local_addr()?);
    let kubeconfig = options.kubeconfig.clone();
    let cluster = Cluster::new(options, authority.pem);
    let mut simulation = Simulation::new(cluster, base.clone(), control_base.clone());
    if let Some(path) = kubeconfig {
        simulation.write_kubeconfig().with_context(|| format!("cannot write {}", path.display()))?;
    }
    let server = Server::new(simulation);
    let listener = port.listen()?;
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    println!("control on {control_base}\nlistening on {base}");
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        () = server.clone().run_timers() => Ok(()),
        () = port::accept(&control, None, &server, Access::Control) => Ok(()),
        failed = port.serve(listener, server.clone()) => failed,
    }
}
