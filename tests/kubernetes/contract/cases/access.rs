//! Access: roles, tokens, discovery and unknown paths.

use std::sync::Arc;

use super::accounts::{account, text};
use crate::client::{Client, TIMEOUT};
use crate::contract::cluster::{Cluster, NAMESPACES, RBAC};
use serde_json::{Value, json};
use testkit::wait;

/// Creates an account with a role of these rules; returns a client with its token.
async fn user(cluster: &Cluster, namespace: &str, rules: Value) -> Client {
    let secret = account(cluster, namespace, "zuul-worker").await;
    let roles = namespace.replace("/api/v1", &format!("/apis/{RBAC}/v1"));
    let role = json!({"metadata": {"name": "zuul"}, "rules": rules});
    let created = cluster.nodepool.post(&format!("{roles}/roles"), role).await.expect(201);
    assert_eq!(created["apiVersion"], format!("{RBAC}/v1"));
    let name = namespace.rsplit('/').next().unwrap();
    // As Nodepool 11 sends it: with names of users that no real server knows.
    let binding = json!({
        "metadata": {"name": "zuul-role"}, "userNames": [format!("system:serviceaccount:{name}:zuul-worker")],
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "zuul"},
        "subjects": [{"kind": "ServiceAccount", "name": "zuul-worker", "namespace": name}],
    });
    let created = cluster.nodepool.post(&format!("{roles}/rolebindings"), binding.clone()).await.expect(201);
    assert!(created["userNames"].is_null(), "{created}");
    let again = cluster.nodepool.post(&format!("{roles}/rolebindings"), binding).await;
    let expected = format!("rolebindings.{RBAC} \"zuul-role\" already exists");
    assert_eq!(again.refused(409, "AlreadyExists"), expected);
    let user = cluster.nodepool.with_token(Some(&text(&secret, "token")));
    // Real servers learn of a role after some milliseconds.
    wait::until("the role to apply", TIMEOUT, async || user.get(&format!("{namespace}/pods")).await.status == 200)
        .await;
    user
}

pub async fn namespace_role(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    let verbs = json!(["create", "delete", "get", "list", "patch", "update", "watch"]);
    let rules = json!([{"apiGroups": [""], "resources": ["pods", "configmaps", "secrets"], "verbs": verbs}]);
    let user = user(&cluster, &namespace, rules).await;
    user.post(&format!("{namespace}/configmaps"), json!({"metadata": {"name": "made"}})).await.expect(201);
    user.delete(&format!("{namespace}/configmaps/made")).await.expect(200);
    let name = namespace.rsplit('/').next().unwrap();
    let who = format!("User \"system:serviceaccount:{name}:zuul-worker\"");
    let text = user.get("/api/v1/nodes").await.refused(403, "Forbidden");
    assert_eq!(
        text,
        format!("nodes is forbidden: {who} cannot list resource \"nodes\" in API group \"\" at the cluster scope")
    );
    let answer = user.get(&format!("{namespace}/services/web")).await;
    assert_eq!(answer.body["details"], json!({"name": "web", "kind": "services"}));
    let expected = format!(
        "services \"web\" is forbidden: {who} cannot get resource \"services\" in API group \"\" in the namespace \"{name}\""
    );
    assert_eq!(answer.refused(403, "Forbidden"), expected);
    user.get(&format!("{NAMESPACES}/default/pods")).await.refused(403, "Forbidden");
    for (verb, resource, allowed) in [("create", "pods", true), ("create", "services", false), ("list", "nodes", false)]
    {
        let attributes = json!({"verb": verb, "resource": resource, "namespace": name});
        let body = json!({
            "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
            "spec": {"resourceAttributes": attributes},
        });
        let review = user.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body).await.expect(201);
        assert_eq!(review["status"]["allowed"], allowed, "{verb} {resource}: {review}");
    }
}

