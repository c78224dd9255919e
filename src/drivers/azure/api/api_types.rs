//! The parts of Azure's resources that the driver reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::errors::Detail;

pub type Tags = BTreeMap<String, String>;

/// One page of a list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListPage {
    #[serde(default)]
    pub value: Vec<Value>,
    #[serde(default)]
    pub next_link: Option<String>,
}

/// Fields that are null count as missing.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// A resource of any kind.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Resource<P: Default> {
    pub id: String,
    pub name: String,
    pub location: String,
    #[serde(deserialize_with = "or_default")]
    pub tags: Tags,
    #[serde(deserialize_with = "or_default")]
    pub zones: Vec<String>,
    pub managed_by: Option<String>,
    #[serde(bound(deserialize = "P: Deserialize<'de>"))]
    pub properties: P,
}

impl<P: Default> Resource<P> {
    pub fn belongs_to(&self, provider: &str) -> bool {
        self.tags.get("nodepool_provider_name").is_some_and(|name| name == provider)
    }
}

/// A reference to another resource.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct IdOnly {
    pub id: String,
}

pub type Machine = Resource<MachineProperties>;
pub type Interface = Resource<InterfaceProperties>;
pub type Address = Resource<AddressProperties>;
pub type Disk = Resource<DiskProperties>;
pub type Image = Resource<ImageProperties>;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineProperties {
    pub provisioning_state: String,
    pub hardware_profile: HardwareProfile,
    pub network_profile: NetworkProfile,
    pub instance_view: InstanceView,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HardwareProfile {
    pub vm_size: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkProfile {
    #[serde(deserialize_with = "or_default")]
    pub network_interfaces: Vec<InterfaceReference>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct InterfaceReference {
    pub id: String,
    pub properties: InterfaceReferenceProperties,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct InterfaceReferenceProperties {
    pub primary: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct InstanceView {
    #[serde(deserialize_with = "or_default")]
    pub statuses: Vec<InstanceStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct InstanceStatus {
    /// Such as `ProvisioningState/failed/AllocationFailed`.
    pub code: String,
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InterfaceProperties {
    pub virtual_machine: Option<IdOnly>,
    pub ip_configurations: Vec<IpConfiguration>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct IpConfiguration {
    pub properties: IpConfigurationProperties,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct IpConfigurationProperties {
    #[serde(rename = "privateIPAddress")]
    pub private_address: Option<String>,
    #[serde(rename = "privateIPAddressVersion")]
    pub version: String,
    #[serde(rename = "publicIPAddress")]
    pub public_address: Option<IdOnly>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AddressProperties {
    pub ip_address: Option<String>,
    #[serde(rename = "publicIPAddressVersion")]
    pub version: String,
    pub ip_configuration: Option<IdOnly>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DiskProperties {
    pub disk_state: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageProperties {
    pub provisioning_state: String,
}

/// Usage and limit of a resource in a location.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    pub current_value: f64,
    pub limit: f64,
    pub name: UsageName,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct UsageName {
    pub value: String,
}

/// A size of machines.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Sku {
    pub name: String,
    pub resource_type: String,
    pub family: String,
    pub locations: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub capabilities: Vec<Capability>,
    #[serde(deserialize_with = "or_default")]
    pub restrictions: Vec<Restriction>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Capability {
    pub name: String,
    pub value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Restriction {
    #[serde(rename = "type")]
    pub kind: String,
    pub reason_code: String,
}

impl Sku {
    pub fn capability(&self, name: &str) -> Option<f64> {
        self.capabilities.iter().find(|capability| capability.name == name)?.value.parse().ok()
    }

    /// Why machines of this size cannot be created in the location.
    pub fn restriction(&self) -> Option<&str> {
        let of_location = self.restrictions.iter().find(|restriction| restriction.kind == "Location");
        of_location.map(|restriction| restriction.reason_code.as_str())
    }
}

/// The state of an operation in the style of `Azure-AsyncOperation`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct OperationStatus {
    pub status: String,
    pub error: Option<Detail>,
    pub properties: Value,
}
