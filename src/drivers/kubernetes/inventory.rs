//! Inventory of a cluster: each namespace, project or pod of ours is an instance.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::calls::Source;
use super::context::ProviderContext;
use super::objects::{self, LAUNCH_ID};
use super::variant::Variant;
use nodepool_driver::instance::{Instance, InstanceState, Inventory};
use nodepool_model::records::ids::{ExternalId, LabelName, PoolName};

/// State of a pod, as far as a launch is concerned.
#[derive(Clone, Debug, PartialEq)]
pub enum PodState {
    /// Not ready yet, with the cluster's reason if it has one.
    Starting(Option<String>),
    /// Its image cannot be pulled, which may end by itself.
    PullFailing(String),
    /// It runs on this node of the cluster.
    Ready(Option<String>),
    /// It will never run.
    Failed(String),
}

const PULL_REASONS: [&str; 2] = ["ErrImagePull", "ImagePullBackOff"];
const FATAL_REASONS: [&str; 4] =
    ["InvalidImageName", "CreateContainerConfigError", "CreateContainerError", "CrashLoopBackOff"];

impl PodState {
    pub fn of(pod: &Value) -> Self {
        let status = &pod["status"];
        let phase = text(&status["phase"]).unwrap_or("Pending");
        if matches!(phase, "Failed" | "Succeeded") {
            return PodState::Failed(described(phase, &status["reason"], &status["message"]));
        }
        for container in containers(status) {
            let waiting = &container["state"]["waiting"];
            let reason = text(&waiting["reason"]).unwrap_or_default();
            if FATAL_REASONS.contains(&reason) {
                return PodState::Failed(described(reason, &Value::Null, &waiting["message"]));
            }
            if PULL_REASONS.contains(&reason) {
                return PodState::PullFailing(described(reason, &container["image"], &waiting["message"]));
            }
        }
        let condition = |kind: &str| {
            let conditions = status["conditions"].as_array().into_iter().flatten();
            conditions.into_iter().find(|condition| condition["type"] == kind)
        };
        let is_ready = match condition("Ready") {
            Some(ready) => ready["status"] == "True",
            None => containers(status).all(|container| container["ready"] == true),
        };
        if phase == "Running" && is_ready {
            return PodState::Ready(text(&pod["spec"]["nodeName"]).map(str::to_owned));
        }
        let unscheduled = condition("PodScheduled").filter(|condition| condition["status"] == "False");
        PodState::Starting(
            unscheduled.map(|why| described(text(&why["reason"]).unwrap_or_default(), &Value::Null, &why["message"])),
        )
    }
}

fn containers(status: &Value) -> impl Iterator<Item = &Value> {
    let kinds = ["initContainerStatuses", "containerStatuses"];
    kinds.into_iter().flat_map(|kind| status[kind].as_array().into_iter().flatten())
}

fn described(what: &str, detail: &Value, message: &Value) -> String {
    let more = [detail, message].into_iter().filter_map(text);
    std::iter::once(what).chain(more).collect::<Vec<_>>().join(": ")
}

fn text(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.is_empty())
}

/// Why a namespace that is being deleted still exists, in the cluster's words.
pub fn deletion_obstacle(namespace: &Value) -> Option<String> {
    let conditions = namespace["status"]["conditions"].as_array()?;
    let obstacle = conditions.iter().find(|condition| condition["status"] == "True")?;
    Some(described(text(&obstacle["type"])?, &Value::Null, &obstacle["message"]))
}

pub fn is_being_deleted(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null() || object["status"]["phase"] == "Terminating"
}

pub fn name_of(object: &Value) -> &str {
    text(&object["metadata"]["name"]).unwrap_or_default()
}

