//! The program `simulated-azure`: parses its options and serves.

use clap::Parser;
use simulated_azure::Options;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    simulated_azure::run(Options::parse()).await
}
