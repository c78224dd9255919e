//! Pool: pending tenant usage of requests that are being accepted. No snapshot shows it yet; without it, each of many
//! concurrent requests would find the same capacity.

use super::Pool;
use crate::inputs::Inputs;
use crate::scheduler::allocate::tenant_need;
use crate::scheduler::pool_context::PoolContext;
use crate::scheduler::tenant_usage::PendingTenantUsage;
use nodepool_model::records::ids::{RequestId, TenantName};
use nodepool_model::records::request::NodeRequest;
use nodepool_model::snapshot::Snapshot;

impl Pool {
    /// Called when a pass starts: counts the pending usage of this pool and of the other pools of the process.
    pub(crate) fn count_pending_usage(&mut self, snapshot: &Snapshot) {
        let others = self.other_pools_pending_usage.iter().flat_map(|usage| usage.iter());
        for (request, usage) in self.pending_usage.iter().chain(others) {
            self.reservations.tenants.add_pending(request, usage, snapshot);
        }
    }

    /// Called when a request is accepted.
    pub(crate) fn add_pending_usage(
        &mut self,
        id: &RequestId,
        request: &NodeRequest,
        ctx: &PoolContext<'_>,
        inputs: &Inputs<'_>,
    ) {
        let is_limited = |tenant: &&TenantName| inputs.config.tenant_limits.contains_key(*tenant);
        let Some(tenant) = request.tenant_name.as_ref().filter(is_limited) else { return };
        let usage = (tenant.clone(), tenant_need(request, ctx));
        self.reservations.tenants.add_pending(id, &usage, inputs.snapshot);
        self.pending_usage.insert(id.clone(), usage);
    }

    /// Pending tenant usage, which no snapshot shows yet.
    pub fn pending_usage(&self) -> &PendingTenantUsage {
        &self.pending_usage
    }
}
