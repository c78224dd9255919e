//! OpenShift's own groups: projects and project requests, role bindings in their older form, and quotas of several
//! projects.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::discovery::{AUTHORIZATION, PROJECTS, USERS};
use crate::api::scope::{Scope, View};
use crate::api::selectors::Selector;
use crate::api::simulation::Reply;
use crate::api::validation;
use crate::cluster::accounts::User;
use crate::cluster::cluster::Cluster;
use crate::cluster::fixtures;
use crate::cluster::resources::{Kind, NameRule, QUOTA_GROUP, RBAC, Resource};
use crate::cluster::store::Object;
use crate::server::call::{Call, Route};
use crate::server::response::{ApiResult, Cause, Response};

const REQUESTER: &str = "openshift.io/requester";
/// Beginnings of names that only the platform uses.
const RESERVED: [&str; 2] = ["openshift-", "kube-"];

/// Names for messages.
static PROJECT: Resource = resource("Project", "projects");
static PROJECT_REQUEST: Resource = resource("ProjectRequest", "projectrequests");

const fn resource(kind_name: &'static str, plural: &'static str) -> Resource {
    let (kind, names) = (Kind::Namespace, NameRule::Label);
    Resource { kind, kind_name, plural, group: PROJECTS, version: "v1", is_namespaced: false, names }
}

