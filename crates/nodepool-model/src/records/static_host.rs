//! Static hosts, and the result of the last check of each.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::ids::{LabelName, PoolName};
use super::node::Node;
use super::time::{Seconds, Timestamp};

/// Identity of a static host. The same machine with two user names is two hosts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostIdentity {
    /// Host name or address, as configured.
    pub name: String,
    pub username: String,
    pub port: u16,
}

impl HostIdentity {
    /// The host of a node, if its record names one.
    pub fn of(node: &Node) -> Option<Self> {
        Some(Self {
            name: node.hostname.clone()?,
            username: node.username.clone()?,
            port: u16::try_from(node.port()?).ok()?,
        })
    }
}

impl fmt::Display for HostIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "{}@[{}]:{}", self.username, self.name, self.port)
        } else {
            write!(f, "{}@{}:{}", self.username, self.name, self.port)
        }
    }
}

/// A configured host, and the result of its last check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StaticHost {
    pub identity: HostIdentity,
    pub pool: PoolName,
    pub labels: Vec<LabelName>,
    /// Number of nodes that the host provides at a time.
    pub slots: u32,
    pub connection_type: String,
    pub shell_type: Option<String>,
    pub python_path: String,
    /// Timeout of one check.
    pub timeout: Seconds,
    pub host_key_checking: bool,
    pub configured_keys: Vec<String>,
    pub check: HostCheck,
}

impl StaticHost {
    /// Whether host keys are scanned: only if an SSH server is expected.
    pub fn scans_host_keys(&self) -> bool {
        matches!(self.connection_type.as_str(), "ssh" | "network_cli")
    }

    /// Whether a check only resolves the address, and the host keys are taken from the configuration.
    pub fn skips_connection_check(&self) -> bool {
        self.scans_host_keys() && !self.host_key_checking
    }

    /// False if the host failed its check, so that its nodes are not assigned, unless only the address lookup failed.
    pub fn may_serve(&self) -> bool {
        !matches!(self.check, HostCheck::Failed { .. }) || self.skips_connection_check()
    }

    /// Host keys for the host's nodes; `None` until the host may be registered.
    pub fn host_keys(&self) -> Option<&[String]> {
        match &self.check {
            HostCheck::NotNeeded { .. } => Some(&self.configured_keys),
            HostCheck::Passed { host_keys, .. } => Some(host_keys),
            HostCheck::Pending | HostCheck::Failed { .. } => None,
        }
    }

    /// Address of the host's name; `None` until the host may be registered, or if the name was not looked up.
    pub fn address(&self) -> Option<IpAddr> {
        match &self.check {
            HostCheck::NotNeeded { address } | HostCheck::Passed { address, .. } => *address,
            HostCheck::Pending | HostCheck::Failed { .. } => None,
        }
    }
}

/// Result of the last check of a static host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum HostCheck {
    /// Not checked since the provider started.
    Pending,
    /// The host keys are taken from the configuration, and no connection is made.
    NotNeeded {
        address: Option<IpAddr>,
    },
    Passed {
        at: Timestamp,
        host_keys: Vec<String>,
        address: Option<IpAddr>,
    },
    Failed {
        at: Timestamp,
        reason: String,
    },
}

impl HostCheck {
    /// The same result with this time.
    pub fn with_check_time(mut self, now: Timestamp) -> Self {
        match &mut self {
            HostCheck::Passed { at, .. } | HostCheck::Failed { at, .. } => *at = now,
            HostCheck::Pending | HostCheck::NotNeeded { .. } => {}
        }
        self
    }

    /// Whether nodes of this host may be assigned.
    pub fn is_good(&self) -> bool {
        matches!(self, HostCheck::NotNeeded { .. } | HostCheck::Passed { .. })
    }
}
