//! History: every call with its time, and the times at which objects were created, running and ended.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use serde_json::{Value, json};

use crate::region::tags::Tags;

/// Kinds of objects whose lifetimes are recorded.
const KINDS: [&str; 9] = [
    "instances",
    "volumes",
    "hosts",
    "images",
    "snapshots",
    "launch_templates",
    "import_tasks",
    "key_pairs",
    "objects",
];

#[derive(Default)]
pub struct History {
    calls: VecDeque<CallRecord>,
    calls_dropped: u64,
    /// Lifetimes by kind, in the order of their creation.
    lifetimes: BTreeMap<&'static str, Vec<Lifetime>>,
    /// Kind and index of each object.
    indices: HashMap<String, (&'static str, usize)>,
}

pub struct CallRecord {
    /// Time at which the call was received.
    pub at: Duration,
    pub service: &'static str,
    pub action: String,
    pub region: String,
    pub access_key: String,
    /// 0 if the connection was closed instead of a response.
    pub status: u16,
    pub code: Option<String>,
}

struct Lifetime {
    id: String,
    region: String,
    /// Type of an instance, a host or a volume; name of an image.
    what: String,
    provider: Value,
    node: Value,
    created: Duration,
    running: Option<Duration>,
    end_asked: Option<Duration>,
    ended: Option<Duration>,
    reason: Option<String>,
}

impl History {
    pub fn record_call(&mut self, call: CallRecord, limit: usize) {
        self.calls.push_back(call);
        while self.calls.len() > limit {
            self.calls.pop_front();
            self.calls_dropped += 1;
        }
    }

    pub fn created(&mut self, kind: &'static str, id: &str, region: &str, what: &str, tags: &Tags, now: Duration) {
        let lifetimes = self.lifetimes.entry(kind).or_default();
        self.indices.insert(id.to_owned(), (kind, lifetimes.len()));
        lifetimes.push(Lifetime {
            id: id.to_owned(),
            region: region.to_owned(),
            what: what.to_owned(),
            provider: json!(tags.get("nodepool_provider_name")),
            node: json!(tags.get("nodepool_node_id")),
            created: now,
            running: None,
            end_asked: None,
            ended: None,
            reason: None,
        });
    }

    fn lifetime(&mut self, id: &str) -> Option<&mut Lifetime> {
        let (kind, index) = *self.indices.get(id)?;
        self.lifetimes.get_mut(kind)?.get_mut(index)
    }

    /// An instance is running, a host available, a snapshot completed.
    pub fn running(&mut self, id: &str, now: Duration) {
        if let Some(lifetime) = self.lifetime(id) {
            lifetime.running.get_or_insert(now);
        }
    }

    pub fn end_asked(&mut self, id: &str, reason: &str, now: Duration) {
        if let Some(lifetime) = self.lifetime(id) {
            lifetime.end_asked.get_or_insert(now);
            lifetime.reason.get_or_insert(reason.to_owned());
        }
    }

    pub fn ended(&mut self, id: &str, now: Duration) {
        if let Some(lifetime) = self.lifetime(id) {
            lifetime.ended.get_or_insert(now);
        }
    }

    /// The JSON of `GET /sim/history`, with the calls of one action or of all. `at` converts times to milliseconds
    /// since the Unix epoch.
    pub fn json(&self, action: Option<&str>, at: impl Fn(Duration) -> f64, now: Duration) -> Value {
        let is_listed = |one: &&CallRecord| action.is_none_or(|action| one.action == action);
        let call = |one: &CallRecord| {
            json!({
                "at_ms": at(one.at), "service": one.service, "action": one.action, "region": one.region,
                "access_key": one.access_key, "status": one.status, "code": one.code,
            })
        };
        let lifetime = |one: &Lifetime| {
            json!({
                "id": one.id, "region": one.region, "what": one.what, "provider": one.provider, "node": one.node,
                "created_ms": at(one.created), "running_ms": one.running.map(&at),
                "end_asked_ms": one.end_asked.map(&at), "ended_ms": one.ended.map(&at), "reason": one.reason,
            })
        };
        let mut all = json!({
            "now_ms": at(now), "calls": self.calls.iter().filter(is_listed).map(call).collect::<Vec<_>>(),
            "calls_dropped": self.calls_dropped,
        });
        for kind in KINDS {
            let lifetimes = self.lifetimes.get(kind).into_iter().flatten();
            all[kind] = lifetimes.map(lifetime).collect();
        }
        all
    }
}
