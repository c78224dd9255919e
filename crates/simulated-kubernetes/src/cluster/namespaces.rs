//! Deletion of namespaces: first their content, then the namespace.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::cluster::Cluster;
use crate::cluster::resources::{Kind, RESOURCES};
use crate::cluster::store::Object;
use crate::cluster::timers::Work;
use simulated_service::knobs::is_nth;

impl Cluster {
    /// Begins the deletion of a namespace; returns the namespace as Terminating.
    pub fn delete_namespace(&mut self, namespace: &Object) -> Arc<Object> {
        if namespace.is_being_deleted() {
            return self.current(namespace);
        }
        let timestamp = self.timestamp(Duration::ZERO);
        let terminating = self.change(namespace, |value| {
            value["metadata"]["deletionTimestamp"] = json!(timestamp);
            value["status"]["phase"] = json!("Terminating");
        });
        let terminating = terminating.expect("the namespace exists");
        self.namespaces_deleted += 1;
        if is_nth(self.knobs.stuck_namespaces_every, self.namespaces_deleted) {
            self.stuck_namespaces.insert(terminating.name.clone());
        }
        self.uncleared_namespaces.insert(terminating.name.clone());
        let (name, uid) = (terminating.name.clone(), terminating.uid.clone());
        if self.knobs.namespace_wait_s > 0.0 {
            self.after(self.knobs.namespace_wait_s, Work::ClearNamespace { name, uid });
        } else {
            self.clear_namespace(&name, &uid);
        }
        terminating
    }

    /// Deletes the content of a namespace in deletion.
    pub fn clear_namespace(&mut self, name: &str, uid: &str) {
        if self.store.get(Kind::Namespace, "", name).is_none_or(|found| found.uid != uid) {
            return;
        }
        for object in self.content(name) {
            // Secrets are erased with their accounts.
            if let Some(object) = self.store.get(object.kind, &object.namespace, &object.name).cloned() {
                self.delete(&object, None);
            }
        }
        self.uncleared_namespaces.remove(name);
        self.namespace_content_changed(name);
    }

    fn content(&self, namespace: &str) -> Vec<Arc<Object>> {
        let namespaced = RESOURCES.iter().filter(|resource| resource.is_namespaced);
        namespaced.flat_map(|resource| self.store.list(resource.kind, namespace)).cloned().collect()
    }

    /// For a namespace in deletion: updates its conditions, and finishes the deletion if no content is left.
    pub fn namespace_content_changed(&mut self, name: &str) {
        if self.uncleared_namespaces.contains(name) {
            return;
        }
        let found = self.store.get(Kind::Namespace, "", name).filter(|found| found.is_being_deleted());
        let Some(namespace) = found.cloned() else { return };
        let content = self.content(name);
        let is_stuck = self.stuck_namespaces.contains(name);
        if !content.is_empty() || is_stuck {
            let conditions = conditions(&content, is_stuck, &self.timestamp(Duration::ZERO));
            let states = |conditions: &Value| -> Vec<(Value, Value)> {
                let conditions = conditions.as_array().into_iter().flatten();
                conditions.map(|one| (one["status"].clone(), one["message"].clone())).collect()
            };
            if states(&conditions) != states(&namespace.value["status"]["conditions"]) {
                self.change(&namespace, |value| value["status"]["conditions"] = conditions);
            }
        }
        if content.is_empty() && !is_stuck {
            let work = Work::FinishNamespace { name: name.to_owned(), uid: namespace.uid.clone() };
            self.after(self.knobs.namespace_delete_s, work);
        }
    }

    pub fn finish_namespace(&mut self, name: &str, uid: &str) {
        let found = self.store.get(Kind::Namespace, "", name).filter(|found| found.uid == uid);
        let Some(namespace) = found.cloned() else { return };
        let is_stuck = self.stuck_namespaces.contains(name) || namespace.has_finalizers();
        if namespace.is_being_deleted() && !is_stuck && self.content(name).is_empty() {
            self.erase(&namespace);
        }
    }

    /// Lets stuck namespaces end, after the knob was set to 0.
    pub fn release_namespaces(&mut self) {
        for name in std::mem::take(&mut self.stuck_namespaces) {
            self.namespace_content_changed(&name);
        }
    }
}

/// The conditions of a namespace with this content.
fn conditions(content: &[Arc<Object>], is_stuck: bool, timestamp: &str) -> Value {
    let (mut kinds, mut finalizers): (BTreeMap<String, u64>, BTreeMap<&str, u64>) = Default::default();
    for object in content {
        let resource = object.kind.resource();
        *kinds.entry(format!("{}.{}", resource.plural, resource.group)).or_default() += 1;
        for finalizer in object.metadata()["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            *finalizers.entry(finalizer).or_default() += 1;
        }
    }
    let condition = |kind: &str, status: bool, reason: &str, message: &str| {
        let status = if status { "True" } else { "False" };
        json!({
            "type": kind, "status": status, "lastTransitionTime": timestamp, "reason": reason, "message": message,
        })
    };
    let discovery = match is_stuck {
        true => condition(
            "NamespaceDeletionDiscoveryFailure",
            true,
            "DiscoveryFailed",
            "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: \
             metrics.k8s.io/v1beta1: the server is currently unable to handle the request",
        ),
        false => condition(
            "NamespaceDeletionDiscoveryFailure",
            false,
            "ResourcesDiscovered",
            "All resources successfully discovered",
        ),
    };
    let listed: Vec<String> =
        kinds.iter().map(|(kind, count)| format!("{kind} has {count} resource instances")).collect();
    let remaining = match listed.is_empty() {
        true => ("ContentRemoved", "All content successfully removed".to_owned()),
        false => ("SomeResourcesRemain", format!("Some resources are remaining: {}", listed.join(", "))),
    };
    let held: Vec<String> =
        finalizers.iter().map(|(name, count)| format!("{name} in {count} resource instances")).collect();
    let finalizing = match held.is_empty() {
        true => ("ContentHasNoFinalizers", "All content-preserving finalizers finished".to_owned()),
        false => {
            let text = format!("Some content in the namespace has finalizers remaining: {}", held.join(", "));
            ("SomeFinalizersRemain", text)
        }
    };
    let parsed = ("ParsedGroupVersions", "All legacy kube types successfully parsed");
    let deleted = ("ContentDeleted", "All content successfully deleted, may be waiting on finalization");
    json!([
        discovery,
        condition("NamespaceDeletionGroupVersionParsingFailure", false, parsed.0, parsed.1),
        condition("NamespaceDeletionContentFailure", false, deleted.0, deleted.1),
        condition("NamespaceContentRemaining", !listed.is_empty(), remaining.0, &remaining.1),
        condition("NamespaceFinalizersRemaining", !held.is_empty(), finalizing.0, &finalizing.1),
    ])
}
