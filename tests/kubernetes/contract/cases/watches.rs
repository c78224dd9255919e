//! Watches: their events, their selection and their end.

use std::sync::Arc;

use crate::client::TIMEOUT;
use crate::contract::cluster::{Cluster, pod};
use serde_json::{Value, json};
use testkit::wait;

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

pub async fn events(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    let path = format!("{namespace}/pods");
    let list = cluster.nodepool.get(&path).await.expect(200);
    let query = format!("{path}?watch=1&allowWatchBookmarks=1&resourceVersion={}", version(&list));
    let mut watch = cluster.nodepool.watch(&query).await;
    let created = cluster.pod(&namespace, &pod("node", &[("delay-seconds", "0")])).await;
    let added = watch.next().await.unwrap();
    assert_eq!((&added["type"], &added["object"]["kind"]), (&json!("ADDED"), &json!("Pod")), "{added}");
    assert_eq!(added["object"]["metadata"]["uid"], created["metadata"]["uid"]);
    assert_eq!(added["object"]["status"]["phase"], "Pending");
    let (mut last, mut phases) = (version(&added["object"]), vec!["Pending".to_owned()]);
    loop {
        let event = watch.next().await.unwrap();
        let object = &event["object"];
        assert!(version(object) > last, "{event}");
        last = version(object);
        if event["type"] == "BOOKMARK" {
            continue;
        }
        assert_eq!(event["type"], "MODIFIED");
        let phase = object["status"]["phase"].as_str().unwrap().to_owned();
        if phases.last() != Some(&phase) {
            phases.push(phase);
        }
        if phases.last().is_some_and(|phase| phase == "Running") {
            break;
        }
    }
    assert_eq!(phases, ["Pending", "Running"]);
    cluster.nodepool.delete(&format!("{path}/node")).await.expect(200);
    let deleted = loop {
        let event = watch.next().await.unwrap();
        if event["type"] == "DELETED" {
            break event;
        }
        assert!(event["object"]["metadata"]["deletionTimestamp"].is_string(), "{event}");
    };
    assert!(version(&deleted["object"]) > last);
    // The same events again, from the same version.
    let mut again = cluster.nodepool.watch(&query).await;
    assert_eq!(again.next().await.unwrap()["object"], added["object"]);
}

pub async fn initial(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    let path = format!("{namespace}/configmaps");
    for name in ["a", "b"] {
        cluster.admin.post(&path, json!({"metadata": {"name": name}})).await.expect(201);
    }
    let mut watch = cluster.admin.watch(&format!("{path}?watch=true&fieldSelector=metadata.name%3Db")).await;
    assert_eq!(watch.next_name().await, ("ADDED".to_owned(), "b".to_owned()));
    cluster.admin.delete(&format!("{path}/b")).await.expect(200);
    assert_eq!(watch.next_name().await, ("DELETED".to_owned(), "b".to_owned()));
}

pub async fn selection(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    let path = format!("{namespace}/configmaps");
    let list = cluster.admin.get(&path).await.expect(200);
    let query = format!("{path}?watch=1&labelSelector=color%3Dred&resourceVersion={}", version(&list));
    let mut watch = cluster.admin.watch(&query).await;
    for (name, color) in [("one", "blue"), ("two", "red")] {
        cluster.admin.post(&path, json!({"metadata": {"name": name, "labels": {"color": color}}})).await.expect(201);
    }
    let change = |color: &str| json!({"metadata": {"labels": {"color": color}}});
    cluster.admin.patch(&format!("{path}/two"), change("blue")).await.expect(200);
    cluster.admin.patch(&format!("{path}/one"), change("red")).await.expect(200);
    for expected in [("ADDED", "two"), ("DELETED", "two"), ("ADDED", "one")] {
        let (kind, name) = watch.next_name().await;
        assert_eq!((kind.as_str(), name.as_str()), expected);
    }
}

pub async fn timeout(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    let mut watch = cluster.nodepool.watch(&format!("{namespace}/pods?watch=1&timeoutSeconds=1")).await;
    let end = async || watch.next().await.is_none_or(|event| event["type"] == "BOOKMARK").then_some(());
    wait::until_some("the end of the watch", TIMEOUT, end).await;
}
