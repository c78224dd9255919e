//! The program `simulated-gce`: parses its options and serves.

use clap::Parser;
use simulated_gce::Options;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    simulated_gce::run(Options::parse()).await
}
