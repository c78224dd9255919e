//! Bodies of the objects of one node: a namespace with an account that may use it, and the pod of a pod label.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Name of the account whose token is handed out, of its secret, and the user name for Zuul.
pub const USER: &str = "zuul-worker";
/// Annotation with a value that only its launch knows, so that a launch recognises its own namespace, or its own pod in
/// a shared project, after a lost response.
pub const LAUNCH_ID: &str = "nodepool_launch_id";

const ALL_VERBS: [&str; 7] = ["create", "delete", "get", "list", "patch", "update", "watch"];

/// Rights of the account in its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything that jobs need in a namespace node.
    Whole,
    /// The use of the pod of a pod node.
    Pod,
}

pub fn namespace(name: &str, labels: &BTreeMap<String, String>, launch_id: &str) -> Value {
    let metadata = json!({"name": name, "labels": labels, "annotations": {LAUNCH_ID: launch_id}});
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
}

pub fn service_account() -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": USER}})
}

/// The secret of the account, which the cluster fills with a token that does not expire. Since Kubernetes 1.24 no
/// cluster makes it by itself.
pub fn token_secret() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"name": USER, "annotations": {"kubernetes.io/service-account.name": USER}},
    })
}

/// The role of the account. A plain one has only the rights that Nodepool 11 grants.
pub fn role(access: Access, is_plain: bool) -> Value {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    // Nodepool 11 names some resources in a group where they do not exist. They stay, and the right ones are added.
    let (mut rules, added) = match access {
        Access::Whole => (
            vec![rule(
                "",
                &[
                    "pods",
                    "pods/exec",
                    "pods/log",
                    "pods/portforward",
                    "services",
                    "endpoints",
                    "crontabs",
                    "jobs",
                    "deployments",
                    "replicasets",
                    "configmaps",
                    "secrets",
                ],
                &ALL_VERBS,
            )],
            vec![
                rule("apps", &["deployments", "replicasets"], &ALL_VERBS),
                rule("batch", &["jobs", "cronjobs"], &ALL_VERBS),
            ],
        ),
        Access::Pod => (
            vec![
                rule("", &["pods"], &["get", "list"]),
                rule("", &["pods/exec"], &ALL_VERBS),
                rule("", &["pods/logs"], &ALL_VERBS),
                rule("", &["pods/portforward"], &ALL_VERBS),
            ],
            vec![rule("", &["pods/log"], &ALL_VERBS)],
        ),
    };
    rules.extend(added.into_iter().filter(|_| !is_plain));
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": role_name(access)},
        "rules": rules,
    })
}

fn role_name(access: Access) -> &'static str {
    match access {
        Access::Whole => "zuul",
        Access::Pod => "zuul-restricted",
    }
}

pub fn role_binding(access: Access, namespace: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "zuul-role"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role_name(access)},
        "subjects": [{"kind": "ServiceAccount", "name": USER, "namespace": namespace}],
    })
}

/// The administrator of a project, in OpenShift's own, older form.
pub fn project_role_binding(project: &str) -> Value {
    json!({
        "apiVersion": "authorization.openshift.io/v1", "kind": "RoleBinding", "metadata": {"name": "admin-0"},
        "roleRef": {"name": "admin"},
        "subjects": [{"kind": "ServiceAccount", "name": USER, "namespace": project}],
        "userNames": [format!("system:serviceaccount:{project}:{USER}")],
    })
}

/// The request for a project. OpenShift's own template copies its description, but not its labels, so the description
/// also says what the labels say.
pub fn project_request(name: &str, labels: &BTreeMap<String, String>, launch_id: &str) -> Value {
    let marks = labels.iter().filter(|(key, _)| key.starts_with(MARKS_PREFIX));
    let mut marks: BTreeMap<&str, &str> = marks.map(|(key, value)| (key.as_str(), value.as_str())).collect();
    marks.insert(LAUNCH_ID, launch_id);
    json!({
        "apiVersion": "project.openshift.io/v1", "kind": "ProjectRequest", "metadata": {"name": name, "labels": labels},
        "description": format!("{DESCRIPTION_PREFIX}{}", json!(marks)),
    })
}

/// Labels with this prefix identify the node.
const MARKS_PREFIX: &str = "nodepool_";
/// Beginning of the description of a project; a JSON object with the marks follows.
const DESCRIPTION_PREFIX: &str = "Node of Nodepool ";

/// The marks in the description of a project.
pub fn marks_of_description(project: &Value) -> BTreeMap<String, String> {
    let description = project["metadata"]["annotations"]["openshift.io/description"].as_str().unwrap_or_default();
    let marks = description.strip_prefix(DESCRIPTION_PREFIX).and_then(|marks| serde_json::from_str(marks).ok());
    marks.unwrap_or_default()
}

pub fn pod(
    name: &str,
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
    spec: &Value,
) -> Value {
    let metadata = json!({"name": name, "labels": labels, "annotations": annotations});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}
