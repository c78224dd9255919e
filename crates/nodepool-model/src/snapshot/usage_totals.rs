//! Running totals of what nodes use, per pool and per tenant; changed node by node, always equal to a recount.

use imbl::OrdMap;
use serde_json::{Map, Value};

use crate::records::ids::{LabelName, PoolId, ProviderName, TenantName};
use crate::records::node::{Node, NodeState};
use crate::records::resources::Resources;

/// What the nodes of one pool use: sized ones by their records, the others by count of their first label. By count of that, the
/// sized ones too use what no record names.
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

    /// Use of one pool; `need` says what a node takes whose record does not say it.
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

    /// Nodes without `resources` count nothing, as in the reference.
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

/// The tenant that uses a node. One that was given back unused is nobody's until somebody else gets it, though its record still names who
/// had it last: a tenant of which all such nodes count could never have another one (doc/decisions/0030).
pub fn using_tenant(node: &Node) -> Option<&TenantName> {
    let is_used = node.allocation().is_some() || matches!(node.state, NodeState::InUse | NodeState::Used);
    node.tenant_name.as_ref().filter(|_| is_used)
}

/// Whether both take the same at the same place, and of the same tenant.
pub fn has_same_usage(one: &Node, other: &Node) -> bool {
    (&one.provider, &one.pool, using_tenant(one)) == (&other.provider, &other.pool, using_tenant(other))
        && one.labels.first() == other.labels.first()
        && one.resources == other.resources
}

/// What a tenant uses by these nodes, counted as in the whole.
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

/// Rounded down to a multiple of 2⁻²⁰, and no more than 2³²: sums of such numbers have no error below 2³³, so that what has gone leaves
/// nothing in the totals. A tenth three times, less a tenth, is not two tenths.
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
