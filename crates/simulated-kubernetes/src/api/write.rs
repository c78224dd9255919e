//! Changes of objects: create, update, patch and delete.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::api::scope::{Scope, View};
use crate::api::{openshift, pods, validation};
use crate::cluster::cluster::{Cluster, Deletion};
use crate::cluster::controllers::{ACCOUNT_NAME, TOKEN_SECRET, random_suffix};
use crate::cluster::resources::{Kind, RBAC, Resource};
use crate::cluster::store::Object;
use crate::server::call::{Call, Route};
use crate::server::response::{ApiResult, Cause, Response, deleted_status};

/// Metadata that a client may set.
const OWN_METADATA: [&str; 7] =
    ["name", "generateName", "namespace", "labels", "annotations", "ownerReferences", "finalizers"];
/// Metadata that no change touches.
const FIXED_METADATA: [&str; 6] =
    ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"];

impl Cluster {
    /// Creates an object as a client sent it.
    pub fn create_from(&mut self, call: &Call, route: &Route, kind: Kind, body: &[u8]) -> ApiResult<Response> {
        let object = validation::decode(kind.resource(), body)?;
        let is_dry = call.parameter("dryRun") == Some("All");
        let created = self.admit_and_create(&route.namespace, kind, object, is_dry)?;
        Ok(Response::rendered(201, created))
    }

    /// Creates an object, unless this is a dry run; returns its JSON.
    pub fn admit_and_create(&mut self, namespace: &str, kind: Kind, object: Value, is_dry: bool) -> ApiResult<String> {
        let resource = kind.resource();
        let mut object = own_fields(object);
        let metadata = &mut object["metadata"];
        if resource.is_namespaced {
            let given = metadata["namespace"].as_str().unwrap_or(namespace);
            if given != namespace {
                let text = "the namespace of the provided object does not match the namespace sent on the request";
                return Err(Response::bad_request(text));
            }
            metadata["namespace"] = json!(namespace);
        }
        if let (None, Some(prefix)) = (metadata["name"].as_str(), metadata["generateName"].as_str()) {
            metadata["name"] = json!(format!("{prefix}{}", random_suffix()));
        }
        let name = metadata["name"].as_str().unwrap_or_default().to_owned();
        if resource.is_namespaced {
            self.admit_to_namespace(resource, namespace, &name)?;
        }
        if kind == Kind::Pod {
            self.admit_account(namespace, &name, &object)?;
        }
        let object = with_defaults(kind, object)?;
        let causes = causes(kind, &object);
        if !causes.is_empty() {
            return Err(Response::invalid(resource, &name, &causes));
        }
        if kind == Kind::Pod
            && let Err(text) = self.check_quotas(namespace, &object["spec"])
        {
            self.stats.quota_refusals += 1;
            return Err(Response::forbidden(resource, &name, &text));
        }
        if let Some(existing) = self.store.get(kind, namespace, &name) {
            return Err(Response::already_exists(resource, &name, existing.is_being_deleted()));
        }
        if is_dry {
            let mut object = object;
            object["kind"] = json!(resource.kind_name);
            object["apiVersion"] = json!(resource.api_version());
            return Ok(object.to_string());
        }
        Ok(self.create(kind, object).body())
    }

    fn admit_to_namespace(&self, resource: &Resource, namespace: &str, name: &str) -> ApiResult<()> {
        let found = self.store.get(Kind::Namespace, "", namespace);
        let found = found.ok_or_else(|| Response::not_found(Kind::Namespace.resource(), namespace))?;
        if found.is_being_deleted() {
            return Err(Response::namespace_terminating(resource, name, namespace));
        }
        Ok(())
    }

    /// Replaces an object, or its status.
    pub fn update(&mut self, route: &Route, kind: Kind, body: &[u8]) -> ApiResult<Response> {
        let current = self.existing(route, kind)?;
        let object = validation::decode(kind.resource(), body)?;
        self.replace(route, &current, object)
    }

