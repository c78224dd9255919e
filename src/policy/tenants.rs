//! What requests that wait for their tenant's limits keep from requests of lower rank of that tenant, in whatever pool
//! those would be served. A tenant's limits count over all providers, so what is kept counts over all pools too.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::ids::{PoolId, TenantName};
use crate::model::quantity::Amounts;
use crate::model::request::Rank;

/// By rank of the request: the tenant whose limit it waits for, and what it keeps of it.
pub type Kept = BTreeMap<Rank, (TenantName, Amounts)>;

/// What one pass of a pool knows to be kept, up to the rank that it has come to.
#[derive(Clone, Debug, Default)]
pub struct TenantClaims {
    /// By this pool's own verdicts.
    own: Kept,
    totals: BTreeMap<TenantName, Amounts>,
}

impl TenantClaims {
    pub fn clear(&mut self) {
        self.own.clear();
        self.totals.clear();
    }

    pub fn keep(&mut self, rank: &Rank, tenant: &TenantName, amounts: Amounts) {
        self.total(tenant).add(&amounts);
        self.own.insert(rank.clone(), (tenant.clone(), amounts));
    }

    /// What another pool keeps for a request; only what exceeds our own share counts, as it will be served once.
    pub fn keep_elsewhere(&mut self, rank: &Rank, tenant: &TenantName, amounts: &Amounts) {
        let own = self.own.get(rank).map(|(_, own)| own);
        let excess: Amounts = amounts
            .iter()
            .map(|(name, theirs)| (name.to_owned(), (theirs - own.map_or(0.0, |own| own.get(name))).max(0.0)))
            .collect();
        self.total(tenant).add(&excess);
    }

    pub fn kept(&self, tenant: &TenantName) -> Option<&Amounts> {
        self.totals.get(tenant)
    }

    pub fn own(&self) -> &Kept {
        &self.own
    }

    fn total(&mut self, tenant: &TenantName) -> &mut Amounts {
        self.totals.entry(tenant.clone()).or_insert_with(Amounts::none)
    }
}

/// Where the pools of one process show each other what they keep.
#[derive(Clone, Debug, Default)]
pub struct Board(BTreeMap<PoolId, Arc<Kept>>);

impl Board {
    /// Puts up what a pool keeps now; returns whether that differs from before.
    pub fn put(&mut self, pool: &PoolId, kept: &Kept) -> bool {
        if kept.is_empty() {
            return self.0.remove(pool).is_some();
        }
        if self.0.get(pool).is_some_and(|before| **before == *kept) {
            return false;
        }
        self.0.insert(pool.clone(), Arc::new(kept.clone()));
        true
    }

    /// What all other pools keep. A request that waits in several of them is served by one, so the most counts.
    pub fn beside(&self, pool: &PoolId) -> Arc<Kept> {
        let mut others = self.0.iter().filter(|(other, _)| *other != pool).map(|(_, kept)| kept);
        let Some(first) = others.next() else { return Arc::default() };
        let mut merged = first.clone();
        for kept in others {
            let merged = Arc::make_mut(&mut merged);
            for (rank, (tenant, amounts)) in &**kept {
                let (_, most) = merged.entry(rank.clone()).or_insert_with(|| (tenant.clone(), Amounts::none()));
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
    use crate::model::ids::RequestId;

    fn rank(id: &str) -> Rank {
        let id = RequestId::from(id);
        Rank { priority: id.priority().to_owned(), relative_priority: 0, id }
    }

    fn kept(entries: &[(&str, f64)]) -> Kept {
        let amounts = |amount: &f64| Amounts::none().with("cores", *amount);
        entries.iter().map(|(id, amount)| (rank(id), ("t".into(), amounts(amount)))).collect()
    }

    #[test]
    fn a_request_that_waits_in_several_pools_keeps_the_most_of_them_once() {
        let [ours, one, two] = ["ours", "one", "two"].map(|name| PoolId::new("p", name));
        let mut board = Board::default();
        assert!(board.put(&ours, &kept(&[("100-1", 3.0)])));
        assert!(board.put(&one, &kept(&[("100-1", 2.0), ("100-2", 4.0)])));
        assert!(board.put(&two, &kept(&[("100-1", 5.0)])));
        assert!(!board.put(&two, &kept(&[("100-1", 5.0)])), "nothing has changed");
        assert_eq!(*board.beside(&ours), kept(&[("100-1", 5.0), ("100-2", 4.0)]));

        let mut claims = TenantClaims::default();
        claims.keep(&rank("100-1"), &"t".into(), Amounts::none().with("cores", 3.0));
        for (rank, (tenant, amounts)) in &*board.beside(&ours) {
            claims.keep_elsewhere(rank, tenant, amounts);
        }
        assert_eq!(claims.kept(&"t".into()).unwrap().get("cores"), 9.0);

        assert!(board.put(&one, &Kept::new()) && board.put(&two, &Kept::new()));
        assert!(board.beside(&ours).is_empty());
    }
}
