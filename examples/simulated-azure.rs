//! The simulated Azure as an example, because `cargo test` builds the examples of this package and the tests start it.

use clap::Parser;
use simulated_azure::Options;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    simulated_azure::run(Options::parse()).await
}
