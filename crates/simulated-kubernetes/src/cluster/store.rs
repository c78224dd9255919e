//! The objects, and the events of their changes. Every change increments the resource version by one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::cluster::resources::Kind;

/// One version of an object.
pub struct Object {
    pub kind: Kind,
    /// Empty for objects of the cluster.
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub version: u64,
    /// The object without `kind` and `apiVersion`, as in a list.
    pub value: Value,
    /// `value` as JSON.
    pub text: String,
}

impl Object {
    /// The object with `kind` and `apiVersion`, as JSON.
    pub fn body(&self) -> String {
        let resource = self.kind.resource();
        let rest = self.text.strip_prefix('{').expect("objects are JSON objects");
        format!("{{\"kind\":\"{}\",\"apiVersion\":\"{}\",{rest}", resource.kind_name, resource.api_version())
    }

    pub fn metadata(&self) -> &Value {
        &self.value["metadata"]
    }

    pub fn label(&self, name: &str) -> Option<&str> {
        self.metadata()["labels"][name].as_str()
    }

    pub fn is_being_deleted(&self) -> bool {
        !self.metadata()["deletionTimestamp"].is_null()
    }

    pub fn has_finalizers(&self) -> bool {
        self.metadata()["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Added,
    Modified,
    Deleted,
}

pub struct Event {
    pub change: Change,
    /// The object after the change; a deleted one has the version of its deletion.
    pub object: Arc<Object>,
    /// The object before the change.
    pub previous: Option<Arc<Object>>,
}

type Key = (Kind, String, String);

pub struct Store {
    objects: BTreeMap<Key, Arc<Object>>,
    events: VecDeque<Event>,
    version: u64,
}

/// The events after a resource version are not known anymore; has the oldest version from which they are.
pub struct Gone(pub u64);

impl Store {
    pub fn new() -> Self {
        Self { objects: BTreeMap::new(), events: VecDeque::new(), version: 1 }
    }

    /// The newest resource version.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<&Arc<Object>> {
        self.objects.get(&(kind, namespace.to_owned(), name.to_owned()))
    }

    /// Objects of a kind in one namespace, or in all for an empty name, by name.
    pub fn list(&self, kind: Kind, namespace: &str) -> impl Iterator<Item = &Arc<Object>> {
        let start: Key = (kind, namespace.to_owned(), String::new());
        let rest = self.objects.range(start..).take_while(move |((found, _, _), _)| *found == kind);
        let namespace = namespace.to_owned();
        rest.take_while(move |((_, found, _), _)| namespace.is_empty() || *found == namespace).map(|(_, object)| object)
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.objects.values()
    }

    /// Creates or replaces an object; its metadata have its name, its namespace and its uid.
    pub fn put(&mut self, kind: Kind, mut value: Value) -> (Arc<Object>, Change) {
        self.version += 1;
        let object = self.versioned(kind, &mut value);
        let key = (kind, object.namespace.clone(), object.name.clone());
        let previous = self.objects.insert(key, object.clone());
        let change = if previous.is_some() { Change::Modified } else { Change::Added };
        self.events.push_back(Event { change, object: object.clone(), previous });
        (object, change)
    }

    pub fn remove(&mut self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let previous = self.objects.remove(&(kind, namespace.to_owned(), name.to_owned()))?;
        self.version += 1;
        let object = self.versioned(kind, &mut previous.value.clone());
        self.events.push_back(Event { change: Change::Deleted, object: object.clone(), previous: Some(previous) });
        Some(object)
    }

    fn versioned(&self, kind: Kind, value: &mut Value) -> Arc<Object> {
        let metadata = &mut value["metadata"];
        metadata["resourceVersion"] = json!(self.version.to_string());
        let text = |key| metadata[key].as_str().unwrap_or_default().to_owned();
        let (namespace, name, uid) = (text("namespace"), text("name"), text("uid"));
        assert!(!name.is_empty() && !uid.is_empty(), "a stored object has a name and a uid");
        let value = std::mem::take(value);
        Arc::new(Object { kind, namespace, name, uid, version: self.version, text: value.to_string(), value })
    }

    /// Forgets old events, so that `limit` remain.
    pub fn trim(&mut self, limit: usize) {
        let surplus = self.events.len().saturating_sub(limit);
        self.events.drain(..surplus);
    }

    /// The oldest resource version from which all events are known.
    pub fn oldest(&self) -> u64 {
        self.version - self.events.len() as u64
    }

    /// The events after a resource version.
    pub fn events_after(&self, version: u64) -> Result<impl Iterator<Item = &Event>, Gone> {
        let oldest = self.oldest();
        let Some(skipped) = version.checked_sub(oldest) else { return Err(Gone(oldest)) };
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX).min(self.events.len());
        Ok(self.events.range(skipped..))
    }
}
