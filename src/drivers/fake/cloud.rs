//! A cloud in memory: zones, limits, servers that boot and are deleted, leaked ports, and the faults that its knobs
//! inject.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::config::Knobs;
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::instance::{Instance, InstanceState};
use nodepool_model::config::upload_config::{StoredImage, UploadOrder};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::resources::Resources;

/// Servers on this network have an IPv6 address, which is also their interface address.
const IPV6_NETWORK: &str = "fake-ipv6-network-name";
/// Servers on this network have no public address.
const NO_AUTO_IP_NETWORK: &str = "no-auto-ip-network-name";

#[derive(Debug)]
pub struct FakeCloud {
    knobs: Knobs,
    servers: BTreeMap<String, Server>,
    unused_ports: BTreeSet<String>,
    images: BTreeMap<String, StoredImage>,
    /// Counters for the faults that hit every n-th call.
    created: u64,
    deleted: u64,
    uploads: u64,
    image_deletions: u64,
    calls: u64,
}

#[derive(Clone, Debug)]
struct Server {
    order: ServerOrder,
    zone: Option<String>,
    boot_ends_at: Instant,
    outcome: FakeOutcome,
    deleted_at: Option<Instant>,
}

/// State of a server after its boot time.
#[derive(Clone, Copy, Debug)]
enum FakeOutcome {
    Boots,
    Hangs,
    Fails(&'static str),
}

/// Specification of a new server.
#[derive(Clone, Debug)]
pub struct ServerOrder {
    pub name: String,
    pub zone: Option<String>,
    pub networks: Vec<String>,
    pub metadata: BTreeMap<String, String>,
    pub amounts: Resources,
}

impl FakeCloud {
    pub fn new(knobs: Knobs) -> Self {
        let unused_ports = (1..=2).map(|_| new_id()).collect();
        Self {
            knobs,
            servers: BTreeMap::new(),
            unused_ports,
            images: BTreeMap::new(),
            created: 0,
            deleted: 0,
            uploads: 0,
            image_deletions: 0,
            calls: 0,
        }
    }

    pub fn latency(&self) -> Duration {
        self.knobs.latency.to_duration()
    }

    /// Rejects every n-th call as throttled.
    pub fn throttle(&mut self) -> Result<(), CloudError> {
        self.calls += 1;
        match is_nth(self.calls, self.knobs.faults.throttle) {
            true => Err(CloudError::Throttled { retry_after: self.knobs.retry_after }),
            false => Ok(()),
        }
    }

    /// Returns the image of an earlier upload with these marks, or creates one.
    pub fn upload(&mut self, order: &UploadOrder) -> Result<ExternalId, CloudError> {
        if let Some(image) = self.images.values().find(|image| image.has_marks(&order.marks)) {
            return Ok(image.id.clone());
        }
        self.uploads += 1;
        if is_set(order.meta.get("SHOULD_FAIL")) || is_nth(self.uploads, self.knobs.faults.upload_fails) {
            return Err(failed("fake cloud: injected upload failure"));
        }
        let id = new_id();
        self.images.insert(id.clone(), order.to_stored_image(ExternalId::text(id.clone())));
        Ok(ExternalId::text(id))
    }

    pub fn delete_image(&mut self, id: &ExternalId) -> Result<(), CloudError> {
        self.image_deletions += 1;
        if is_nth(self.image_deletions, self.knobs.faults.image_delete_fails) {
            return Err(failed("fake cloud: injected image deletion failure"));
        }
        self.images.remove(&id.to_string()).map(drop).ok_or_else(|| CloudError::not_found("no such object"))
    }

    pub fn list_images(&self) -> Vec<StoredImage> {
        self.images.values().cloned().collect()
    }

    /// Returns the server that an earlier call created under this name, or creates one.
    pub fn create(&mut self, order: ServerOrder) -> Result<ExternalId, CloudError> {
        self.remove_deleted();
        if let Some((id, _)) = self.servers.iter().find(|(_, server)| server.order.name == order.name) {
            return Ok(ExternalId::text(id.clone()));
        }
        if let Some(zone) = &order.zone
            && !self.knobs.zones.contains(zone)
        {
            return Err(failed(format!("The requested availability zone is not available: {zone}")));
        }
        let mut capacity = self.knobs.limits.clone();
        self.servers.values().for_each(|server| capacity.subtract(&server.order.amounts));
        if let Some((resource, ..)) = capacity.shortage(&order.amounts) {
            return Err(CloudError::Quota(format!("Quota exceeded for {resource}")));
        }
        self.created += 1;
        if is_nth(self.created, self.knobs.faults.create_fails) {
            return Err(failed("fake cloud: injected creation failure"));
        }
        let id = new_id();
        let server = Server {
            zone: order.zone.clone().or_else(|| self.knobs.zones.first().cloned()),
            order,
            boot_ends_at: Instant::now() + self.knobs.boot_time.to_duration(),
            outcome: self.next_outcome(),
            deleted_at: None,
        };
        self.servers.insert(id.clone(), server);
        match is_nth(self.created, self.knobs.faults.create_answer_lost) {
            true => Err(failed("fake cloud: injected lost creation response")),
            false => Ok(ExternalId::text(id)),
        }
    }

