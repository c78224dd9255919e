//! The command line: listening addresses, credentials, networks, and the knobs.

use clap::Parser;
use serde_json::json;
use simulated_service::network::Network;

use crate::faults::knobs::Knobs;

/// A simulated AWS over HTTP (EC2, S3, EBS direct, Service Quotas, STS), for tests, benchmarks and demonstrations.
#[derive(Clone, Debug, Parser)]
pub struct Options {
    /// The port on 127.0.0.1; 0 selects a free one.
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// Another port for `/sim`, which listens even while connections are refused; 0 selects a free one.
    #[arg(long, default_value_t = 0)]
    pub control_port: u16,
    /// The access key of the account.
    #[arg(long, default_value = "simulated")]
    pub access_key: String,
    /// The secret key of the account.
    #[arg(long, default_value = "simulated-secret")]
    pub secret_key: String,
    /// The account's number, which owns all resources.
    #[arg(long, default_value = "123456789012")]
    pub account: String,
    /// The region of calls that do not name one: web identities, instance metadata.
    #[arg(long, default_value = "us-west-2")]
    pub region: String,
    /// The network of private addresses, with one subnet per zone.
    #[arg(long, default_value = "127.77.0.0/16", value_name = "NETWORK")]
    pub network: Network,
    /// The network of public addresses.
    #[arg(long, default_value = "127.78.0.0/16", value_name = "NETWORK")]
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
