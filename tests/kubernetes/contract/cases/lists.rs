//! Lists: selectors, pages, and all namespaces.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::client::Client;
use crate::contract::cluster::{Cluster, NAMESPACES, pod};
use serde_json::{Value, json};

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// Creates config maps `c0` to `c4` with their number as a label.
async fn five(admin: &Client, namespace: &str) -> String {
    let path = format!("{namespace}/configmaps");
    for number in 0..5 {
        let labels = json!({"number": number.to_string(), "nodepool-contract": "five"});
        let body = json!({"metadata": {"name": format!("c{number}"), "labels": labels}});
        admin.post(&path, body).await.expect(201);
    }
    path
}

pub async fn selectors(cluster: Arc<Cluster>) {
    let path = five(&cluster.admin, &cluster.namespace().await).await;
    let selected = async |query: &str| {
        names(&cluster.admin.get(&format!("{path}?labelSelector=nodepool-contract%3Dfive{query}")).await.expect(200))
    };
    assert_eq!(selected("").await, ["c0", "c1", "c2", "c3", "c4"]);
    assert_eq!(selected(",number%3D%3D3").await, ["c3"]);
    assert_eq!(selected(",number!%3D3,number%20in%20(2,3,4)").await, ["c2", "c4"]);
    assert_eq!(selected(",number%20notin%20(2,3)").await, ["c0", "c1", "c4"]);
    assert_eq!(selected(",number").await.len(), 5);
    assert!(selected(",!number").await.is_empty());
    assert_eq!(selected("&fieldSelector=metadata.name%3Dc1").await, ["c1"]);
    let refused = cluster.admin.get(&format!("{path}?labelSelector=a%20in%20(0,")).await;
    assert!(refused.refused(400, "BadRequest").starts_with("unable to parse requirement"));
    let list = cluster.admin.get(&path).await.expect(200);
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("ConfigMapList"), &json!("v1")));
    assert!(list["items"].as_array().unwrap().iter().all(|item| item["kind"].is_null()), "{list}");
    let newest = list["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    let versions = list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["resourceVersion"].clone());
    assert!(versions.into_iter().all(|version| version.as_str().unwrap().parse::<u64>().unwrap() <= newest));
}

pub async fn pages(cluster: Arc<Cluster>) {
    let path = five(&cluster.admin, &cluster.namespace().await).await;
    let selector = "labelSelector=nodepool-contract%3Dfive";
    let (mut found, mut query, mut versions) = (Vec::new(), String::new(), BTreeSet::new());
    loop {
        let page = cluster.admin.get(&format!("{path}?{selector}&limit=2{query}")).await.expect(200);
        assert!(names(&page).len() <= 2, "{page}");
        found.extend(names(&page));
        versions.insert(page["metadata"]["resourceVersion"].as_str().unwrap().to_owned());
        match page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
            Some(token) => query = format!("&continue={token}"),
            None => break,
        }
    }
    assert_eq!(found, ["c0", "c1", "c2", "c3", "c4"]);
    assert_eq!(versions.len(), 1, "all pages have the version of the first one: {versions:?}");
    let text = cluster.admin.get(&format!("{path}?continue=xyz&limit=2")).await.refused(400, "BadRequest");
    assert!(text.starts_with("invalid continue token"), "{text}");
}

pub async fn all_namespaces(cluster: Arc<Cluster>) {
    let mut namespaces = Vec::new();
    for _ in 0..2 {
        let namespace = cluster.namespace().await;
        let mut body = pod("node", &[]);
        body["metadata"]["labels"] = json!({"nodepool-contract-pods": cluster.prefix});
        cluster.pod(&namespace, &body).await;
        namespaces.push(namespace.rsplit('/').next().unwrap().to_owned());
    }
    let path = format!("/api/v1/pods?labelSelector=nodepool-contract-pods%3D{}", cluster.prefix);
    let list = cluster.nodepool.get(&path).await.expect(200);
    let found: Vec<&str> =
        list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["namespace"].as_str().unwrap()).collect();
    assert_eq!(found, namespaces);
    let path = format!("{NAMESPACES}?labelSelector=nodepool-contract%20in%20({})", cluster.prefix);
    let list = cluster.nodepool.get(&path).await.expect(200);
    assert!(namespaces.iter().all(|namespace| names(&list).contains(namespace)), "{list}");
}
