//! State shared by the pools of one process, because ZooKeeper does not show it, or not yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::launch_line::PoolLine;
use super::tenant_usage::{PendingTenantUsage, TenantReservations};
use nodepool_model::records::ids::{LauncherId, PoolId, ProviderName, RequestId};
use nodepool_model::records::resources::Resources;

/// Requests about which a pool is writing, and the pool that holds the lease.
pub type RequestLeases = BTreeMap<RequestId, PoolId>;

#[derive(Clone, Debug, Default)]
pub struct SharedPoolState {
    /// Tenant reservations by pool. A pool that is re-added while it drains has two entries for a while.
    reservations: BTreeMap<LauncherId, Arc<TenantReservations>>,
    pending_usage: BTreeMap<LauncherId, Arc<PendingTenantUsage>>,
    /// Lines of launches at full providers.
    lines: BTreeMap<(ProviderName, LauncherId), Arc<PoolLine>>,
    started_pools: Arc<BTreeSet<LauncherId>>,
    leases: Arc<RequestLeases>,
}

impl SharedPoolState {
    /// Called before a pool starts.
    pub fn register(&mut self, pool: LauncherId) {
        Arc::make_mut(&mut self.started_pools).insert(pool);
    }

    /// Called before a pool stops.
    pub fn unregister(&mut self, pool: &LauncherId) {
        Arc::make_mut(&mut self.started_pools).remove(pool);
        self.lines.retain(|(_, other), _| other != pool);
    }

    /// All pools that run in this process or are about to start.
    pub fn started_pools(&self) -> &Arc<BTreeSet<LauncherId>> {
        &self.started_pools
    }

    /// A pool writes about a request. One writer is enough: ZooKeeper would reject the writes of the others.
    pub fn begin_lease(&mut self, pool: &PoolId, request: &RequestId) {
        Arc::make_mut(&mut self.leases).insert(request.clone(), pool.clone());
    }

    pub fn end_lease(&mut self, pool: &PoolId, request: &RequestId) {
        if self.leases.get(request) == Some(pool) {
            Arc::make_mut(&mut self.leases).remove(request);
        }
    }

    pub fn leases(&self) -> &Arc<RequestLeases> {
        &self.leases
    }

    /// Publishes the tenant reservations of a pool; returns whether they changed.
    pub fn publish_reservations(&mut self, pool: &LauncherId, reservations: &TenantReservations) -> bool {
        if reservations.is_empty() {
            return self.reservations.remove(pool).is_some();
        }
        if self.reservations.get(pool).is_some_and(|before| **before == *reservations) {
            return false;
        }
        self.reservations.insert(pool.clone(), Arc::new(reservations.clone()));
        true
    }

    /// Publishes the pending tenant usage of a pool; returns whether any of it was released.
    pub fn publish_pending_usage(&mut self, pool: &LauncherId, pending_usage: &PendingTenantUsage) -> bool {
        let before = match pending_usage.is_empty() {
            true => self.pending_usage.remove(pool),
            false if self.pending_usage.get(pool).is_some_and(|before| **before == *pending_usage) => None,
            false => self.pending_usage.insert(pool.clone(), Arc::new(pending_usage.clone())),
        };
        before.is_some_and(|before| before.keys().any(|request| !pending_usage.contains_key(request)))
    }

    /// Publishes a pool's part in the lines of its provider; returns whether it changed.
    pub fn publish_line(&mut self, provider: &ProviderName, pool: &LauncherId, line: &PoolLine) -> bool {
        let key = (provider.clone(), pool.clone());
        if line.is_empty() {
            return self.lines.remove(&key).is_some();
        }
        if self.lines.get(&key).is_some_and(|before| **before == *line) {
            return false;
        }
        self.lines.insert(key, Arc::new(line.clone()));
        true
    }

