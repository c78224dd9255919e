//! Creation of pods: admission, validation and defaults.

use serde_json::{Value, json};

use crate::api::validation::name_problems;
use crate::cluster::cluster::Cluster;
use crate::cluster::quantity::Quantity;
use crate::cluster::quotas;
use crate::cluster::resources::{Kind, NameRule};
use crate::server::response::{ApiResult, Cause, Response};

impl Cluster {
    /// Refuses a pod whose service account does not exist, or has no token yet.
    pub fn admit_account(&self, namespace: &str, name: &str, pod: &Value) -> ApiResult<()> {
        let account = pod["spec"]["serviceAccountName"].as_str().or_else(|| pod["spec"]["serviceAccount"].as_str());
        let account = account.filter(|account| !account.is_empty()).unwrap_or("default");
        let Some(found) = self.store.get(Kind::ServiceAccount, namespace, account) else {
            let text = format!(
                "error looking up service account {namespace}/{account}: serviceaccount \"{account}\" not found"
            );
            return Err(Response::forbidden(Kind::Pod.resource(), name, &text));
        };
        if self.has_token(found) { Ok(()) } else { Err(Response::no_token(account)) }
    }
}

/// The pod with the defaults of kube-apiserver.
pub fn with_defaults(mut pod: Value) -> Value {
    let spec = &mut pod["spec"];
    if !spec.is_object() {
        *spec = json!({});
    }
    for container in spec["containers"].as_array_mut().into_iter().flatten() {
        default_container(container);
    }
    let account = spec["serviceAccountName"].as_str().or_else(|| spec["serviceAccount"].as_str()).unwrap_or("default");
    let account = account.to_owned();
    let toleration = |key: &str| {
        json!({
            "key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": "NoExecute",
            "tolerationSeconds": 300,
        })
    };
    for (key, value) in [
        ("restartPolicy", json!("Always")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("dnsPolicy", json!("ClusterFirst")),
        ("serviceAccountName", json!(account)),
        ("serviceAccount", json!(account)),
        ("securityContext", json!({})),
        ("schedulerName", json!("default-scheduler")),
        ("tolerations", json!([toleration("not-ready"), toleration("unreachable")])),
        ("priority", json!(0)),
        ("enableServiceLinks", json!(true)),
        ("preemptionPolicy", json!("PreemptLowerPriority")),
    ] {
        if spec[key].is_null() {
            spec[key] = value;
        }
    }
    pod["status"] = json!({"phase": "Pending", "qosClass": quality(&pod["spec"])});
    pod
}

fn default_container(container: &mut Value) {
    let image = container["image"].as_str().unwrap_or_default();
    let tag = image.rsplit('/').next().unwrap_or_default().split_once(':').map(|(_, tag)| tag);
    let pull = if tag.is_none_or(|tag| tag == "latest") { "Always" } else { "IfNotPresent" };
    for (key, value) in [
        ("resources", json!({})),
        ("terminationMessagePath", json!("/dev/termination-log")),
        ("terminationMessagePolicy", json!("File")),
        ("imagePullPolicy", json!(pull)),
    ] {
        if container[key].is_null() {
            container[key] = value;
        }
    }
    // Quantities are returned as text, and limits are the default of requests.
    for list in ["limits", "requests"] {
        for (_, amount) in container["resources"][list].as_object_mut().into_iter().flatten() {
            let text = quotas::text(amount);
            *amount = json!(Quantity::parse(&text).map_or(text, Quantity::text));
        }
    }
    let limits = container["resources"]["limits"].as_object().cloned().unwrap_or_default();
    for (name, amount) in limits {
        if container["resources"]["requests"][&name].is_null() {
            container["resources"]["requests"][&name] = amount;
        }
    }
    if let Some(resources) = container["resources"].as_object_mut() {
        resources.retain(|_, list| !list.is_null());
    }
}

/// The QoS class.
fn quality(spec: &Value) -> &'static str {
    let containers: Vec<&Value> = spec["containers"].as_array().into_iter().flatten().collect();
    let has_none = |container: &&Value| {
        let resources = &container["resources"];
        ["limits", "requests"].iter().all(|list| resources[list].as_object().is_none_or(serde_json::Map::is_empty))
    };
    let is_guaranteed = |container: &&Value| {
        let resources = &container["resources"];
        ["cpu", "memory"].iter().all(|name| {
            !resources["limits"][name].is_null() && resources["limits"][name] == resources["requests"][name]
        })
    };
    if containers.iter().all(has_none) {
        "BestEffort"
    } else if containers.iter().all(is_guaranteed) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// Problems with the specification of a pod.
pub fn causes(pod: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let spec = &pod["spec"];
    let containers = spec["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    if containers.is_empty() {
        causes.push(Cause::required("spec.containers", ""));
    }
    for (index, container) in containers.iter().enumerate() {
        container_causes(&format!("spec.containers[{index}]"), container, &mut causes);
    }
    let policy = spec["restartPolicy"].as_str().unwrap_or_default();
    unsupported("spec.restartPolicy", policy, &["Always", "Never", "OnFailure"], &mut causes);
    causes
}

fn unsupported(field: &str, value: &str, supported: &[&str], causes: &mut Vec<Cause>) {
    if !supported.contains(&value) {
        let supported: Vec<String> = supported.iter().map(|one| format!("\"{one}\"")).collect();
        let text = format!("Unsupported value: \"{value}\": supported values: {}", supported.join(", "));
        causes.push(Cause::new("FieldValueNotSupported", field, text));
    }
}

fn container_causes(field: &str, container: &Value, causes: &mut Vec<Cause>) {
    let name = container["name"].as_str().unwrap_or_default();
    let name_field = format!("{field}.name");
    if name.is_empty() {
        causes.push(Cause::required(&name_field, ""));
    } else {
        let problems = name_problems(NameRule::Label, name);
        causes.extend(problems.into_iter().map(|problem| Cause::invalid(&name_field, name, &problem)));
    }
    if container["image"].as_str().is_none_or(str::is_empty) {
        causes.push(Cause::required(&format!("{field}.image"), ""));
    }
    let policy = container["imagePullPolicy"].as_str().unwrap_or_default();
    unsupported(&format!("{field}.imagePullPolicy"), policy, &["Always", "IfNotPresent", "Never"], causes);
    resource_causes(&format!("{field}.resources"), &container["resources"], causes);
}

fn resource_causes(field: &str, resources: &Value, causes: &mut Vec<Cause>) {
    let amounts = |list: &str| resources[list].as_object().into_iter().flatten();
    // Extended resources have a domain.
    let is_extended = |name: &str| name.contains('/') && !name.contains("kubernetes.io/");
    for list in ["limits", "requests"] {
        for (name, amount) in amounts(list).filter(|(name, _)| is_extended(name)) {
            let text = quotas::text(amount);
            if Quantity::parse(&text).is_some_and(|amount| !amount.is_whole()) {
                let message = format!("Invalid value: resource.Quantity{{{text}}}: must be an integer");
                causes.push(Cause::new("FieldValueInvalid", &format!("{field}.{list}[{name}]"), message));
            }
        }
    }
    for (name, amount) in amounts("requests") {
        let limit = &resources["limits"][name];
        let text = quotas::text(amount);
        let (request, limit_amount) = (Quantity::parse(&text), Quantity::parse(&quotas::text(limit)));
        if is_extended(name) && limit.is_null() {
            let text = "Limit must be set for non overcommitable resources";
            causes.push(Cause::required(&format!("{field}.limits"), text));
        } else if !limit.is_null() && request.zip(limit_amount).is_some_and(|(one, other)| one.milli > other.milli) {
            let text = format!("must be less than or equal to {name} limit");
            causes.push(Cause::invalid(&format!("{field}.requests"), &quotas::text(amount), &text));
        }
    }
}
