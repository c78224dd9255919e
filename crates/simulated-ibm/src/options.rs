//! The command line: listening addresses, region, credentials, networks, and the knobs.

use std::path::PathBuf;

use clap::Parser;
use serde_json::json;
use simulated_service::network::Network;

use crate::faults::knobs::Knobs;

/// A simulated IBM Cloud VPC over HTTP, for tests, benchmarks and demonstrations.
#[derive(Clone, Debug, Parser)]
pub struct Options {
    /// The port on 127.0.0.1; 0 selects a free one.
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// Another port for `/sim`, which listens even while connections are refused; 0 selects a free one.
    #[arg(long, default_value_t = 0)]
    pub control_port: u16,
    /// The region, whose zones are `us-south-1` to `us-south-3`.
    #[arg(long, default_value = "us-south", value_name = "REGION", value_parser = region)]
    pub region: String,
    /// The API key for which the token endpoint issues tokens.
    #[arg(long, default_value = "simulated-api-key", value_name = "KEY")]
    pub apikey: String,
    /// Accept calls without a token.
    #[arg(long)]
    pub anonymous: bool,
    /// Write credentials in the form of `ibm-credentials.env` to this file before the ports listen.
    #[arg(long, value_name = "FILE")]
    pub credentials_file: Option<PathBuf>,
    /// The name of the instance of Cloud Object Storage.
    #[arg(long, default_value = "nodepool-cos", value_name = "NAME")]
    pub object_storage: String,
    /// The network of the subnets' addresses.
    #[arg(long, default_value = "127.95.0.0/16", value_name = "NETWORK")]
    pub network: Network,
    /// The network of floating IPs.
    #[arg(long, default_value = "127.96.0.0/16", value_name = "NETWORK")]
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

fn region(text: &str) -> Result<String, String> {
    let is_region = text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.chars().all(|one| one.is_ascii_lowercase() || one.is_ascii_digit() || one == '-')
        && !text.ends_with('-');
    if is_region { Ok(text.to_owned()) } else { Err(format!("{text} is not a region such as us-south")) }
}
