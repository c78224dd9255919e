//! Changes of objects in general.

use std::sync::Arc;

use crate::contract::cluster::Cluster;
use serde_json::json;

pub async fn conflicts(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    let path = format!("{namespace}/configmaps");
    let created = cluster.admin.post(&path, json!({"metadata": {"generateName": "c-"}, "data": {"a": "1"}})).await;
    let created = created.expect(201);
    let name = created["metadata"]["name"].as_str().unwrap();
    assert!(name.len() == 7 && name.starts_with("c-"), "{name}");
    let object = format!("{path}/{name}");
    let changed = cluster.admin.patch(&object, json!({"data": {"a": null, "b": "2"}})).await.expect(200);
    assert_eq!(changed["data"], json!({"b": "2"}));
    assert_ne!(changed["metadata"]["resourceVersion"], created["metadata"]["resourceVersion"]);
    let stale = cluster.admin.call("PUT", &object, Some(&created)).await.refused(409, "Conflict");
    let expected = format!(
        "Operation cannot be fulfilled on configmaps \"{name}\": the object has been modified; please apply your changes \
         to the latest version and try again"
    );
    assert_eq!(stale, expected);
    let same = cluster.admin.call("PUT", &object, Some(&changed)).await.expect(200);
    assert_eq!(same["metadata"]["resourceVersion"], changed["metadata"]["resourceVersion"]);
    let missing = json!({"metadata": {"name": "missing"}});
    let text = cluster.admin.call("PUT", &format!("{path}/missing"), Some(&missing)).await.refused(404, "NotFound");
    assert_eq!(text, "configmaps \"missing\" not found");
}

pub async fn dry_run(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    let path = format!("{namespace}/configmaps");
    let created = cluster.admin.post(&format!("{path}?dryRun=All"), json!({"metadata": {"name": "dry"}})).await;
    assert_eq!(created.expect(201)["kind"], "ConfigMap");
    cluster.admin.get(&format!("{path}/dry")).await.refused(404, "NotFound");
}

pub async fn collection(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    let path = format!("{namespace}/configmaps");
    for (name, color) in [("a", "red"), ("b", "red"), ("c", "blue")] {
        cluster.admin.post(&path, json!({"metadata": {"name": name, "labels": {"color": color}}})).await.expect(201);
    }
    cluster.admin.delete(&format!("{path}?labelSelector=color%3Dred")).await.expect(200);
    let left = cluster.admin.get(&format!("{path}?labelSelector=color")).await.expect(200);
    assert_eq!(left["items"].as_array().unwrap().len(), 1, "{left}");
}