    fn next_outcome(&self) -> FakeOutcome {
        let faults = &self.knobs.faults;
        let is_due = |every| is_nth(self.created, every);
        if is_due(faults.boot_fails) {
            FakeOutcome::Fails("fake cloud: injected boot failure")
        } else if is_due(faults.boot_quota) {
            FakeOutcome::Fails("fake cloud: injected quota failure")
        } else if is_due(faults.boot_hangs) {
            FakeOutcome::Hangs
        } else {
            FakeOutcome::Boots
        }
    }

    pub fn delete(&mut self, id: &ExternalId) -> Result<(), CloudError> {
        self.remove_deleted();
        self.deleted += 1;
        if is_nth(self.deleted, self.knobs.faults.delete_fails) {
            return Err(failed("fake cloud: injected deletion failure"));
        }
        let deleted_at = Instant::now() + self.knobs.delete_time.to_duration();
        let server = self.servers.get_mut(&id.to_string()).ok_or_else(|| CloudError::not_found("no such object"))?;
        server.deleted_at.get_or_insert(deleted_at);
        self.remove_deleted();
        Ok(())
    }

    pub fn list(&mut self) -> Vec<Instance> {
        self.remove_deleted();
        self.servers.iter().map(|(id, server)| server.instance(id, &self.knobs.address)).collect()
    }

    pub fn limits(&self) -> Resources {
        self.knobs.limits.clone()
    }

    pub fn unused_ports(&self) -> Vec<String> {
        self.unused_ports.iter().cloned().collect()
    }

    pub fn delete_port(&mut self, port: &str) -> Result<(), CloudError> {
        self.unused_ports.remove(port).then_some(()).ok_or_else(|| CloudError::not_found("no such object"))
    }

    pub fn console(&self, id: &ExternalId) -> Result<Option<String>, CloudError> {
        match self.servers.contains_key(&id.to_string()) {
            true => Ok(self.knobs.console.clone()),
            false => Err(CloudError::not_found("no such object")),
        }
    }

    fn remove_deleted(&mut self) {
        let now = Instant::now();
        self.servers.retain(|_, server| server.deleted_at.is_none_or(|deleted_at| deleted_at > now));
    }
}

impl Server {
    fn instance(&self, id: &str, address: &str) -> Instance {
        let is_booting = Instant::now() < self.boot_ends_at;
        let state = match self.outcome {
            _ if self.deleted_at.is_some() => InstanceState::Stopping,
            _ if is_booting => InstanceState::Starting,
            FakeOutcome::Hangs => InstanceState::Starting,
            FakeOutcome::Fails(fault) => InstanceState::Failed(fault.to_owned()),
            FakeOutcome::Boots => InstanceState::Running,
        };
        let is_on = |network: &str| self.order.networks.iter().any(|name| name == network);
        let public_ipv6 = is_on(IPV6_NETWORK).then(|| "fake_v6".to_owned());
        let is_public = public_ipv6.is_some() || !is_on(NO_AUTO_IP_NETWORK);
        Instance {
            interface_ip: public_ipv6.clone().or_else(|| Some(address.to_owned())),
            public_ipv4: is_public.then(|| address.to_owned()),
            host_id: Some(if public_ipv6.is_some() { "fake_host_id" } else { "fake" }.to_owned()),
            public_ipv6,
            private_ipv4: Some(address.to_owned()),
            zone: self.zone.clone(),
            metadata: self.order.metadata.clone(),
            resources: self.order.amounts.clone(),
            state,
            ..Instance::new(ExternalId::text(id))
        }
    }
}

fn new_id() -> String {
    nodepool_rng::uuid().to_string()
}

/// 0 means never.
fn is_nth(count: u64, every: u64) -> bool {
    every > 0 && count.is_multiple_of(every)
}

/// A property may be a string or a YAML boolean.
fn is_set(value: Option<&serde_json::Value>) -> bool {
    value.is_some_and(|value| {
        value.as_bool() == Some(true) || value.as_str().is_some_and(|text| text.eq_ignore_ascii_case("true"))
    })
}

pub fn failed(detail: impl Into<String>) -> CloudError {
    CloudError::Failed { kind: FailureKind::Unknown, detail: detail.into() }
}
