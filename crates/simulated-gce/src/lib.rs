//! A simulated Google Compute Engine over HTTP, with its token endpoint and its metadata server, as far as drivers of
//! node pools use them, with adjustable knobs and injectable faults. See doc/simulated-gce.md.

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
    let key_file = options.service_account_key.clone();
    let simulation = Simulation::new(options, ports.base(), ports.control()?);
    if let Some(file) = key_file {
        let key = simulation.service_account_key();
        std::fs::write(&file, key.to_string()).with_context(|| format!("cannot write {}", file.display()))?;
    }
    ports.serve(Endpoint::new(simulation)).await
}
