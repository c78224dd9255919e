//! From a call to its execution: login, access rules, and the verb of the resource.

use serde_json::{Value, json};

use crate::api::discovery::{self, REVIEWS};
use crate::api::scope::{Scope, View};
use crate::api::selectors::Selector;
use crate::api::simulation::Reply;
use crate::api::watch::Watch;
use crate::cluster::accounts::{Access, User};
use crate::cluster::cluster::Cluster;
use crate::cluster::resources::{Kind, QUOTA_GROUP, Resource};
use crate::server::call::{Call, Route};
use crate::server::response::{ApiResult, Response};

impl Cluster {
    /// Executes a call to the API.
    pub fn dispatch(&mut self, call: &Call, body: &[u8]) -> Reply {
        self.try_dispatch(call, body).unwrap_or_else(Reply::Response)
    }

    fn try_dispatch(&mut self, call: &Call, body: &[u8]) -> ApiResult<Reply> {
        let Some(user) = self.user(call.token.as_deref()) else {
            self.stats.unauthorized += 1;
            return Err(Response::unauthorized());
        };
        let parts = call.parts();
        if let Some(answer) = discovery::public(&parts) {
            return Ok(Reply::Response(answer));
        }
        let Some(route) = &call.route else {
            let document = discovery::document(&parts, self.options.openshift);
            let is_discovery = matches!(parts[..], ["api" | "apis", ..]);
            let may_read = if is_discovery { !user.is_anonymous() } else { self.may_read_path(&user) };
            if !may_read {
                let text = format!("forbidden: User \"{}\" cannot get path \"{}\"", user.name, call.path);
                return Err(Response::failure(403, "Forbidden", text, json!({})));
            }
            return Ok(Reply::Response(document.unwrap_or_else(Response::page_not_found)));
        };
        if !matches!(call.method.as_str(), "GET" | "HEAD") {
            self.history.record_call(&user.name, format!("{} {}", call.method, call.path), self.now);
        }
        if self.options.openshift
            && let Some(reply) = self.openshift(&user, call, route, body)?
        {
            return Ok(reply);
        }
        if route.group == REVIEWS && route.resource == "selfsubjectaccessreviews" && route.verb == "create" {
            return self.review(&user, body).map(Reply::Response);
        }
        self.authorize(&user, route)?;
        let found = Resource::find(&route.group, &route.version, &route.resource);
        let Some(resource) = found.filter(|one| one.group != QUOTA_GROUP || self.options.openshift) else {
            return Err(match discovery::is_served(&route.group, self.options.openshift) {
                true => Response::no_such_resource(),
                false => Response::page_not_found(),
            });
        };
        self.run_verb(call, route, resource, body)
    }

    /// Paths that are no resources are for members of `system:masters`, who may do everything.
    fn may_read_path(&self, user: &User) -> bool {
        self.allows(user, &Access { verb: "get", group: "*", resource: "*", namespace: "", name: "" })
    }