/// The labels of an object, which have text values only.
pub fn labels_of(object: &Value) -> BTreeMap<String, String> {
    let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
    labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// The labels of an object, with what the description of a project says besides.
pub fn marks_of(object: &Value) -> BTreeMap<String, String> {
    let mut marks = objects::marks_of_description(object);
    marks.extend(labels_of(object));
    marks
}

/// The id of a node that is a pod in a shared project.
pub fn pod_id(project: &str, pod: &str) -> ExternalId {
    // In this order, which a record keeps.
    let parts = [("pod", pod), ("project", project)];
    ExternalId::Object(parts.map(|(key, value)| (key.to_owned(), value.into())).into_iter().collect())
}

/// The objects as instances. Those without our marks and the shape of our names have no metadata, so that nothing of
/// ours is concluded about them.
pub fn inventory<'a>(context: &ProviderContext, objects: impl Iterator<Item = (&'a Source, &'a Value)>) -> Inventory {
    let (mut homes, mut pods) = (Vec::new(), Vec::new());
    for (source, object) in objects {
        match source {
            Source::Namespaces | Source::Projects => homes.push(object),
            Source::Pods | Source::PodsOf(_) => pods.push(object),
        }
    }
    let inventory = match context.settings.variant {
        Variant::Kubernetes | Variant::OpenShift => of_homes(context, &homes, &pods),
        Variant::OpenShiftPods => of_pods(context, &pods),
    };
    let ours = inventory.instances().iter().filter(|instance| instance.belongs_to(&context.provider));
    context.set_ours(ours.map(|instance| instance.external_id.to_string()).collect());
    inventory
}

/// The owner of an object, if it is not a node of this provider.
pub fn foreign_owner(context: &ProviderContext, object: &Value) -> Option<String> {
    let marks = marks_of(object);
    match marks.get("nodepool_provider_name") {
        Some(owner) => (owner != context.provider.as_str()).then(|| owner.clone()),
        // Projects that Nodepool 11 made have no marks.
        None if context.settings.variant == Variant::OpenShift => None,
        None => Some("another owner".to_owned()),
    }
}

/// Instances that are namespaces or projects.
fn of_homes(context: &ProviderContext, homes: &[&Value], pods: &[&Value]) -> Inventory {
    let mut states: HashMap<&str, (&str, PodState)> = HashMap::new();
    for pod in pods {
        states.insert(namespace_of(pod), (name_of(pod), PodState::of(pod)));
    }
    let (mut known_pods, mut obstacles) = (HashMap::new(), HashMap::new());
    let instances = homes.iter().map(|home| {
        let (name, metadata) = (name_of(home), marks_of(home));
        let mut instance = Instance::new(ExternalId::text(name));
        let label = metadata.get("nodepool_node_label").map(String::as_str).unwrap_or_default();
        let known = context.label(&pool_of(&metadata), &LabelName::from(label));
        let state = states.remove(name).filter(|(pod, _)| *pod == label).map(|(_, state)| state);
        instance.state = match (&known, &state) {
            _ if is_being_deleted(home) => InstanceState::Stopping,
            // The pods of projects are in no inventory; each launch watches its own.
            (_, None) if context.settings.variant == Variant::OpenShift => InstanceState::Running,
            (Some(label), None) if label.pod_spec.is_none() => InstanceState::Running,
            (_, state) => state_of(state.as_ref()),
        };
        if instance.state == InstanceState::Stopping {
            obstacles.extend(deletion_obstacle(home).map(|obstacle| (name.to_owned(), obstacle)));
        }
        if let Some(label) = &known {
            instance.resources = label.need.clone();
            instance.interface_ip = label.pod_spec.as_ref().map(|_| label.name.to_string());
        }
        if let Some(state) = state {
            if let PodState::Ready(node) = &state {
                instance.host_id = node.clone();
            }
            known_pods.insert(name.to_owned(), state);
        }
        if is_our_name(name, metadata.get("nodepool_pool_name"), &metadata) {
            instance.metadata = metadata;
        }
        instance
    });
    let inventory = Inventory::new(instances.collect());
    context.set_pods(known_pods);
    context.set_obstacles(obstacles);
    inventory
}

/// Instances that are pods in shared projects.
fn of_pods(context: &ProviderContext, pods: &[&Value]) -> Inventory {
    let mut known_pods = HashMap::new();
    let instances = pods.iter().map(|pod| {
        let (project, name, metadata) = (namespace_of(pod), name_of(pod), labels_of(pod));
        // The records of Nodepool 11 have another id.
        let id = match pod["metadata"]["annotations"][LAUNCH_ID].is_string() {
            true => pod_id(project, name),
            false => ExternalId::text(format!("{project}-{name}")),
        };
        let mut instance = Instance::new(id);
        let state = PodState::of(pod);
        instance.state = if is_being_deleted(pod) { InstanceState::Stopping } else { state_of(Some(&state)) };
        if let PodState::Ready(node) = &state {
            (instance.interface_ip, instance.host_id) = (Some(name.to_owned()), node.clone());
        }
        let label = metadata.get("nodepool_node_label");
        if let Some(label) = label.and_then(|label| context.label(&PoolName::from(project), &LabelName::from(&**label)))
        {
            instance.resources = label.need.clone();
        }
        known_pods.insert(instance.external_id.to_string(), state);
        if is_our_name(name, label, &metadata) {
            instance.metadata = metadata;
        }
        instance
    });
    let inventory = Inventory::new(instances.collect());
    context.set_pods(known_pods);
    inventory
}