    /// The lines of the other pools of a provider.
    pub fn lines_of_others(&self, provider: &ProviderName, pool: &LauncherId) -> Vec<Arc<PoolLine>> {
        let others = self.lines.iter().filter(|((of, other), _)| of == provider && other != pool);
        others.map(|(_, line)| line.clone()).collect()
    }

    /// Pending tenant usage of all other pools.
    pub fn pending_usage_of_others(&self, pool: &LauncherId) -> Vec<Arc<PendingTenantUsage>> {
        self.pending_usage.iter().filter(|(other, _)| *other != pool).map(|(_, usage)| usage.clone()).collect()
    }

    /// Tenant reservations of all other pools. A request that waits in several pools is served by one of them, so the
    /// largest reservation counts.
    pub fn reservations_of_others(&self, pool: &LauncherId) -> Arc<TenantReservations> {
        let mut others =
            self.reservations.iter().filter(|(other, _)| *other != pool).map(|(_, reservations)| reservations);
        let Some(first) = others.next() else { return Arc::default() };
        let mut merged = first.clone();
        for reservations in others {
            let merged = Arc::make_mut(&mut merged);
            for (rank, (tenant, resources)) in &**reservations {
                let (_, largest) = merged.entry(rank.clone()).or_insert_with(|| (tenant.clone(), Resources::none()));
                for (name, amount) in resources.iter() {
                    largest.set(name, amount.max(largest.get(name)));
                }
            }
        }
        merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::tenant_usage::TenantUsage;
    use nodepool_model::records::request::Rank;

    fn rank(id: &str) -> Rank {
        let id = RequestId::from(id);
        Rank { priority: id.priority().to_owned(), relative_priority: 0, id }
    }

    fn reservations(entries: &[(&str, f64)]) -> TenantReservations {
        let amounts = |amount: &f64| Resources::none().with("cores", *amount);
        entries.iter().map(|(id, amount)| (rank(id), ("t".into(), amounts(amount)))).collect()
    }

    // Two workers of one pool, one of them draining, once removed each other's entry and woke each other endlessly.
    #[test]
    fn a_pool_re_added_while_it_drains_has_its_own_entry() {
        let [old, new] = ["old", "new"].map(LauncherId::from);
        let mut shared = SharedPoolState::default();
        assert!(shared.publish_reservations(&new, &reservations(&[("100-1", 3.0)])));
        assert!(!shared.publish_reservations(&old, &TenantReservations::new()), "the reservations are unchanged");
        assert!(!shared.publish_reservations(&new, &reservations(&[("100-1", 3.0)])));
    }

    #[test]
    fn the_largest_reservation_of_several_pools_counts_once_per_request() {
        let [ours, one, two] = ["ours", "one", "two"].map(LauncherId::from);
        let mut shared = SharedPoolState::default();
        assert!(shared.publish_reservations(&ours, &reservations(&[("100-1", 3.0)])));
        assert!(shared.publish_reservations(&one, &reservations(&[("100-1", 2.0), ("100-2", 4.0)])));
        assert!(shared.publish_reservations(&two, &reservations(&[("100-1", 5.0)])));
        assert!(!shared.publish_reservations(&two, &reservations(&[("100-1", 5.0)])), "the reservations are unchanged");
        assert_eq!(*shared.reservations_of_others(&ours), reservations(&[("100-1", 5.0), ("100-2", 4.0)]));

        let mut usage = TenantUsage::default();
        usage.reserve(&rank("100-1"), &"t".into(), Resources::none().with("cores", 3.0));
        for (rank, (tenant, amounts)) in &*shared.reservations_of_others(&ours) {
            usage.reserve_for_other_pool(rank, tenant, amounts);
        }
        assert_eq!(usage.committed(&"t".into()).unwrap().get("cores"), 9.0);

        assert!(
            shared.publish_reservations(&one, &TenantReservations::new())
                && shared.publish_reservations(&two, &TenantReservations::new())
        );
        assert!(shared.reservations_of_others(&ours).is_empty());
    }
}