    pub fn authorize(&self, user: &User, route: &Route) -> ApiResult<()> {
        let resource = match route.subresource.as_str() {
            "" => route.resource.clone(),
            subresource => format!("{}/{subresource}", route.resource),
        };
        let Route { group, namespace, name, verb, .. } = route;
        if self.allows(user, &Access { verb, group, resource: &resource, namespace, name }) {
            return Ok(());
        }
        let mut qualified = route.resource.clone();
        let mut details = json!({});
        if !name.is_empty() {
            details["name"] = json!(name);
        }
        if !group.is_empty() {
            qualified = format!("{qualified}.{group}");
            details["group"] = json!(group);
        }
        details["kind"] = json!(route.resource);
        if !name.is_empty() {
            qualified = format!("{qualified} \"{name}\"");
        }
        let scope = match namespace.as_str() {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace \"{namespace}\""),
        };
        let text = format!(
            "{qualified} is forbidden: User \"{}\" cannot {verb} resource \"{resource}\" in API group \"{group}\" {scope}",
            user.name
        );
        Err(Response::failure(403, "Forbidden", text, details))
    }

    fn run_verb(&mut self, call: &Call, route: &Route, resource: &Resource, body: &[u8]) -> ApiResult<Reply> {
        let kind = resource.kind;
        let is_in_namespace = !route.namespace.is_empty() && kind != Kind::Namespace;
        let has_name = !route.name.is_empty();
        if is_in_namespace && !resource.is_namespaced || has_name && resource.is_namespaced && !is_in_namespace {
            return Err(Response::no_such_resource());
        }
        let response = match (route.subresource.as_str(), route.verb) {
            ("" | "status", "get") => self.read(kind, own_namespace(route, resource), &route.name, View::Stored),
            ("", "list" | "watch" | "deletecollection") => {
                return self.run_on_scope(call, route, scope(call, route, kind)?);
            }
            ("", "create") if !has_name && is_in_namespace == resource.is_namespaced => {
                self.create_from(call, route, kind, body)
            }
            ("" | "status", "update") if has_name => self.update(route, kind, body),
            ("" | "status", "patch") if has_name => self.patch(call, route, kind, body),
            ("", "delete") => self.delete_from(call, route, kind, body),
            ("binding", "create") if kind == Kind::Pod => self.bind_from(route, body),
            ("log" | "exec" | "portforward" | "attach", _) if kind == Kind::Pod => self.refuse_streams(route),
            ("" | "status", _) => Err(Response::method_not_allowed()),
            _ => Err(Response::no_such_resource()),
        };
        response.map(Reply::Response)
    }

    pub fn run_on_scope(&mut self, call: &Call, route: &Route, scope: Scope) -> ApiResult<Reply> {
        match route.verb {
            "list" => self.list(call, &scope).map(Reply::Response),
            "watch" => match self.knobs.no_watch {
                0 => {
                    self.stats.watches_started += 1;
                    Watch::new(self, call, scope).map(Reply::Watch)
                }
                403 => {
                    let text = format!("{} is forbidden: watches are disabled", route.resource);
                    Err(Response::failure(403, "Forbidden", text, json!({"kind": route.resource})))
                }
                _ => Err(Response::method_not_allowed()),
            },
            _ => self.delete_collection(call, &scope).map(Reply::Response),
        }
    }

    /// Whether the user may do something, as `kubectl auth can-i` asks.
    fn review(&self, user: &User, body: &[u8]) -> ApiResult<Response> {
        let mut review: Value =
            serde_json::from_slice(body).map_err(|error| Response::bad_request(error.to_string()))?;
        let attributes = &review["spec"]["resourceAttributes"];
        let text = |key: &str| attributes[key].as_str().unwrap_or_default();
        let resource = match text("subresource") {
            "" => text("resource").to_owned(),
            subresource => format!("{}/{subresource}", text("resource")),
        };
        let access = Access {
            verb: text("verb"),
            group: text("group"),
            resource: &resource,
            namespace: text("namespace"),
            name: text("name"),
        };
        let allowed = self.allows(user, &access);
        (review["kind"], review["apiVersion"]) = (json!("SelfSubjectAccessReview"), json!("authorization.k8s.io/v1"));
        review["status"] = json!({"allowed": allowed});
        Ok(Response::json(201, &review))
    }
}

/// The namespace of an object: a route to a namespace has that namespace as scope, which is not part of the key.
fn own_namespace<'a>(route: &'a Route, resource: &Resource) -> &'a str {
    if resource.is_namespaced { &route.namespace } else { "" }
}

fn scope(call: &Call, route: &Route, kind: Kind) -> ApiResult<Scope> {
    let selector = Selector::from_call(call, kind)?;
    Ok(Scope { kind, namespace: route.namespace.clone(), selector, view: View::Stored, reader: None })
}
