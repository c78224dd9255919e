//! The part of a pool's mind that counts what requests take from the limits of their tenants while they are being taken up: no picture
//! shows it yet, and of many that come at once each would find the same room.

use super::Pool;
use crate::inputs::Inputs;
use crate::scheduler::allocate::tenant_need;
use crate::scheduler::pool_context::PoolContext;
use crate::scheduler::tenant_usage::Taking;
use nodepool_model::records::ids::{RequestId, TenantName};
use nodepool_model::records::request::NodeRequest;
use nodepool_model::snapshot::Snapshot;

impl Pool {
    /// A pass begins: what this pool is taking, and the others of this process.
    pub(crate) fn count_what_is_taken(&mut self, snapshot: &Snapshot) {
        let others = self.taking_elsewhere.iter().flat_map(|taking| taking.iter());
        for (request, taking) in self.taking.iter().chain(others) {
            self.reservations.tenants.take(request, taking, snapshot);
        }
    }

    /// A request is taken up.
    pub(crate) fn take_for_tenant(
        &mut self,
        id: &RequestId,
        request: &NodeRequest,
        ctx: &PoolContext<'_>,
        world: &Inputs<'_>,
    ) {
        let is_limited = |tenant: &&TenantName| world.config.tenant_limits.contains_key(*tenant);
        let Some(tenant) = request.tenant_name.as_ref().filter(is_limited) else { return };
        let taking = (tenant.clone(), tenant_need(request, ctx));
        self.reservations.tenants.take(id, &taking, world.snapshot);
        self.taking.insert(id.clone(), taking);
    }

    /// What is being taken for tenants, and no picture shows yet.
    pub fn taking(&self) -> &Taking {
        &self.taking
    }
}
