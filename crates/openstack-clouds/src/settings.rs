//! Everything that clouds.yaml says about one region of one cloud, as types.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::secret::Secret;

/// Two of them are equal when a provider that uses the one may go on with the other.
#[derive(Clone, Debug, PartialEq)]
pub struct CloudSettings {
    /// The key in `clouds`; `None` where nothing is configured under a name.
    pub cloud: Option<String>,
    pub region: Option<String>,
    pub identity: Identity,
    pub verify: Verify,
    pub certificate: Option<ClientCertificate>,
    /// Seconds for one HTTP request.
    pub api_timeout_s: Option<f64>,
    pub services: Services,
    /// Which file of an image is uploaded: `qcow2`, `raw`, `vhd`…
    pub image_format: String,
    /// Images are imported by tasks, from object storage.
    pub image_api_use_tasks: bool,
    /// Properties for every uploaded image: those of `disable_vendor_agent`.
    pub image_properties: BTreeMap<String, String>,
    pub floating_ips: FloatingIps,
    /// Whether a server is out of reach without a floating address; `None` leaves it to what the networks look like.
    pub requires_floating_ip: Option<bool>,
    pub networks: Vec<NetworkRole>,
    pub use_external_network: bool,
    pub use_internal_network: bool,
    /// Servers are reached at their private address.
    pub private: bool,
    pub force_ipv4: bool,
    /// Where the timings of API calls go; `None` where no statsd is named.
    pub statsd: Option<Statsd>,
}

/// Who we are to the cloud, and where to say so.
#[derive(Clone, Debug, PartialEq)]
pub struct Identity {
    pub auth_url: String,
    pub api: IdentityApi,
    pub auth: Auth,
    pub scope: Scope,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityApi {
    /// `password` and `token`: the URL may be without a version, the server says what it speaks.
    Discovered,
    /// `v3…`: the URL is one of version 3.
    V3,
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

/// What the token is good for.
#[derive(Clone, Debug, PartialEq)]
pub enum Scope {
    /// Nothing is asked for: the user's default project, or that of the application credential.
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

/// How the server's certificate is checked.
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
    /// `None` where the certificate's file holds the key too.
    pub key: Option<PathBuf>,
}

/// The services that nodes need.
#[derive(Clone, Debug, PartialEq)]
pub struct Services {
    pub compute: Service,
    pub network: Service,
    pub image: Service,
    pub block_storage: Service,
    /// Only for images that are imported from there.
    pub object_store: Service,
    pub identity: Service,
}

/// How one service is found and spoken to. Region and interfaces are the cloud's where the service has none of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// Takes the place of what the catalogue says.
    pub endpoint: Option<String>,
    pub region: Option<String>,
    /// The first one that the catalogue has is taken.
    pub interfaces: Vec<Interface>,
    pub api_version: Option<String>,
    pub microversion: Option<String>,
    /// The type to look for in the catalogue instead of the usual one.
    pub service_type: Option<String>,
    /// Only the service of this name is taken.
    pub service_name: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    Public,
    Internal,
    Admin,
}

/// Who hands out floating addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatingIps {
    Neutron,
    /// Nova had a network of its own until Rocky; its addresses are not used.
    Nova,
    None,
}

/// What a network is good for, where clouds.yaml says so.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkRole {
    /// A name or an id.
    pub name: String,
    pub routes_externally: bool,
    pub routes_ipv4_externally: bool,
    pub routes_ipv6_externally: bool,
    /// Floating addresses come from it.
    pub nat_source: bool,
    /// Floating addresses lead to it.
    pub nat_destination: bool,
    /// Of a server's networks, its address on this one is the one to use.
    pub default_interface: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Statsd {
    pub host: String,
    pub port: u16,
    pub prefix: String,
}
