//! A simulated Azure over HTTP: the Resource Manager with compute and network, tokens, and page blobs of disks, as far
//! as drivers of node pools use them, with adjustable knobs and injectable faults. See doc/simulated-azure.md.

mod api;
mod cloud;
mod compute;
mod faults;
mod network;
mod options;
mod server;
mod storage;
#[cfg(test)]
mod tests;

use simulated_service::port::ReservedPort;
use simulated_service::server::Ports;
use tokio::task::LocalSet;

use crate::api::simulation::Simulation;
use crate::server::http::Endpoint;

pub use crate::options::Options;

/// Serves until the process ends; prints the address once it listens. All work is done on one thread, so that equal
/// sequences of calls have equal results.
pub async fn run(options: Options) -> anyhow::Result<()> {
    LocalSet::new().run_until(serve(options)).await
}

async fn serve(options: Options) -> anyhow::Result<()> {
    options.check()?;
    let ports = Ports::open(ReservedPort::reserve(options.port, None)?, options.control_port).await?;
    let simulation = Simulation::new(options, ports.base(), ports.control()?);
    simulation.write_auth_file()?;
    ports.serve(Endpoint::new(simulation)).await
}
