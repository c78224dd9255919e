//! The command line: listening addresses, credentials, networks, and the knobs.

use std::net::Ipv4Addr;
use std::str::FromStr;

use clap::Parser;
use serde_json::json;

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

/// A network of IPv4 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    pub first: Ipv4Addr,
    pub prefix: u8,
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

    /// A quarter of this network.
    pub fn quarter(self, index: u32) -> Self {
        Self { first: self.address(self.size() / 4 * index), prefix: self.prefix + 2 }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("{text} is not a network of 64 addresses or more, such as 127.77.0.0/16");
        let (first, prefix) = text.split_once('/').ok_or_else(error)?;
        let (first, prefix) = (first.parse().map_err(|_| error())?, prefix.parse().map_err(|_| error())?);
        let network = Self { first, prefix };
        match (8..=26).contains(&prefix) && u32::from(first).is_multiple_of(network.size()) {
            true => Ok(network),
            false => Err(error()),
        }
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.first, self.prefix)
    }
}
