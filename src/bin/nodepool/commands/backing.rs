//! Backing nodes of metastatic providers: the command `retire`, and what `info` and `why` show of them.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use nodepool::actors::web::live_view::{BackingNodeStatus, ProviderStats};
use nodepool_model::records::backing::{BackingRecord, Slot, owner_id};
use nodepool_model::records::ids::{NodeId, ProviderName};
use nodepool_model::records::json;
use nodepool_model::report::table::Table;
use nodepool_zk::tools::scan::{self, NodeEntry};
use nodepool_zk::{Connection, paths};
use serde_json::{Value, json};
use zookeeper_server::types::ZkError;

use super::nodes;
use crate::output::Output;

/// Attempts to write a record that its owner changes, too.
const WRITE_ATTEMPTS: usize = 10;

/// Marks a backing node, so that it gets no more nodes and is released when its slots are empty. The write depends on
/// the version alone, because the owner holds the lock for good.
pub async fn retire(zk: &dyn Connection, output: &mut Output<'_>, id: &NodeId) -> anyhow::Result<()> {
    let path = paths::node(id);
    for _ in 0..WRITE_ATTEMPTS {
        let entry = match nodes::is_path_element(id.as_str()) {
            true => nodes::read(zk, id).await?,
            false => None,
        };
        let Some(entry) = entry else { return nodes::not_found(output, id) };
        let Some(record) = BackingRecord::of_any_owner(&entry.stored.record) else {
            bail!("node {id} is no backing node of a metastatic provider; `nodepool info PROVIDER` lists those");
        };
        if record.failed {
            return nodes::show(zk, output, id, "already retired").await;
        }
        let mut node = (*entry.stored.record).clone();
        node.user_data = record.retired().to_user_data();
        match zk.set(&path, json::to_bytes(&node).into(), entry.stored.version).await {
            Ok(_) => return nodes::show(zk, output, id, "retired").await,
            Err(ZkError::BadVersion) => {}
            Err(ZkError::NoNode) => return nodes::not_found(output, id),
            Err(error) => return Err(error).with_context(|| format!("cannot write {path}")),
        }
    }
    bail!("{path} keeps changing")
}

/// A backing node with the nodes in its slots, in the order of the slots.
pub struct BackingEntry {
    entry: NodeEntry,
    record: BackingRecord,
    occupants: Vec<(u32, NodeId)>,
}

/// The backing nodes of a provider.
pub async fn of_provider(zk: &dyn Connection, provider: &ProviderName) -> anyhow::Result<Vec<BackingEntry>> {
    let owner = owner_id(provider);
    let (mut found, mut occupants) = (Vec::<BackingEntry>::new(), BTreeMap::<NodeId, Vec<(u32, NodeId)>>::new());
    for entry in scan::nodes(zk).await?.found {
        let node = &entry.stored.record;
        if let (Some(slot), true) = (Slot::of(node), node.provider.as_ref() == Some(provider)) {
            occupants.entry(slot.backing_node).or_default().push((slot.number, entry.id.clone()));
        }
        if let Some(record) = BackingRecord::of(node, &owner) {
            found.push(BackingEntry { entry, record, occupants: Vec::new() });
        }
    }
    for backing in &mut found {
        backing.occupants = occupants.remove(&backing.entry.id).unwrap_or_default();
        backing.occupants.sort();
    }
    Ok(found)
}

/// Shows the backing nodes, and what the launchers know about their release.
pub fn show(output: &mut Output<'_>, found: &[BackingEntry], launchers: &[ProviderStats]) -> anyhow::Result<Value> {
    let known: BTreeMap<&NodeId, &BackingNodeStatus> =
        launchers.iter().flat_map(|stats| &stats.backing_nodes).map(|status| (&status.node, status)).collect();
    output.print("\nBacking nodes:")?;
    let mut table = Table::new(["ID", "Label", "State", "Slots", "Nodes", "Retired", "Idle", "Released in"]);
    let mut shown = Vec::new();
    for BackingEntry { entry, record, occupants } in found {
        let status = known.get(&entry.id);
        let (idle, release) = (status.and_then(|s| s.idle_s), status.and_then(|s| s.released_in_s));
        let seconds = |number: Option<f64>| number.map_or_else(String::new, |number| format!("{number} s"));
        let nodes = occupants.iter().map(|(slot, node)| format!("{slot}: {node}")).collect::<Vec<_>>().join(", ");
        table.push([
            entry.id.to_string(),
            record.label.to_string(),
            entry.stored.record.state.as_str().to_owned(),
            format!("{} of {}", occupants.len(), record.slots),
            nodes,
            if record.failed { "yes" } else { "no" }.to_owned(),
            seconds(idle),
            seconds(release),
        ]);
        shown.push(json!({
            "id": entry.id, "label": record.label, "state": entry.stored.record.state, "slots": record.slots,
            "nodes": occupants, "retired": record.failed, "launched": record.launched,
            "idle_s": idle, "released_in_s": release,
        }));
    }
    output.print(table)?;
    Ok(shown.into())
}