    /// Merges a patch into an object, or into its status. Lists are replaced as a whole.
    pub fn patch(&mut self, call: &Call, route: &Route, kind: Kind, body: &[u8]) -> ApiResult<Response> {
        let is_merge = matches!(
            &*call.content_type,
            "application/merge-patch+json" | "application/strategic-merge-patch+json" | "application/apply-patch+yaml"
        );
        if !is_merge {
            return Err(Response::unsupported_media_type());
        }
        let patch: Value = serde_json::from_slice(body)
            .map_err(|error| Response::bad_request(format!("error decoding patch: {error}")))?;
        let current = self.existing(route, kind)?;
        let mut object = current.value.clone();
        if patch["metadata"]["resourceVersion"].is_null() {
            object["metadata"]["resourceVersion"] = Value::Null;
        }
        merge(&mut object, patch);
        let object = validation::decode(kind.resource(), object.to_string().as_bytes())?;
        self.replace(route, &current, object)
    }

    fn existing(&self, route: &Route, kind: Kind) -> ApiResult<Arc<Object>> {
        let namespace = if kind.resource().is_namespaced { &*route.namespace } else { "" };
        let found = self.store.get(kind, namespace, &route.name).cloned();
        found.ok_or_else(|| Response::not_found(kind.resource(), &route.name))
    }

    fn replace(&mut self, route: &Route, current: &Object, mut object: Value) -> ApiResult<Response> {
        let resource = current.kind.resource();
        let given_version = object["metadata"]["resourceVersion"].as_str();
        if given_version.is_some_and(|given| !given.is_empty() && given != current.version.to_string()) {
            return Err(Response::conflict(resource, &current.name));
        }
        let given_uid = object["metadata"]["uid"].as_str();
        if let Some(uid) = given_uid.filter(|uid| *uid != current.uid) {
            return Err(Response::other_uid(resource, &current.name, uid, &current.uid));
        }
        let mut new = current.value.clone();
        if route.subresource == "status" {
            new["status"] = object["status"].take();
        } else {
            for key in ["kind", "apiVersion", "status"] {
                object.as_object_mut().and_then(|object| object.shift_remove(key));
            }
            let (metadata, status) = (new["metadata"].take(), new["status"].take());
            new = object;
            for key in FIXED_METADATA {
                match metadata.get(key) {
                    Some(value) => new["metadata"][key] = value.clone(),
                    None => drop(new["metadata"].as_object_mut().and_then(|metadata| metadata.shift_remove(key))),
                }
            }
            if !status.is_null() {
                new["status"] = status;
            }
        }
        let causes = validation::metadata_causes(resource, &new["metadata"]);
        if !causes.is_empty() {
            return Err(Response::invalid(resource, &current.name, &causes));
        }
        new["metadata"]["resourceVersion"] = current.value["metadata"]["resourceVersion"].clone();
        if new == current.value {
            return Ok(Response::rendered(200, current.body()));
        }
        let changed = self.write(current.kind, new);
        self.finish_deletion(&changed);
        Ok(Response::rendered(200, changed.body()))
    }

    /// Removes an object in deletion that has no finalizers anymore.
    fn finish_deletion(&mut self, object: &Object) {
        if !object.is_being_deleted() || object.has_finalizers() {
            return;
        }
        match object.kind {
            Kind::Namespace => self.namespace_content_changed(&object.name),
            _ if object.metadata()["deletionGracePeriodSeconds"] == 0 => drop(self.erase(object)),
            _ => {}
        }
    }

