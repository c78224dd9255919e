//! What the pools of one process show each other, because ZooKeeper does not show it, or not yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::tenant_usage::{PendingTenantUsage, TenantReservations};
use nodepool_model::records::ids::{LauncherId, PoolId, RequestId};
use nodepool_model::records::resources::Resources;

/// Requests that somebody is about to take, and who.
pub type RequestLeases = BTreeMap<RequestId, PoolId>;

#[derive(Clone, Debug, Default)]
pub struct SharedPoolState {
    /// For tenants, by the pool that keeps it: of one that comes back while it ends there are two for a while.
    reservations: BTreeMap<LauncherId, Arc<TenantReservations>>,
    pending_usage: BTreeMap<LauncherId, Arc<PendingTenantUsage>>,
    started_pools: Arc<BTreeSet<LauncherId>>,
    leases: Arc<RequestLeases>,
}

impl SharedPoolState {
    /// A pool is about to start.
    pub fn register(&mut self, pool: LauncherId) {
        Arc::make_mut(&mut self.started_pools).insert(pool);
    }

    /// A pool is about to end.
    pub fn unregister(&mut self, pool: &LauncherId) {
        Arc::make_mut(&mut self.started_pools).remove(pool);
    }

    /// All pools that work in this process, or will in a moment.
    pub fn started_pools(&self) -> &Arc<BTreeSet<LauncherId>> {
        &self.started_pools
    }

    /// A pool writes about a request: one of them is enough, the others would be refused.
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

    /// Puts up what a pool keeps now; returns whether that differs from before.
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

    /// Puts up what a pool is taking for tenants; returns whether anything of it has come free.
    pub fn publish_pending_usage(&mut self, pool: &LauncherId, pending_usage: &PendingTenantUsage) -> bool {
        let before = match pending_usage.is_empty() {
            true => self.pending_usage.remove(pool),
            false if self.pending_usage.get(pool).is_some_and(|before| **before == *pending_usage) => None,
            false => self.pending_usage.insert(pool.clone(), Arc::new(pending_usage.clone())),
        };
        before.is_some_and(|before| before.keys().any(|request| !pending_usage.contains_key(request)))
    }

    /// What all other pools are taking.
    pub fn pending_usage_of_others(&self, pool: &LauncherId) -> Vec<Arc<PendingTenantUsage>> {
        self.pending_usage.iter().filter(|(other, _)| *other != pool).map(|(_, taking)| taking.clone()).collect()
    }

    /// What all other pools keep. A request that waits in several of them is served by one, so the most counts.
    pub fn reservations_of_others(&self, pool: &LauncherId) -> Arc<TenantReservations> {
        let mut others = self.reservations.iter().filter(|(other, _)| *other != pool).map(|(_, kept)| kept);
        let Some(first) = others.next() else { return Arc::default() };
        let mut merged = first.clone();
        for kept in others {
            let merged = Arc::make_mut(&mut merged);
            for (rank, (tenant, amounts)) in &**kept {
                let (_, most) = merged.entry(rank.clone()).or_insert_with(|| (tenant.clone(), Resources::none()));
                for (name, amount) in amounts.iter() {
                    most.set(name, amount.max(most.get(name)));
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

    // Two workers of one pool, one of which drains, took each other's entry away and woke each other by that without end.
    #[test]
    fn a_pool_re_added_while_it_drains_has_its_own_entry() {
        let [old, new] = ["old", "new"].map(LauncherId::from);
        let mut shared = SharedPoolState::default();
        assert!(shared.publish_reservations(&new, &reservations(&[("100-1", 3.0)])));
        assert!(!shared.publish_reservations(&old, &TenantReservations::new()), "nothing has changed");
        assert!(!shared.publish_reservations(&new, &reservations(&[("100-1", 3.0)])));
    }

    #[test]
    fn the_largest_reservation_of_several_pools_counts_once_per_request() {
        let [ours, one, two] = ["ours", "one", "two"].map(LauncherId::from);
        let mut shared = SharedPoolState::default();
        assert!(shared.publish_reservations(&ours, &reservations(&[("100-1", 3.0)])));
        assert!(shared.publish_reservations(&one, &reservations(&[("100-1", 2.0), ("100-2", 4.0)])));
        assert!(shared.publish_reservations(&two, &reservations(&[("100-1", 5.0)])));
        assert!(!shared.publish_reservations(&two, &reservations(&[("100-1", 5.0)])), "nothing has changed");
        assert_eq!(*shared.reservations_of_others(&ours), reservations(&[("100-1", 5.0), ("100-2", 4.0)]));

        let mut claims = TenantUsage::default();
        claims.reserve(&rank("100-1"), &"t".into(), Resources::none().with("cores", 3.0));
        for (rank, (tenant, amounts)) in &*shared.reservations_of_others(&ours) {
            claims.reserve_for_other_pool(rank, tenant, amounts);
        }
        assert_eq!(claims.committed(&"t".into()).unwrap().get("cores"), 9.0);

        assert!(
            shared.publish_reservations(&one, &TenantReservations::new())
                && shared.publish_reservations(&two, &TenantReservations::new())
        );
        assert!(shared.reservations_of_others(&ours).is_empty());
    }
}
