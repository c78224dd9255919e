//! Quotas of projects: what a cluster grants, and what others use of it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::quantity;
use nodepool_driver::facts::PoolQuota;
use nodepool_model::records::resources::Resources;

const MIB: f64 = 1_048_576.0;
const MB: f64 = 1e6;

/// The limits of several quotas together, with what other owners use: everything except `ours`. `None` if there is no
/// limit. Each quota is a pair of `hard` and `used`.
pub fn limits(quotas: &[(Value, Value)], ours: &Resources) -> Option<PoolQuota> {
    let mut tightest: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for (hard, used) in quotas {
        for (name, limit) in hard.as_object().into_iter().flatten() {
            let Some((resource, unit)) = resource_of(name) else { continue };
            let Some(limit) = amount(limit) else { continue };
            let used = amount(&used[name]).unwrap_or_default();
            let (limit, used) = (limit / unit, used / unit);
            let entry = tightest.entry(resource).or_insert((limit, used));
            if limit - used < entry.0 - entry.1 {
                *entry = (limit, used);
            }
        }
    }
    if tightest.is_empty() {
        return None;
    }
    let (mut limits, mut unmanaged) = (Resources::unlimited(), Resources::none());
    for (resource, (limit, used)) in tightest {
        limits.set(&resource, limit);
        // Our own nodes may have come or gone since the quota was counted.
        unmanaged.set(&resource, (used - ours.get(&resource)).max(0.0));
    }
    Some(PoolQuota { limits, unmanaged })
}

/// `hard` and `used` of a quota that counts our pods; `None` for one with a scope, which counts only some pods.
pub fn of_project(quota: &Value) -> Option<(Value, Value)> {
    let spec = &quota["spec"];
    let has_scope =
        spec["scopes"].as_array().is_some_and(|scopes| !scopes.is_empty()) || spec["scopeSelector"].is_object();
    (!has_scope).then(|| (spec["hard"].clone(), quota["status"]["used"].clone()))
}

/// `hard` and `used` of a quota of several projects.
pub fn of_projects(quota: &Value) -> Option<(Value, Value)> {
    let spec = of_project(&serde_json::json!({"spec": quota["spec"]["quota"]}))?;
    Some((spec.0, quota["status"]["total"]["used"].clone()))
}

/// The resource of a node that a quota limits, and the unit of its amounts there. Quotas of limits have none: nodes are
/// counted by their requests.
fn resource_of(name: &str) -> Option<(String, f64)> {
    let name = name.strip_prefix("requests.").unwrap_or(name);
    match name {
        "cpu" => Some(("cores".to_owned(), 1.0)),
        "memory" => Some(("ram".to_owned(), MIB)),
        "ephemeral-storage" => Some(("ephemeral-storage".to_owned(), MB)),
        "pods" | "count/pods" => Some(("instances".to_owned(), 1.0)),
        // An extended resource, such as nvidia.com/gpu; count/jobs.batch and the like are none.
        other if other.contains('/') && !other.starts_with("count/") => Some((other.to_owned(), 1.0)),
        _ => None,
    }
}

fn amount(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| quantity::parse(value.as_str()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_tightest_limit_holds_and_our_own_nodes_are_not_others() {
        let first = json!({
            "spec": {"hard": {"pods": "10", "requests.cpu": "4", "limits.cpu": "8", "requests.nvidia.com/gpu": "2"}},
            "status": {"used": {"pods": "6", "requests.cpu": "1500m"}},
        });
        let second = json!({"spec": {"hard": {"memory": "1Gi", "cpu": "3"}}, "status": {"used": {"cpu": "2"}}});
        let scoped = json!({"spec": {"hard": {"pods": "1"}, "scopes": ["BestEffort"]}});
        let quotas: Vec<(Value, Value)> = [first, second, scoped].iter().filter_map(of_project).collect();
        let ours = Resources::none().with("instances", 4.0).with("cores", 3.0);
        let found = limits(&quotas, &ours).unwrap();
        let limit =
            ["instances", "cores", "ram", "nvidia.com/gpu", "ephemeral-storage"].map(|name| found.limits.get(name));
        assert_eq!(limit, [10.0, 3.0, 1024.0, 2.0, f64::INFINITY]);
        assert_eq!((found.unmanaged.get("instances"), found.unmanaged.get("cores")), (2.0, 0.0));
        assert!(limits(&[], &ours).is_none());
    }

    #[test]
    fn a_quota_of_several_projects_counts_their_total() {
        let quota = json!({
            "spec": {"quota": {"hard": {"pods": "10"}}, "selector": {"annotations": {}}},
            "status": {"total": {"used": {"pods": "3"}}},
        });
        assert_eq!(of_projects(&quota), Some((json!({"pods": "10"}), json!({"pods": "3"}))));
    }
}