    /// Deletes one object.
    pub fn delete_from(&mut self, call: &Call, route: &Route, kind: Kind, body: &[u8]) -> ApiResult<Response> {
        let options: Value = match body {
            [] => json!({}),
            body => serde_json::from_slice(body).map_err(|error| Response::bad_request(error.to_string()))?,
        };
        let current = self.existing(route, kind)?;
        let resource = kind.resource();
        if let Some(uid) = options["preconditions"]["uid"].as_str().filter(|uid| *uid != current.uid) {
            return Err(Response::other_uid(resource, &current.name, uid, &current.uid));
        }
        let parameter = || call.parameter("gracePeriodSeconds").and_then(|seconds| seconds.parse().ok());
        let grace_s = options["gracePeriodSeconds"].as_u64().or_else(parameter);
        Ok(match self.delete(&current, grace_s) {
            Deletion::Pending(object) => Response::rendered(200, object.body()),
            Deletion::Done(object) if matches!(kind, Kind::Pod | Kind::ServiceAccount) => {
                Response::rendered(200, object.body())
            }
            Deletion::Done(object) => Response::ok(&deleted_status(resource, &object.name, &object.uid)),
        })
    }

    /// Deletes all objects of a scope; returns them as a list.
    pub fn delete_collection(&mut self, call: &Call, scope: &Scope) -> ApiResult<Response> {
        let listed = self.list(call, scope)?;
        for object in scope.objects(self).cloned().collect::<Vec<_>>() {
            if self.store.get(object.kind, &object.namespace, &object.name).is_some() {
                self.delete(&object, None);
            }
        }
        Ok(listed)
    }

    /// Binds a pod to a node.
    pub fn bind_from(&mut self, route: &Route, body: &[u8]) -> ApiResult<Response> {
        let pod = self.existing(route, Kind::Pod)?;
        let binding: Value = serde_json::from_slice(body).map_err(|error| Response::bad_request(error.to_string()))?;
        let node = binding["target"]["name"].as_str().unwrap_or_default();
        if pod.value["spec"]["nodeName"].is_string() {
            return Err(Response::conflict(Kind::Pod.resource(), &pod.name));
        }
        self.bind(&pod, node);
        Ok(Response::json(
            201,
            &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
        ))
    }

    /// The answer to logs, exec and port forwarding: there are no containers.
    pub fn refuse_streams(&self, route: &Route) -> ApiResult<Response> {
        let pod = self.existing(route, Kind::Pod)?;
        if route.subresource != "log" {
            return Err(Response::bad_request("Upgrade request required"));
        }
        let container = pod.value["spec"]["containers"][0]["name"].as_str().unwrap_or_default();
        Err(Response::internal(format!(
            "Get \"https://127.0.0.1:1/containerLogs/{}/{}/{container}\": dial tcp 127.0.0.1:1: connect: connection refused",
            pod.namespace, pod.name
        )))
    }

    /// Creates a role binding in OpenShift's older form.
    pub fn create_legacy_binding(&mut self, route: &Route, body: &[u8]) -> ApiResult<Response> {
        let mut binding = validation::decode(Kind::RoleBinding.resource(), body)?;
        let role = &mut binding["roleRef"];
        let kind = if role["namespace"].is_string() { "Role" } else { "ClusterRole" };
        *role = json!({"apiGroup": RBAC, "kind": kind, "name": role["name"]});
        if binding["subjects"].as_array().is_none_or(Vec::is_empty) {
            let users = binding["userNames"].as_array().into_iter().flatten().filter_map(Value::as_str);
            binding["subjects"] = users.map(openshift::subject).collect();
        }
        self.admit_and_create(&route.namespace, Kind::RoleBinding, binding.clone(), false)?;
        let name = binding["metadata"]["name"].as_str().unwrap_or_default();
        let created = self.store.get(Kind::RoleBinding, &route.namespace, name).expect("the binding was created");
        Ok(Response::rendered(201, View::LegacyBinding.body(created)))
    }
}

/// The object with the fields that a client may set.
fn own_fields(mut object: Value) -> Value {
    let given = object["metadata"].take();
    let mut metadata = Map::new();
    for key in OWN_METADATA {
        if let Some(value) = given.get(key).filter(|value| !value.is_null()) {
            metadata.insert(key.to_owned(), value.clone());
        }
    }
    let mut own = Map::new();
    own.insert("metadata".to_owned(), Value::Object(metadata));
    if let Value::Object(fields) = object {
        let fields =
            fields.into_iter().filter(|(key, _)| !matches!(&**key, "kind" | "apiVersion" | "metadata" | "status"));
        own.extend(fields);
    }
    Value::Object(own)
}

