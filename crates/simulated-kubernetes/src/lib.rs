//! A simulated Kubernetes or OpenShift API over HTTP: the objects that drivers of node pools create, with adjustable
//! knobs and injectable faults. See doc/simulated-kubernetes.md.

mod api;
mod cluster;
mod faults;
mod options;
mod server;

use anyhow::Context;
use simulated_service::port::ReservedPort;
use simulated_service::server::Ports;
use tokio::task::LocalSet;

use crate::api::simulation::Simulation;
use crate::cluster::cluster::Cluster;
use crate::server::http::Server;
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
    let port = ReservedPort::reserve(options.port, options.tls.then_some(authority.acceptor))?;
    let ports = Ports::open(port, options.control_port).await?;
    let kubeconfig = options.kubeconfig.clone();
    let cluster = Cluster::new(options, authority.pem);
    let mut simulation = Simulation::new(cluster, ports.base(), ports.control()?);
    if let Some(path) = kubeconfig {
        simulation.write_kubeconfig().with_context(|| format!("cannot write {}", path.display()))?;
    }
    ports.serve(Server::new(simulation)).await
}
