//! The simulated OpenStack as an example, because `cargo test` builds the examples of this package and the tests start
//! it.

use clap::Parser;
use simulated_openstack::Options;

#[actix_web::main]
async fn main() -> anyhow::Result<()> {
    simulated_openstack::run(Options::parse()).await
}
