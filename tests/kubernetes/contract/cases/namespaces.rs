//! Namespaces: names, labels, and deletion.

use std::sync::Arc;

use crate::contract::cluster::{Cluster, NAMESPACES, condition, pod};
use serde_json::{Value, json};
use testkit::wait;

pub async fn lifecycle(cluster: Arc<Cluster>) {
    let nodepool = &cluster.nodepool;
    let name = cluster.name();
    let path = format!("{NAMESPACES}/{name}");
    let text = nodepool.get(&path).await.refused(404, "NotFound");
    assert_eq!(text, format!("namespaces \"{name}\" not found"));
    let body = cluster.body(&name, ("nodepool_node_id", "0000000017"));
    let created = nodepool.post(NAMESPACES, body.clone()).await.expect(201);
    assert_eq!((&created["kind"], &created["apiVersion"]), (&json!("Namespace"), &json!("v1")));
    assert_eq!(created["status"], json!({"phase": "Active"}));
    assert_eq!(created["metadata"]["labels"]["nodepool_node_id"], "0000000017");
    let metadata = &created["metadata"];
    let time = metadata["creationTimestamp"].as_str().unwrap();
    assert!(chrono::DateTime::parse_from_rfc3339(time).is_ok() && time.ends_with('Z'), "{metadata}");
    metadata["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    assert_eq!(metadata["uid"].as_str().unwrap().len(), 36);

    let again = nodepool.post(NAMESPACES, body).await;
    assert_eq!(again.body["details"], json!({"name": name, "kind": "namespaces"}));
    assert_eq!(again.refused(409, "AlreadyExists"), format!("namespaces \"{name}\" already exists"));
    let found = nodepool.get(&path).await.expect(200);
    assert_eq!(found["metadata"]["uid"], created["metadata"]["uid"]);

    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
    let deleted = nodepool.delete_with(&path, options).await.expect(200);
    assert_eq!((&deleted["kind"], &deleted["status"]["phase"]), (&json!("Namespace"), &json!("Terminating")));
    assert!(deleted["metadata"]["deletionTimestamp"].is_string());
    cluster.gone(&path).await;
    let text = nodepool.delete(&path).await.refused(404, "NotFound");
    assert_eq!(text, format!("namespaces \"{name}\" not found"));
}

/// The only cause of a refusal.
fn cause(body: &Value) -> (String, String) {
    let causes = body["details"]["causes"].as_array().unwrap();
    assert_eq!(causes.len(), 1, "{body}");
    (causes[0]["field"].as_str().unwrap().to_owned(), causes[0]["message"].as_str().unwrap().to_owned())
}

pub async fn invalid(cluster: Arc<Cluster>) {
    let long = format!("{}-{}", cluster.name(), "a".repeat(63));
    let label = |value: &str| cluster.body(&cluster.name(), ("x", value));
    for (body, field, problem) in [
        (
            cluster.body("Main-17", ("x", "y")),
            "metadata.name",
            "must consist of lower case alphanumeric characters or '-'",
        ),
        (cluster.body(&long, ("x", "y")), "metadata.name", "must be no more than 63 characters"),
        (json!({"metadata": {}}), "metadata.name", "Required value: name or generateName is required"),
        (
            label("a b"),
            "metadata.labels",
            "a valid label must be an empty string or consist of alphanumeric characters",
        ),
        (label(&"a".repeat(64)), "metadata.labels", "must be no more than 63 characters"),
        (cluster.body(&cluster.name(), ("bu ild", "5")), "metadata.labels", "name part must consist of alphanumeric"),
    ] {
        let answer = cluster.nodepool.post(NAMESPACES, body.clone()).await;
        let (found, message) = cause(&answer.body);
        assert_eq!(found, field, "{body}");
        assert!(message.contains(problem), "{message}");
        assert_eq!(answer.body["details"]["kind"], "Namespace");
        let name = body["metadata"]["name"].as_str().unwrap_or_default();
        let text = answer.refused(422, "Invalid");
        assert_eq!(text, format!("Namespace \"{name}\" is invalid: {field}: {message}"));
    }
}

pub async fn undecodable(cluster: Arc<Cluster>) {
    for value in [json!(5), json!(true)] {
        let mut body = cluster.body(&cluster.name(), ("x", "y"));
        body["metadata"]["labels"]["build"] = value;
        let text = cluster.nodepool.post(NAMESPACES, body).await.refused(400, "BadRequest");
        assert!(text.starts_with("Namespace in version \"v1\" cannot be handled as a Namespace"), "{text}");
    }
}

/// No shape of a body confuses the server.
pub async fn malformed(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    for (collection, body) in [
        ("pods", json!({"metadata": "x"})),
        ("pods", json!({"metadata": {"name": "x"}, "spec": "x"})),
        ("pods", json!({"metadata": {"name": "x"}, "spec": {"containers": ["x"]}})),
        ("pods", json!({"metadata": {"name": "x"}, "spec": {"containers": [{"resources": "x"}]}})),
        ("secrets", json!({"metadata": {"name": "x"}, "data": "x", "stringData": {"a": "b"}})),
        ("serviceaccounts", json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "x"}})),
        ("serviceaccounts", json!([])),
        ("serviceaccounts", json!("x")),
    ] {
        let answer = cluster.nodepool.post(&format!("{namespace}/{collection}"), body).await;
        answer.refused(400, "BadRequest");
    }
    cluster.nodepool.get(&namespace).await.expect(200);
}

