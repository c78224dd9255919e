//! Node record: states, allowed state changes, and JSON exactly as Zuul and older peers read it.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::ids::{LabelName, PoolId, PoolName, ProviderName, RequestId, TenantName};
use super::interned::{Json, JsonMap};
use super::time::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    Init,
    Building,
    Testing,
    Ready,
    InUse,
    Used,
    Hold,
    Deleting,
    Failed,
    Aborted,
    Deleted,
}

/// Party on whose behalf a record changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    Launcher,
    /// A consumer of nodes: Zuul, or `nodepool request`.
    Consumer,
    /// The CLI's `hold` and `delete`.
    Operator,
}

impl NodeState {
    pub const ALL: [NodeState; 11] = [
        NodeState::Init,
        NodeState::Building,
        NodeState::Testing,
        NodeState::Ready,
        NodeState::InUse,
        NodeState::Used,
        NodeState::Hold,
        NodeState::Deleting,
        NodeState::Failed,
        NodeState::Aborted,
        NodeState::Deleted,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            NodeState::Init => "init",
            NodeState::Building => "building",
            NodeState::Testing => "testing",
            NodeState::Ready => "ready",
            NodeState::InUse => "in-use",
            NodeState::Used => "used",
            NodeState::Hold => "hold",
            NodeState::Deleting => "deleting",
            NodeState::Failed => "failed",
            NodeState::Aborted => "aborted",
            NodeState::Deleted => "deleted",
        }
    }

    /// Whether `by` may change a node from this state to `next`. Asserted before every write of this program.
    pub fn may_become(self, next: NodeState, by: Writer) -> bool {
        use NodeState::*;
        match by {
            Writer::Operator => return matches!(next, Hold | Deleting),
            Writer::Consumer => {
                return matches!((self, next), (Ready, InUse) | (InUse, Used) | (InUse, Hold) | (Hold, Used));
            }
            Writer::Launcher => {}
        }
        match self {
            Init => matches!(next, Building | Deleting),
            Building => matches!(next, Ready | Aborted | Failed | Deleting),
            // Ready to ready: allocated or released.
            Ready => matches!(next, Ready | Deleting),
            Hold => matches!(next, Deleting),
            Testing | InUse | Used | Failed | Aborted => matches!(next, Deleting),
            Deleting => matches!(next, Deleting | Deleted),
            Deleted => matches!(next, Deleted),
        }
    }

    /// Whether the node can no longer become usable, although its record may exist for a long time.
    pub fn is_final(self) -> bool {
        use NodeState::*;
        match self {
            Used | Failed | Aborted | Deleting | Deleted => true,
            Init | Building | Testing | Ready | InUse | Hold => false,
        }
    }

    /// Whether an unlocked node in this state no longer has a user and is deleted.
    pub fn is_finished(self) -> bool {
        use NodeState::*;
        match self {
            InUse | Used | Building | Failed | Aborted | Deleting | Deleted => true,
            Init | Testing | Ready | Hold => false,
        }
    }
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Port of a record that names none. It is shared, because the parser of every record starts with it.
static SSH_PORT: LazyLock<Json> = LazyLock::new(|| Value::from(22).into());

/// Record of one node. The node's id is part of the znode's path, not of the record.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub state: NodeState,
    pub state_time: Timestamp,
    pub cloud: Option<String>,
    pub provider: Option<ProviderName>,
    pub pool: Option<PoolName>,
    /// The first label is the one used for launch and quota.
    pub labels: Vec<LabelName>,
    pub allocated_to: Option<RequestId>,
    pub az: Option<String>,
    pub region: Option<String>,
    pub public_ipv4: Option<String>,
    pub private_ipv4: Option<String>,
    pub public_ipv6: Option<String>,
    pub host_id: Option<String>,
    pub interface_ip: Option<String>,
    /// A number, or credentials of a container driver, or null after Zuul cleared them.
    pub connection_port: Json,
    pub image_id: Option<String>,
    pub launcher: Option<String>,
    pub created_time: Option<Timestamp>,
    /// Text or an object, depending on the driver; null means that no cloud resource has to be deleted.
    pub external_id: Json,
    pub hostname: Option<String>,
    pub comment: Option<String>,
    pub user_data: Json,
    pub hold_job: Option<String>,
    pub host_keys: Vec<String>,
    pub username: Option<String>,
    pub connection_type: Option<String>,
    pub shell_type: Option<String>,
    /// Maximum seconds in `hold`; with 0 the node has no limit of its own.
    pub hold_expiration: Option<i64>,
    pub resources: Option<JsonMap>,
    pub slot: Option<i64>,
    pub attributes: Json,
    pub python_path: Option<String>,
    pub tenant_name: Option<TenantName>,
    pub driver_data: Json,
    pub requestor: Option<String>,
    pub node_properties: Json,
    /// Keys of other programs (Zuul adds `id`), written back unchanged.
    pub extra: JsonMap,
}

