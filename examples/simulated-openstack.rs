//! The simulated OpenStack beside the tests, which start it: `cargo test` builds the examples of its package.

use clap::Parser;
use simulated_openstack::Options;

#[actix_web::main]
async fn main() -> anyhow::Result<()> {
    simulated_openstack::run(Options::parse()).await
}
