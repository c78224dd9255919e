//! The program `simulated-ec2`: parses its options and serves.

use clap::Parser;
use simulated_ec2::Options;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    simulated_ec2::run(Options::parse()).await
}
