//! The command line: listening addresses, region, credentials, networks, and the knobs.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;
use serde_json::json;

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

    /// The quarter with this number, 0 to 3.
    pub fn quarter(self, number: u32) -> Self {
        assert!(number < 4, "a network has four quarters");
        Self { first: self.address(number * (self.size() / 4)), prefix: self.prefix + 2 }
    }

    pub fn cidr(self) -> String {
        format!("{}/{}", self.first, self.prefix)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("{text} is not a network of 64 addresses or more, such as 127.95.0.0/16");
        let (first, prefix) = text.split_once('/').ok_or_else(error)?;
        let (first, prefix) = (first.parse().map_err(|_| error())?, prefix.parse().map_err(|_| error())?);
        let network = Self { first, prefix };
        match (8..=26).contains(&prefix) && u32::from(first).is_multiple_of(network.size()) {
            true => Ok(network),
            false => Err(error()),
        }
    }
}
