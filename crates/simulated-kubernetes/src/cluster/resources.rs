//! The resources that the cluster stores.

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Namespace,
    Node,
    ServiceAccount,
    Secret,
    ConfigMap,
    Service,
    Endpoints,
    Pod,
    ResourceQuota,
    Role,
    RoleBinding,
    ClusterRole,
    ClusterRoleBinding,
    Deployment,
    ReplicaSet,
    Job,
    CronJob,
    ClusterResourceQuota,
}

/// Rule for the names of a resource's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// Lower case letters, digits and `-`, at most 63 characters.
    Label,
    /// Labels separated by dots, at most 253 characters.
    Subdomain,
    /// All that is one part of a path.
    PathSegment,
}

#[derive(Debug)]
pub struct Resource {
    pub kind: Kind,
    pub kind_name: &'static str,
    pub plural: &'static str,
    pub group: &'static str,
    pub version: &'static str,
    pub is_namespaced: bool,
    pub names: NameRule,
}

pub const RBAC: &str = "rbac.authorization.k8s.io";
pub const QUOTA_GROUP: &str = "quota.openshift.io";

/// In the order of `Kind`.
pub static RESOURCES: [Resource; 18] = [
    cluster_wide(Kind::Namespace, "Namespace", "namespaces", "", NameRule::Label),
    cluster_wide(Kind::Node, "Node", "nodes", "", NameRule::Subdomain),
    namespaced(Kind::ServiceAccount, "ServiceAccount", "serviceaccounts", "", NameRule::Subdomain),
    namespaced(Kind::Secret, "Secret", "secrets", "", NameRule::Subdomain),
    namespaced(Kind::ConfigMap, "ConfigMap", "configmaps", "", NameRule::Subdomain),
    namespaced(Kind::Service, "Service", "services", "", NameRule::Label),
    namespaced(Kind::Endpoints, "Endpoints", "endpoints", "", NameRule::Subdomain),
    namespaced(Kind::Pod, "Pod", "pods", "", NameRule::Subdomain),
    namespaced(Kind::ResourceQuota, "ResourceQuota", "resourcequotas", "", NameRule::Subdomain),
    namespaced(Kind::Role, "Role", "roles", RBAC, NameRule::PathSegment),
    namespaced(Kind::RoleBinding, "RoleBinding", "rolebindings", RBAC, NameRule::PathSegment),
    cluster_wide(Kind::ClusterRole, "ClusterRole", "clusterroles", RBAC, NameRule::PathSegment),
    cluster_wide(Kind::ClusterRoleBinding, "ClusterRoleBinding", "clusterrolebindings", RBAC, NameRule::PathSegment),
    namespaced(Kind::Deployment, "Deployment", "deployments", "apps", NameRule::Subdomain),
    namespaced(Kind::ReplicaSet, "ReplicaSet", "replicasets", "apps", NameRule::Subdomain),
    namespaced(Kind::Job, "Job", "jobs", "batch", NameRule::Subdomain),
    namespaced(Kind::CronJob, "CronJob", "cronjobs", "batch", NameRule::Subdomain),
    cluster_wide(
        Kind::ClusterResourceQuota,
        "ClusterResourceQuota",
        "clusterresourcequotas",
        QUOTA_GROUP,
        NameRule::Subdomain,
    ),
];

const fn namespaced(
    kind: Kind,
    kind_name: &'static str,
    plural: &'static str,
    group: &'static str,
    names: NameRule,
) -> Resource {
    Resource { kind, kind_name, plural, group, version: "v1", is_namespaced: true, names }
}

const fn cluster_wide(
    kind: Kind,
    kind_name: &'static str,
    plural: &'static str,
    group: &'static str,
    names: NameRule,
) -> Resource {
    Resource { kind, kind_name, plural, group, version: "v1", is_namespaced: false, names }
}

impl Kind {
    pub fn resource(self) -> &'static Resource {
        let resource = &RESOURCES[self as usize];
        debug_assert_eq!(resource.kind, self, "the table is in the order of the kinds");
        resource
    }
}

impl Resource {
    /// The resource at this place of the API.
    pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Self> {
        RESOURCES.iter().find(|one| one.group == group && one.version == version && one.plural == plural)
    }

    /// The name in messages: with its group, unless it is the core group.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// The `apiVersion` of objects.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }
}