/// Defaults by kind. Fields that the kind does not have are dropped where the reference driver sends some.
fn with_defaults(kind: Kind, mut object: Value) -> ApiResult<Value> {
    match kind {
        Kind::Namespace => {
            object["spec"] = json!({"finalizers": ["kubernetes"]});
            object["status"] = json!({"phase": "Active"});
        }
        Kind::Pod => {
            // A restart policy outside the specification is ignored, as real servers do.
            retain(&mut object, &["metadata", "spec"]);
            object = pods::with_defaults(object);
        }
        Kind::Secret => {
            let texts = object["stringData"].take();
            for (key, text) in texts.as_object().into_iter().flatten() {
                object["data"][key] = json!(STANDARD.encode(text.as_str().unwrap_or_default()));
            }
            retain(&mut object, &["metadata", "data", "type", "immutable"]);
            if object["type"].as_str().is_none_or(str::is_empty) {
                object["type"] = json!("Opaque");
            }
        }
        Kind::Role | Kind::ClusterRole => {
            retain(&mut object, &["metadata", "rules", "aggregationRule"]);
            if object["rules"].as_array().is_none_or(Vec::is_empty) {
                object["rules"] = Value::Null;
            }
        }
        Kind::RoleBinding | Kind::ClusterRoleBinding => {
            retain(&mut object, &["metadata", "subjects", "roleRef"]);
            let kind = object["roleRef"]["kind"].as_str().unwrap_or_default();
            if !matches!(kind, "Role" | "ClusterRole") {
                return Err(Response::internal(format!("unsupported role reference kind: \"{kind}\"")));
            }
            object["roleRef"]["apiGroup"] = json!(RBAC);
        }
        Kind::ResourceQuota => object["status"] = json!({}),
        Kind::Service | Kind::Deployment | Kind::ReplicaSet | Kind::Job | Kind::CronJob => object["status"] = json!({}),
        Kind::Node | Kind::ServiceAccount | Kind::ConfigMap | Kind::Endpoints | Kind::ClusterResourceQuota => {}
    }
    Ok(object)
}

fn retain(object: &mut Value, keys: &[&str]) {
    if let Some(object) = object.as_object_mut() {
        object.retain(|key, value| keys.contains(&key.as_str()) && !value.is_null());
    }
}

fn causes(kind: Kind, object: &Value) -> Vec<Cause> {
    let mut causes = validation::metadata_causes(kind.resource(), &object["metadata"]);
    match kind {
        Kind::Pod => causes.extend(pods::causes(object)),
        Kind::Secret if object["type"] == TOKEN_SECRET => {
            let account = object["metadata"]["annotations"][ACCOUNT_NAME].as_str().unwrap_or_default();
            if account.is_empty() {
                causes.push(Cause::required(&format!("metadata.annotations[{ACCOUNT_NAME}]"), ""));
            }
        }
        Kind::Role | Kind::ClusterRole => {
            for (index, rule) in object["rules"].as_array().into_iter().flatten().enumerate() {
                let is_empty = |key: &str| rule[key].as_array().is_none_or(Vec::is_empty);
                if is_empty("verbs") {
                    let text = "verbs must contain at least one value";
                    causes.push(Cause::required(&format!("rules[{index}].verbs"), text));
                }
                if is_empty("nonResourceURLs") && is_empty("apiGroups") {
                    let text = "resource rules must supply at least one api group";
                    causes.push(Cause::required(&format!("rules[{index}].apiGroups"), text));
                }
            }
        }
        _ => {}
    }
    causes
}

/// JSON merge patch (RFC 7386).
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let target = target.as_object_mut().expect("the target is an object");
    for (key, value) in patch {
        if value.is_null() {
            target.shift_remove(&key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}