impl Node {
    pub fn new(state: NodeState, now: Timestamp) -> Self {
        let node_properties = Value::Object(Map::new()).into();
        Self { state, state_time: now, created_time: Some(now), node_properties, ..Self::defaults() }
    }

    /// Values of a record without any keys.
    fn defaults() -> Self {
        Self {
            state: NodeState::Init,
            state_time: Timestamp(0.0),
            cloud: None,
            provider: None,
            pool: None,
            labels: Vec::new(),
            allocated_to: None,
            az: None,
            region: None,
            public_ipv4: None,
            private_ipv4: None,
            public_ipv6: None,
            host_id: None,
            interface_ip: None,
            connection_port: SSH_PORT.clone(),
            image_id: None,
            launcher: None,
            created_time: None,
            external_id: Json::default(),
            hostname: None,
            comment: None,
            user_data: Json::default(),
            hold_job: None,
            host_keys: Vec::new(),
            username: Some("zuul".to_owned()),
            connection_type: None,
            shell_type: None,
            hold_expiration: None,
            resources: None,
            slot: None,
            attributes: Json::default(),
            python_path: None,
            tenant_name: None,
            driver_data: Json::default(),
            requestor: None,
            node_properties: Json::default(),
            extra: JsonMap::default(),
        }
    }

    /// Shares the allocations of equal values. Nodes of one label differ in few values.
    pub fn share_with(&mut self, other: &Node) {
        for (own, other) in [
            (&mut self.connection_port, &other.connection_port),
            (&mut self.user_data, &other.user_data),
            (&mut self.attributes, &other.attributes),
            (&mut self.driver_data, &other.driver_data),
            (&mut self.node_properties, &other.node_properties),
        ] {
            own.share_with(other);
        }
        self.extra.share_with(&other.extra);
        if let (Some(own), Some(other)) = (&mut self.resources, &other.resources) {
            own.share_with(other);
        }
    }

    /// Sets the state and its time, also if the state stays the same.
    pub fn set_state(&mut self, next: NodeState, by: Writer, now: Timestamp) {
        assert!(self.state.may_become(next, by), "{by:?} may not change a node from {} to {next}", self.state);
        self.state = next;
        self.state_time = now;
    }

    /// Whether this pool launched the node.
    pub fn belongs_to(&self, pool: &PoolId) -> bool {
        self.provider.as_ref() == Some(&pool.provider) && self.pool.as_ref() == Some(&pool.pool)
    }

    /// Ready and not allocated. An empty `allocated_to` counts as none.
    pub fn is_idle(&self) -> bool {
        self.state == NodeState::Ready && self.allocation().is_none()
    }

    pub fn allocation(&self) -> Option<&RequestId> {
        self.allocated_to.as_ref().filter(|id| !id.as_str().is_empty())
    }

    /// The pool that the node belongs to, if the record names one.
    pub fn pool_id(&self) -> Option<PoolId> {
        Some(PoolId { provider: self.provider.clone()?, pool: self.pool.clone()? })
    }

