//! Configuration: resolved, comparable and immutable. It contains no runtime objects and no back references.

pub mod diagnostics;
pub mod driver_limits;
pub mod references;
pub mod resolve;
pub mod schema;
pub mod upload_config;
pub mod validate;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::records::ids::{ImageName, LabelName, PoolId, PoolName, ProviderName, TenantName};
use crate::records::resources::Resources;
use crate::records::time::Seconds;
use python_yaml::tree::YamlNode;

/// One loaded configuration file, with its secure file applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub zookeeper: ZooKeeperConfig,
    pub webapp: WebappConfig,
    pub labels: BTreeMap<LabelName, Label>,
    pub providers: BTreeMap<ProviderName, Arc<ProviderConfig>>,
    /// Providers of the file that cannot run, each with the reason; they are not in `providers`.
    pub out_of_service: BTreeMap<ProviderName, String>,
    pub diskimages: BTreeMap<ImageName, Arc<DiskImage>>,
    pub tenant_limits: BTreeMap<TenantName, Resources>,
    /// Maximum age of a node in `hold`; `None` is no limit.
    pub max_hold_age: Option<Seconds>,
    pub elements_dir: Option<String>,
    pub images_dir: Option<PathBuf>,
    pub build_log_dir: Option<PathBuf>,
    /// Build logs kept per image; negative keeps all.
    pub build_log_retention: i64,
}

/// Default directory of build logs.
const LOG_DIR: &str = "/var/log/nodepool/builds";

impl Config {
    pub fn log_dir_of_builds(&self) -> PathBuf {
        self.build_log_dir.clone().unwrap_or_else(|| PathBuf::from(LOG_DIR))
    }

    pub fn pools(&self) -> impl Iterator<Item = PoolId> {
        self.providers
            .iter()
            .flat_map(|(name, provider)| provider.pools.keys().map(move |pool| PoolId::new(name.clone(), pool.clone())))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct ZooKeeperConfig {
    pub servers: Vec<ZooKeeperServer>,
    pub tls: Option<TlsFiles>,
    pub host_names: HostNames,
    pub session_timeout: Seconds,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZooKeeperServer {
    pub host: String,
    pub port: u16,
    /// As written; empty if there is none.
    pub chroot: String,
}

impl ZooKeeperConfig {
    /// `host:port,host:port/chroot`, the notation of ZooKeeper's clients; empty if no server is configured.
    pub fn connect_string(&self) -> String {
        let servers: Vec<String> = self.servers.iter().map(ZooKeeperServer::address).collect();
        servers.join(",") + self.chroot()
    }

    /// Prefix of all znode paths, without a trailing slash; may be empty.
    pub fn chroot(&self) -> &str {
        self.servers.last().map_or("", |server| server.chroot.trim_end_matches('/'))
    }
}

impl ZooKeeperServer {
    /// `host:port`, an IPv6 address in brackets and in its shortest form.
    pub fn address(&self) -> String {
        match self.host.parse::<Ipv6Addr>() {
            Ok(address) => format!("[{address}]:{}", self.port),
            Err(_) => format!("{}:{}", self.host, self.port),
        }
    }
}

/// PEM files: the client's certificate, its key, and the certificate of the authority that signed the server's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
    pub ca: PathBuf,
}

/// Whether the server's certificate must contain the configured host name. The certificate chain is always checked
/// against the authority's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HostNames {
    /// As in Nodepool 11; many ensembles have certificates without their host names.
    #[default]
    Ignored,
    Checked,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebappConfig {
    pub port: u16,
    pub listen_address: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    pub name: LabelName,
    /// Idle nodes to keep ready; 0 and less keep none.
    pub min_ready: i64,
    /// Age at which an idle ready node is deleted; `None` is never.
    pub max_ready_age: Option<Seconds>,
}

/// One provider section. A reload keeps the provider if its section is equal; any difference replaces it.
#[derive(Clone, Debug, PartialEq)]
pub struct ProviderConfig {
    pub name: ProviderName,
    pub driver: String,
    /// Any negative number is no limit; with 0 the pools handle no requests.
    pub max_concurrency: i64,
    pub pools: BTreeMap<PoolName, Arc<PoolConfig>>,
    /// The top-level images that this provider's labels boot, without fields that may change under a running provider.
    pub label_images: BTreeMap<ImageName, DiskImage>,
    /// The section as written, for the driver: without its pools, and with `driver` always filled in.
    pub section: YamlNode,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PoolConfig {
    pub name: PoolName,
    /// The pool's own priority, else its provider's, else 100. Lower is preferred.
    pub priority: i64,
    /// `None` is no limit; 0 and less disable the pool.
    pub max_servers: Option<i64>,
    /// Limits of this pool; `max-servers` is counted as `instances`.
    pub limits: Resources,
    /// Whether only the pool's own limits count.
    pub ignore_provider_quota: bool,
    pub availability_zones: Vec<String>,
    /// Copied verbatim to each node's `attributes`.
    pub node_attributes: Option<serde_json::Value>,
    /// Every label this pool can serve.
    pub labels: BTreeSet<LabelName>,
    /// The whole pool section as written, for the driver.
    pub section: YamlNode,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DiskImage {
    pub name: ImageName,
    pub elements: Vec<String>,
    pub formats: BTreeSet<String>,
    pub keep_formats: BTreeSet<String>,
    pub env_vars: BTreeMap<String, String>,
    pub release: String,
    pub rebuild_age: Seconds,
    pub build_timeout: Seconds,
    pub dib_cmd: String,
    pub pause: bool,
    pub username: String,
    pub python_path: String,
    pub shell_type: Option<String>,
    pub delete_after_upload: bool,
    pub metadata: BTreeMap<String, serde_json::Value>,
}

impl DiskImage {
    /// An image with a name and defaults.
    pub fn new(name: &str) -> Self {
        Self {
            name: ImageName::from(name),
            elements: Vec::new(),
            formats: BTreeSet::new(),
            keep_formats: BTreeSet::new(),
            env_vars: BTreeMap::new(),
            release: String::new(),
            rebuild_age: Seconds(86_400.0),
            build_timeout: Seconds(28_800.0),
            dib_cmd: "disk-image-create".to_owned(),
            pause: false,
            username: "zuul".to_owned(),
            python_path: "auto".to_owned(),
            shell_type: None,
            delete_after_upload: false,
            metadata: BTreeMap::new(),
        }
    }
}
