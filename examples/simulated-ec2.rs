//! The simulated EC2 as an example, because `cargo test` builds the examples of this package and the tests start it.

use clap::Parser;
use simulated_ec2::Options;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    simulated_ec2::run(Options::parse()).await
}
