//! Resource quotas: their usage, and the pods that they refuse.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::cluster::cluster::Cluster;
use crate::cluster::pod_plan::phase;
use crate::cluster::quantity::Quantity;
use crate::cluster::resources::{Kind, Resource};
use crate::cluster::store::Object;

/// Quantities by the name of the resource.
type Usage = BTreeMap<String, Quantity>;

impl Cluster {
    /// Checks a new pod against the quotas of its namespace; the error is the text of the refusal.
    pub fn check_quotas(&self, namespace: &str, spec: &Value) -> Result<(), String> {
        let requested = pod_usage(spec);
        for quota in self.store.list(Kind::ResourceQuota, namespace) {
            let hard = limits(quota);
            let is_missing = |name: &&String| is_compute(name) && !requested.contains_key(*name);
            let missing: Vec<&str> = hard.keys().filter(is_missing).map(String::as_str).collect();
            if !missing.is_empty() {
                return Err(format!("failed quota: {}: must specify {}", quota.name, missing.join(",")));
            }
            let used = self.usage(namespace, &hard);
            let is_exceeded = |(name, limit): &(&String, &Quantity)| {
                let wanted = requested.get(*name).copied().unwrap_or(Quantity::ZERO);
                wanted.milli > 0 && used[*name].plus(wanted).milli > limit.milli
            };
            let exceeded: Vec<&String> = hard.iter().filter(is_exceeded).map(|(name, _)| name).collect();
            if !exceeded.is_empty() {
                let list = |usage: &Usage| {
                    let texts = exceeded.iter().map(|name| format!("{name}={}", usage[*name].text()));
                    texts.collect::<Vec<_>>().join(",")
                };
                return Err(format!(
                    "exceeded quota: {}, requested: {}, used: {}, limited: {}",
                    quota.name,
                    list(&requested),
                    list(&used),
                    list(&hard)
                ));
            }
        }
        Ok(())
    }

    /// Writes the usage into the quotas of a namespace.
    pub fn refresh_quotas(&mut self, namespace: &str) {
        let quotas: Vec<Arc<Object>> = self.store.list(Kind::ResourceQuota, namespace).cloned().collect();
        for quota in quotas {
            let hard = limits(&quota);
            let used = self.usage(namespace, &hard);
            let texts = |usage: &Usage| -> Map<String, Value> {
                usage.iter().map(|(name, amount)| (name.clone(), json!(amount.text()))).collect()
            };
            let status = json!({"hard": texts(&hard), "used": texts(&used)});
            if quota.value["status"] != status {
                self.change(&quota, |value| value["status"] = status);
            }
        }
    }

    /// The usage of the limited resources in a namespace.
    fn usage(&self, namespace: &str, hard: &Usage) -> Usage {
        let mut used: Usage = hard.keys().map(|name| (name.clone(), Quantity::ZERO)).collect();
        for pod in self.store.list(Kind::Pod, namespace).filter(|pod| !matches!(phase(pod), "Failed" | "Succeeded")) {
            for (name, amount) in pod_usage(&pod.value["spec"]) {
                if let Some(sum) = used.get_mut(&name) {
                    *sum = sum.plus(amount);
                }
            }
        }
        for (name, sum) in used.iter_mut().filter(|(name, _)| *name != "pods" && *name != "count/pods") {
            let plural = name.strip_prefix("count/").unwrap_or(name);
            if let Some(resource) = Resource::find("", "v1", plural).filter(|resource| resource.is_namespaced) {
                *sum = Quantity::whole(self.store.list(resource.kind, namespace).count());
            }
        }
        used
    }
}

fn limits(quota: &Object) -> Usage {
    let hard = quota.value["spec"]["hard"].as_object().into_iter().flatten();
    hard.filter_map(|(name, amount)| Some((name.clone(), Quantity::parse(&text(amount))?))).collect()
}

/// A quantity as text: clients send numbers as well.
pub fn text(amount: &Value) -> String {
    amount.as_str().map_or_else(|| amount.to_string(), str::to_owned)
}

/// Whether each container has to specify the resource while it is limited.
fn is_compute(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage")
        || name.starts_with("requests.")
        || name.starts_with("limits.")
}

/// The resources that a pod uses, under all names that a quota may have for them.
fn pod_usage(spec: &Value) -> Usage {
    let one = Quantity::whole(1);
    let mut usage: Usage = ["pods", "count/pods"].into_iter().map(|name| (name.to_owned(), one)).collect();
    let mut add = |name: String, amount: Quantity| {
        let sum = usage.entry(name).or_insert(Quantity::ZERO);
        *sum = sum.plus(amount);
    };
    for container in spec["containers"].as_array().into_iter().flatten() {
        for (list, prefix) in [("requests", "requests."), ("limits", "limits.")] {
            for (name, amount) in container["resources"][list].as_object().into_iter().flatten() {
                let Some(amount) = Quantity::parse(&text(amount)) else { continue };
                add(format!("{prefix}{name}"), amount);
                if list == "requests" {
                    add(name.clone(), amount);
                }
            }
        }
    }
    usage
}
