//! The cluster: its state, its clock, and the operations through which all objects change.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};

use crate::cluster::accounts::Tokens;
use crate::cluster::counters::RunStats;
use crate::cluster::history::History;
use crate::cluster::pod_plan::{Fate, Plan};
use crate::cluster::resources::Kind;
use crate::cluster::store::{Change, Object, Store};
use crate::cluster::timers::{Timers, Work};
use crate::faults::knobs::Knobs;
use crate::options::Options;
use simulated_service::knobs::is_nth;

pub struct Cluster {
    pub options: Options,
    pub knobs: Knobs,
    pub store: Store,
    pub stats: RunStats,
    pub history: History,
    pub tokens: Tokens,
    pub timers: Timers,
    /// Next steps of pods, by uid.
    pub plans: HashMap<String, Plan>,
    pub plans_made: u64,
    /// Pods that the knobs `pods_stick_every` and `pods_fail_every` have selected, by uid.
    pub fates: HashMap<String, Fate>,
    pods_created: u64,
    pub namespaces_deleted: u64,
    pub addresses_assigned: u32,
    /// Names of the namespaces that stay Terminating, because of `stuck_namespaces_every`.
    pub stuck_namespaces: HashSet<String>,
    /// Names of the deleted namespaces whose content is not deleted yet: their conditions follow when this is done.
    pub uncleared_namespaces: HashSet<String>,
    /// Objects of the initial state, by uid.
    pub fixtures: HashSet<String>,
    /// Time since the start.
    pub now: Duration,
    pub started: DateTime<Utc>,
    /// The certificate of the cluster's authority (PEM).
    pub authority: String,
}

/// Result of a deletion.
pub enum Deletion {
    /// The object no longer exists.
    Done(Arc<Object>),
    /// The object exists until its grace period or its finalizers end.
    Pending(Arc<Object>),
}

impl Cluster {
    pub fn new(options: Options, authority: String) -> Self {
        let mut cluster = Self {
            knobs: options.knobs.clone(),
            options,
            store: Store::new(),
            stats: RunStats::default(),
            history: History::default(),
            tokens: Tokens::default(),
            timers: Timers::default(),
            plans: HashMap::new(),
            plans_made: 0,
            fates: HashMap::new(),
            pods_created: 0,
            namespaces_deleted: 0,
            addresses_assigned: 0,
            stuck_namespaces: HashSet::new(),
            uncleared_namespaces: HashSet::new(),
            fixtures: HashSet::new(),
            now: Duration::ZERO,
            started: Utc::now(),
            authority,
        };
        cluster.create_fixtures();
        cluster.stats = RunStats::default();
        cluster
    }

    /// Restores the initial state, except for tokens and resource versions: watches observe the deletions.
    pub fn reset(&mut self) {
        self.knobs = self.options.knobs.clone();
        self.timers.clear();
        self.plans.clear();
        self.fates.clear();
        self.stuck_namespaces.clear();
        self.uncleared_namespaces.clear();
        let others: Vec<Arc<Object>> =
            self.store.all().filter(|object| !self.fixtures.contains(&object.uid)).cloned().collect();
        for object in others {
            self.store.remove(object.kind, &object.namespace, &object.name);
        }
        let watches_open = self.stats.watches_open;
        self.stats = RunStats::default();
        self.stats.watches_open = watches_open;
        self.history = History::default();
        (self.pods_created, self.namespaces_deleted) = (0, 0);
        self.create_fixtures();
    }

    /// Runs all timers up to this time since the start.
    pub fn advance(&mut self, now: Duration) {
        while let Some((due, work)) = self.timers.pop_due(now) {
            self.now = self.now.max(due);
            self.run_work(work);
        }
        self.now = self.now.max(now);
    }

    /// The time of this moment, or so much later, as in objects.
    pub fn timestamp(&self, later: Duration) -> String {
        (self.started + self.now + later).to_rfc3339_opts(SecondsFormat::Secs, true)
    }

    pub fn after(&mut self, seconds: f64, work: Work) {
        self.timers.add(self.now + Duration::from_secs_f64(seconds), work);
    }

    /// Creates an object with new metadata: uid and creation timestamp.
    pub fn create(&mut self, kind: Kind, mut value: Value) -> Arc<Object> {
        let metadata = &mut value["metadata"];
        metadata["uid"] = json!(uuid::Uuid::new_v4().to_string());
        metadata["creationTimestamp"] = json!(self.timestamp(Duration::ZERO));
        self.write(kind, value)
    }

