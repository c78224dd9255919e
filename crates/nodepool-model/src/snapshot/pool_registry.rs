//! Registered pools of all launchers, indexed by label. Each pool queries the registry for each waiting request, so a
//! query must not scan all pools.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;

use super::versioned::Versioned;
use crate::records::component::PoolComponent;
use crate::records::ids::LabelName;

#[derive(Clone, Debug, Default)]
pub struct PoolRegistry {
    by_name: OrdMap<String, Versioned<PoolComponent>>,
    by_preference: PoolsByPreference,
    by_label: OrdMap<LabelName, PoolsByPreference>,
    revision: u64,
}

/// Pools that accept new work first, then by preference.
type PoolsByPreference = OrdMap<PoolOrder, Arc<PoolComponent>>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PoolOrder {
    paused: bool,
    priority: i64,
    name: Arc<str>,
}

impl PoolRegistry {
    /// All pools, by component name.
    pub fn pools(&self) -> impl Iterator<Item = (&String, &Versioned<PoolComponent>)> {
        self.by_name.iter()
    }

    /// Pools that serve all of these labels, the preferred ones first and paused ones last.
    pub fn serving<'a>(&'a self, labels: &'a BTreeSet<&LabelName>) -> impl Iterator<Item = &'a PoolComponent> {
        // A pool that serves all labels is among the few that serve the rarest one.
        let of_each = labels.iter().map(|label| self.by_label.get(*label));
        let candidates = match labels.is_empty() {
            true => Some(&self.by_preference),
            false => of_each.min_by_key(|pools| pools.map_or(0, OrdMap::len)).flatten(),
        };
        let pools = candidates.into_iter().flat_map(|pools| pools.values()).map(|pool| &**pool);
        pools.filter(move |pool| labels.len() < 2 || pool.serves(labels))
    }

    /// Number of insertions and removals so far; while it is the same, the registry is the same.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Stores a registration; returns `false` if it is not newer.
    pub fn put(&mut self, name: String, stored: Versioned<PoolComponent>) -> bool {
        if self.by_name.get(&name).is_some_and(|old| old.mzxid >= stored.mzxid) {
            return false;
        }
        self.remove(&name);
        self.revision += 1;
        let (order, pool) = (pool_order(&name, &stored.record), &stored.record);
        self.by_preference.insert(order.clone(), pool.clone());
        for label in &pool.supported_labels {
            self.by_label.entry(label.clone()).or_default().insert(order.clone(), pool.clone());
        }
        self.by_name.insert(name, stored);
        true
    }

    pub fn remove(&mut self, name: &str) {
        let Some(old) = self.by_name.remove(name) else { return };
        let order = pool_order(name, &old.record);
        self.revision += 1;
        self.by_preference.remove(&order);
        for label in &old.record.supported_labels {
            if let Some(pools) = self.by_label.get_mut(label) {
                pools.remove(&order);
                if pools.is_empty() {
                    self.by_label.remove(label);
                }
            }
        }
    }
}

fn pool_order(name: &str, pool: &PoolComponent) -> PoolOrder {
    PoolOrder { paused: pool.paused, priority: pool.priority, name: name.into() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn pool(labels: &[&str], paused: bool, priority: i64, mzxid: i64) -> Versioned<PoolComponent> {
        let record = json!({"kind": "pool", "supported_labels": labels, "paused": paused, "priority": priority});
        Versioned { record: Arc::new(serde_json::from_value(record).unwrap()), version: 0, mzxid, mtime_ms: 0 }
    }

    proptest! {
        #[test]
        fn serving_matches_a_scan_of_all_pools(
            changes in prop::collection::vec(
                (0..6_u8, prop::option::weighted(0.8, (prop::sample::subsequence(vec!["a", "b", "c"], 0..=3), any::<bool>(), 0..3_i64))),
                0..40,
            ),
            wanted in prop::sample::subsequence(vec!["a", "b", "c", "unserved"], 0..=3),
        ) {
            let mut registry = PoolRegistry::default();
            for (mzxid, (name, change)) in changes.into_iter().enumerate() {
                match change {
                    Some((labels, paused, priority)) => {
                        prop_assert!(registry.put(name.to_string(), pool(&labels, paused, priority, mzxid as i64)));
                        prop_assert!(!registry.put(name.to_string(), pool(&["c"], paused, priority, mzxid as i64)), "the same registration is not newer");
                    }
                    None => registry.remove(&name.to_string()),
                }
            }
            let wanted: Vec<LabelName> = wanted.into_iter().map(LabelName::from).collect();
            let wanted: BTreeSet<&LabelName> = wanted.iter().collect();
            let mut scanned: Vec<_> = registry.pools().filter(|(_, pool)| pool.record.serves(&wanted)).collect();
            scanned.sort_by_key(|(name, pool)| (pool.record.paused, pool.record.priority, (*name).clone()));
            let scanned: Vec<&PoolComponent> = scanned.into_iter().map(|(_, pool)| &*pool.record).collect();
            prop_assert_eq!(registry.serving(&wanted).collect::<Vec<_>>(), scanned);
        }
    }
}
