//! OpenShift mode: projects, role bindings in their older form, and quotas of several projects.

use super::plain_pod;
use super::start;
use crate::client::{Client, TIMEOUT};
use serde_json::{Value, json};
use testkit::wait;

const PROJECTS: &str = "/apis/project.openshift.io/v1/projects";
const REQUESTS: &str = "/apis/project.openshift.io/v1/projectrequests";

async fn request(client: &Client, name: &str) -> crate::client::Answer {
    client.post(REQUESTS, json!({"metadata": {"name": name, "labels": {"nodepool_node_id": "1"}}})).await
}

#[tokio::test]
async fn a_requested_project_belongs_to_its_user() {
    let (simulated, client) = start(&["--openshift", "--account-secrets", "--namespace-delete-s", "0.1"]).await;
    let groups = client.get("/apis").await.expect(200);
    assert!(groups["groups"].as_array().unwrap().iter().any(|group| group["name"] == "project.openshift.io"));
    let project = request(&client, "main-0000000001").await.expect(201);
    assert_eq!((&project["kind"], &project["apiVersion"]), (&json!("Project"), &json!("project.openshift.io/v1")));
    let requester = "system:serviceaccount:default:nodepool";
    assert_eq!(project["metadata"]["annotations"]["openshift.io/requester"], requester);
    assert!(project["metadata"]["labels"].is_null(), "the default template copies no labels");
    let path = "/api/v1/namespaces/main-0000000001";
    client.post(&format!("{path}/serviceaccounts"), json!({"metadata": {"name": "zuul-worker"}})).await.expect(201);
    let account = wait::until_some("the account's secrets", TIMEOUT, async || {
        let account = client.get(&format!("{path}/serviceaccounts/zuul-worker")).await.expect(200);
        account["secrets"].is_array().then_some(account)
    })
    .await;
    assert_eq!(
        (account["secrets"].as_array().unwrap().len(), account["imagePullSecrets"].as_array().unwrap().len()),
        (2, 1)
    );
    let mut tokens = Vec::new();
    for secret in account["secrets"].as_array().unwrap() {
        let secret = client.get(&format!("{path}/secrets/{}", secret["name"].as_str().unwrap())).await.expect(200);
        tokens.extend(secret["data"]["token"].as_str().map(str::to_owned));
    }
    let token = super::decoded(&json!(tokens[0]));

    let bindings = "/apis/authorization.openshift.io/v1/namespaces/main-0000000001/rolebindings";
    let binding = json!({
        "metadata": {"name": "admin-0"}, "roleRef": {"name": "admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "zuul-worker", "namespace": "main-0000000001"}],
        "userNames": ["system:serviceaccount:main-0000000001:zuul-worker"],
    });
    let created = client.post(bindings, binding).await.expect(201);
    assert_eq!(created["roleRef"], json!({"name": "admin"}));
    assert_eq!(created["userNames"], json!(["system:serviceaccount:main-0000000001:zuul-worker"]));
    let user = client.with_token(Some(&token));
    user.post(&format!("{path}/pods"), plain_pod("node")).await.expect(201);
    user.get("/api/v1/namespaces/default/pods").await.refused(403, "Forbidden");

    // Projects of other users are invisible.
    let admin = Client::connect(&simulated.kubeconfig(), "admin");
    admin.post("/api/v1/namespaces", json!({"metadata": {"name": "foreign"}})).await.expect(201);
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap();
        items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let list = client.get(PROJECTS).await.expect(200);
    assert_eq!((&list["kind"], names(&list)), (&json!("ProjectList"), vec!["main-0000000001".to_owned()]));
    assert!(names(&admin.get(PROJECTS).await.expect(200)).len() > 2);
    client.get(&format!("{PROJECTS}/foreign")).await.refused(403, "Forbidden");
    let text = request(&client, "foreign").await.refused(409, "AlreadyExists");
    assert_eq!(text, "projects.project.openshift.io \"foreign\" already exists");
    let project = format!("{PROJECTS}/main-0000000001");
    assert_eq!(client.delete(&project).await.expect(200)["status"], "Success");
    assert_eq!(admin.get(&project).await.expect(200)["status"]["phase"], "Terminating");
    // The user's role binding was content of the project: to its user, a deleted project is forbidden and not missing.
    client.get(&project).await.refused(403, "Forbidden");
    assert!(names(&client.get(PROJECTS).await.expect(200)).is_empty());
    wait::until("the project to end", TIMEOUT, async || admin.get(&project).await.status == 404).await;
}

#[tokio::test]
async fn requests_for_projects_are_limited_and_refused() {
    let flags = ["--openshift", "--max-projects", "1", "--namespace-delete-s", "100", "--copy-project-labels"];
    let (simulated, client) = start(&flags).await;
    let project = request(&client, "main-1").await.expect(201);
    assert_eq!(project["metadata"]["labels"], json!({"nodepool_node_id": "1"}));
    client.delete(&format!("{PROJECTS}/main-1")).await.expect(200);
    // A project in deletion counts.
    let text = request(&client, "main-2").await.refused(403, "Forbidden");
    let expected = "projectrequests.project.openshift.io \"main-2\" is forbidden: user \
                    system:serviceaccount:default:nodepool cannot create more than 1 project(s).";
    assert_eq!(text, expected);
    simulated.knobs(json!({"max_projects": -1})).await;
    let text = request(&client, "main-1").await.refused(409, "AlreadyExists");
    assert!(text.starts_with("object is being deleted: "), "{text}");
    let text = request(&client, "kube-1").await.refused(403, "Forbidden");
    assert!(text.ends_with("cannot request a project starting with \"kube-\""), "{text}");
    request(&client, "Main_1").await.refused(422, "Invalid");
    simulated.knobs(json!({"refuse_projects": true})).await;
    let text = request(&client, "main-3").await.refused(403, "Forbidden");
    assert_eq!(text, "You may not request a new project via this API.");
    client.post("/api/v1/namespaces", json!({"metadata": {"name": "main-4"}})).await.refused(403, "Forbidden");
}

#[tokio::test]
async fn projects_of_the_command_line_are_the_users_own() {
    let (simulated, client) = start(&["--openshift", "--project", "main", "--project", "other"]).await;
    let pods = "/api/v1/namespaces/main/pods";
    client.post(pods, plain_pod("node")).await.expect(201);
    assert_eq!(client.get(PROJECTS).await.expect(200)["items"].as_array().unwrap().len(), 2);
    client.get("/api/v1/pods").await.refused(403, "Forbidden");
    assert_eq!(simulated.state().await["objects"], json!({"pods": 1}));
    simulated.reset().await;
    client.get(&format!("{pods}/node")).await.refused(404, "NotFound");
    client.get(REQUESTS).await.expect(200);
    simulated.knobs(json!({"refuse_projects": true})).await;
    client.get(REQUESTS).await.refused(403, "Forbidden");
}

#[tokio::test]
async fn quotas_of_several_projects_are_shown_in_each() {
    let (simulated, client) = start(&["--openshift"]).await;
    let admin = Client::connect(&simulated.kubeconfig(), "admin");
    request(&client, "main-1").await.expect(201);
    let requester = json!({"openshift.io/requester": "system:serviceaccount:default:nodepool"});
    let spec = json!({"selector": {"annotations": requester}, "quota": {"hard": {"pods": "10"}}});
    let quotas = "/apis/quota.openshift.io/v1/clusterresourcequotas";
    let body = json!({"metadata": {"name": "ci"}, "spec": spec});
    admin.post(quotas, body).await.expect(201);
    let applied = "/apis/quota.openshift.io/v1/namespaces/main-1/appliedclusterresourcequotas";
    let list = client.get(applied).await.expect(200);
    assert_eq!(list["items"][0]["spec"]["quota"]["hard"]["pods"], "10", "{list}");
    client.get(quotas).await.refused(403, "Forbidden");
}
