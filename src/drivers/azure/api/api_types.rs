//! The parts of Azure's resources that the driver reads.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::errors::Detail;

pub type Tags = BTreeMap<String, String>;

/// One page of a list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListPage {
    pub value: Vec<Box<RawValue>>,
    #[serde(default)]
    pub next_link: Option<String>,
}

/// Fields of every resource, also of one whose other fields cannot be read.
pub const ESSENTIAL: &[&str] = &["id", "name", "location", "tags"];

/// Whether two names of a location are the same: `East US` is `eastus`.
pub fn is_same_location(one: &str, other: &str) -> bool {
    let plain = |name: &str| name.replace(' ', "").to_lowercase();
    plain(one) == plain(other)
}

/// A resource of any kind.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Resource<P: Default> {
    pub id: String,
    pub name: String,
    pub location: String,
    pub tags: Tags,
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

impl<P: Default> Resource<P> {
    /// The node of this provider that a resource is marked with.
    pub fn node(&self, provider: &str) -> Option<&str> {
        self.tags.get("nodepool_node_id").filter(|_| self.belongs_to(provider)).map(String::as_str)
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
    pub storage_profile: StorageProfile,
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
pub struct StorageProfile {
    pub os_disk: OsDisk,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct OsDisk {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkProfile {
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
    pub capabilities: Vec<Capability>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::tolerant_json::read;

    #[test]
    fn fields_that_are_null_count_as_missing() {
        let json =
            br#"{"name": "np1", "properties": {"provisioningState": null, "hardwareProfile": {"vmSize": null}}}"#;
        assert_eq!(read::<Machine>(json).unwrap().properties, MachineProperties::default());
    }

    #[test]
    fn a_list_without_its_values_is_no_empty_list() {
        assert!(read::<ListPage>(b"{}").is_err() && read::<ListPage>(br#"{"value": null}"#).is_err());
        assert_eq!(read::<ListPage>(br#"{"value": [], "nextLink": null}"#).unwrap().value.len(), 0);
    }

    #[test]
    fn locations_have_short_and_long_names() {
        assert!(is_same_location("East US", "eastus") && !is_same_location("eastus", "eastus2"));
    }
}
