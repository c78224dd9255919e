//! The objects of a list or watch, and the form in which they are shown.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::selectors::Selector;
use crate::cluster::accounts::{Access, User};
use crate::cluster::cluster::Cluster;
use crate::cluster::resources::Kind;
use crate::cluster::store::Object;

/// Form of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    Stored,
    /// A namespace as OpenShift's project.
    Project,
    /// A role binding in OpenShift's own, older form.
    LegacyBinding,
}

impl View {
    /// Kind and `apiVersion`.
    pub fn kind(self, kind: Kind) -> (&'static str, String) {
        match self {
            Self::Stored => (kind.resource().kind_name, kind.resource().api_version()),
            Self::Project => ("Project", "project.openshift.io/v1".to_owned()),
            Self::LegacyBinding => ("RoleBinding", "authorization.openshift.io/v1".to_owned()),
        }
    }

    /// The object without kind and `apiVersion`, as JSON.
    pub fn item(self, object: &Object) -> Cow<'_, str> {
        match self {
            Self::Stored | Self::Project => Cow::Borrowed(&object.text),
            Self::LegacyBinding => Cow::Owned(legacy_binding(object).to_string()),
        }
    }

    /// The object with kind and `apiVersion`, as JSON.
    pub fn body(self, object: &Object) -> String {
        if self == Self::Stored {
            return object.body();
        }
        let (kind, api_version) = self.kind(object.kind);
        let item = self.item(object);
        let rest = item.strip_prefix('{').expect("objects are JSON objects");
        format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",{rest}")
    }
}

fn legacy_binding(object: &Object) -> Value {
    let subjects = object.value["subjects"].as_array().into_iter().flatten();
    let users: Vec<String> = subjects
        .filter(|subject| subject["kind"] != "Group")
        .map(|subject| {
            let name = subject["name"].as_str().unwrap_or_default();
            match subject["namespace"].as_str() {
                Some(namespace) => format!("system:serviceaccount:{namespace}:{name}"),
                None => name.to_owned(),
            }
        })
        .collect();
    let mut role = json!({"name": object.value["roleRef"]["name"]});
    if object.value["roleRef"]["kind"] == "Role" {
        role["namespace"] = json!(object.namespace);
    }
    json!({
        "metadata": object.value["metadata"], "userNames": users, "groupNames": null,
        "subjects": object.value["subjects"], "roleRef": role,
    })
}

/// Objects of one kind, in one namespace or in all, that a selector matches.
pub struct Scope {
    pub kind: Kind,
    /// Empty for all namespaces.
    pub namespace: String,
    pub selector: Selector,
    pub view: View,
    /// Only projects that this user may read.
    pub reader: Option<User>,
}

impl Scope {
    pub fn includes(&self, cluster: &Cluster, object: &Object) -> bool {
        object.kind == self.kind
            && (self.namespace.is_empty() || object.namespace == self.namespace)
            && self.selector.matches(object)
            && self.reader.as_ref().is_none_or(|reader| may_read_project(cluster, reader, &object.name))
    }

    pub fn objects<'a>(&'a self, cluster: &'a Cluster) -> impl Iterator<Item = &'a Arc<Object>> {
        cluster.store.list(self.kind, &self.namespace).filter(|object| self.includes(cluster, object))
    }
}

fn may_read_project(cluster: &Cluster, user: &User, project: &str) -> bool {
    let group = "project.openshift.io";
    cluster.allows(user, &Access { verb: "get", group, resource: "projects", namespace: project, name: project })
}
