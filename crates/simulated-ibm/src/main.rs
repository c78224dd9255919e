//! The program `simulated-ibm`: parses its options and serves.

use clap::Parser;
use simulated_ibm::Options;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    simulated_ibm::run(Options::parse()).await
}
