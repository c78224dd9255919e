//! A launch of a simple driver: its order, and the zones that are tried in turn.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::full_places::FullPlaces;
use crate::instance::Instance;
use crate::job::LaunchOrder;
use crate::simple_adapter::LaunchPlan;
use nodepool_model::records::ids::ExternalId;

/// Memory of the zones without capacity, which all launches of a provider share.
pub type FullZones = Arc<Mutex<FullPlaces<Zone>>>;

/// Capacity that a zone may lack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Zone {
    capacity: String,
    name: String,
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.capacity.is_empty() { "" } else { " in " };
        write!(f, "{}{separator}{}", self.capacity, self.name)
    }
}

/// A launch in progress.
#[derive(Debug)]
pub struct Launch {
    order: Arc<LaunchOrder>,
    use_internal_ip: bool,
    planned_id: Option<ExternalId>,
    /// All zones of the plan, and those that are still to be tried; the first of them is tried now.
    all: Vec<Zone>,
    zones: VecDeque<Zone>,
    full: FullZones,
}

impl Launch {
    pub fn new(order: Arc<LaunchOrder>, plan: LaunchPlan, full: FullZones) -> Self {
        let zone = |name: String| Zone { capacity: plan.capacity.clone(), name };
        let mut all: Vec<Zone> = plan.zones.into_iter().map(zone).collect();
        // The zone of the request's other nodes comes first.
        all.sort_by_key(|zone| order.zone.as_ref() != Some(&zone.name));
        let zones = lock(&full).usable(all.clone(), Instant::now()).into();
        let (use_internal_ip, planned_id) = (plan.use_internal_ip, plan.id);
        Self { order, use_internal_ip, planned_id, all, zones, full }
    }

    /// The order for the zone that is tried now.
    pub fn order(&self) -> Arc<LaunchOrder> {
        match self.zones.front() {
            Some(zone) => Arc::new(LaunchOrder { zone: Some(zone.name.clone()), ..(*self.order).clone() }),
            None => self.order.clone(),
        }
    }

    /// The zone that is tried now has no capacity. Returns whether there is another one.
    pub fn try_next_zone(&mut self) -> bool {
        let Some(zone) = self.zones.pop_front() else { return false };
        lock(&self.full).insert(zone, Instant::now());
        !self.zones.is_empty()
    }

    pub fn record_capacity(&self) {
        if let Some(zone) = self.zones.front() {
            lock(&self.full).remove(zone);
        }
    }

    pub fn as_node(&self, instance: &Instance) -> Instance {
        let mut node = instance.clone();
        if self.use_internal_ip && node.private_ipv4.is_some() {
            node.interface_ip = node.private_ipv4.clone();
        }
        node
    }

    /// Id of the instance, if it is known before the creation.
    pub fn planned_id(&self) -> Option<ExternalId> {
        self.planned_id.clone()
    }

    /// The instance that an earlier process has created.
    pub fn prior_instance(&self) -> Option<ExternalId> {
        self.order.prior_instance.clone()
    }

    /// The zones that are skipped now.
    pub fn full_zones(&self) -> Option<String> {
        lock(&self.full).describe(&self.all, Instant::now())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
