//! What a picture shows of records that come, go, and cannot be read.

use super::*;

#[test]
fn nodes_that_are_alike_share_what_they_have_in_common() {
    let record =
        r#"{"state": "ready", "connection_port": 22, "resources": {"cores": 2}, "attributes": {"a": 1}, "x": 5}"#;
    let node = |mzxid| {
        let record = Arc::new(serde_json::from_str::<Node>(record).unwrap());
        Stored { record, version: 0, mzxid, mtime_ms: 0 }
    };
    let mut snapshot = Snapshot::default();
    let ids: [NodeId; 2] = ["0000000001".into(), "0000000002".into()];
    assert!(ids.iter().all(|id| snapshot.put_node(id.clone(), node(1))));
    // A later version of the first one as read from a server shares with the one before.
    assert!(snapshot.put_node(ids[0].clone(), node(2)));
    let [one, other] = ids.map(|id| snapshot.node(&id).unwrap().record.clone());
    assert_eq!(one, other);
    assert!(std::ptr::eq(&**one.resources.as_ref().unwrap(), &**other.resources.as_ref().unwrap()));
    assert!(std::ptr::eq(&*one.attributes, &*other.attributes) && std::ptr::eq(&*one.extra, &*other.extra));
    assert!(std::ptr::eq(&*one.connection_port, &*other.connection_port));
}

fn known<T>(record: &str, mzxid: i64) -> Stored<T>
where
    T: serde::de::DeserializeOwned,
{
    Stored { record: Arc::new(serde_json::from_str(record).unwrap()), version: 0, mzxid, mtime_ms: 0 }
}

fn held() -> LockView {
    LockView { exists: true, contenders: ["one".to_owned()].into(), mtime_ms: 0 }
}

#[test]
fn a_request_that_cannot_be_read_has_not_gone() {
    let (request, node): (RequestId, NodeId) = ("100-0000000001".into(), "0000000001".into());
    let mut snapshot = Snapshot::default();
    let orphans = |snapshot: &Snapshot| (snapshot.orphaned_nodes().count(), snapshot.unwanted_nodes().count());
    snapshot.put_node(node, known(r#"{"state": "init", "allocated_to": "100-0000000001"}"#, 1));
    assert_eq!(orphans(&snapshot), (1, 1));
    snapshot.lose_request(&request);
    assert_eq!(orphans(&snapshot), (0, 0), "it came, and says nothing");
    assert!(snapshot.put_request(request.clone(), known(r#"{"state": "pending"}"#, 2)));
    assert_eq!(orphans(&snapshot), (0, 0));
    snapshot.lose_request(&request);
    assert!(snapshot.has_request(&request) && snapshot.request(&request).is_none() && snapshot.open_count() == 0);
    assert_eq!((orphans(&snapshot), snapshot.unheld_requests().count()), ((0, 0), 0));
    snapshot.remove_request(&request);
    assert_eq!(orphans(&snapshot), (1, 1));
    assert!(!snapshot.has_request(&request));
}

#[test]
fn who_holds_a_node_is_known_while_its_record_cannot_be_read() {
    let node: NodeId = "0000000001".into();
    let mut snapshot = Snapshot::default();
    let record = r#"{"state": "ready", "provider": "p", "pool": "main", "type": ["small"]}"#;
    let pool = PoolId { provider: "p".into(), pool: "main".into() };
    snapshot.put_node(node.clone(), known(record, 1));
    assert_eq!(snapshot.idle_count(&pool, &"small".into()), 1);
    snapshot.lose_node(&node);
    snapshot.set_node_lock(node.clone(), held());
    snapshot.put_node(node.clone(), known(record, 2));
    assert!(snapshot.is_node_locked(&node));
    assert_eq!(snapshot.idle_count(&pool, &"small".into()), 0);
    snapshot.lose_node(&node);
    snapshot.remove_node(&node);
    assert!(!snapshot.has_node(&node) && !snapshot.is_node_locked(&node));
}
