//! A simulated AWS over HTTP: EC2, S3, EBS direct, Service Quotas and STS, as far as drivers of node pools use them,
//! with adjustable knobs and injectable faults. See doc/simulated-ec2.md.

mod actions;
mod api;
mod faults;
mod options;
mod region;
mod server;
mod services;
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
    ports.serve(Endpoint::new(simulation)).await
}