pub async fn terminating(cluster: Arc<Cluster>) {
    let (nodepool, admin) = (&cluster.nodepool, &cluster.admin);
    let namespace = cluster.namespace().await;
    let name = namespace.rsplit('/').next().unwrap();
    // The finalizer keeps the namespace from ending within this case.
    let holder = json!({"metadata": {"name": "holder", "finalizers": ["example.org/hold"]}});
    admin.post(&format!("{namespace}/configmaps"), holder).await.expect(201);
    nodepool.delete(&namespace).await.expect(200);
    let answer = nodepool.post(NAMESPACES, cluster.body(name, ("x", "y"))).await;
    let text = answer.refused(409, "AlreadyExists");
    assert_eq!(text, format!("object is being deleted: namespaces \"{name}\" already exists"));

    let answer = nodepool.post(&format!("{namespace}/serviceaccounts"), json!({"metadata": {"name": "late"}})).await;
    let causes = json!([{
        "reason": "NamespaceTerminating", "message": format!("namespace {name} is being terminated"),
        "field": "metadata.namespace",
    }]);
    assert_eq!(answer.body["details"], json!({"name": "late", "kind": "serviceaccounts", "causes": causes}));
    let text = answer.refused(403, "Forbidden");
    let reason = format!("unable to create new content in namespace {name} because it is being terminated");
    assert_eq!(text, format!("serviceaccounts \"late\" is forbidden: {reason}"));
    let again = nodepool.delete(&namespace).await.expect(200);
    assert_eq!(again["status"]["phase"], "Terminating");
    admin.patch(&format!("{namespace}/configmaps/holder"), json!({"metadata": {"finalizers": null}})).await.expect(200);
    cluster.gone(&namespace).await;

    let text = nodepool.post(&format!("{namespace}/secrets"), json!({"metadata": {"name": "x"}})).await;
    assert_eq!(text.refused(404, "NotFound"), format!("namespaces \"{name}\" not found"));
}

pub async fn with_pods(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    cluster.pod(&namespace, &pod("node", &[("delay-seconds", "0")])).await;
    let path = format!("{namespace}/pods/node");
    cluster.pod_when(&path, "the pod to run", |pod| pod["status"]["phase"] == "Running").await;
    cluster.nodepool.delete(&namespace).await.expect(200);
    cluster.gone(&path).await;
    cluster.gone(&namespace).await;
}

pub async fn finalizer(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    let holder = json!({"metadata": {"name": "holder", "finalizers": ["example.org/hold"]}});
    cluster.admin.post(&format!("{namespace}/configmaps"), holder).await.expect(201);
    cluster.nodepool.delete(&namespace).await.expect(200);
    let is_held = |namespace: &Value| condition(namespace, "NamespaceFinalizersRemaining")["status"] == "True";
    let held = cluster.pod_when(&namespace, "the conditions", is_held).await;
    let texts = ["NamespaceContentRemaining", "NamespaceFinalizersRemaining"]
        .map(|kind| condition(&held, kind)["message"].as_str().unwrap().to_owned());
    let finalizers = "Some content in the namespace has finalizers remaining: example.org/hold in 1 resource instances";
    assert_eq!(texts[1], finalizers);
    assert!(texts[0].contains("configmaps. has 1 resource instances"), "{}", texts[0]);
    let path = format!("{namespace}/configmaps/holder");
    cluster.admin.patch(&path, json!({"metadata": {"finalizers": null}})).await.expect(200);
    let gone = async || cluster.admin.get(&path).await.status == 404;
    wait::until("the content to end", crate::client::TIMEOUT, gone).await;
    cluster.gone(&namespace).await;
}
