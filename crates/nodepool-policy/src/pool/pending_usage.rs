//! The part of a pool's mind that counts what requests take from the limits of their tenants while they are being taken up: no picture
//! shows it yet, and of many that come at once each would find the same room.

use super::Pool;
use crate::inputs::Inputs;
use crate::scheduler::allocate::tenant_need;
use crate::scheduler::pool_context::PoolContext;
use crate::scheduler::tenant_usage::PendingTenantUsage;
use nodepool_model::records::ids::{RequestId, TenantName};
use nodepool_model::records::request::NodeRequest;
use nodepool_model::snapshot::Snapshot;

impl Pool {
    /// A pass begins: what this pool is taking, and the others of this process.
    pub(crate) fn count_pending_usage(&mut self, snapshot: &Snapshot) {
        let others = self.other_pools_pending_usage.iter().flat_map(|taking| taking.iter());
        for (request, usage) in self.pending_usage.iter().chain(others) {
            self.reservations.tenants.add_pending(request, usage, snapshot);
        }
    }

    /// A request is taken up.
    pub(crate) fn add_pending_usage(
        &mut self,
        id: &RequestId,
        request: &NodeRequest,
        ctx: &PoolContext<'_>,
        world: &Inputs<'_>,
    ) {
        let is_limited = |tenant: &&TenantName| world.config.tenant_limits.contains_key(*tenant);
        let Some(tenant) = request.tenant_name.as_ref().filter(is_limited) else { return };
        let usage = (tenant.clone(), tenant_need(request, ctx));
        self.reservations.tenants.add_pending(id, &usage, world.snapshot);
        self.pending_usage.insert(id.clone(), usage);
    }

    /// What is being taken for tenants, and no picture shows yet.
    pub fn pending_usage(&self) -> &PendingTenantUsage {
        &self.pending_usage
    }
}
