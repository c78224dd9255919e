//! The command line: listening addresses, projects, credentials, networks, and the knobs.

use std::path::PathBuf;

use clap::Parser;
use serde_json::json;
use simulated_service::network::Network;

use crate::faults::knobs::Knobs;

/// A simulated Google Compute Engine over HTTP, for tests, benchmarks and demonstrations.
#[derive(Clone, Debug, Parser)]
pub struct Options {
    /// The port on 127.0.0.1; 0 selects a free one.
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// Another port for `/sim`, which listens even while connections are refused; 0 selects a free one.
    #[arg(long, default_value_t = 0)]
    pub control_port: u16,
    /// A project with instances; may be given several times. The first one is that of the service account.
    #[arg(long = "project", default_values = ["simulated"], value_name = "PROJECT")]
    pub projects: Vec<String>,
    /// Accept calls without a token.
    #[arg(long)]
    pub anonymous: bool,
    /// Write the key of the service account to this file before the ports listen.
    #[arg(long, value_name = "FILE")]
    pub service_account_key: Option<PathBuf>,
    /// The network of internal addresses.
    #[arg(long, default_value = "127.87.0.0/16", value_name = "NETWORK")]
    pub network: Network,
    /// The network of external addresses.
    #[arg(long, default_value = "127.88.0.0/16", value_name = "NETWORK")]
    pub public_network: Network,
    #[command(flatten)]
    pub knobs: Knobs,
}

impl Options {
    /// Checks the rules of knobs that the flags' types cannot express.
    pub fn check(&self) -> anyhow::Result<()> {
        self.knobs.updated(json!({})).map(drop).map_err(anyhow::Error::msg)
    }
}
