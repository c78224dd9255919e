//! Tests of snapshots with records that are created, deleted or unreadable.

use std::collections::BTreeSet;

use super::*;

#[test]
fn equal_parts_of_node_records_are_shared() {
    let record =
        r#"{"state": "ready", "connection_port": 22, "resources": {"cores": 2}, "attributes": {"a": 1}, "x": 5}"#;
    let node = |mzxid| {
        let record = Arc::new(serde_json::from_str::<Node>(record).unwrap());
        Versioned { record, version: 0, mzxid, mtime_ms: 0 }
    };
    let mut snapshot = Snapshot::default();
    let ids: [NodeId; 2] = ["0000000001".into(), "0000000002".into()];
    assert!(ids.iter().all(|id| snapshot.put_node(id.clone(), node(1))));
    // A later version of the first record, as read from a server, shares values with the version before it.
    assert!(snapshot.put_node(ids[0].clone(), node(2)));
    let [one, other] = ids.map(|id| snapshot.node(&id).unwrap().record.clone());
    assert_eq!(one, other);
    assert!(std::ptr::eq(&**one.resources.as_ref().unwrap(), &**other.resources.as_ref().unwrap()));
    assert!(std::ptr::eq(&*one.attributes, &*other.attributes) && std::ptr::eq(&*one.extra, &*other.extra));
    assert!(std::ptr::eq(&*one.connection_port, &*other.connection_port));
}

// imbl 6 lost differences that followed a run of shared nodes (https://github.com/jneem/imbl/issues/161).
#[test]
fn each_of_many_nodes_that_changes_alone_is_a_difference() {
    let node = |mzxid| versioned::<Node>(r#"{"state": "ready"}"#, mzxid);
    let mut snapshot = Snapshot::default();
    let ids: Vec<NodeId> = (0..1000).map(|id| format!("{id:010}").into()).collect();
    assert!(ids.iter().all(|id| snapshot.put_node(id.clone(), node(1))));
    for (id, mzxid) in ids.iter().zip(2..) {
        let before = snapshot.clone();
        snapshot.put_node(id.clone(), node(mzxid));
        assert_eq!(snapshot.nodes_changed_since(&before), BTreeSet::from([id.clone()]));
    }
}

fn versioned<T>(record: &str, mzxid: i64) -> Versioned<T>
where
    T: serde::de::DeserializeOwned,
{
    Versioned { record: Arc::new(serde_json::from_str(record).unwrap()), version: 0, mzxid, mtime_ms: 0 }
}

fn locked() -> LockState {
    LockState { exists: true, contenders: ["one".to_owned()].into(), mtime_ms: 0 }
}

#[test]
fn an_unreadable_request_still_exists() {
    let (request, node): (RequestId, NodeId) = ("100-0000000001".into(), "0000000001".into());
    let mut snapshot = Snapshot::default();
    let orphan_counts = |snapshot: &Snapshot| (snapshot.orphaned_nodes().count(), snapshot.orphaned_launches().count());
    snapshot.put_node(node, versioned(r#"{"state": "init", "allocated_to": "100-0000000001"}"#, 1));
    assert_eq!(orphan_counts(&snapshot), (1, 1));
    snapshot.set_request_unreadable(&request);
    assert_eq!(orphan_counts(&snapshot), (0, 0), "an unreadable request exists");
    assert!(snapshot.put_request(request.clone(), versioned(r#"{"state": "pending"}"#, 2)));
    assert_eq!(orphan_counts(&snapshot), (0, 0));
    snapshot.set_request_unreadable(&request);
    assert!(snapshot.has_request(&request) && snapshot.request(&request).is_none() && snapshot.open_count() == 0);
    assert_eq!((orphan_counts(&snapshot), snapshot.pending_unlocked_requests().count()), ((0, 0), 0));
    snapshot.remove_request(&request);
    assert_eq!(orphan_counts(&snapshot), (1, 1));
    assert!(!snapshot.has_request(&request));
}

#[test]
fn a_node_lock_is_known_while_its_record_is_unreadable() {
    let node: NodeId = "0000000001".into();
    let mut snapshot = Snapshot::default();
    let record = r#"{"state": "ready", "provider": "p", "pool": "main", "type": ["small"]}"#;
    let pool = PoolId { provider: "p".into(), pool: "main".into() };
    snapshot.put_node(node.clone(), versioned(record, 1));
    assert_eq!(snapshot.idle_count(&pool, &"small".into()), 1);
    snapshot.drop_node_record(&node);
    snapshot.set_node_lock(node.clone(), locked());
    snapshot.put_node(node.clone(), versioned(record, 2));
    assert!(snapshot.is_node_locked(&node));
    assert_eq!(snapshot.idle_count(&pool, &"small".into()), 0);
    snapshot.drop_node_record(&node);
    snapshot.remove_node(&node);
    assert!(!snapshot.has_node(&node) && !snapshot.is_node_locked(&node));
}
