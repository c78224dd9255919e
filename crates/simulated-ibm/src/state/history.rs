//! History: every call with its time, and the times at which resources were created, ready and deleted.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use serde_json::{Value, json};

#[derive(Default)]
pub struct History {
    calls: VecDeque<CallRecord>,
    calls_dropped: u64,
    /// In the order of their creation.
    lifetimes: Vec<Lifetime>,
    indices: HashMap<String, usize>,
}

pub struct CallRecord {
    /// Time at which the call was received.
    pub at: Duration,
    pub method: String,
    pub path: String,
    pub query: String,
    pub action: &'static str,
    /// 0 if the connection was closed instead of a response.
    pub status: u16,
    pub code: Option<String>,
    /// The body of a creation. Calls to the token endpoint have none, because it holds the API key.
    pub body: Option<Value>,
}

/// The life of a resource. Instances have a zone, a profile, and a provider and node by their group and name.
pub struct Lifetime {
    /// `instances`, `floating_ips`, `images` or `volumes`.
    pub kind: &'static str,
    pub id: String,
    pub name: String,
    pub zone: String,
    pub profile: String,
    pub provider: Option<String>,
    pub node: Option<String>,
    pub created: Duration,
    /// Running or available.
    pub ready: Option<Duration>,
    pub end_asked: Option<Duration>,
    pub ended: Option<Duration>,
    pub reason: Option<String>,
}

/// Calls of `GET /sim/history`.
#[derive(Default)]
pub struct CallFilter<'a> {
    pub action: Option<&'a str>,
    pub method: Option<&'a str>,
}

impl History {
    pub fn record_call(&mut self, call: CallRecord, limit: usize) {
        self.calls.push_back(call);
        while self.calls.len() > limit {
            self.calls.pop_front();
            self.calls_dropped += 1;
        }
    }

    pub fn created(&mut self, lifetime: Lifetime) {
        let earlier = self.indices.insert(lifetime.id.clone(), self.lifetimes.len());
        assert!(earlier.is_none(), "a second resource has the id {}", lifetime.id);
        self.lifetimes.push(lifetime);
    }

    fn lifetime(&mut self, id: &str) -> Option<&mut Lifetime> {
        self.lifetimes.get_mut(*self.indices.get(id)?)
    }

    pub fn ready(&mut self, id: &str, now: Duration) {
        if let Some(lifetime) = self.lifetime(id) {
            lifetime.ready.get_or_insert(now);
        }
    }

    pub fn end_asked(&mut self, id: &str, reason: &str, now: Duration) {
        if let Some(lifetime) = self.lifetime(id) {
            lifetime.end_asked.get_or_insert(now);
            lifetime.reason.get_or_insert(reason.to_owned());
        }
    }

    pub fn ended(&mut self, id: &str, reason: &str, now: Duration) {
        if let Some(lifetime) = self.lifetime(id) {
            lifetime.ended.get_or_insert(now);
            lifetime.reason.get_or_insert(reason.to_owned());
        }
    }

    /// The JSON of `GET /sim/history`. `at` converts times to milliseconds since the Unix epoch.
    pub fn json(&self, filter: &CallFilter<'_>, at: impl Fn(Duration) -> f64, now: Duration) -> Value {
        let is_listed = |one: &&CallRecord| {
            filter.action.is_none_or(|action| one.action == action)
                && filter.method.is_none_or(|method| one.method == method)
        };
        let call = |one: &CallRecord| {
            json!({
                "time_ms": at(one.at), "method": one.method, "path": one.path, "query": one.query, "action": one.action,
                "status": one.status, "code": one.code, "body": one.body,
            })
        };
        let kinds = ["instances", "floating_ips", "images", "volumes"];
        let mut lifetimes: BTreeMap<&str, Vec<Value>> = kinds.map(|kind| (kind, Vec::new())).into();
        for one in &self.lifetimes {
            lifetimes.entry(one.kind).or_default().push(json!({
                "id": one.id, "name": one.name, "zone": one.zone, "what": one.profile, "provider": one.provider,
                "node": one.node, "created_ms": at(one.created), "running_ms": one.ready.map(&at),
                "end_asked_ms": one.end_asked.map(&at), "ended_ms": one.ended.map(&at), "reason": one.reason,
            }));
        }
        let mut json = json!({
            "now_ms": at(now), "calls": self.calls.iter().filter(is_listed).map(call).collect::<Vec<_>>(),
            "calls_dropped": self.calls_dropped,
        });
        for (kind, rows) in lifetimes {
            json[kind] = rows.into();
        }
        json
    }
}
