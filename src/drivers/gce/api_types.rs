//! The parts of Compute Engine's resources that the driver reads. Missing parts are empty.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::config::region_of;
use super::errors::OperationError;
use nodepool_driver::error::CloudError;
use nodepool_driver::instance::{Instance, InstanceState};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::resources::Resources;

/// The name of the cloud in nodes' records.
const CLOUD: &str = "Google";

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InstancePage {
    pub items: Vec<VmInstance>,
    pub next_page_token: Option<String>,
    warning: Warning,
    unreachables: Vec<String>,
}

/// A page of instances of all zones, by scope.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AggregatedPage {
    pub items: BTreeMap<String, Scope>,
    pub next_page_token: Option<String>,
    unreachables: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Scope {
    pub instances: Vec<VmInstance>,
    warning: Warning,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Warning {
    code: String,
}

impl Warning {
    fn is_unreachable(&self) -> bool {
        self.code == "UNREACHABLE"
    }
}

impl InstancePage {
    /// Whether Google could not read a part of what was asked for.
    pub fn is_partial(&self) -> bool {
        self.warning.is_unreachable() || !self.unreachables.is_empty()
    }
}

impl AggregatedPage {
    pub fn is_partial(&self) -> bool {
        !self.unreachables.is_empty() || self.items.values().any(|scope| scope.warning.is_unreachable())
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VmInstance {
    pub name: String,
    status: String,
    zone: String,
    machine_type: String,
    metadata: Metadata,
    network_interfaces: Vec<NetworkInterface>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    items: Vec<MetadataItem>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct MetadataItem {
    key: String,
    value: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NetworkInterface {
    #[serde(rename = "networkIP")]
    network_ip: Option<String>,
    access_configs: Vec<AccessConfig>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct AccessConfig {
    #[serde(rename = "natIP")]
    nat_ip: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Operation {
    pub name: String,
    pub status: String,
    operation_type: String,
    error: OperationErrors,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OperationErrors {
    errors: Vec<OperationError>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MachineType {
    guest_cpus: f64,
    memory_mb: f64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Image {
    pub self_link: String,
    pub disk_size_gb: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Region {
    quotas: Vec<Quota>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Quota {
    metric: String,
    limit: f64,
}

impl Operation {
    /// The error with which the operation has ended. That the instance exists already is none: the listing shows whose
    /// it is.
    pub fn into_failure(self) -> Option<CloudError> {
        let is_deletion = self.operation_type == "delete";
        let error = self.error.errors.into_iter().next().filter(|error| error.code != "RESOURCE_ALREADY_EXISTS");
        error.map(|error| error.into_error(is_deletion))
    }
}

impl MachineType {
    pub fn resources(&self) -> Resources {
        one_instance().with("cores", self.guest_cpus).with("ram", self.memory_mb)
    }
}

impl Image {
    /// An image of which only the name is known.
    pub fn named(id: &str) -> Self {
        Self { self_link: id.to_owned(), ..Self::default() }
    }

    /// Smallest boot disk of the image in GB, if Google names one.
    pub fn min_disk_gb(&self) -> Option<i64> {
        self.disk_size_gb.parse().ok()
    }
}

impl Region {
    /// Limits of the metrics that all machine types share.
    pub fn limits(&self) -> Resources {
        let mut limits = Resources::unlimited();
        for quota in &self.quotas {
            match quota.metric.as_str() {
                "CPUS" => limits.set("cores", quota.limit),
                "INSTANCES" => limits.set("instances", quota.limit),
                _ => {}
            }
        }
        limits
    }
}

/// Resources of an instance of an unknown type.
pub fn one_instance() -> Resources {
    Resources::none().with("instances", 1.0)
}

/// The last part of a URL.
fn last_part(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or(url)
}

impl VmInstance {
    pub fn zone(&self) -> &str {
        last_part(&self.zone)
    }

    pub fn machine_type(&self) -> &str {
        last_part(&self.machine_type)
    }

    pub fn metadata(&self) -> BTreeMap<String, String> {
        let items = self.metadata.items.iter();
        items.map(|item| (item.key.clone(), item.value.clone().unwrap_or_default())).collect()
    }

    pub fn has_metadata(&self, key: &str, value: &str) -> bool {
        self.metadata.items.iter().any(|item| item.key == key && item.value.as_deref() == Some(value))
    }

    /// The instance as Nodepool sees it.
    pub fn to_instance(&self, id: ExternalId, resources: Resources) -> Instance {
        let interface = self.network_interfaces.first();
        let given = |address: &Option<String>| address.clone().filter(|address| !address.is_empty());
        let private_ipv4 = interface.and_then(|interface| given(&interface.network_ip));
        let public_ipv4 = interface.and_then(|interface| given(&interface.access_configs.first()?.nat_ip));
        let zone = self.zone();
        Instance {
            interface_ip: public_ipv4.clone().or_else(|| private_ipv4.clone()),
            public_ipv4,
            private_ipv4,
            cloud: Some(CLOUD.to_owned()),
            region: Some(region_of(zone).to_owned()),
            zone: Some(zone.to_owned()),
            metadata: self.metadata(),
            resources,
            state: self.state(),
            ..Instance::new(id)
        }
    }

    /// A terminated instance is stopped: it still exists, and its disk is billed.
    fn state(&self) -> InstanceState {
        match self.status.as_str() {
            "RUNNING" => InstanceState::Running,
            "STOPPING" | "SUSPENDING" | "PENDING_STOP" | "DEPROVISIONING" => InstanceState::Stopping,
            "TERMINATED" | "STOPPED" | "SUSPENDED" => InstanceState::Failed(format!("the instance is {}", self.status)),
            _ => InstanceState::Starting,
        }
    }
}
