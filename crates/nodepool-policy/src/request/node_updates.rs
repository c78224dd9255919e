//! Changes to a node's record during its launch.

use super::handler::allocate;
use super::launch::RecordedId;
use crate::inputs::Inputs;
use crate::scheduler::pool_context::PoolContext;
use nodepool_driver::instance::Instance;
use nodepool_model::records::ids::{ExternalId, LabelName, NodeId, ProviderName, RequestId};
use nodepool_model::records::interned::{Json, JsonMap};
use nodepool_model::records::node::{Node, NodeState, Writer};
use nodepool_model::records::request::NodeRequest;
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Timestamp;
use nodepool_model::snapshot::{NodeChange, Versioned};
use serde_json::Value;

/// Result of a launch: the instance and its host keys.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchedInstance {
    pub instance: Instance,
    pub host_keys: Vec<String>,
}

/// Names the creation of a node: by its installation, provider, id and time, because ids repeat in another ZooKeeper
/// and in one that was restored.
pub(crate) fn identity(provider: &ProviderName, node: &NodeId, inputs: &Inputs<'_>) -> String {
    let created = inputs.snapshot.node(node).and_then(|stored| stored.record.created_time);
    let created = created.unwrap_or_default().0;
    format!("{} {provider} {node} {created}", inputs.snapshot.installation)
}

/// For a finished request: deallocates its node. A node whose launch never started is deleted.
pub(crate) fn deallocate_or_delete(record: &mut Node, now: Timestamp) {
    deallocate(record);
    if record.state == NodeState::Init {
        record.set_state(NodeState::Deleting, Writer::Launcher, now);
    }
}

pub(crate) fn deallocate(record: &mut Node) {
    record.allocated_to = None;
}

pub(crate) fn new_node(
    id: &RequestId,
    request: &NodeRequest,
    label: &LabelName,
    ctx: &PoolContext<'_>,
    now: Timestamp,
) -> Node {
    let mut node = Node::new(NodeState::Init, now);
    node.labels = vec![label.clone()];
    node.provider = Some(ctx.id.provider.clone());
    node.pool = Some(ctx.id.pool.clone());
    node.launcher = Some(ctx.launcher.to_string());
    node.attributes = ctx.pool.node_attributes.clone().unwrap_or_default().into();
    allocate(&mut node, id, request);
    node
}

/// The request's fields that node properties may reference.
pub(crate) fn request_properties(id: &RequestId, request: &NodeRequest) -> serde_json::Value {
    serde_json::json!({
        "id": id, "labels": request.node_types, "requestor": request.requestor,
        "requestor_data": request.requestor_data.value(), "relative_priority": request.relative_priority,
        "event_id": request.event_id, "created_time": request.created_time, "tenant_name": request.tenant_name,
    })
}

/// The value of a record's `external_id`; `None` if it stays as it is.
pub(crate) fn id_value(id: &RecordedId) -> Option<Json> {
    match id {
        RecordedId::Known(id) => Some(known_id_value(id)),
        RecordedId::Void => Some(Json::default()),
        RecordedId::Unchanged => None,
    }
}

fn known_id_value(id: &ExternalId) -> Json {
    serde_json::to_value(id).unwrap_or_default().into()
}

pub(crate) fn resources(resources: &Resources) -> JsonMap {
    let numbers = resources
        .recorded(true)
        .iter()
        .filter(|(_, amount)| amount.is_finite())
        .map(|(name, amount)| (name.to_owned(), number(amount)))
        .collect::<serde_json::Map<_, _>>();
    numbers.into()
}

/// The pool's attributes, and those of the instance that the pool does not set.
fn with_defaults(attributes: &Json, defaults: &serde_json::Map<String, serde_json::Value>) -> Json {
    let mut merged = defaults.clone();
    merged.extend(attributes.as_object().cloned().unwrap_or_default());
    serde_json::Value::Object(merged).into()
}

/// Whole numbers are written without a decimal point, as Nodepool 11 writes them.
fn number(amount: f64) -> serde_json::Value {
    if amount.fract() == 0.0 && amount.abs() < 9e15 { (amount as i64).into() } else { amount.into() }
}

/// Change of a node to `state`; `None` if a writer that ignores locks has set a state that the launcher may not change.
pub(crate) fn state_change(node: &NodeId, state: NodeState, inputs: &Inputs<'_>) -> Option<NodeChange> {
    let stored = inputs.snapshot.node(node)?;
    // A node whose launch never started cannot have failed.
    let next = if stored.record.state == NodeState::Init { NodeState::Deleting } else { state };
    stored.record.state.may_become(next, Writer::Launcher).then_some(())?;
    Some(stored.change(node.clone(), |record| record.set_state(next, Writer::Launcher, inputs.now)))
}

/// The node, if it exists in a state that the launcher may change. A writer that ignores locks can set other states.
pub(crate) fn own_node<'a>(node: &NodeId, inputs: &Inputs<'a>) -> Option<&'a Versioned<Node>> {
    let is_launcher_state =
        |stored: &&Versioned<Node>| stored.record.state.may_become(NodeState::Ready, Writer::Launcher);
    inputs.snapshot.node(node).filter(is_launcher_state)
}

pub(crate) fn ready_change(node: &NodeId, launched: &LaunchedInstance, inputs: &Inputs<'_>) -> Option<NodeChange> {
    let stored = own_node(node, inputs)?;
    Some(stored.change(node.clone(), |record| {
        let instance = &launched.instance;
        record.external_id = known_id_value(&instance.external_id);
        record.interface_ip = instance.interface_ip.clone();
        record.public_ipv4 = instance.public_ipv4.clone();
        record.public_ipv6 = instance.public_ipv6.clone();
        record.private_ipv4 = instance.private_ipv4.clone();
        record.cloud = instance.cloud.clone();
        record.region = instance.region.clone();
        record.az = instance.zone.clone();
        record.host_id = instance.host_id.clone();
        if let Some(login) = &instance.login {
            record.username = login.username.clone();
            record.connection_type = login.connection_type.clone();
            record.connection_port = login.connection_port.clone().into();
            record.python_path = login.python_path.clone();
            record.shell_type = login.shell_type.clone();
            record.host_keys = login.host_keys.clone();
        }
        if !instance.attributes.is_empty() {
            record.attributes = with_defaults(&record.attributes, &instance.attributes);
        }
        if !instance.node_properties.is_empty() {
            record.node_properties = Value::Object(instance.node_properties.clone()).into();
        }
        if !instance.resources.is_empty() {
            record.resources = Some(resources(&instance.resources));
        }
        if !launched.host_keys.is_empty() {
            record.host_keys = launched.host_keys.clone();
        }
        record.set_state(NodeState::Ready, Writer::Launcher, inputs.now);
    }))
}
