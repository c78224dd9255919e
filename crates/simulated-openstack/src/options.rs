//! The command line: listening address, services and networks of the cloud, and its knobs.

use std::path::PathBuf;

use clap::Parser;
use serde_json::json;

use crate::call::Service;
use crate::faults::knobs::Knobs;

/// A simulated OpenStack over HTTP, for tests, benchmarks and demonstrations.
#[derive(Clone, Debug, Parser)]
pub struct Options {
    /// The port on 127.0.0.1; 0 selects a free one.
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// Another port for `/sim`, which listens even while connections to the services are refused; 0 selects a free one.
    #[arg(long, default_value_t = 0)]
    pub control_port: u16,
    /// Write a clouds.yaml with the clouds `simulated` and `simulated-appcred` to this path.
    #[arg(long, value_name = "PATH")]
    pub clouds_yaml: Option<PathBuf>,
    /// Serve TLS with this certificate chain (PEM).
    #[arg(long, value_name = "PATH", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The key of the certificate (PEM).
    #[arg(long, value_name = "PATH", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// A service that this cloud lacks; may be given several times.
    #[arg(long, value_name = "SERVICE")]
    pub without: Vec<Service>,
    /// The name of the region.
    #[arg(long, default_value = "RegionOne")]
    pub region: String,
    /// The networks of the project; the first has the addresses 127.80.0.0/16, the next 127.81.0.0/16 and so on.
    #[arg(long, value_delimiter = ',', default_value = "private")]
    pub networks: Vec<String>,
    /// The external network with the floating IPs, 127.90.0.0/16; an empty name for a cloud without one.
    #[arg(long, default_value = "outside")]
    pub external_network: String,
    /// Servers have IPv6 addresses as well.
    #[arg(long)]
    pub ipv6: bool,
    #[command(flatten)]
    pub knobs: Knobs,
}

impl Options {
    /// Checks the rules that the flags' types cannot express: knobs are valid, and networks have enough addresses.
    pub fn check(&self) -> anyhow::Result<()> {
        self.knobs.updated(json!({})).map_err(anyhow::Error::msg)?;
        anyhow::ensure!(self.networks.len() <= 9, "too many networks: there are addresses for nine");
        Ok(())
    }

    pub fn has(&self, service: Service) -> bool {
        !self.without.contains(&service)
    }
}
