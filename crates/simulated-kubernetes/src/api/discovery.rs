//! Discovery: the version of the server, its groups and their resources.

use serde_json::{Value, json};

use crate::cluster::resources::{QUOTA_GROUP, RBAC, RESOURCES};
use crate::server::response::Response;

pub const PROJECTS: &str = "project.openshift.io";
pub const AUTHORIZATION: &str = "authorization.openshift.io";
pub const USERS: &str = "user.openshift.io";
pub const REVIEWS: &str = "authorization.k8s.io";

const GROUPS: [&str; 4] = ["apps", "authorization.k8s.io", "batch", RBAC];
const OPENSHIFT_GROUPS: [&str; 4] = [AUTHORIZATION, PROJECTS, QUOTA_GROUP, USERS];
/// Resources that are no stored objects: group, plural, kind, whether they are namespaced, and verbs.
const VIRTUAL: [(&str, &str, &str, bool, &[&str]); 9] = [
    ("", "pods/binding", "Binding", true, &["create"]),
    ("", "pods/exec", "PodExecOptions", true, &["create", "get"]),
    ("", "pods/log", "Pod", true, &["get"]),
    ("", "pods/portforward", "PodPortForwardOptions", true, &["create", "get"]),
    (REVIEWS, "selfsubjectaccessreviews", "SelfSubjectAccessReview", false, &["create"]),
    (PROJECTS, "projects", "Project", false, &["delete", "get", "list", "watch"]),
    (PROJECTS, "projectrequests", "ProjectRequest", false, &["create", "list"]),
    (AUTHORIZATION, "rolebindings", "RoleBinding", true, &["create", "delete", "get", "list"]),
    (USERS, "users", "User", false, &["get"]),
];
/// Abbreviations that kubectl accepts.
const SHORT_NAMES: [(&str, &str); 9] = [
    ("configmaps", "cm"),
    ("deployments", "deploy"),
    ("endpoints", "ep"),
    ("namespaces", "ns"),
    ("nodes", "no"),
    ("pods", "po"),
    ("resourcequotas", "quota"),
    ("serviceaccounts", "sa"),
    ("services", "svc"),
];
const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// Whether the server has this group.
pub fn is_served(group: &str, is_openshift: bool) -> bool {
    group.is_empty() || GROUPS.contains(&group) || is_openshift && OPENSHIFT_GROUPS.contains(&group)
}

/// Paths that need no login.
pub fn public(parts: &[&str]) -> Option<Response> {
    match parts {
        ["version"] => Some(Response::ok(&json!({
            "major": "1", "minor": "20", "gitVersion": "v1.20.2", "gitCommit": "simulated", "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z", "goVersion": "go1.19", "compiler": "gc", "platform": "linux/amd64",
        }))),
        ["healthz" | "readyz" | "livez"] => Some(Response::text(200, "ok")),
        _ => None,
    }
}

/// Documents about groups and resources; `None` for other paths.
pub fn document(parts: &[&str], is_openshift: bool) -> Option<Response> {
    let groups = GROUPS.iter().chain(OPENSHIFT_GROUPS.iter().filter(|_| is_openshift));
    Some(match parts {
        ["api"] => Response::ok(&json!({"kind": "APIVersions", "versions": ["v1"]})),
        ["api", "v1"] => Response::ok(&resources("", is_openshift)),
        ["apis"] => {
            let groups: Vec<Value> = groups.map(|group| description(group)).collect();
            Response::ok(&json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["apis", group] if is_served(group, is_openshift) => {
            let mut group = description(group);
            (group["kind"], group["apiVersion"]) = (json!("APIGroup"), json!("v1"));
            Response::ok(&group)
        }
        ["apis", group, "v1"] if is_served(group, is_openshift) => Response::ok(&resources(group, is_openshift)),
        _ => return None,
    })
}

fn description(group: &str) -> Value {
    let version = json!({"groupVersion": format!("{group}/v1"), "version": "v1"});
    json!({"name": group, "versions": [version], "preferredVersion": version})
}

fn resources(group: &str, is_openshift: bool) -> Value {
    let stored = RESOURCES.iter().filter(|one| one.group == group);
    let stored = stored.map(|one| {
        let short = SHORT_NAMES.iter().filter(|(plural, _)| *plural == one.plural);
        let short: Vec<&str> = short.map(|(_, short)| *short).collect();
        json!({
            "name": one.plural, "singularName": "", "namespaced": one.is_namespaced, "kind": one.kind_name,
            "verbs": VERBS, "shortNames": short,
        })
    });
    let others = VIRTUAL.iter().filter(|(of, ..)| *of == group && is_served(group, is_openshift));
    let others = others.map(|(_, plural, kind, is_namespaced, verbs)| {
        json!({"name": plural, "singularName": "", "namespaced": is_namespaced, "kind": kind, "verbs": verbs})
    });
    let version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
    let resources: Vec<Value> = stored.chain(others).collect();
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources})
}
