//! Responses of EC2 as far as the driver reads them. Unknown elements are ignored, and missing ones have defaults.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A list of EC2: elements named `item`.
#[derive(Clone, Debug, Deserialize)]
pub struct Items<T> {
    #[serde(default = "Vec::new")]
    pub item: Vec<T>,
}

impl<T> Default for Items<T> {
    fn default() -> Self {
        Self { item: Vec::new() }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Tag {
    #[serde(default)]
    pub key: String,
    #[serde(default)]
    pub value: String,
}

pub fn tags(items: &Items<Tag>) -> BTreeMap<String, String> {
    items.item.iter().map(|tag| (tag.key.clone(), tag.value.clone())).collect()
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstancesPage {
    #[serde(default)]
    pub reservation_set: Items<Reservation>,
    pub next_token: Option<String>,
}

/// Also the response of RunInstances.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    #[serde(default)]
    pub instances_set: Items<Ec2Instance>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ec2Instance {
    pub instance_id: String,
    pub instance_type: String,
    pub instance_state: State,
    pub state_reason: Option<StateReason>,
    pub placement: Placement,
    pub private_ip_address: Option<String>,
    pub ip_address: Option<String>,
    /// `spot` for a spot instance.
    pub instance_lifecycle: Option<String>,
    pub network_interface_set: Items<NetworkInterface>,
    pub tag_set: Items<Tag>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct State {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct StateReason {
    pub code: String,
    pub message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Placement {
    pub availability_zone: Option<String>,
    pub host_id: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NetworkInterface {
    #[serde(rename = "ipv6AddressesSet")]
    pub ipv6_addresses: Items<Ipv6Address>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Ipv6Address {
    #[serde(rename = "ipv6Address")]
    pub address: String,
}

impl Ec2Instance {
    pub fn is_spot(&self) -> bool {
        self.instance_lifecycle.as_deref() == Some("spot")
    }

    /// The first IPv6 address of the first interface.
    pub fn ipv6(&self) -> Option<&str> {
        let first = self.network_interface_set.item.first()?.ipv6_addresses.item.first()?;
        Some(first.address.as_str()).filter(|address| !address.is_empty())
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TypesPage {
    #[serde(default)]
    pub instance_type_set: Items<InstanceType>,
    pub next_token: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceType {
    pub instance_type: String,
    pub v_cpu_info: VCpuInfo,
    pub memory_info: MemoryInfo,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VCpuInfo {
    #[serde(rename = "defaultVCpus")]
    pub default_v_cpus: f64,
    pub default_cores: f64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryInfo {
    #[serde(rename = "sizeInMiB")]
    pub size_in_mib: f64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImagesPage {
    #[serde(default)]
    pub images_set: Items<Image>,
    pub next_token: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Image {
    pub image_id: String,
    pub name: Option<String>,
    pub creation_date: String,
    pub image_state: String,
    pub root_device_name: Option<String>,
    pub block_device_mapping: Items<BlockDeviceMapping>,
    pub tag_set: Items<Tag>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BlockDeviceMapping {
    pub device_name: String,
    pub ebs: Option<Ebs>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ebs {
    pub snapshot_id: Option<String>,
    pub volume_size: Option<f64>,
    pub volume_type: Option<String>,
    pub iops: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumesPage {
    #[serde(default)]
    pub volume_set: Items<Volume>,
    pub next_token: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    pub volume_id: String,
    pub status: String,
    pub size: f64,
    pub volume_type: String,
    pub iops: Option<f64>,
    pub attachment_set: Items<Attachment>,
    pub tag_set: Items<Tag>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Attachment {
    pub instance_id: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotsPage {
    #[serde(default)]
    pub snapshot_set: Items<Snapshot>,
    pub next_token: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Snapshot {
    pub snapshot_id: String,
    pub status: String,
    pub volume_size: f64,
    pub description: Option<String>,
    pub tag_set: Items<Tag>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostsPage {
    #[serde(default)]
    pub host_set: Items<Host>,
    pub next_token: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Host {
    pub host_id: String,
    pub state: String,
    pub availability_zone: String,
    pub host_properties: HostProperties,
    pub tag_set: Items<Tag>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HostProperties {
    pub instance_type: String,
    pub instance_family: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedHosts {
    #[serde(default)]
    pub host_id_set: Items<String>,
}

#[derive(Debug, Deserialize)]
pub struct ReleasedHosts {
    #[serde(default)]
    pub unsuccessful: Items<Unreleased>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Unreleased {
    pub resource_id: String,
    pub error: UnreleasedError,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct UnreleasedError {
    pub code: String,
    pub message: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fleet {
    #[serde(default)]
    pub fleet_instance_set: Items<FleetInstances>,
    #[serde(default)]
    pub error_set: Items<FleetError>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FleetInstances {
    pub instance_ids: Items<String>,
    pub instance_type: String,
    pub lifecycle: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FleetError {
    pub error_code: String,
    pub error_message: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplatesPage {
    #[serde(default)]
    pub launch_templates: Items<Template>,
    pub next_token: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Template {
    pub launch_template_name: String,
    pub tag_set: Items<Tag>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RegisteredImage {
    pub image_id: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Console {
    pub output: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotTasksPage {
    #[serde(default)]
    pub import_snapshot_task_set: Items<SnapshotTask>,
    pub next_token: Option<String>,
}

/// Also the response of ImportSnapshot.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotTask {
    pub import_task_id: String,
    pub snapshot_task_detail: SnapshotTaskDetail,
    pub tag_set: Items<Tag>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotTaskDetail {
    pub status: String,
    pub status_message: Option<String>,
    pub progress: Option<String>,
    pub snapshot_id: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageTasksPage {
    #[serde(default)]
    pub import_image_task_set: Items<ImageTask>,
    pub next_token: Option<String>,
}

/// Also the response of ImportImage.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageTask {
    pub import_task_id: String,
    pub status: String,
    pub status_message: Option<String>,
    pub image_id: Option<String>,
    pub snapshot_detail_set: Items<SnapshotTaskDetail>,
    pub tag_set: Items<Tag>,
}

/// A page of the service of quotas, in JSON.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct QuotasPage {
    #[serde(default)]
    pub quotas: Vec<Quota>,
    pub next_token: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Quota {
    pub quota_code: String,
    pub value: f64,
}
