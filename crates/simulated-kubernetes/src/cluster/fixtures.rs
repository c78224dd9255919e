//! The initial state: system namespaces, a node, and the roles of the users.

use serde_json::{Value, json};

use crate::cluster::cluster::Cluster;
use crate::cluster::resources::{Kind, RBAC};
use crate::cluster::timers::Work;

/// The node that runs all pods.
pub const NODE: &str = "loopback";

impl Cluster {
    /// Creates all objects of the initial state that do not exist.
    pub fn create_fixtures(&mut self) {
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            self.create_fixture(Kind::Namespace, namespace(name));
        }
        for (namespace, name) in [("default", "default"), ("default", "nodepool"), ("kube-system", "default")] {
            self.create_fixture(Kind::ServiceAccount, json!({"metadata": {"name": name, "namespace": namespace}}));
        }
        self.create_fixture(Kind::Node, node());
        let all = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
        let read = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]});
        for (name, rules) in [
            ("cluster-admin", json!([all])),
            ("admin", admin_rules()),
            ("edit", json!([all])),
            ("view", json!([read])),
            ("nodepool", nodepool_rules()),
            ("self-provisioner", self_provisioner_rules()),
            ("namespace-labeler", json!([{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["patch"]}])),
        ] {
            self.create_fixture(Kind::ClusterRole, json!({"metadata": {"name": name}, "rules": rules}));
        }
        // In OpenShift the account has only projects of its own.
        let role = if self.options.openshift { "self-provisioner" } else { "nodepool" };
        let labeler = self.options.label_projects.then_some("namespace-labeler");
        for (name, role) in [("nodepool", Some(role)), ("nodepool-labels", labeler)] {
            let Some(role) = role else { continue };
            let binding = json!({
                "metadata": {"name": name},
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "ServiceAccount", "name": "nodepool", "namespace": "default"}],
            });
            self.create_fixture(Kind::ClusterRoleBinding, binding);
        }
        for project in self.options.projects.clone() {
            self.create_fixture(Kind::Namespace, namespace(&project));
            let account = json!({"metadata": {"name": "default", "namespace": project}});
            self.create_fixture(Kind::ServiceAccount, account);
            let binding = json!({
                "metadata": {"name": "admin", "namespace": project},
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "admin"},
                "subjects": [{"kind": "ServiceAccount", "name": "nodepool", "namespace": "default"}],
            });
            self.create_fixture(Kind::RoleBinding, binding);
        }
    }

    fn create_fixture(&mut self, kind: Kind, value: Value) {
        let text = |key: &str| value["metadata"][key].as_str().unwrap_or_default();
        if self.store.get(kind, text("namespace"), text("name")).is_none() {
            let object = self.create(kind, value);
            self.fixtures.insert(object.uid.clone());
        }
        // The default accounts of the system namespaces are fixtures themselves.
        self.timers.remove(|work| matches!(work, Work::CreateDefaultAccounts { .. }));
    }
}

/// A namespace without labels.
pub fn namespace(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}})
}

fn node() -> Value {
    let size = json!({"cpu": "1k", "memory": "1000Gi", "ephemeral-storage": "10000Gi", "pods": "10k"});
    json!({
        "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux"}},
        "spec": {},
        "status": {
            "capacity": size, "allocatable": size,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": "127.0.0.1"}],
            "nodeInfo": {"kubeletVersion": "v1.20.2", "operatingSystem": "linux", "architecture": "amd64"},
        },
    })
}

/// The rights that Nodepool's account needs, and no others.
fn nodepool_rules() -> Value {
    let verbs = json!(["create", "get", "list", "watch", "delete"]);
    json!([
        {"apiGroups": [""], "resources": ["namespaces", "pods", "secrets", "serviceaccounts"], "verbs": verbs},
        {"apiGroups": [RBAC], "resources": ["roles", "rolebindings"], "verbs": verbs},
        {"apiGroups": [RBAC], "resources": ["roles"], "verbs": ["bind", "escalate"]},
    ])
}

/// The rights of an administrator of a project, who may not change the namespace itself.
fn admin_rules() -> Value {
    let content = json!([
        "appliedclusterresourcequotas",
        "configmaps",
        "cronjobs",
        "deployments",
        "endpoints",
        "jobs",
        "pods",
        "pods/attach",
        "pods/exec",
        "pods/log",
        "pods/portforward",
        "replicasets",
        "rolebindings",
        "roles",
        "secrets",
        "serviceaccounts",
        "services",
    ]);
    json!([
        {"apiGroups": ["*"], "resources": content, "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["namespaces", "resourcequotas"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["project.openshift.io"], "resources": ["projects"], "verbs": ["get", "delete", "patch", "update"]},
    ])
}

fn self_provisioner_rules() -> Value {
    json!([{"apiGroups": ["", "project.openshift.io"], "resources": ["projectrequests"], "verbs": ["create"]}])
}
