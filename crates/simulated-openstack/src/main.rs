//! The program `simulated-openstack`: parses its options and serves.

use clap::Parser;
use simulated_openstack::Options;

#[actix_web::main]
async fn main() -> anyhow::Result<()> {
    simulated_openstack::run(Options::parse()).await
}
