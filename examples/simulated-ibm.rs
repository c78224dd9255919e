//! The simulated IBM VPC as an example, because `cargo test` builds the examples of this package and tests start it.

use clap::Parser;
use simulated_ibm::Options;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    simulated_ibm::run(Options::parse()).await
}