impl Cluster {
    /// Executes a call to a group of OpenShift; `None` for calls to other groups.
    pub fn openshift(&mut self, user: &User, call: &Call, route: &Route, body: &[u8]) -> ApiResult<Option<Reply>> {
        let place = (route.group.as_str(), route.resource.as_str());
        let response = match (place, route.verb) {
            ((PROJECTS, "projects"), "list" | "watch") if !user.is_anonymous() => {
                let selector = Selector::from_call(call, Kind::Namespace)?;
                let (kind, namespace, view) = (Kind::Namespace, String::new(), View::Project);
                let scope = Scope { kind, namespace, selector, view, reader: Some(user.clone()) };
                return self.run_on_scope(call, route, scope).map(Some);
            }
            ((PROJECTS, "projects"), "get") => {
                self.authorize(user, route)?;
                let not_found = |_| Response::not_found(&PROJECT, &route.name);
                self.read(Kind::Namespace, "", &route.name, View::Project).map_err(not_found)
            }
            ((PROJECTS, "projects"), "delete") => {
                self.authorize(user, route)?;
                self.delete_project(&route.name)
            }
            ((PROJECTS, "projectrequests"), "create") => self.request_project(user, route, body),
            ((PROJECTS, "projectrequests"), "list") if self.knobs.refuse_projects => Err(requests_refused()),
            // Clients ask in this way whether they may request projects.
            ((PROJECTS, "projectrequests"), "list") => {
                Ok(Response::ok(&json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})))
            }
            ((AUTHORIZATION, "rolebindings"), verb) => {
                self.authorize(user, route)?;
                match verb {
                    "create" => self.create_legacy_binding(route, body),
                    "get" => self.read(Kind::RoleBinding, &route.namespace, &route.name, View::LegacyBinding),
                    "delete" => self.delete_from(call, route, Kind::RoleBinding, body),
                    "list" | "watch" => {
                        let selector = Selector::from_call(call, Kind::RoleBinding)?;
                        let (namespace, view) = (route.namespace.clone(), View::LegacyBinding);
                        let scope = Scope { kind: Kind::RoleBinding, namespace, selector, view, reader: None };
                        return self.run_on_scope(call, route, scope).map(Some);
                    }
                    _ => Err(Response::method_not_allowed()),
                }
            }
            ((QUOTA_GROUP, "appliedclusterresourcequotas"), "list" | "get") => {
                self.authorize(user, route)?;
                self.applied_quotas(route)
            }
            ((USERS, "users"), "get") if route.name == "~" => Ok(Response::ok(&json!({
                "kind": "User", "apiVersion": "user.openshift.io/v1", "metadata": {"name": user.name},
            }))),
            _ => return Ok(None),
        };
        response.map(|response| Some(Reply::Response(response)))
    }

    fn delete_project(&mut self, name: &str) -> ApiResult<Response> {
        let found = self.store.get(Kind::Namespace, "", name).cloned();
        let namespace = found.ok_or_else(|| Response::not_found(&PROJECT, name))?;
        self.delete(&namespace, None);
        Ok(Response::ok(&json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})))
    }

    /// Creates a project with its namespace, and makes the user its administrator.
    fn request_project(&mut self, user: &User, route: &Route, body: &[u8]) -> ApiResult<Response> {
        if self.knobs.refuse_projects {
            return Err(requests_refused());
        }
        self.authorize(user, route)?;
        let request = validation::decode(&PROJECT_REQUEST, body)?;
        let name = request["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let mut metadata = json!({"name": name, "labels": request["metadata"]["labels"]});
        let causes: Vec<Cause> = validation::metadata_causes(&PROJECT_REQUEST, &metadata);
        if !causes.is_empty() {
            return Err(Response::invalid(&PROJECT_REQUEST, &name, &causes));
        }
        if let Some(prefix) = RESERVED.iter().find(|prefix| name.starts_with(*prefix)) {
            let text = format!("cannot request a project starting with \"{prefix}\"");
            return Err(Response::forbidden(&PROJECT, &name, &text));
        }
        let is_own = |namespace: &&Arc<Object>| namespace.metadata()["annotations"][REQUESTER] == user.name.as_str();
        let own = self.store.list(Kind::Namespace, "").filter(is_own).count();
        let limit = self.knobs.max_projects;
        if usize::try_from(limit).is_ok_and(|limit| own >= limit) {
            self.stats.quota_refusals += 1;
            let text = format!("user {} cannot create more than {limit} project(s).", user.name);
            return Err(Response::forbidden(&PROJECT_REQUEST, &name, &text));
        }
        if let Some(existing) = self.store.get(Kind::Namespace, "", &name) {
            let is_deleted = existing.is_being_deleted();
            return Err(Response::already_exists(&PROJECT, &name, is_deleted));
        }
        let text = |key: &str| request[key].as_str().unwrap_or_default();
        metadata["annotations"] = json!({
            "openshift.io/description": text("description"), "openshift.io/display-name": text("displayName"),
            REQUESTER: user.name,
        });
        if !self.knobs.copy_project_labels || metadata["labels"].is_null() {
            metadata.as_object_mut().and_then(|metadata| metadata.shift_remove("labels"));
        }
        let mut project = fixtures::namespace(&name);
        project["metadata"] = metadata;
        let project = self.create(Kind::Namespace, project);
        let binding = json!({
            "metadata": {"name": "admin", "namespace": name},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "admin"},
            "subjects": [subject(&user.name)],
        });
        self.create(Kind::RoleBinding, binding);
        Ok(Response::rendered(201, View::Project.body(&project)))
    }

    /// The quotas of several projects that apply to one of them.
    fn applied_quotas(&self, route: &Route) -> ApiResult<Response> {
        let api_version = format!("{QUOTA_GROUP}/v1");
        let namespace = self.store.get(Kind::Namespace, "", &route.namespace);
        let namespace = namespace.ok_or_else(|| Response::not_found(Kind::Namespace.resource(), &route.namespace))?;
        let includes = |selector: &Value, map: &str| {
            let wanted = selector.as_object().into_iter().flatten();
            wanted.into_iter().all(|(key, value)| namespace.metadata()[map][key] == *value)
        };
        let quotas = self.store.list(Kind::ClusterResourceQuota, "").filter(|quota| {
            let selector = &quota.value["spec"]["selector"];
            includes(&selector["labels"]["matchLabels"], "labels") && includes(&selector["annotations"], "annotations")
        });
        let mut quotas = quotas.map(|quota| {
            let mut value = quota.value.clone();
            value["metadata"]["namespace"] = json!(route.namespace);
            value
        });
        if route.verb == "list" {
            let items: Vec<Value> = quotas.collect();
            let metadata = json!({"resourceVersion": self.store.version().to_string()});
            let kind = "AppliedClusterResourceQuotaList";
            return Ok(Response::ok(
                &json!({"kind": kind, "apiVersion": api_version, "metadata": metadata, "items": items}),
            ));
        }
        let found = quotas.find(|quota| quota["metadata"]["name"] == route.name.as_str());
        let mut quota = found.ok_or_else(|| Response::not_found(Kind::ClusterResourceQuota.resource(), &route.name))?;
        (quota["kind"], quota["apiVersion"]) = (json!("AppliedClusterResourceQuota"), json!(api_version));
        Ok(Response::ok(&quota))
    }
}

fn requests_refused() -> Response {
    let text = "You may not request a new project via this API.";
    Response::failure(403, "Forbidden", text, json!({"kind": "projectrequests", "group": PROJECTS}))
}

/// The subject of a role binding for a user.
pub fn subject(user: &str) -> Value {
    match user.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':')) {
        Some((namespace, name)) => json!({"kind": "ServiceAccount", "namespace": namespace, "name": name}),
        None => json!({"kind": "User", "apiGroup": RBAC, "name": user}),
    }
}
