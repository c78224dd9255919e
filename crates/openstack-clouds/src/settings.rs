//! Settings of one region of one cloud in clouds.yaml, as types.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::secret::Secret;

/// Settings of a cloud. If they are equal after a reload, the running provider does not have to be replaced.
#[derive(Clone, Debug, PartialEq)]
pub struct CloudSettings {
    /// The key in `clouds`; `None` if no cloud is named.
    pub cloud: Option<String>,
    pub region: Option<String>,
    pub identity: Identity,
    pub verify: Verify,
    pub certificate: Option<ClientCertificate>,
    /// Seconds for one HTTP request.
    pub api_timeout_s: Option<f64>,
    pub services: Services,
    /// Format of the image file to upload: `qcow2`, `raw`, `vhd`…
    pub image_format: String,
    /// Whether images are imported by tasks, from object storage.
    pub image_api_use_tasks: bool,
    /// Properties for every uploaded image: those of `disable_vendor_agent`.
    pub image_properties: BTreeMap<String, String>,
    pub floating_ips: FloatingIps,
    /// Whether a server is unreachable without a floating address; `None` derives it from the networks.
    pub requires_floating_ip: Option<bool>,
    pub networks: Vec<NetworkRole>,
    pub use_external_network: bool,
    pub use_internal_network: bool,
    /// Whether servers are reached at their private address.
    pub private: bool,
    pub force_ipv4: bool,
    /// Destination of API call timings; `None` if no statsd is named.
    pub statsd: Option<Statsd>,
}

/// Login at the cloud, and the URL for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Identity {
    pub auth_url: String,
    pub api: IdentityApi,
    pub auth: Auth,
    pub scope: Scope,
    pub domains: Domains,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityApi {
    /// `password` and `token`: the URL may lack a version; the server's versions are discovered.
    Discovered,
    /// `v2password`: the URL is one of version 2.
    V2,
    /// `v3…`: the URL is one of version 3.
    V3,
}

/// Domains that the settings name. Version 2 of Keystone has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domains {
    Absent,
    /// Only `default_domain_…`, which version 3 uses and version 2 ignores.
    Default,
    Given,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Auth {
    Password { user: User, password: Secret },
    Token { token: Secret },
    ApplicationCredential { credential: Credential, secret: Secret },
}

#[derive(Clone, Debug, PartialEq)]
pub enum User {
    Id(String),
    Name { name: String, domain: Option<Domain> },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Credential {
    Id(String),
    /// Names of credentials are unique per user only.
    Name {
        name: String,
        user: User,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Domain {
    Id(String),
    Name(String),
}

/// Scope of the token.
#[derive(Clone, Debug, PartialEq)]
pub enum Scope {
    /// No scope is requested: the user's default project, or that of the application credential.
    Default,
    ProjectId(String),
    ProjectName {
        name: String,
        domain: Option<Domain>,
    },
    Domain(Domain),
    /// All of the system.
    System,
    Trust(String),
}

/// Check of the server's certificate.
#[derive(Clone, Debug, PartialEq)]
pub enum Verify {
    /// Against the authorities that the system trusts.
    System,
    /// Against those of this file.
    Bundle(PathBuf),
    Off,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ClientCertificate {
    pub certificate: PathBuf,
    /// `None` if the certificate's file also contains the key.
    pub key: Option<PathBuf>,
}

/// The services that nodes need.
#[derive(Clone, Debug, PartialEq)]
pub struct Services {
    pub compute: Service,
    pub network: Service,
    pub image: Service,
    pub block_storage: Service,
    /// Used only for images that are imported from object storage.
    pub object_store: Service,
    pub identity: Service,
}

/// Endpoint and API of one service. Region and interfaces default to the cloud's.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// Whether the service is used; some catalogues contain services that do not work.
    pub is_enabled: bool,
    /// Replaces the catalogue's endpoint.
    pub endpoint: Option<String>,
    pub region: Option<String>,
    /// The first of these that the catalogue contains is used.
    pub interfaces: Vec<Interface>,
    pub api_version: Option<String>,
    pub microversion: Option<String>,
    /// The type to look for in the catalogue instead of the usual one.
    pub service_type: Option<String>,
    /// Only the service with this name is used.
    pub service_name: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    Public,
    Internal,
    Admin,
}

/// The service that allocates floating addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatingIps {
    Neutron,
    /// Nova had a network of its own until Rocky; its addresses are not used.
    Nova,
    None,
}

/// Role of a network, as far as clouds.yaml defines it.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkRole {
    /// A name or an id.
    pub name: String,
    pub routes_externally: bool,
    pub routes_ipv4_externally: bool,
    pub routes_ipv6_externally: bool,
    /// Whether floating addresses are allocated from this network.
    pub nat_source: bool,
    /// Whether floating addresses are mapped to addresses on this network.
    pub nat_destination: bool,
    /// Whether a server is reached at its address on this network.
    pub default_interface: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Statsd {
    pub host: String,
    pub port: u16,
    pub prefix: String,
}
