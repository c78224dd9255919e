//! The command line: listening addresses, the flavor of the cluster, and its knobs.

use std::path::PathBuf;

use clap::Parser;
use serde_json::json;

use crate::faults::knobs::Knobs;

/// A simulated Kubernetes or OpenShift API over HTTP, for tests, benchmarks and demonstrations.
#[derive(Clone, Debug, Parser)]
pub struct Options {
    /// The port on 127.0.0.1; 0 selects a free one.
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// Another port for `/sim`, always without TLS, which listens even while connections are refused; 0 selects a free
    /// one.
    #[arg(long, default_value_t = 0)]
    pub control_port: u16,
    /// Write a kubeconfig with the contexts `admin` and `nodepool` to this path.
    #[arg(long, value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,
    /// Serve TLS with a certificate of a new authority, which the kubeconfig contains.
    #[arg(long)]
    pub tls: bool,
    /// Serve projects, project requests and the other groups of OpenShift.
    #[arg(long)]
    pub openshift: bool,
    /// Allow the user `nodepool` to change the labels of namespaces, also in OpenShift.
    #[arg(long)]
    pub label_projects: bool,
    /// A project, or namespace, that exists from the start, and in which the user `nodepool` has all rights; may be
    /// given several times.
    #[arg(long = "project", value_name = "NAME")]
    pub projects: Vec<String>,
    /// Create a token secret for each service account, as Kubernetes up to 1.23 and OpenShift up to 4.15 do.
    #[arg(long)]
    pub account_secrets: bool,
    #[command(flatten)]
    pub knobs: Knobs,
}

impl Options {
    /// Checks the rules of knobs that the flags' types cannot express.
    pub fn check(&self) -> anyhow::Result<()> {
        self.knobs.updated(json!({})).map(drop).map_err(anyhow::Error::msg)
    }
}
