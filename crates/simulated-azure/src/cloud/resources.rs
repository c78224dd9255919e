//! The resources: virtual machines, interfaces, public IPs, disks and images.

use std::net::Ipv4Addr;
use std::time::Duration;

use serde_json::{Map, Value};
use simulated_service::network::Addresses;

use crate::cloud::cloud::Cloud;
use crate::cloud::table::Table;
use crate::compute::vm_parts::VmParts;
use crate::server::response::ApiError;
use crate::server::target::Kind;
use crate::storage::blob::SharedBlob;

pub type Tags = Map<String, Value>;

/// The part that all resources have.
#[derive(Clone, Debug)]
pub struct Meta {
    pub group: String,
    pub name: String,
    pub location: String,
    pub tags: Tags,
    pub zones: Vec<String>,
    pub created: Duration,
    pub guid: String,
}

impl Meta {
    pub fn key(&self) -> String {
        key(&self.group, &self.name)
    }

    pub fn id(&self, kind: Kind, subscription: &str) -> String {
        let (provider, plural) = (kind.provider(), kind.plural());
        let Self { group, name, .. } = self;
        format!("/subscriptions/{subscription}/resourceGroups/{group}/providers/{provider}/{plural}/{name}")
    }
}

/// The key of a resource among those of its kind. Names are compared without regard to case.
pub fn key(group: &str, name: &str) -> String {
    format!("{group}/{name}").to_ascii_lowercase()
}

/// The key of the resource of this kind that an id names.
pub fn key_of_id(id: &str, kind: Kind) -> Option<String> {
    let parts: Vec<&str> = id.split('/').filter(|part| !part.is_empty()).collect();
    let [_, _, _, group, _, provider, plural, name] = parts[..] else { return None };
    let is_kind = provider.eq_ignore_ascii_case(kind.provider()) && plural.eq_ignore_ascii_case(kind.plural());
    is_kind.then(|| key(group, name))
}

pub trait Resource: Sized {
    const KIND: Kind;

    fn meta(&self) -> &Meta;
    fn meta_mut(&mut self) -> &mut Meta;
    fn table(cloud: &Cloud) -> &Table<Self>;
    fn table_mut(cloud: &mut Cloud) -> &mut Table<Self>;
    /// The members of the resource besides those of its `Meta`.
    fn describe(&self, cloud: &Cloud, json: &mut Map<String, Value>);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provisioning {
    Creating,
    Updating,
    Succeeded,
    Failed,
    Canceled,
    Deleting,
    Migrating,
}

impl Provisioning {
    pub const ALL: [Self; 7] = [
        Self::Creating,
        Self::Updating,
        Self::Succeeded,
        Self::Failed,
        Self::Canceled,
        Self::Deleting,
        Self::Migrating,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Creating => "Creating",
            Self::Updating => "Updating",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Canceled => "Canceled",
            Self::Deleting => "Deleting",
            Self::Migrating => "Migrating",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteOption {
    Delete,
    Detach,
}

impl DeleteOption {
    pub fn name(self) -> &'static str {
        match self {
            Self::Delete => "Delete",
            Self::Detach => "Detach",
        }
    }
}

#[derive(Debug)]
pub struct Vm {
    pub meta: Meta,
    pub state: Provisioning,
    /// The second half of a status: `running`, `stopped`, `deallocated`.
    pub power: String,
    pub size: String,
    /// The properties that the virtual machine was created with, as they are shown: without secrets.
    pub properties: Value,
    /// The properties that a later PUT must repeat.
    pub immutable: Value,
    /// The operation that creates or deletes it.
    pub operation: String,
    pub is_deleting: bool,
    pub failure: Option<ApiError>,
    pub succeeded: Option<Duration>,
    /// The parts that it still lacks.
    pub missing_parts: Option<VmParts>,
    pub nics: Vec<String>,
    pub os_disk: Option<(String, DeleteOption)>,
    /// Name and value of the usages that it counts in.
    pub usage: Vec<(String, u64)>,
}

#[derive(Debug)]
pub struct Nic {
    pub meta: Meta,
    pub vm: Option<String>,
    pub is_primary: bool,
    pub on_vm_deletion: DeleteOption,
    pub configurations: Vec<IpConfiguration>,
    /// The virtual machine for which the interface is reserved, and until when.
    pub reserved: Option<(String, Duration)>,
    pub is_deleting: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpVersion {
    V4,
    V6,
}

impl IpVersion {
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    V4(Ipv4Addr),
    V6(String),
}

impl Address {
    /// An IPv4 address, unless none is free.
    pub fn allocate(addresses: &mut Addresses) -> Option<Self> {
        let number = addresses.allocate()?;
        Some(Self::V4(addresses.network().address(number)))
    }

    pub fn release(&self, addresses: &mut Addresses) {
        if let Self::V4(address) = self {
            addresses.release(addresses.number(*address));
        }
    }

    pub fn text(&self) -> String {
        match self {
            Self::V4(address) => address.to_string(),
            Self::V6(address) => address.clone(),
        }
    }
}

#[derive(Debug)]
pub struct IpConfiguration {
    pub name: String,
    pub version: IpVersion,
    pub subnet: String,
    pub is_primary: bool,
    pub address: Option<Address>,
    /// The key of the public IP.
    pub public_ip: Option<String>,
}

#[derive(Debug)]
pub struct PublicIp {
    pub meta: Meta,
    pub version: IpVersion,
    pub sku: String,
    pub allocation: String,
    pub on_vm_deletion: DeleteOption,
    /// Key of the interface, and name of its configuration.
    pub configuration: Option<(String, String)>,
    pub address: Option<Address>,
    pub is_deleting: bool,
}

#[derive(Debug)]
pub struct Disk {
    pub meta: Meta,
    pub state: Provisioning,
    pub create_option: String,
    pub size_bytes: u64,
    pub os_type: Option<String>,
    pub sku: String,
    /// The key of the virtual machine that it is attached to.
    pub managed_by: Option<String>,
    pub upload: Option<Upload>,
    pub is_deleting: bool,
}

/// An upload to a disk.
#[derive(Debug)]
pub struct Upload {
    pub blob: SharedBlob,
    pub access: Option<Access>,
    /// Whether a write access was granted and ended.
    pub has_ended: bool,
}

/// A granted access, with the secret part of its URL.
#[derive(Clone, Debug)]
pub struct Access {
    pub account: String,
    pub container: String,
    pub signature: String,
    pub expires: Duration,
    pub may_write: bool,
}

#[derive(Debug)]
pub struct Image {
    pub meta: Meta,
    pub state: Provisioning,
    pub properties: Value,
    pub os_type: String,
    pub size_gb: u64,
    pub blob: Option<SharedBlob>,
    pub is_deleting: bool,
}

impl Disk {
    pub fn state_name(&self) -> &'static str {
        match (&self.managed_by, &self.upload) {
            (Some(_), _) => "Attached",
            (None, Some(Upload { access: Some(_), .. })) => "ActiveUpload",
            (None, Some(Upload { has_ended: false, .. })) => "ReadyToUpload",
            (None, _) => "Unattached",
        }
    }
}