/// Sentences about the slots of these nodes.
pub async fn slots(zk: &dyn Connection, ids: &[NodeId]) -> anyhow::Result<Vec<String>> {
    let mut sentences = Vec::new();
    for id in ids {
        let Some(Ok(entry)) = scan::node(zk, id).await? else { continue };
        if let Some(slot) = Slot::of(&entry.stored.record) {
            sentences.push(format!("node {id} is in slot {} of backing node {}", slot.number, slot.backing_node));
        }
    }
    Ok(sentences)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OutputFormat;
    use crate::testing::{TestStore, capture};

    const BACKING: &str = r#"{"state": "in-use", "state_time": 1.0, "provider": "cloud", "type": ["big"], "user_data":
        "{\"owner\":\"NodePool:metastatic:meta\",\"label\":\"small\",\"slots\":2,\"failed\":false,\"launched\":7.5}"}"#;
    const SMALL: &str = r#"{"state": "ready", "state_time": 1.0, "provider": "meta", "type": ["small"],
        "driver_data": {"backing_node": "0000000001", "slot": 1, "node": "0000000002"}}"#;

    async fn store() -> TestStore {
        let store = TestStore::new();
        store.put("/nodepool/nodes/0000000001", BACKING).await;
        store.put("/nodepool/nodes/0000000002", SMALL).await;
        store
    }

    #[actix_rt::test]
    async fn a_backing_node_is_retired_once_although_its_lock_is_held() {
        let store = store().await;
        store.put("/nodepool/nodes/0000000001/lock/x__lock__0000000000", "NodePool:metastatic:meta").await;
        for outcome in ["retired", "already retired"] {
            let run = async |output: &mut Output<'_>| retire(store.zk.as_ref(), output, &"0000000001".into()).await;
            let captured = capture(OutputFormat::Json, run).await;
            assert!(captured.out.contains(&format!(r#""outcome":"{outcome}""#)), "{}", captured.out);
            assert!(captured.out.contains(r#"\"failed\":true"#), "{}", captured.out);
        }
    }

    #[actix_rt::test]
    async fn other_nodes_cannot_be_retired() {
        let store = store().await;
        let small = async |output: &mut Output<'_>| retire(store.zk.as_ref(), output, &"0000000002".into()).await;
        let captured = capture(OutputFormat::Table, small).await;
        assert!(format!("{captured:?}").contains("is no backing node"), "{captured:?}");
        for id in ["0000000009", "../x"] {
            let run = async |output: &mut Output<'_>| retire(store.zk.as_ref(), output, &id.into()).await;
            let captured = capture(OutputFormat::Table, run).await;
            assert!(captured.out.contains("not found"), "{}", captured.out);
        }
    }

    #[actix_rt::test]
    async fn backing_nodes_are_shown_with_their_slots() {
        let store = store().await;
        let found = of_provider(store.zk.as_ref(), &"meta".into()).await.unwrap();
        let run = async |output: &mut Output<'_>| show(output, &found, &[]).map(drop);
        let captured = capture(OutputFormat::Table, run).await;
        let row: Vec<&str> = captured.out.lines().nth(5).unwrap_or_default().split('|').map(str::trim).collect();
        assert_eq!(row[1..7], ["0000000001", "small", "in-use", "1 of 2", "1: 0000000002", "no"], "{}", captured.out);
        let sentences = slots(store.zk.as_ref(), &["0000000001".into(), "0000000002".into()]).await.unwrap();
        assert_eq!(sentences, ["node 0000000002 is in slot 1 of backing node 0000000001"]);
    }
}
