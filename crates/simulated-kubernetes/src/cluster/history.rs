//! History of the cluster: the times at which each namespace and pod was created, running and deleted, and every
//! mutating call with its user.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::cluster::Cluster;
use crate::cluster::resources::Kind;
use crate::cluster::store::{Change, Object};

/// All namespaces and pods since the start, by uid.
#[derive(Default)]
pub struct History {
    lifetimes: BTreeMap<Kind, BTreeMap<String, Lifetime>>,
    changes: Vec<ChangeCall>,
}

/// A mutating call, whether it succeeded or not.
struct ChangeCall {
    by: String,
    at: Duration,
    call: String,
}

#[derive(Default)]
struct Lifetime {
    number: usize,
    name: String,
    namespace: String,
    provider: Value,
    node: Value,
    created: Duration,
    /// Time at which a pod became Running.
    running: Option<Duration>,
    delete_asked: Option<Duration>,
    gone: Option<Duration>,
}

impl History {
    pub fn record(&mut self, change: Change, object: &Object, now: Duration) {
        if !matches!(object.kind, Kind::Namespace | Kind::Pod) {
            return;
        }
        let lifetimes = self.lifetimes.entry(object.kind).or_default();
        let number = lifetimes.len();
        let lifetime = lifetimes.entry(object.uid.clone()).or_insert_with(|| {
            let label = |key: &str| json!(object.label(key));
            let (provider, node) = (label("nodepool_provider_name"), label("nodepool_node_id"));
            let (name, namespace) = (object.name.clone(), object.namespace.clone());
            Lifetime { number, name, namespace, provider, node, created: now, ..Lifetime::default() }
        });
        if object.value["status"]["phase"] == "Running" {
            lifetime.running.get_or_insert(now);
        }
        if object.is_being_deleted() {
            lifetime.delete_asked.get_or_insert(now);
        }
        if change == Change::Deleted {
            lifetime.gone = Some(now);
        }
    }

    pub fn record_call(&mut self, by: &str, call: String, now: Duration) {
        self.changes.push(ChangeCall { by: by.to_owned(), at: now, call });
    }
}

impl Cluster {
    /// The JSON of `GET /sim/history`; times are seconds since the Unix epoch.
    pub fn history_json(&self) -> Value {
        let started = self.started.timestamp_micros() as f64 / 1e6;
        let at = |moment: Duration| started + moment.as_secs_f64();
        let lifetimes = |kind| -> Vec<Value> {
            let mut found: Vec<_> = self.history.lifetimes.get(&kind).into_iter().flatten().collect();
            found.sort_by_key(|(_, lifetime)| lifetime.number);
            let lifetime = |(uid, one): (&String, &Lifetime)| {
                json!({
                    "uid": uid, "name": one.name, "namespace": one.namespace, "provider": one.provider,
                    "node": one.node, "created": at(one.created), "running": one.running.map(at),
                    "delete_asked": one.delete_asked.map(at), "gone": one.gone.map(at),
                })
            };
            found.into_iter().map(lifetime).collect()
        };
        let change = |one: &ChangeCall| json!({"by": one.by, "at": at(one.at), "call": one.call});
        json!({
            "now": at(self.now), "namespaces": lifetimes(Kind::Namespace), "pods": lifetimes(Kind::Pod),
            "changes": self.history.changes.iter().map(change).collect::<Vec<_>>(),
        })
    }
}
