//! History: every call with its time, and the times at which resources were created, ready and deleted.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cloud::resources::Meta;
use crate::server::target::Kind;

#[derive(Default)]
pub struct History {
    calls: VecDeque<CallRecord>,
    calls_dropped: u64,
    /// Lifetimes by kind, in the order of their creation.
    lifetimes: BTreeMap<Kind, Vec<Lifetime>>,
    /// Index of each resource among those of its kind, by its guid.
    indices: HashMap<String, usize>,
}

pub struct CallRecord {
    /// Time at which the call was received.
    pub at: Duration,
    pub action: String,
    pub method: String,
    pub path: String,
    pub version: String,
    /// The body of a PUT, POST or PATCH to the Resource Manager, without passwords.
    pub body: Option<Value>,
    /// 0 if the connection was closed instead of a response.
    pub status: u16,
    pub code: Option<String>,
}

struct Lifetime {
    group: String,
    name: String,
    provider: Value,
    node: Value,
    created: Duration,
    ready: Option<Duration>,
    end_asked: Option<Duration>,
    ended: Option<Duration>,
    failure: Option<String>,
}

impl History {
    pub fn record_call(&mut self, call: CallRecord, limit: usize) {
        self.calls.push_back(call);
        while self.calls.len() > limit {
            self.calls.pop_front();
            self.calls_dropped += 1;
        }
    }

    pub fn created(&mut self, kind: Kind, meta: &Meta, now: Duration) {
        let lifetimes = self.lifetimes.entry(kind).or_default();
        self.indices.insert(meta.guid.clone(), lifetimes.len());
        lifetimes.push(Lifetime {
            group: meta.group.clone(),
            name: meta.name.clone(),
            provider: json!(meta.tags.get("nodepool_provider_name")),
            node: json!(meta.tags.get("nodepool_node_id")),
            created: now,
            ready: None,
            end_asked: None,
            ended: None,
            failure: None,
        });
    }

    fn lifetime(&mut self, kind: Kind, guid: &str) -> Option<&mut Lifetime> {
        self.lifetimes.get_mut(&kind)?.get_mut(*self.indices.get(guid)?)
    }

    /// The creation of a resource has succeeded.
    pub fn ready(&mut self, kind: Kind, guid: &str, now: Duration) {
        if let Some(lifetime) = self.lifetime(kind, guid) {
            lifetime.ready.get_or_insert(now);
        }
    }

    pub fn failed(&mut self, kind: Kind, guid: &str, code: &str) {
        if let Some(lifetime) = self.lifetime(kind, guid) {
            lifetime.failure = Some(code.to_owned());
        }
    }

    pub fn end_asked(&mut self, kind: Kind, guid: &str, now: Duration) {
        if let Some(lifetime) = self.lifetime(kind, guid) {
            lifetime.end_asked.get_or_insert(now);
        }
    }

    pub fn ended(&mut self, kind: Kind, guid: &str, now: Duration) {
        if let Some(lifetime) = self.lifetime(kind, guid) {
            lifetime.ended.get_or_insert(now);
        }
    }

    /// The JSON of `GET /sim/history`, with the calls of one action or of all. `at` converts times to milliseconds
    /// since the Unix epoch.
    pub fn json(&self, action: Option<&str>, at: impl Fn(Duration) -> f64, now: Duration) -> Value {
        let is_listed = |one: &&CallRecord| action.is_none_or(|action| one.action == action);
        let call = |one: &CallRecord| {
            json!({
                "at_ms": at(one.at), "action": one.action, "method": one.method, "path": one.path,
                "api_version": one.version, "body": one.body, "status": one.status, "code": one.code,
            })
        };
        let lifetime = |one: &Lifetime| {
            json!({
                "group": one.group, "name": one.name, "provider": one.provider, "node": one.node,
                "created_ms": at(one.created), "ready_ms": one.ready.map(&at),
                "end_asked_ms": one.end_asked.map(&at), "ended_ms": one.ended.map(&at), "failure": one.failure,
            })
        };
        let mut all = json!({
            "now_ms": at(now), "calls": self.calls.iter().filter(is_listed).map(call).collect::<Vec<_>>(),
            "calls_dropped": self.calls_dropped,
        });
        for kind in Kind::ALL {
            let lifetimes = self.lifetimes.get(&kind).into_iter().flatten();
            all[format!("{}s", kind.label())] = lifetimes.map(lifetime).collect();
        }
        all
    }
}
