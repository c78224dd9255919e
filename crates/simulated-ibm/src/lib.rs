//! A simulated IBM Cloud VPC over HTTP, with its token endpoint, resource groups and resource instances, as far as
//! drivers of node pools use them, with adjustable knobs and injectable faults. See doc/simulated-ibm.md.

mod api;
mod faults;
mod identity;
mod methods;
mod options;
mod server;
mod state;
#[cfg(test)]
mod tests;

use anyhow::Context;
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
    let credentials_file = options.credentials_file.clone();
    let simulation = Simulation::new(options, ports.base(), ports.control()?);
    if let Some(file) = credentials_file {
        std::fs::write(&file, simulation.credentials()).with_context(|| format!("cannot write {}", file.display()))?;
    }
    ports.serve(Endpoint::new(simulation)).await
}