pub async fn restricted_role(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    let rules = json!([
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods/exec", "pods/portforward"], "verbs": ["create", "get"]},
    ]);
    let user = user(&cluster, &namespace, rules).await;
    let answer = user.post(&format!("{namespace}/pods"), json!({"metadata": {"name": "more"}})).await;
    let text = answer.refused(403, "Forbidden");
    assert!(text.starts_with("pods is forbidden: User \"system:serviceaccount:"), "{text}");
    assert!(text.contains("cannot create resource \"pods\" in API group \"\" in the namespace"), "{text}");
    let text = user.get(&format!("{namespace}/pods/none/log")).await.refused(403, "Forbidden");
    assert!(text.contains("cannot get resource \"pods/log\""), "{text}");
    user.post(&format!("{namespace}/pods/none/exec?command=ls"), json!({})).await.refused(404, "NotFound");
}

pub async fn nodepool(cluster: Arc<Cluster>) {
    let nodepool = &cluster.nodepool;
    let user = "User \"system:serviceaccount:default:nodepool\"";
    let text = nodepool.get("/api/v1/nodes").await.refused(403, "Forbidden");
    assert!(text.contains(user), "{text}");
    let namespace = cluster.namespace().await;
    nodepool.get(&format!("{namespace}/configmaps")).await.refused(403, "Forbidden");
    nodepool.patch(&namespace, json!({"metadata": {"labels": {"a": "b"}}})).await.refused(403, "Forbidden");
    let text = nodepool.get("/apis/project.openshift.io/v1/projects").await.refused(403, "Forbidden");
    assert!(
        text.contains("resource \"projects\" in API group \"project.openshift.io\" at the cluster scope"),
        "{text}"
    );
    cluster.admin.get("/api/v1/nodes").await.expect(200);
}

pub async fn strangers(cluster: Arc<Cluster>) {
    let text = cluster.nodepool.with_token(Some("unknown")).get(NAMESPACES).await.refused(401, "Unauthorized");
    assert_eq!(text, "Unauthorized");
    let anonymous = cluster.nodepool.with_token(None);
    let text = anonymous.get(NAMESPACES).await.refused(403, "Forbidden");
    assert!(text.starts_with("namespaces is forbidden: User \"system:anonymous\" cannot list"), "{text}");
    let text = anonymous.get("/api").await.refused(403, "Forbidden");
    assert_eq!(text, "forbidden: User \"system:anonymous\" cannot get path \"/api\"");
    assert!(anonymous.get("/version").await.expect(200)["gitVersion"].is_string());
    for path in ["/healthz", "/readyz"] {
        assert_eq!(anonymous.get(path).await.text, "ok");
    }
}

pub async fn unknown_paths(cluster: Arc<Cluster>) {
    for path in ["/api/v1/things", "/apis/apps/v1/things", "/api/v1/namespaces/default/things/one"] {
        let answer = cluster.admin.get(path).await;
        assert_eq!(answer.refused(404, "NotFound"), "the server could not find the requested resource", "{path}");
    }
    for path in ["/apis/project.openshift.io/v1/projects", "/apis/project.openshift.io"] {
        let answer = cluster.admin.get(path).await;
        assert_eq!((answer.status, answer.text.trim()), (404, "404 page not found"), "{path}");
    }
    let answer = cluster.admin.post("/apis/project.openshift.io/v1/projectrequests", json!({})).await;
    assert_eq!((answer.status, answer.text.trim()), (404, "404 page not found"));
    let text = cluster.admin.call("PUT", NAMESPACES, Some(&json!({}))).await.refused(405, "MethodNotAllowed");
    assert_eq!(text, "the server does not allow this method on the requested resource");
}

pub async fn discovery(cluster: Arc<Cluster>) {
    assert_eq!(cluster.nodepool.get("/api").await.expect(200)["versions"], json!(["v1"]));
    let groups = cluster.nodepool.get("/apis").await.expect(200);
    let has = |name: &str| groups["groups"].as_array().unwrap().iter().any(|group| group["name"] == name);
    assert!(has(RBAC) && has("apps") && !has("project.openshift.io"), "{groups}");
    for (path, plural, kind) in [("/api/v1".to_owned(), "pods", "Pod"), (format!("/apis/{RBAC}/v1"), "roles", "Role")] {
        let list = cluster.nodepool.get(&path).await.expect(200);
        let resources = list["resources"].as_array().unwrap();
        let found = resources.iter().find(|resource| resource["name"] == plural).unwrap();
        assert_eq!((&found["kind"], &found["namespaced"]), (&json!(kind), &json!(true)));
    }
}
