//! Running totals of the resources of nodes, per pool and per tenant; updated node by node, always equal to a recount.

use imbl::OrdMap;
use serde_json::{Map, Value};

use crate::records::ids::{LabelName, PoolId, ProviderName, TenantName};
use crate::records::node::{Node, NodeState};
use crate::records::resources::Resources;

/// Usage of one pool's nodes: sized nodes (with `resources`) by their records, other nodes by the count of their first
/// label. Sized nodes are also counted by label, for the resources that no record contains.
#[derive(Clone, Debug, Default, PartialEq)]
struct PoolUsage {
    sized: Resources,
    sized_nodes: OrdMap<LabelName, i64>,
    unsized_nodes: OrdMap<LabelName, i64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct UsageTotals {
    pools: OrdMap<PoolId, PoolUsage>,
    tenants: OrdMap<TenantName, Resources>,
}

impl UsageTotals {
    pub fn add(&mut self, node: &Node) {
        self.apply(node, 1.0);
    }

    pub fn remove(&mut self, node: &Node) {
        self.apply(node, -1.0);
    }

    /// Usage of one pool; `need` returns the resources of nodes whose record has none.
    pub fn used_by_pool<'a>(&self, pool: &PoolId, need: impl Fn(&LabelName) -> &'a Resources) -> Resources {
        let mut total = Resources::none();
        if let Some(pool_usage) = self.pools.get(pool) {
            total.add(&pool_usage.sized);
            for (label, count) in &pool_usage.unsized_nodes {
                total.add(&need(label).times(*count as f64));
            }
            for (label, count) in &pool_usage.sized_nodes {
                total.add(&need(label).recorded(false).times(*count as f64));
            }
        }
        total
    }

    pub fn used_by_provider<'a>(
        &self,
        provider: &ProviderName,
        need: impl Fn(&PoolId, &LabelName) -> &'a Resources,
    ) -> Resources {
        let mut total = Resources::none();
        for pool in self.pools.keys().filter(|pool| pool.provider == *provider) {
            total.add(&self.used_by_pool(pool, |label| need(pool, label)));
        }
        total
    }

    /// Usage of one tenant. Nodes without `resources` count nothing, as in Nodepool 11.
    pub fn used_by_tenant(&self, tenant: &TenantName) -> Resources {
        self.tenants.get(tenant).cloned().unwrap_or_default()
    }

    fn apply(&mut self, node: &Node, sign: f64) {
        let sized = node.resources.as_ref().filter(|resources| !resources.is_empty());
        if let Some(pool) = node.pool_id() {
            let mut pool_usage = self.pools.get(&pool).cloned().unwrap_or_default();
            if let Some(resources) = sized {
                apply_resources(&mut pool_usage.sized, resources, sign);
            }
            if let Some(label) = node.labels.first() {
                let counts = if sized.is_some() { &mut pool_usage.sized_nodes } else { &mut pool_usage.unsized_nodes };
                apply_count(counts, label, sign as i64);
            }
            if pool_usage == PoolUsage::default() {
                self.pools.remove(&pool)
            } else {
                self.pools.insert(pool, pool_usage)
            };
        }
        if let (Some(resources), Some(tenant)) = (sized, using_tenant(node)) {
            let mut used = self.tenants.get(tenant).cloned().unwrap_or_default();
            apply_resources(&mut used, resources, sign);
            if used.is_empty() {
                self.tenants.remove(tenant)
            } else {
                self.tenants.insert(tenant.clone(), used)
            };
        }
    }
}

/// The tenant that uses a node. A node that was released unused counts for no tenant, although its record names its
/// last one: if all such nodes counted, a tenant at its limit could never receive another node (doc/decisions/0030).
pub fn using_tenant(node: &Node) -> Option<&TenantName> {
    let is_used = node.allocation().is_some() || matches!(node.state, NodeState::InUse | NodeState::Used);
    node.tenant_name.as_ref().filter(|_| is_used)
}

/// Whether both have the same usage, in the same pool and of the same tenant.
pub fn has_same_usage(one: &Node, other: &Node) -> bool {
    (&one.provider, &one.pool, using_tenant(one)) == (&other.provider, &other.pool, using_tenant(other))
        && one.labels.first() == other.labels.first()
        && one.resources == other.resources
}

/// A tenant's usage by these nodes, counted as in the totals.
pub fn tenant_usage<'a>(tenant: &TenantName, nodes: impl Iterator<Item = &'a Node>) -> Resources {
    let mut used = Resources::none();
    for node in nodes.filter(|node| using_tenant(node) == Some(tenant)) {
        node.resources.iter().for_each(|resources| apply_resources(&mut used, resources, 1.0));
    }
    used
}

fn apply_resources(totals: &mut Resources, resources: &Map<String, Value>, sign: f64) {
    for (name, value) in resources {
        let Some(amount) = value.as_f64() else { continue };
        let total = totals.get(name) + sign * rounded(amount);
        if total == 0.0 {
            totals.remove(name);
        } else {
            totals.set(name, total);
        }
    }
}

/// Rounds down to a multiple of 2⁻²⁰, and to at most 2³². Sums of such numbers are exact below 2³³, so that a deleted
/// node leaves no remainder in the totals. Without rounding, 0.1 added three times and subtracted once is not 0.2.
fn rounded(amount: f64) -> f64 {
    const SCALE: f64 = (1 << 20) as f64;
    const MAX: f64 = (1_u64 << 32) as f64;
    (amount.clamp(-MAX, MAX) * SCALE).floor() / SCALE
}

fn apply_count(counts: &mut OrdMap<LabelName, i64>, label: &LabelName, change: i64) {
    let count = counts.get(label).copied().unwrap_or(0) + change;
    if count == 0 {
        counts.remove(label)
    } else {
        counts.insert(label.clone(), count)
    };
}