    /// The port as a number; `None` for credentials of container drivers, which are never shown.
    pub fn port(&self) -> Option<i64> {
        match &*self.connection_port {
            Value::Number(number) => number.as_i64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        }
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("state", &self.state)?;
        map.serialize_entry("state_time", &self.state_time)?;
        map.serialize_entry("cloud", &self.cloud)?;
        map.serialize_entry("provider", &self.provider)?;
        map.serialize_entry("pool", &self.pool)?;
        map.serialize_entry("type", &self.labels)?;
        map.serialize_entry("allocated_to", &self.allocated_to)?;
        map.serialize_entry("az", &self.az)?;
        map.serialize_entry("region", &self.region)?;
        map.serialize_entry("public_ipv4", &self.public_ipv4)?;
        map.serialize_entry("private_ipv4", &self.private_ipv4)?;
        map.serialize_entry("public_ipv6", &self.public_ipv6)?;
        map.serialize_entry("host_id", &self.host_id)?;
        map.serialize_entry("interface_ip", &self.interface_ip)?;
        map.serialize_entry("connection_port", &self.connection_port)?;
        // Old readers know only this name of the port.
        map.serialize_entry("ssh_port", &self.connection_port)?;
        map.serialize_entry("image_id", &self.image_id)?;
        map.serialize_entry("launcher", &self.launcher)?;
        map.serialize_entry("created_time", &self.created_time)?;
        map.serialize_entry("external_id", &self.external_id)?;
        map.serialize_entry("hostname", &self.hostname)?;
        map.serialize_entry("comment", &self.comment)?;
        map.serialize_entry("user_data", &self.user_data)?;
        map.serialize_entry("hold_job", &self.hold_job)?;
        map.serialize_entry("host_keys", &self.host_keys)?;
        map.serialize_entry("username", &self.username)?;
        map.serialize_entry("connection_type", &self.connection_type)?;
        map.serialize_entry("shell_type", &self.shell_type)?;
        map.serialize_entry("hold_expiration", &self.hold_expiration)?;
        map.serialize_entry("resources", &self.resources)?;
        map.serialize_entry("slot", &self.slot)?;
        map.serialize_entry("attributes", &self.attributes)?;
        map.serialize_entry("python_path", &self.python_path)?;
        map.serialize_entry("tenant_name", &self.tenant_name)?;
        map.serialize_entry("driver_data", &self.driver_data)?;
        map.serialize_entry("requestor", &self.requestor)?;
        map.serialize_entry("node_properties", &self.node_properties)?;
        for (key, value) in &*self.extra {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(NodeVisitor)
    }
}

/// Keys are borrowed from the document; only unknown ones are copied.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a node record (a JSON object)")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut node = Node::defaults();
        let (mut state, mut state_time, mut old_port, mut port) = (None, None, None, None);
        let mut extra = Map::new();
        while let Some(Key(key)) = map.next_key()? {
            match key.as_ref() {
                "state" => state = Some(map.next_value::<NodeState>()?),
                "state_time" => state_time = map.next_value()?,
                "cloud" => node.cloud = map.next_value()?,
                "provider" => node.provider = map.next_value()?,
                "pool" => node.pool = map.next_value()?,
                "type" => node.labels = map.next_value::<OneOrMany>()?.0,
                "allocated_to" => node.allocated_to = map.next_value()?,
                "az" => node.az = map.next_value()?,
                "region" => node.region = map.next_value()?,
                "public_ipv4" => node.public_ipv4 = map.next_value()?,
                "private_ipv4" => node.private_ipv4 = map.next_value()?,
                "public_ipv6" => node.public_ipv6 = map.next_value()?,
                "host_id" => node.host_id = map.next_value()?,
                "interface_ip" => node.interface_ip = map.next_value()?,
                "connection_port" => port = Some(map.next_value()?),
                "ssh_port" => old_port = Some(map.next_value()?),
                "image_id" => node.image_id = map.next_value()?,
                "launcher" => node.launcher = map.next_value()?,
                "created_time" => node.created_time = map.next_value()?,
                "external_id" => node.external_id = map.next_value()?,
                "hostname" => node.hostname = map.next_value()?,
                "comment" => node.comment = map.next_value()?,
                "user_data" => node.user_data = map.next_value()?,
                "hold_job" => node.hold_job = map.next_value()?,
                "host_keys" => node.host_keys = map.next_value::<Option<_>>()?.unwrap_or_default(),
                "username" => node.username = map.next_value()?,
                "connection_type" => node.connection_type = map.next_value()?,
                "shell_type" => node.shell_type = map.next_value()?,
                "hold_expiration" => node.hold_expiration = whole_seconds(&map.next_value()?),
                "resources" => node.resources = map.next_value()?,
                "slot" => node.slot = map.next_value()?,
                "attributes" => node.attributes = map.next_value()?,
                "python_path" => node.python_path = map.next_value()?,
                "tenant_name" => node.tenant_name = map.next_value()?,
                "driver_data" => node.driver_data = map.next_value()?,
                "requestor" => node.requestor = map.next_value()?,
                "node_properties" => node.node_properties = map.next_value()?,
                _ => {
                    let value: Value = map.next_value()?;
                    extra.insert(key.into_owned(), value);
                }
            }
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        node.state = state.ok_or_else(|| A::Error::missing_field("state"))?;
        node.state_time = state_time.unwrap_or_default();
        node.extra = extra.into();
        node.connection_port = port.or(old_port).unwrap_or(node.connection_port);
        Ok(node)
    }
}

