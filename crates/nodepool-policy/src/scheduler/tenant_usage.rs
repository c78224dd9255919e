//! Tenant usage of a scheduling pass. Waiting requests reserve a tenant's limits against requests of lower rank of that
//! tenant. Requests that are being accepted count as pending usage. A tenant's limits apply over all providers, so both
//! are counted over all pools.

use std::collections::BTreeMap;

use nodepool_model::records::ids::{RequestId, TenantName};
use nodepool_model::records::request::Rank;
use nodepool_model::records::resources::Resources;
use nodepool_model::snapshot::{Snapshot, usage_totals};

/// By rank of the request: its tenant, and the part of the tenant's limits that the request reserves.
pub type TenantReservations = BTreeMap<Rank, (TenantName, Resources)>;

/// Resources of requests whose tenants have limits, until a snapshot shows the nodes of the request.
pub type PendingTenantUsage = BTreeMap<RequestId, (TenantName, Resources)>;

/// Reservations and pending usage known to one pass of a pool, up to the rank that it has reached.
#[derive(Clone, Debug, Default)]
pub struct TenantUsage {
    /// Reservations by this pool's own verdicts.
    own: TenantReservations,
    /// Reserved plus pending.
    totals: BTreeMap<TenantName, Resources>,
}

impl TenantUsage {
    pub fn clear(&mut self) {
        self.own.clear();
        self.totals.clear();
    }

    pub fn reserve(&mut self, rank: &Rank, tenant: &TenantName, resources: Resources) {
        self.total(tenant).add(&resources);
        self.own.insert(rank.clone(), (tenant.clone(), resources));
    }

    /// A reservation of another pool. Only the part beyond this pool's own reservation counts, because one pool serves
    /// the request.
    pub fn reserve_for_other_pool(&mut self, rank: &Rank, tenant: &TenantName, resources: &Resources) {
        let own = self.own.get(rank).map(|(_, own)| own);
        let excess: Resources = resources
            .iter()
            .map(|(name, theirs)| (name.to_owned(), (theirs - own.map_or(0.0, |own| own.get(name))).max(0.0)))
            .collect();
        self.total(tenant).add(&excess);
    }

    /// Adds the usage of a request that the snapshot does not show yet.
    pub fn add_pending(&mut self, request: &RequestId, (tenant, need): &(TenantName, Resources), snapshot: &Snapshot) {
        // Nodes of a previous attempt are being deleted and do not belong to the current usage.
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