fn state_of(pod: Option<&PodState>) -> InstanceState {
    match pod {
        Some(PodState::Failed(why)) => InstanceState::Failed(why.clone()),
        Some(PodState::Ready(_)) => InstanceState::Running,
        Some(PodState::Starting(_) | PodState::PullFailing(_)) | None => InstanceState::Starting,
    }
}

fn namespace_of(object: &Value) -> &str {
    text(&object["metadata"]["namespace"]).unwrap_or_default()
}

fn pool_of(metadata: &BTreeMap<String, String>) -> PoolName {
    PoolName::from(metadata.get("nodepool_pool_name").map(String::as_str).unwrap_or_default())
}

/// Whether an object has the name that its marks imply: this first part and the id of its node.
fn is_our_name(name: &str, first: Option<&String>, marks: &BTreeMap<String, String>) -> bool {
    let (Some(first), Some(node)) = (first, marks.get("nodepool_node_id")) else { return false };
    name == format!("{first}-{node}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn waiting(reason: &str) -> Value {
        let state = json!({"waiting": {"reason": reason, "message": "why"}});
        json!({"status": {"phase": "Pending", "containerStatuses": [{"image": "busybox", "ready": false, "state": state}]}})
    }

    #[test]
    fn a_pod_is_ready_only_with_its_containers() {
        let running = |ready: &str| {
            let conditions = json!([{"type": "Ready", "status": ready}]);
            PodState::of(&json!({"spec": {"nodeName": "w1"}, "status": {"phase": "Running", "conditions": conditions}}))
        };
        assert_eq!(running("True"), PodState::Ready(Some("w1".to_owned())));
        assert_eq!(running("False"), PodState::Starting(None));
        let mut crashing = waiting("CrashLoopBackOff");
        crashing["status"]["phase"] = json!("Running");
        assert_eq!(PodState::of(&crashing), PodState::Failed("CrashLoopBackOff: why".to_owned()));
    }

    #[test]
    fn a_pod_that_will_never_run_says_so() {
        let ended = json!({"status": {"phase": "Failed", "reason": "Evicted", "message": "no disk"}});
        assert_eq!(PodState::of(&ended), PodState::Failed("Failed: Evicted: no disk".to_owned()));
        assert_eq!(PodState::of(&waiting("InvalidImageName")), PodState::Failed("InvalidImageName: why".to_owned()));
        let pulling = PodState::PullFailing("ErrImagePull: busybox: why".to_owned());
        assert_eq!(PodState::of(&waiting("ErrImagePull")), pulling);
        assert_eq!(PodState::of(&waiting("ContainerCreating")), PodState::Starting(None));
        let reason =
            json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no cpu"}]);
        let unscheduled = PodState::of(&json!({"status": {"phase": "Pending", "conditions": reason}}));
        assert_eq!(unscheduled, PodState::Starting(Some("Unschedulable: no cpu".to_owned())));
    }

    #[test]
    fn only_namespaces_with_our_names_and_labels_are_ours() {
        let labels = |pool: &str, node: &str| {
            BTreeMap::from(
                [("nodepool_pool_name", pool), ("nodepool_node_id", node)].map(|(k, v)| (k.to_owned(), v.to_owned())),
            )
        };
        let is_ours =
            |name: &str, marks: BTreeMap<String, String>| is_our_name(name, marks.get("nodepool_pool_name"), &marks);
        assert!(is_ours("a-b-0000000001", labels("a-b", "0000000001")));
        assert!(!is_ours("main-17", labels("main", "0000000017")));
        assert!(!is_ours("main-17", BTreeMap::new()));
    }
}