/// Old records have a plain text as `type`.
struct OneOrMany(Vec<LabelName>);

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LabelsVisitor)
    }
}

struct LabelsVisitor;

impl<'de> Visitor<'de> for LabelsVisitor {
    type Value = OneOrMany;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a label or a list of labels")
    }

    fn visit_str<E: serde::de::Error>(self, label: &str) -> Result<OneOrMany, E> {
        Ok(OneOrMany(vec![label.into()]))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<OneOrMany, E> {
        Ok(OneOrMany(Vec::new()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut labels: A) -> Result<OneOrMany, A::Error> {
        let mut all = Vec::with_capacity(1);
        while let Some(label) = labels.next_element()? {
            all.push(label);
        }
        Ok(OneOrMany(all))
    }
}

/// Older versions of Zuul write `hold_expiration` as text; text that is not a number counts as 0.
fn whole_seconds(value: &Value) -> Option<i64> {
    match value {
        Value::Null => None,
        Value::Number(number) => Some(number.as_i64().or(number.as_f64().map(|f| f as i64)).unwrap_or(0)),
        Value::String(text) => Some(text.trim().parse().unwrap_or(0)),
        _ => Some(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::json;

    fn read(text: &str) -> Node {
        json::from_bytes(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_record_with_only_a_state_has_the_documented_defaults() {
        let node = read(r#"{"state": "ready"}"#);
        assert_eq!((node.port(), node.username.as_deref()), (Some(22), Some("zuul")));
        assert_eq!((node.host_keys.len(), node.provider, node.labels.len()), (0, None, 0));
    }

    #[test]
    fn the_old_port_key_is_read_and_both_are_written() {
        let node = read(r#"{"state": "ready", "ssh_port": 2222}"#);
        assert_eq!(node.port(), Some(2222));
        let written = String::from_utf8(json::to_bytes(&node)).unwrap();
        assert!(written.contains(r#""connection_port": 2222, "ssh_port": 2222"#), "{written}");
    }

    #[test]
    fn bare_types_and_odd_hold_expirations_are_understood() {
        assert_eq!(read(r#"{"state": "ready", "type": "small"}"#).labels, [LabelName::from("small")]);
        for (text, expected) in [(r#""600""#, Some(600)), (r#""abc""#, Some(0)), ("null", None), ("5", Some(5))] {
            let node = read(&format!(r#"{{"state": "hold", "hold_expiration": {text}}}"#));
            assert_eq!(node.hold_expiration, expected, "{text}");
        }
    }

    #[test]
    fn unknown_keys_survive_and_a_null_username_stays_null() {
        let node = read(r#"{"state": "used", "id": "0000000001", "username": null, "x": {"y": [1]}}"#);
        let again: Node = json::from_bytes(&json::to_bytes(&node)).unwrap();
        assert_eq!(again, node);
        assert_eq!((again.extra.len(), again.username), (2, None));
    }

    #[test]
    fn unknown_and_missing_states_are_rejected() {
        assert!(json::from_bytes::<Node>(br#"{"state": "sleeping"}"#).is_err());
        assert!(json::from_bytes::<Node>(b"{}").is_err());
        assert!(json::from_bytes::<Node>(b"[1]").is_err());
    }
}
