//! An instance: its status, its addresses, and its JSON.

use std::cell::OnceCell;

use serde_json::{Value, json};

use crate::faults::knobs::Knobs;
use crate::state::machine_types::MachineType;
use crate::state::quotas::{self, Charges};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    Provisioning,
    Staging,
    Running,
    Stopping,
    Suspending,
    Suspended,
    Repairing,
    Terminated,
}

impl Status {
    pub const ALL: [Self; 8] = [
        Self::Provisioning,
        Self::Staging,
        Self::Running,
        Self::Stopping,
        Self::Suspending,
        Self::Suspended,
        Self::Repairing,
        Self::Terminated,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Provisioning => "PROVISIONING",
            Self::Staging => "STAGING",
            Self::Running => "RUNNING",
            Self::Stopping => "STOPPING",
            Self::Suspending => "SUSPENDING",
            Self::Suspended => "SUSPENDED",
            Self::Repairing => "REPAIRING",
            Self::Terminated => "TERMINATED",
        }
    }

    /// Whether the instance has no virtual machine, so that its vCPUs and its external address are free.
    pub fn is_stopped(self) -> bool {
        matches!(self, Self::Suspended | Self::Terminated)
    }

    pub fn has_external_address(self) -> bool {
        self != Self::Provisioning && !self.is_stopped()
    }
}

pub struct Instance {
    pub name: String,
    pub id: u64,
    status: Status,
    pub machine_type: String,
    pub size: Option<MachineType>,
    pub is_spot: bool,
    /// A preempted instance is deleted instead of TERMINATED.
    pub is_deleted_when_preempted: bool,
    /// Its insert will fail, so no counter counts it.
    pub is_doomed: bool,
    /// Whether it has an access configuration, which gives it an external address.
    pub is_external: bool,
    /// GB by metric of their quota.
    pub disks: Vec<(&'static str, f64)>,
    pub internal: Option<u32>,
    pub external: Option<u32>,
    /// The operation that is running on it.
    pub insert: Option<String>,
    pub delete: Option<String>,
    /// Provider and id of the node that it was created for.
    pub node: Option<String>,
    /// Its charges now. An instance that exceeds a quota has none.
    pub charges: Charges,
    pub is_charged: bool,
    value: Value,
    text: OnceCell<String>,
}

impl Instance {
    /// An instance that has this JSON, and is charged for nothing yet.
    pub fn new(name: &str, id: u64, machine_type: &str, value: Value) -> Self {
        Self {
            name: name.to_owned(),
            id,
            status: Status::Provisioning,
            machine_type: machine_type.to_owned(),
            size: None,
            is_spot: false,
            is_deleted_when_preempted: false,
            is_doomed: false,
            is_external: false,
            disks: Vec::new(),
            internal: None,
            external: None,
            insert: None,
            delete: None,
            node: None,
            charges: Vec::new(),
            is_charged: true,
            value,
            text: OnceCell::new(),
        }
    }

    pub fn status(&self) -> Status {
        self.status
    }

    pub fn set_status(&mut self, status: Status) {
        self.status = status;
        self.value_mut()["status"] = json!(status.name());
    }

    pub fn value(&self) -> &Value {
        &self.value
    }

    pub fn value_mut(&mut self) -> &mut Value {
        self.text.take();
        &mut self.value
    }

    /// The JSON as text, which is kept until a change: listings need it often.
    pub fn text(&self) -> &str {
        self.text.get_or_init(|| self.value.to_string())
    }

    /// Shows the external address, or hides it.
    pub fn show_external(&mut self, address: Option<String>) {
        let interface = &mut self.value_mut()["networkInterfaces"][0];
        if let Some(access) = interface["accessConfigs"][0].as_object_mut() {
            match address {
                Some(address) => drop(access.insert("natIP".to_owned(), json!(address))),
                None => drop(access.shift_remove("natIP")),
            }
        }
    }

    /// The charges of its status.
    pub fn due_charges(&self, knobs: &Knobs, region: &str) -> Charges {
        if !self.is_charged {
            return Vec::new();
        }
        let mut charges = vec![("INSTANCES", 1.0)];
        charges.extend(self.disks.iter().copied());
        if let Some(size) = self.size.as_ref().filter(|_| !self.status.is_stopped()) {
            charges.push((quotas::cpu_metric(knobs, region, size.metric, self.is_spot), f64::from(size.cpus)));
            charges.push(("CPUS_ALL_REGIONS", f64::from(size.cpus)));
        }
        if self.is_external && !self.status.is_stopped() {
            charges.push(("IN_USE_ADDRESSES", 1.0));
        }
        charges
    }
}