    /// Creates or replaces an object, and lets the controllers react.
    pub fn write(&mut self, kind: Kind, value: Value) -> Arc<Object> {
        let (object, change) = self.store.put(kind, value);
        self.history.record(change, &object, self.now);
        if change == Change::Added {
            self.stats.object_created(&object);
            if kind == Kind::Pod {
                self.choose_fate(&object);
            }
            self.start_controllers(&object);
        }
        match kind {
            Kind::Pod => {
                self.plan_pod(&object);
                self.refresh_quotas(&object.namespace);
            }
            Kind::ResourceQuota if change == Change::Added => self.refresh_quotas(&object.namespace),
            _ => {}
        }
        self.store.trim(self.knobs.history_size);
        object
    }

    /// Changes an object that exists; `None` if it does not.
    pub fn change(&mut self, object: &Object, change: impl FnOnce(&mut Value)) -> Option<Arc<Object>> {
        let current = self.store.get(object.kind, &object.namespace, &object.name)?;
        if current.uid != object.uid {
            return None;
        }
        let mut value = current.value.clone();
        change(&mut value);
        Some(self.write(object.kind, value))
    }

    /// Removes an object at once, and lets the controllers react.
    pub fn erase(&mut self, object: &Object) -> Option<Arc<Object>> {
        let removed = self.store.remove(object.kind, &object.namespace, &object.name)?;
        self.history.record(Change::Deleted, &removed, self.now);
        self.stats.object_deleted(&removed);
        match removed.kind {
            Kind::Pod => {
                self.plans.remove(&removed.uid);
                self.fates.remove(&removed.uid);
                self.refresh_quotas(&removed.namespace);
            }
            Kind::ServiceAccount => self.erase_account_secrets(&removed),
            Kind::Secret => self.tokens.forget_secret(&removed.uid),
            _ => {}
        }
        if !removed.namespace.is_empty() {
            self.namespace_content_changed(&removed.namespace);
        }
        self.store.trim(self.knobs.history_size);
        Some(removed)
    }

    /// Deletes an object as the API does: with a grace period for pods, and after its finalizers.
    pub fn delete(&mut self, object: &Object, grace_s: Option<u64>) -> Deletion {
        match object.kind {
            Kind::Namespace => Deletion::Pending(self.delete_namespace(object)),
            Kind::Pod => self.delete_pod(object, grace_s),
            _ if object.has_finalizers() => {
                if object.is_being_deleted() {
                    return Deletion::Pending(self.current(object));
                }
                let timestamp = self.timestamp(Duration::ZERO);
                let changed = self.change(object, |value| {
                    value["metadata"]["deletionTimestamp"] = json!(timestamp);
                    value["metadata"]["deletionGracePeriodSeconds"] = json!(0);
                });
                Deletion::Pending(changed.expect("the object exists"))
            }
            _ => Deletion::Done(self.erase(object).expect("the object exists")),
        }
    }

    /// The newest version of an object that exists.
    pub fn current(&self, object: &Object) -> Arc<Object> {
        self.store.get(object.kind, &object.namespace, &object.name).expect("the object exists").clone()
    }

    fn choose_fate(&mut self, pod: &Object) {
        self.pods_created += 1;
        let fate = if is_nth(self.knobs.pods_stick_every, self.pods_created) {
            Fate::Sticks
        } else if is_nth(self.knobs.pods_fail_every, self.pods_created) {
            Fate::Fails
        } else {
            return;
        };
        self.fates.insert(pod.uid.clone(), fate);
    }

    /// The JSON of `GET /sim/state`.
    pub fn state_json(&self, control: &str) -> Value {
        let mut objects: BTreeMap<&str, u64> = BTreeMap::new();
        let mut phases: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
        for object in self.store.all().filter(|object| !self.fixtures.contains(&object.uid)) {
            let plural = object.kind.resource().plural;
            *objects.entry(plural).or_default() += 1;
            if let Some(phase) = object.value["status"]["phase"].as_str() {
                *phases.entry(plural).or_default().entry(phase).or_default() += 1;
            }
        }
        json!({
            "control": control, "objects": objects, "phases": phases, "version": self.store.version(),
            "oldest_version": self.store.oldest(), "counters": self.stats,
        })
    }
}
