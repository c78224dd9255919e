//! Records of the metastatic driver inside node records: `user_data` of a backing node, and `driver_data` of a node in
//! one of its slots. Both are those of Nodepool 11.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ids::{LabelName, NodeId, ProviderName};
use super::interned::Json;
use super::node::{Node, NodeState};
use super::time::Timestamp;

/// Priority of requests for backing nodes.
pub const BACKING_PRIORITY: &str = "100";

const OWNERS: &str = "NodePool:metastatic:";

/// The name under which a metastatic provider requests, locks and owns its backing nodes.
pub fn owner_id(provider: &ProviderName) -> String {
    format!("{OWNERS}{provider}")
}

/// `user_data` of a backing node. The field contains it as a JSON text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackingRecord {
    pub owner: String,
    /// The metastatic label, not the label of the backing node itself.
    pub label: LabelName,
    pub slots: u32,
    /// It gets no more nodes, and is released when its slots are empty.
    #[serde(default)]
    pub failed: bool,
    /// The epoch if it is absent.
    #[serde(default)]
    pub launched: Timestamp,
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl BackingRecord {
    /// The record of a node that `owner` has; whether it also holds the lock is not known here.
    pub fn of(node: &Node, owner: &str) -> Option<Self> {
        let text = node.user_data.as_str().filter(|text| text.contains(owner))?;
        serde_json::from_str(text).ok().filter(|record: &Self| record.owner == owner)
    }

    /// The record of a backing node, whatever provider owns it.
    pub fn of_any_owner(node: &Node) -> Option<Self> {
        serde_json::from_str(node.user_data.as_str()?).ok().filter(|record: &Self| record.owner.starts_with(OWNERS))
    }

    /// The same record of a node that gets no more nodes.
    pub fn retired(&self) -> Self {
        Self { failed: true, ..self.clone() }
    }

    pub fn to_user_data(&self) -> Json {
        Value::from(serde_json::to_string(self).unwrap_or_default()).into()
    }
}

/// The place of a node: a slot of its backing node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Slot {
    pub backing_node: NodeId,
    pub number: u32,
}

impl Slot {
    pub fn of(node: &Node) -> Option<Self> {
        let data = node.driver_data.as_object()?;
        let number = data.get("slot")?.as_u64().and_then(|number| u32::try_from(number).ok())?;
        Some(Self { backing_node: data.get("backing_node")?.as_str()?.into(), number })
    }

    /// Puts a node into this slot. Its external id is its own id.
    pub fn put(&self, id: &NodeId, node: &mut Node) {
        let mut data = Map::new();
        data.insert("metadata".to_owned(), metadata(id, node));
        data.insert("backing_node".to_owned(), self.backing_node.as_str().into());
        data.insert("slot".to_owned(), self.number.into());
        data.insert("node".to_owned(), id.as_str().into());
        node.driver_data = Value::Object(data).into();
        node.slot = Some(i64::from(self.number));
        node.external_id = Json::from(id.as_str());
    }

    /// Takes a node out of its slot.
    pub fn clear(node: &mut Node) {
        if let Some(data) = node.driver_data.as_object() {
            let kept = data.iter().filter(|(key, _)| !["backing_node", "slot"].contains(&key.as_str()));
            let kept: Map<String, Value> = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
            node.driver_data = Value::Object(kept).into();
        }
        node.slot = None;
    }
}

/// The metadata that instances of clouds carry.
fn metadata(id: &NodeId, node: &Node) -> Value {
    serde_json::json!({
        "nodepool_node_id": id, "nodepool_pool_name": node.pool, "nodepool_provider_name": node.provider,
    })
}

/// Whether nodes may be put into the slots of this node, if its owner holds its lock.
pub fn is_backing_state(state: NodeState) -> bool {
    state == NodeState::InUse
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn user_data_is_read_and_written_as_nodepool_11_does() {
        let text = r#"{"owner": "NodePool:metastatic:meta", "label": "small", "slots": 4, "failed": false, "launched": 1795175612.5}"#;
        let mut node = Node::new(NodeState::InUse, Timestamp(1.0));
        node.user_data = Json::from(text);
        let record = BackingRecord::of(&node, &owner_id(&ProviderName::from("meta"))).unwrap();
        assert_eq!((record.slots, record.failed, record.launched), (4, false, Timestamp(1795175612.5)));
        let written: Value = serde_json::from_str(record.to_user_data().as_str().unwrap()).unwrap();
        assert_eq!(written, serde_json::from_str::<Value>(text).unwrap());
        assert_eq!(BackingRecord::of(&node, "NodePool:metastatic:other"), None);
    }

    #[test]
    fn old_and_foreign_user_data_are_tolerated() {
        let mut node = Node::new(NodeState::InUse, Timestamp(1.0));
        let owner = "NodePool:metastatic:meta";
        node.user_data = Json::from(r#"{"owner":"NodePool:metastatic:meta","label":"small","slots":1,"more":[1]}"#);
        let record = BackingRecord::of(&node, owner).unwrap();
        assert_eq!((record.failed, record.launched), (false, Timestamp::default()));
        assert!(record.to_user_data().as_str().unwrap().contains(r#""more":[1]"#));
        let foreign = [
            json!({"zuul_system": "NodePool:metastatic:meta"}),
            json!("NodePool:metastatic:meta"),
            json!(null),
            json!(r#"{"owner":"NodePool:metastatic:meta","label":"small","slots":-1}"#),
        ];
        for data in foreign {
            node.user_data = data.into();
            assert_eq!(BackingRecord::of(&node, owner), None);
        }
    }

    #[test]
    fn a_slot_is_put_into_a_record_and_taken_out_again() {
        let mut node = Node::new(NodeState::Building, Timestamp(1.0));
        (node.provider, node.pool) = (Some("meta".into()), Some("main".into()));
        let slot = Slot { backing_node: "0000000007".into(), number: 2 };
        slot.put(&"0000000009".into(), &mut node);
        let metadata = json!({
            "nodepool_node_id": "0000000009", "nodepool_pool_name": "main", "nodepool_provider_name": "meta",
        });
        let expected = json!({"metadata": metadata, "backing_node": "0000000007", "slot": 2, "node": "0000000009"});
        assert_eq!(*node.driver_data, expected);
        assert_eq!((node.slot, node.external_id.as_str()), (Some(2), Some("0000000009")));
        assert_eq!(Slot::of(&node), Some(slot));
        Slot::clear(&mut node);
        assert_eq!((Slot::of(&node), node.slot), (None, None));
        assert_eq!(*node.driver_data, json!({"metadata": metadata, "node": "0000000009"}));
    }
}
