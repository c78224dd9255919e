//! Resource quotas.

use std::sync::Arc;

use crate::client::TIMEOUT;
use crate::contract::cluster::{Cluster, pod};
use serde_json::{Value, json};
use testkit::wait;

/// Creates a quota, and waits until it counts.
async fn quota(cluster: &Cluster, namespace: &str, hard: Value) {
    let body = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
    cluster.admin.post(&format!("{namespace}/resourcequotas"), body).await.expect(201);
    let path = format!("{namespace}/resourcequotas/q");
    wait::until("the quota to count", TIMEOUT, async || {
        cluster.admin.get(&path).await.expect(200)["status"]["used"].is_object()
    })
    .await;
}

fn sized(name: &str, cpu: &str, memory: &str) -> Value {
    let mut pod = pod(name, &[("delay-seconds", "0")]);
    pod["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": cpu, "memory": memory}});
    pod
}

pub async fn exceeded(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    quota(&cluster, &namespace, json!({"pods": "1", "requests.cpu": "1", "limits.memory": "1Gi"})).await;
    let path = format!("{namespace}/pods");
    // The default account may be late.
    let too_large = wait::until_some("the default account", TIMEOUT, async || {
        let answer = cluster.nodepool.post(&path, sized("large", "1500m", "1536Mi")).await;
        answer.text.contains("quota").then_some(answer)
    });
    let text = too_large.await.refused(403, "Forbidden");
    let expected = "pods \"large\" is forbidden: exceeded quota: q, requested: limits.memory=1536Mi,requests.cpu=1500m, \
                    used: limits.memory=0,requests.cpu=0, limited: limits.memory=1Gi,requests.cpu=1";
    assert_eq!(text, expected);
    cluster.pod(&namespace, &sized("first", "500m", "512Mi")).await;
    let answer = cluster.nodepool.post(&path, sized("second", "600m", "512Mi")).await;
    assert_eq!(answer.body["details"], json!({"name": "second", "kind": "pods"}));
    let expected = "pods \"second\" is forbidden: exceeded quota: q, requested: pods=1,requests.cpu=600m, used: \
                    pods=1,requests.cpu=500m, limited: pods=1,requests.cpu=1";
    assert_eq!(answer.refused(403, "Forbidden"), expected);
    let found = cluster.admin.get(&format!("{namespace}/resourcequotas/q")).await.expect(200);
    let used = json!({"limits.memory": "512Mi", "pods": "1", "requests.cpu": "500m"});
    assert_eq!(found["status"]["used"], used);
    // The space of a deleted pod is free again.
    cluster.nodepool.delete_with(&format!("{path}/first"), json!({"gracePeriodSeconds": 0})).await.expect(200);
    let accepted = wait::until_some("room for a pod", TIMEOUT, async || {
        let answer = cluster.nodepool.post(&path, sized("second", "1", "1Gi")).await;
        (answer.status != 403).then_some(answer)
    });
    accepted.await.expect(201);
}

pub async fn unspecified(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    quota(&cluster, &namespace, json!({"requests.cpu": "1", "limits.memory": "1Gi"})).await;
    let refused = wait::until_some("the default account", TIMEOUT, async || {
        let answer = cluster.nodepool.post(&format!("{namespace}/pods"), pod("node", &[])).await;
        answer.text.contains("quota").then_some(answer)
    });
    let text = refused.await.refused(403, "Forbidden");
    assert_eq!(text, "pods \"node\" is forbidden: failed quota: q: must specify limits.memory,requests.cpu");
}
