//! A cloud in memory: flavors, zones, limits, servers that boot and go, and knobs for what can go wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::config::Knobs;
use crate::model::cloud::{CloudError, ExternalId, Instance, InstanceState};
use crate::model::quantity::Amounts;

#[derive(Debug)]
pub struct Cloud {
    knobs: Knobs,
    servers: BTreeMap<String, Server>,
    /// Creations so far, for the knobs that fail every so many.
    created: u64,
    deleted: u64,
    calls: u64,
}

#[derive(Clone, Debug)]
struct Server {
    name: String,
    zone: Option<String>,
    metadata: BTreeMap<String, String>,
    amounts: Amounts,
    boots_until: Instant,
    fails: bool,
    goes_at: Option<Instant>,
}

/// What a server shall be.
#[derive(Clone, Debug)]
pub struct Order {
    pub name: String,
    pub zone: Option<String>,
    pub metadata: BTreeMap<String, String>,
    pub amounts: Amounts,
}

impl Cloud {
    pub fn new(knobs: Knobs) -> Self {
        Self { knobs, servers: BTreeMap::new(), created: 0, deleted: 0, calls: 0 }
    }

    pub fn latency(&self) -> Duration {
        self.knobs.latency.to_duration()
    }

    /// Some calls are refused because they come too fast.
    pub fn throttle(&mut self) -> Result<(), CloudError> {
        self.calls += 1;
        match is_nth(self.calls, self.knobs.throttle_every) {
            true => Err(CloudError::Throttled { retry_after: self.knobs.retry_after }),
            false => Ok(()),
        }
    }

    pub fn create(&mut self, order: Order) -> Result<ExternalId, CloudError> {
        if let Some(zone) = &order.zone
            && !self.knobs.zones.contains(zone)
        {
            return Err(failed(format!("The requested availability zone is not available: {zone}")));
        }
        self.forget_gone();
        let mut room = self.knobs.limits.clone();
        self.servers.values().for_each(|server| room.subtract(&server.amounts));
        if let Some((resource, ..)) = room.shortage(&order.amounts) {
            return Err(CloudError::Quota(format!("Quota exceeded for {resource}")));
        }
        self.created += 1;
        if is_nth(self.created, self.knobs.create_fails_every) {
            return Err(failed("the fake cloud was told to refuse this server".to_owned()));
        }
        let id = uuid::Uuid::new_v4().to_string();
        let server = Server {
            name: order.name,
            zone: order.zone.or_else(|| self.knobs.zones.first().cloned()),
            metadata: order.metadata,
            amounts: order.amounts,
            boots_until: Instant::now() + self.knobs.boot_time.to_duration(),
            fails: is_nth(self.created, self.knobs.boot_fails_every),
            goes_at: None,
        };
        self.servers.insert(id.clone(), server);
        Ok(ExternalId::text(id))
    }

    /// The server of an earlier creation whose answer was lost.
    pub fn find(&self, name: &str) -> Option<ExternalId> {
        self.servers.iter().find(|(_, server)| server.name == name).map(|(id, _)| ExternalId::text(id.clone()))
    }

    pub fn delete(&mut self, id: &ExternalId) -> Result<(), CloudError> {
        self.forget_gone();
        self.deleted += 1;
        if is_nth(self.deleted, self.knobs.delete_fails_every) {
            return Err(failed("the fake cloud was told to keep this server".to_owned()));
        }
        let goes_at = Instant::now() + self.knobs.delete_time.to_duration();
        let server = self.servers.get_mut(&id.to_string()).ok_or(CloudError::NotFound)?;
        server.goes_at.get_or_insert(goes_at);
        self.forget_gone();
        Ok(())
    }

    pub fn list(&mut self) -> Vec<Instance> {
        self.forget_gone();
        self.servers.iter().map(|(id, server)| server.instance(id)).collect()
    }

    pub fn limits(&self) -> Amounts {
        self.knobs.limits.clone()
    }

    fn forget_gone(&mut self) {
        let now = Instant::now();
        self.servers.retain(|_, server| server.goes_at.is_none_or(|goes_at| goes_at > now));
    }
}

impl Server {
    fn instance(&self, id: &str) -> Instance {
        let state = match Instant::now() < self.boots_until {
            _ if self.goes_at.is_some() => InstanceState::Stopping,
            true => InstanceState::Starting,
            false if self.fails => InstanceState::Failed("the fake cloud was told to break this server".to_owned()),
            false => InstanceState::Running,
        };
        Instance {
            // Addresses that contain `fake` are never connected to.
            interface_ip: Some("fake".to_owned()),
            public_ipv4: Some("fake".to_owned()),
            private_ipv4: Some("fake".to_owned()),
            zone: self.zone.clone(),
            host_id: Some("fake".to_owned()),
            metadata: self.metadata.clone(),
            amounts: self.amounts.clone(),
            state,
            ..Instance::new(ExternalId::text(id))
        }
    }
}

/// 0 is never.
fn is_nth(count: u64, every: u64) -> bool {
    every > 0 && count.is_multiple_of(every)
}

fn failed(detail: String) -> CloudError {
    CloudError::Failed { kind: crate::model::cloud::FailureKind::Unknown, detail }
}
