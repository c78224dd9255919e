//! What requests that wait for their tenant's limits keep from requests of lower rank of that tenant, in whatever pool
//! those would be served, and what requests take that are being taken up. A tenant's limits count over all providers, so both count
//! over all pools too.

use std::collections::BTreeMap;

use nodepool_model::records::ids::{RequestId, TenantName};
use nodepool_model::records::request::Rank;
use nodepool_model::records::resources::Resources;
use nodepool_model::snapshot::{Snapshot, usage_totals};

/// By rank of the request: the tenant whose limit it waits for, and what it keeps of it.
pub type TenantReservations = BTreeMap<Rank, (TenantName, Resources)>;

/// What requests of tenants with limits take in all, until a picture shows what they have.
pub type PendingTenantUsage = BTreeMap<RequestId, (TenantName, Resources)>;

/// What one pass of a pool knows to be kept, up to the rank that it has come to.
#[derive(Clone, Debug, Default)]
pub struct TenantUsage {
    /// By this pool's own verdicts.
    own: TenantReservations,
    /// Kept and taken.
    totals: BTreeMap<TenantName, Resources>,
}

impl TenantUsage {
    pub fn clear(&mut self) {
        self.own.clear();
        self.totals.clear();
    }

    pub fn reserve(&mut self, rank: &Rank, tenant: &TenantName, amounts: Resources) {
        self.total(tenant).add(&amounts);
        self.own.insert(rank.clone(), (tenant.clone(), amounts));
    }

    /// What another pool keeps for a request; only what exceeds our own share counts, as it will be served once.
    pub fn reserve_for_other_pool(&mut self, rank: &Rank, tenant: &TenantName, amounts: &Resources) {
        let own = self.own.get(rank).map(|(_, own)| own);
        let excess: Resources = amounts
            .iter()
            .map(|(name, theirs)| (name.to_owned(), (theirs - own.map_or(0.0, |own| own.get(name))).max(0.0)))
            .collect();
        self.total(tenant).add(&excess);
    }

    /// What a request takes besides what the picture shows.
    pub fn add_pending(&mut self, request: &RequestId, (tenant, need): &(TenantName, Resources), snapshot: &Snapshot) {
        // Those of an earlier life of it go, and are none of what it takes now.
        let nodes = snapshot.live_nodes_of(request).filter_map(|id| snapshot.node(id));
        let in_snapshot = usage_totals::tenant_usage(tenant, nodes.map(|stored| &*stored.record));
        let pending = need.iter().map(|(name, need)| (name.to_owned(), (need - in_snapshot.get(name)).max(0.0)));
        self.total(tenant).add(&pending.collect());
    }

    pub fn committed(&self, tenant: &TenantName) -> Option<&Resources> {
        self.totals.get(tenant)
    }

    pub fn own(&self) -> &TenantReservations {
        &self.own
    }

    fn total(&mut self, tenant: &TenantName) -> &mut Resources {
        self.totals.entry(tenant.clone()).or_insert_with(Resources::none)
    }
}
