//! The cluster under test: its users, and namespaces with a common prefix.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::client::{Answer, Client, TIMEOUT};
use serde_json::{Value, json};
use testkit::wait;

pub const NAMESPACES: &str = "/api/v1/namespaces";
pub const RBAC: &str = "rbac.authorization.k8s.io";
/// Time within which a real cluster deletes a namespace.
const DELETE_TIMEOUT: Duration = Duration::from_secs(90);

pub struct Cluster {
    pub admin: Client,
    /// A user with the rights that a driver needs, and no others.
    pub nodepool: Client,
    /// Prefix of the names of all namespaces of this run, and value of their label `nodepool-contract`.
    pub prefix: String,
    namespaces: AtomicU32,
}

impl Cluster {
    pub fn connect(kubeconfig: &Path) -> Cluster {
        let (admin, nodepool) = (Client::connect(kubeconfig, "admin"), Client::connect(kubeconfig, "nodepool"));
        let prefix = format!("contract-{:08x}", rand::random::<u32>());
        Cluster { admin, nodepool, prefix, namespaces: AtomicU32::new(0) }
    }

    /// A new name for a namespace.
    pub fn name(&self) -> String {
        format!("{}-{}", self.prefix, self.namespaces.fetch_add(1, Ordering::Relaxed))
    }

    /// A namespace of this run as a body, with one more label.
    pub fn body(&self, name: &str, label: (&str, &str)) -> Value {
        json!({"metadata": {"name": name, "labels": {"nodepool-contract": self.prefix, label.0: label.1}}})
    }

    /// Creates a namespace; returns its path.
    pub async fn namespace(&self) -> String {
        let name = self.name();
        self.nodepool.post(NAMESPACES, self.body(&name, ("kind", "test"))).await.expect(201);
        format!("{NAMESPACES}/{name}")
    }

    /// Creates a pod. A young namespace may lack its default account, or the account its token.
    pub async fn pod(&self, namespace: &str, pod: &Value) -> Value {
        let created = wait::until_some("the default account", TIMEOUT, async || {
            let answer = self.nodepool.post(&format!("{namespace}/pods"), pod.clone()).await;
            (!is_too_early(&answer)).then_some(answer)
        });
        created.await.expect(201)
    }

    /// Waits until a pod fulfils a condition; returns the pod.
    pub async fn pod_when(&self, path: &str, what: &str, is_met: impl Fn(&Value) -> bool) -> Value {
        wait::until_some(what, TIMEOUT, async || {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Some(self.nodepool.get(path).await.expect(200)).filter(&is_met)
        })
        .await
    }

    /// Waits until an object is not found.
    pub async fn gone(&self, path: &str) {
        wait::until(path, DELETE_TIMEOUT, async || {
            tokio::time::sleep(Duration::from_millis(50)).await;
            self.nodepool.get(path).await.status == 404
        })
        .await;
    }

    /// Deletes all namespaces of this run.
    pub async fn clean_up(&self) {
        let selected = format!("{NAMESPACES}?labelSelector=nodepool-contract%3D{}", self.prefix);
        let found = self.nodepool.get(&selected).await.expect(200);
        for namespace in found["items"].as_array().unwrap() {
            let path = format!("{NAMESPACES}/{}", namespace["metadata"]["name"].as_str().unwrap());
            self.nodepool.delete(&path).await;
        }
        wait::until("all namespaces to be deleted", DELETE_TIMEOUT, async || {
            tokio::time::sleep(Duration::from_millis(50)).await;
            self.nodepool.get(&selected).await.expect(200)["items"].as_array().unwrap().is_empty()
        })
        .await;
    }
}

/// Whether a pod was refused because its account is not ready yet.
fn is_too_early(answer: &Answer) -> bool {
    let message = answer.body["message"].as_str().unwrap_or_default();
    match answer.status {
        403 => message.contains("error looking up service account"),
        500 => {
            assert!(answer.body["reason"] != "ServerTimeout" || answer.headers["retry-after"] == "1", "{answer:?}");
            message.contains("No API token found for service account")
        }
        _ => false,
    }
}

/// A pod with one container and these annotations of the kubelet, without their prefix.
pub fn pod(name: &str, annotations: &[(&str, &str)]) -> Value {
    let annotations: serde_json::Map<String, Value> =
        annotations.iter().map(|(key, value)| (format!("loopback/{key}"), json!(value))).collect();
    json!({
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "image:1"}], "terminationGracePeriodSeconds": 1},
    })
}

/// The status of one condition of an object.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.and_then(|conditions| conditions.iter().find(|condition| condition["type"] == kind));
    found.unwrap_or(&Value::Null)
}
