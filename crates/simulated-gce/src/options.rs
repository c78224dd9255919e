//! The command line: listening addresses, projects, credentials, networks, and the knobs.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;
use serde_json::json;

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

/// A network of IPv4 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: Ipv4Addr,
    prefix: u8,
}

impl Network {
    /// Number of addresses.
    pub fn size(self) -> u32 {
        1 << (32 - u32::from(self.prefix))
    }

    /// The address with this number.
    pub fn address(self, number: u32) -> Ipv4Addr {
        assert!(number < self.size(), "address {number} is within its network");
        Ipv4Addr::from(u32::from(self.first) + number)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("{text} is not a network of 64 addresses or more, such as 127.87.0.0/16");
        let (first, prefix) = text.split_once('/').ok_or_else(error)?;
        let (first, prefix) = (first.parse().map_err(|_| error())?, prefix.parse().map_err(|_| error())?);
        let network = Self { first, prefix };
        match (8..=26).contains(&prefix) && u32::from(first).is_multiple_of(network.size()) {
            true => Ok(network),
            false => Err(error()),
        }
    }
}
