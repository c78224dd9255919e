//! The cloud of the example driver: VMs in memory, by name. A real driver has an API client here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::config::VmType;
use nodepool_driver::error::CloudError;
use nodepool_driver::instance::{Instance, InstanceState};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::resources::Resources;

const BOOT_TIME: Duration = Duration::from_millis(100);

#[derive(Default)]
pub struct ExampleCloud {
    vms: BTreeMap<String, Vm>,
}

struct Vm {
    order: Arc<VmOrder>,
    boot_ends_at: Instant,
}

/// The body of the call that creates a VM.
#[derive(Debug)]
pub struct VmOrder {
    pub name: String,
    pub project: String,
    pub region: String,
    pub kind: VmType,
    pub metadata: BTreeMap<String, String>,
}

impl ExampleCloud {
    /// Names are unique, so a call that is repeated after a lost response creates no second VM.
    pub fn create(&mut self, order: Arc<VmOrder>) {
        let boot_ends_at = Instant::now() + BOOT_TIME;
        self.vms.entry(order.name.clone()).or_insert(Vm { order, boot_ends_at });
    }

    pub fn delete(&mut self, id: &ExternalId) -> Result<(), CloudError> {
        self.vms.remove(&id.to_string()).map(drop).ok_or_else(|| CloudError::not_found("no such machine"))
    }

    /// All VMs, with the metadata that leak detection reads, and with their use of the limits.
    pub fn list(&self) -> Vec<Instance> {
        self.vms.values().map(Vm::instance).collect()
    }
}

impl Vm {
    fn instance(&self) -> Instance {
        let is_booting = Instant::now() < self.boot_ends_at;
        // Addresses that contain `fake` are never connected to.
        let address = || Some("fake".to_owned());
        Instance {
            interface_ip: address(),
            public_ipv4: address(),
            public_ipv6: address(),
            private_ipv4: address(),
            region: Some(self.order.region.clone()),
            zone: Some("az".to_owned()),
            metadata: self.order.metadata.clone(),
            resources: Resources::none().with("instances", 1.0),
            state: if is_booting { InstanceState::Starting } else { InstanceState::Running },
            ..Instance::new(ExternalId::text(self.order.name.clone()))
        }
    }
}
