//! The command line: listening addresses, credentials, resource groups, networks, images, and the knobs.

use std::path::PathBuf;

use clap::Parser;
use serde_json::json;
use simulated_service::network::Network;

use crate::faults::knobs::Knobs;

/// A simulated Azure over HTTP (Resource Manager with compute and network, tokens, page blobs), for tests, benchmarks
/// and demonstrations.
#[derive(Clone, Debug, Parser)]
pub struct Options {
    /// The port on 127.0.0.1; 0 selects a free one.
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// Another port for `/sim`, which listens even while connections are refused; 0 selects a free one.
    #[arg(long, default_value_t = 0)]
    pub control_port: u16,
    /// The URL that links to the API begin with, such as that of a proxy; without it, the URL of the port.
    #[arg(long, value_name = "URL")]
    pub base_url: Option<String>,
    /// Write an authentication file with the credentials and URLs of this simulation.
    #[arg(long, value_name = "PATH")]
    pub auth_file: Option<PathBuf>,
    #[arg(long, default_value = "aaaaaaaa-0000-4000-8000-000000000001", value_name = "ID")]
    pub tenant: String,
    #[arg(long, default_value = "bbbbbbbb-0000-4000-8000-000000000002", value_name = "ID")]
    pub client_id: String,
    #[arg(long, default_value = "simulated-secret", value_name = "SECRET")]
    pub client_secret: String,
    #[arg(long, default_value = "cccccccc-0000-4000-8000-000000000003", value_name = "ID")]
    pub subscription: String,
    /// The locations; the first one is that of resource groups and subnets.
    #[arg(long, default_value = "eastus,eastus2,westus2,westeurope,northeurope,uksouth", value_delimiter = ',')]
    pub locations: Vec<String>,
    /// Existing resource groups.
    #[arg(long = "resource-group", default_value = "nodepool", value_name = "NAME")]
    pub resource_groups: Vec<String>,
    /// Existing subnets.
    #[arg(long = "subnet", default_value = "nodepool/network/default", value_name = "GROUP/NETWORK/SUBNET")]
    pub subnets: Vec<String>,
    /// Images of the platform: publisher, offer and SKU, of which each version exists.
    #[arg(
        long = "platform-image",
        default_values = [
            "Canonical:0001-com-ubuntu-server-jammy:22_04-lts-gen2", "Canonical:ubuntu-24_04-lts:server",
            "Debian:debian-12:12-gen2", "MicrosoftWindowsServer:WindowsServer:2022-datacenter",
        ],
        value_name = "PUBLISHER:OFFER:SKU"
    )]
    pub platform_images: Vec<String>,
    /// Images of galleries in the resource groups.
    #[arg(long = "gallery-image", value_name = "GALLERY/IMAGE")]
    pub gallery_images: Vec<String>,
    /// Images of shared galleries.
    #[arg(long = "shared-image", value_name = "GALLERY/IMAGE")]
    pub shared_images: Vec<String>,
    /// Images of community galleries.
    #[arg(long = "community-image", value_name = "GALLERY/IMAGE")]
    pub community_images: Vec<String>,
    /// Number of additional SKUs of each location, which no family of usages knows.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub extra_skus: u32,
    /// The network of private IPv4 addresses.
    #[arg(long, default_value = "127.87.0.0/16", value_name = "NETWORK")]
    pub network: Network,
    /// The network of public IPv4 addresses.
    #[arg(long, default_value = "127.88.0.0/16", value_name = "NETWORK")]
    pub public_network: Network,
    /// The one IPv6 address of all machines, such as `::1`; without it, each has its own in fd00::/16.
    #[arg(long, value_name = "ADDRESS")]
    pub ipv6_address: Option<String>,
    #[command(flatten)]
    pub knobs: Knobs,
}

impl Options {
    /// Checks the rules of knobs and options that the flags' types cannot express.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.subnets.iter().all(|one| one.split('/').count() == 3), "a subnet is GROUP/NETWORK/SUBNET");
        anyhow::ensure!(
            !self.locations.is_empty() && !self.resource_groups.is_empty(),
            "a location and a group are needed"
        );
        self.knobs.updated(json!({})).map(drop).map_err(anyhow::Error::msg)
    }

    /// The name of a resource group as it was created. Names are compared without regard to case.
    pub fn group(&self, name: &str) -> Option<&str> {
        self.resource_groups.iter().find(|group| group.eq_ignore_ascii_case(name)).map(String::as_str)
    }

    /// The name of a location, which clients also write as `East US`.
    pub fn location(&self, name: &str) -> Option<&str> {
        let plain = name.replace(' ', "");
        self.locations.iter().find(|location| location.eq_ignore_ascii_case(&plain)).map(String::as_str)
    }
}
