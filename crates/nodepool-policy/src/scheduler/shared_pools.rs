//! What the pools of one process show each other, because ZooKeeper does not show it, or not yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::tenant_usage::{Kept, Taking};
use nodepool_model::records::ids::{LauncherId, PoolId, RequestId};
use nodepool_model::records::resources::Resources;

/// Requests that somebody is about to take, and who.
pub type Tried = BTreeMap<RequestId, PoolId>;

#[derive(Clone, Debug, Default)]
pub struct SharedPoolState {
    /// For tenants, by the pool that keeps it: of one that comes back while it ends there are two for a while.
    reservations: BTreeMap<LauncherId, Arc<Kept>>,
    taking: BTreeMap<LauncherId, Arc<Taking>>,
    started_pools: Arc<BTreeSet<LauncherId>>,
    tried: Arc<Tried>,
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
    pub fn begin_try(&mut self, pool: &PoolId, request: &RequestId) {
        Arc::make_mut(&mut self.tried).insert(request.clone(), pool.clone());
    }

    pub fn end_try(&mut self, pool: &PoolId, request: &RequestId) {
        if self.tried.get(request) == Some(pool) {
            Arc::make_mut(&mut self.tried).remove(request);
        }
    }

    pub fn tried(&self) -> &Arc<Tried> {
        &self.tried
    }

    /// Puts up what a pool keeps now; returns whether that differs from before.
    pub fn publish_reservations(&mut self, pool: &LauncherId, kept: &Kept) -> bool {
        if kept.is_empty() {
            return self.reservations.remove(pool).is_some();
        }
        if self.reservations.get(pool).is_some_and(|before| **before == *kept) {
            return false;
        }
        self.reservations.insert(pool.clone(), Arc::new(kept.clone()));
        true
    }

    /// Puts up what a pool is taking for tenants; returns whether anything of it has come free.
    pub fn put_taking(&mut self, pool: &LauncherId, taking: &Taking) -> bool {
        let before = match taking.is_empty() {
            true => self.taking.remove(pool),
            false if self.taking.get(pool).is_some_and(|before| **before == *taking) => None,
            false => self.taking.insert(pool.clone(), Arc::new(taking.clone())),
        };
        before.is_some_and(|before| before.keys().any(|request| !taking.contains_key(request)))
    }

    /// What all other pools are taking.
    pub fn taking_beside(&self, pool: &LauncherId) -> Vec<Arc<Taking>> {
        self.taking.iter().filter(|(other, _)| *other != pool).map(|(_, taking)| taking.clone()).collect()
    }

    /// What all other pools keep. A request that waits in several of them is served by one, so the most counts.
    pub fn reservations_of_others(&self, pool: &LauncherId) -> Arc<Kept> {
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
    use crate::scheduler::tenant_usage::TenantClaims;
    use nodepool_model::records::request::Rank;

    fn rank(id: &str) -> Rank {
        let id = RequestId::from(id);
        Rank { priority: id.priority().to_owned(), relative_priority: 0, id }
    }

    fn kept(entries: &[(&str, f64)]) -> Kept {
        let amounts = |amount: &f64| Resources::none().with("cores", *amount);
        entries.iter().map(|(id, amount)| (rank(id), ("t".into(), amounts(amount)))).collect()
    }

    // Two workers of one pool, one of which drains, took each other's entry away and woke each other by that without end.
    #[test]
    fn a_pool_re_added_while_it_drains_has_its_own_entry() {
        let [old, new] = ["old", "new"].map(LauncherId::from);
        let mut shared = SharedPoolState::default();
        assert!(shared.publish_reservations(&new, &kept(&[("100-1", 3.0)])));
        assert!(!shared.publish_reservations(&old, &Kept::new()), "nothing has changed");
        assert!(!shared.publish_reservations(&new, &kept(&[("100-1", 3.0)])));
    }

    #[test]
    fn a_request_that_waits_in_several_pools_keeps_the_most_of_them_once() {
        let [ours, one, two] = ["ours", "one", "two"].map(LauncherId::from);
        let mut shared = SharedPoolState::default();
        assert!(shared.publish_reservations(&ours, &kept(&[("100-1", 3.0)])));
        assert!(shared.publish_reservations(&one, &kept(&[("100-1", 2.0), ("100-2", 4.0)])));
        assert!(shared.publish_reservations(&two, &kept(&[("100-1", 5.0)])));
        assert!(!shared.publish_reservations(&two, &kept(&[("100-1", 5.0)])), "nothing has changed");
        assert_eq!(*shared.reservations_of_others(&ours), kept(&[("100-1", 5.0), ("100-2", 4.0)]));

        let mut claims = TenantClaims::default();
        claims.keep(&rank("100-1"), &"t".into(), Resources::none().with("cores", 3.0));
        for (rank, (tenant, amounts)) in &*shared.reservations_of_others(&ours) {
            claims.keep_elsewhere(rank, tenant, amounts);
        }
        assert_eq!(claims.kept(&"t".into()).unwrap().get("cores"), 9.0);

        assert!(shared.publish_reservations(&one, &Kept::new()) && shared.publish_reservations(&two, &Kept::new()));
        assert!(shared.reservations_of_others(&ours).is_empty());
    }
}
