//! The program `simulated-kubernetes`: parses its options and serves.

use clap::Parser;
use simulated_kubernetes::Options;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    simulated_kubernetes::run(Options::parse()).await
}
