//! Instances of a cloud, and the inventory of all that are visible to a provider.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use nodepool_model::records::ids::{ExternalId, NodeId, ProviderName};
use nodepool_model::records::resources::Resources;

/// An instance of a cloud, such as a server. It can serve a request once it runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Instance {
    pub external_id: ExternalId,
    /// The address Zuul connects to.
    pub interface_ip: Option<String>,
    pub public_ipv4: Option<String>,
    pub public_ipv6: Option<String>,
    pub private_ipv4: Option<String>,
    pub private_ipv6: Option<String>,
    pub cloud: Option<String>,
    pub zone: Option<String>,
    pub region: Option<String>,
    /// The hypervisor, if the cloud reports it.
    pub host_id: Option<String>,
    pub metadata: BTreeMap<String, String>,
    /// Part of the limits that the instance takes.
    pub resources: Resources,
    pub state: InstanceState,
    /// Connection data, if the cloud decides them at the launch; else the label's login holds.
    pub login: Option<Arc<InstanceLogin>>,
    /// Attributes of the node, unless the pool sets them.
    pub attributes: Map<String, Value>,
    /// Properties that only a launch determines, for `node_properties` of the node's record.
    pub node_properties: Map<String, Value>,
}

/// Connection data of a node that only a launch determines, such as the credentials of a pod's namespace.
#[derive(Clone, PartialEq)]
pub struct InstanceLogin {
    pub username: Option<String>,
    pub connection_type: Option<String>,
    /// Written to `connection_port` of the node's record. It contains secrets, so it is not shown.
    pub connection_port: Value,
    pub python_path: Option<String>,
    pub shell_type: Option<String>,
    /// Known host keys; those that a scan gathers replace them.
    pub host_keys: Vec<String>,
}

impl InstanceLogin {
    /// The port, if connections are made to one.
    pub fn port(&self) -> Option<u16> {
        self.connection_port.as_u64().and_then(|port| u16::try_from(port).ok())
    }
}

impl fmt::Debug for InstanceLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InstanceLogin").field("connection_type", &self.connection_type).finish_non_exhaustive()
    }
}

impl Serialize for InstanceLogin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.connection_type.serialize(serializer)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum InstanceState {
    Starting,
    Running,
    /// The instance failed, with the cloud's description of the fault.
    Failed(String),
    Stopping,
}

impl Instance {
    /// An instance of which only the id is known.
    pub fn new(external_id: ExternalId) -> Self {
        Self {
            external_id,
            interface_ip: None,
            public_ipv4: None,
            public_ipv6: None,
            private_ipv4: None,
            private_ipv6: None,
            cloud: None,
            zone: None,
            region: None,
            host_id: None,
            metadata: BTreeMap::new(),
            resources: Resources::none(),
            state: InstanceState::Running,
            login: None,
            attributes: Map::new(),
            node_properties: Map::new(),
        }
    }

    /// Whether this provider created it.
    pub fn belongs_to(&self, provider: &ProviderName) -> bool {
        self.metadata.get("nodepool_provider_name").is_some_and(|name| name == provider.as_str())
    }

    /// Id of the node that the instance was created for.
    pub fn node(&self) -> Option<&str> {
        self.metadata.get("nodepool_node_id").map(String::as_str)
    }
}

/// A complete list of the instances that are visible to the provider, ours or not.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Inventory {
    instances: Vec<Instance>,
    /// Instances of our nodes that do not exist any more, if the cloud still lists them.
    ended: BTreeMap<NodeId, Vec<ExternalId>>,
    /// Index of the instances whose id is a text.
    #[serde(skip)]
    by_text: HashMap<String, usize>,
    /// Index of the others.
    #[serde(skip)]
    by_parts: HashMap<String, usize>,
}

impl Inventory {
    pub fn new(instances: Vec<Instance>) -> Self {
        let (mut by_text, mut by_parts) = (HashMap::new(), HashMap::new());
        for (index, instance) in instances.iter().enumerate() {
            match &instance.external_id {
                ExternalId::Text(id) => by_text.insert(id.clone(), index),
                ExternalId::Object(parts) => by_parts.insert(key_of(parts), index),
            };
        }
        Self { instances, ended: BTreeMap::new(), by_text, by_parts }
    }

    pub fn instances(&self) -> &[Instance] {
        &self.instances
    }

    /// Part of the limits that instances of other owners take.
    pub fn used_by_others(&self, provider: &ProviderName) -> Resources {
        let mut total = Resources::none();
        self.instances
            .iter()
            .filter(|instance| !instance.belongs_to(provider))
            .for_each(|other| total.add(&other.resources));
        total
    }

    /// Zones of the provider's nodes.
    pub fn zones(&self, provider: &ProviderName) -> BTreeMap<NodeId, String> {
        let ours = self.instances.iter().filter(|instance| instance.belongs_to(provider));
        ours.filter_map(|instance| Some((NodeId::from(instance.node()?), instance.zone.clone()?))).collect()
    }

    /// The inventory with this instance of one of our nodes, which does not exist any more.
    pub fn add_ended(&mut self, node: NodeId, instance: ExternalId) {
        self.ended.entry(node).or_default().push(instance);
    }

    /// Instances of the provider's nodes that serve no node any more: they are being deleted, or have been, or failed.
    pub fn ending(&self, provider: &ProviderName) -> BTreeMap<NodeId, Vec<ExternalId>> {
        let mut ending = self.ended.clone();
        for instance in &self.instances {
            if matches!(instance.state, InstanceState::Stopping | InstanceState::Failed(_))
                && instance.belongs_to(provider)
                && let Some(node) = instance.node()
            {
                ending.entry(node.into()).or_default().push(instance.external_id.clone());
            }
        }
        ending
    }

    pub fn find(&self, id: &ExternalId) -> Option<&Instance> {
        let index = match id {
            ExternalId::Text(id) => self.by_text.get(id),
            ExternalId::Object(parts) => self.by_parts.get(&key_of(parts)),
        };
        index.map(|index| &self.instances[*index])
    }
}

/// The same text for equal ids, whatever the order of their parts.
fn key_of(parts: &Map<String, Value>) -> String {
    format!("{:?}", parts.iter().collect::<BTreeMap<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_id_of_several_parts_is_found_whatever_their_order() {
        let id = |text: &str| serde_json::from_str::<ExternalId>(text).unwrap();
        let instances = [id(r#"{"a": 1, "b": 2}"#), ExternalId::text("x")].map(Instance::new);
        let inventory = Inventory::new(instances.to_vec());
        for known in [id(r#"{"b": 2, "a": 1}"#), ExternalId::text("x")] {
            assert_eq!(inventory.find(&known).map(|found| &found.external_id), Some(&known));
        }
        assert!(inventory.find(&id(r#"{"a": 1}"#)).is_none());
    }

    #[test]
    fn credentials_of_a_login_are_not_shown() {
        let login = InstanceLogin {
            username: None,
            connection_type: Some("kubectl".to_owned()),
            connection_port: json!({"token": "hunter2"}),
            python_path: None,
            shell_type: None,
            host_keys: Vec::new(),
        };
        let instance = Instance { login: Some(Arc::new(login)), ..Instance::new(ExternalId::text("i")) };
        let shown = format!("{instance:?} {}", serde_json::to_string(&instance).unwrap());
        assert!(shown.contains("kubectl") && !shown.contains("hunter2"), "{shown}");
    }
}
