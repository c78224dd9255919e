//! A launcher with an openshift and an openshiftpods provider: records, quotas, leaks, and a launcher that stops in the
//! middle.

use std::time::Duration;

use nodepool_model::records::request::RequestState;
use serde_json::{Value, json};
use testkit::in_process_launcher::on_real_time;
use testkit::wait;

use crate::client::Client;
use crate::launcher::LauncherHarness;

const TIMEOUT: Duration = Duration::from_secs(60);

const CONFIG: &str = "
zookeeper-servers: [{host: localhost}]
labels: [{name: project}, {name: project-pod}, {name: pod}]
providers:
  - name: projects
    driver: openshift
    context: nodepool
    max-projects: 5
    pools:
      - name: main
        labels:
          - {name: project, type: project}
          - {name: project-pod, type: pod, image: busybox, cpu: 2}
  - name: pods
    driver: openshiftpods
    context: nodepool
    max-pods: 5
    pools:
      - name: shared
        labels:
          - {name: pod, image: busybox, cpu: 1, memory: 512}
";

pub async fn start(pod_start_s: &str) -> LauncherHarness {
    start_with(pod_start_s, &[]).await
}

async fn start_with(pod_start_s: &str, more: &[&str]) -> LauncherHarness {
    let flags = ["--openshift", "--project", "shared", "--namespace-delete-s", "0.1", "--pod-start-s", pod_start_s];
    LauncherHarness::start_with(CONFIG, &[&flags, more].concat()).await
}

#[test]
fn records_have_what_zuul_reads() {
    on_real_time(async {
        let harness = start("0.1").await;
        let (project, raw) = harness.node("project").await;
        let name = raw["external_id"].as_str().unwrap();
        assert!(name.starts_with("main-0"), "{raw}");
        assert_eq!((&raw["connection_type"], &raw["interface_ip"]), (&json!("project"), &Value::Null));
        assert_eq!((&raw["ssh_port"], &raw["connection_port"]["namespace"]), (&raw["connection_port"], &json!(name)));
        let (pod, raw) = harness.node("pod").await;
        let name = raw["interface_ip"].as_str().unwrap();
        assert_eq!(raw["external_id"], json!({"pod": name, "project": "shared"}));
        assert_eq!((&raw["connection_type"], &raw["connection_port"]["pod"]), (&json!("kubectl"), &json!(name)));
        assert_eq!((&raw["host_id"], &raw["resources"]["ram"]), (&json!("loopback"), &json!(512)));
        harness.release(&project).await;
        harness.release(&pod).await;
        harness.wait_until_empty().await;
    });
}

/// Stops the launcher while nodes of both providers start.
async fn stop_in_the_middle(flags: &[&str]) {
    let mut harness = start_with("1", flags).await;
    let mut ids = Vec::new();
    for labels in [&["project-pod"][..], &["project", "project-pod"], &["pod", "pod"]] {
        ids.push(harness.consumer.submit_labels(labels).await);
    }
    wait::until("pods of both providers to be created", TIMEOUT, async || {
        harness.cluster.state().await["objects"]["pods"].as_u64().unwrap_or_default() >= 3
    })
    .await;
    harness.restart();
    for id in &ids {
        assert_eq!(harness.wait_for_end(id).await, RequestState::Fulfilled);
        harness.release(id).await;
    }
    harness.wait_until_empty().await;
    let created = &harness.cluster.state().await["counters"]["created"];
    assert_eq!((&created["namespaces"], &created["pods"]), (&json!(3), &json!(4)), "{flags:?}: {created}");
}

#[test]
fn a_launcher_that_stops_in_the_middle_makes_nothing_twice() {
    on_real_time(async {
        for flags in [&[][..], &["--label-projects"], &["--copy-project-labels"]] {
            stop_in_the_middle(flags).await;
        }
    });
}

#[test]
fn projects_and_pods_of_others_survive_a_launch_of_their_name() {
    on_real_time(async {
        let harness = start("0.1").await;
        let admin = Client::connect(&harness.cluster.kubeconfig(), "admin");
        let nodepool = Client::connect(&harness.cluster.kubeconfig(), "nodepool");
        let mut paths = Vec::new();
        // The ids of the first nodes are known.
        for node in (0..6).map(|node| format!("{node:010}")) {
            let project = json!({"metadata": {"name": format!("main-{node}")}, "description": "of another owner"});
            nodepool.post("/apis/project.openshift.io/v1/projectrequests", project).await.expect(201);
            paths.push(format!("/api/v1/namespaces/main-{node}"));
            let container = json!({"name": "c", "image": "busybox"});
            let pod = json!({"metadata": {"name": format!("pod-{node}")}, "spec": {"containers": [container]}});
            admin.post("/api/v1/namespaces/shared/pods", pod).await.expect(201);
            paths.push(format!("/api/v1/namespaces/shared/pods/pod-{node}"));
        }
        for label in ["project", "pod"] {
            let id = harness.consumer.submit_labels(&[label]).await;
            assert_eq!(harness.wait_for_end(&id).await, RequestState::Failed);
        }
        wait::until("the records to be deleted", TIMEOUT, async || harness.consumer.nodes().await.is_empty()).await;
        for path in paths {
            let object = admin.get(&path).await.expect(200);
            assert!(object["metadata"]["deletionTimestamp"].is_null(), "{path}: {object}");
        }
    });
}

#[test]
fn an_exceeded_quota_ends_a_launch_at_its_first_attempt() {
    on_real_time(async {
        let harness = start("0.1").await;
        harness.cluster.knobs(json!({"faults": ["quota verb=create resource=pods"]})).await;
        let id = harness.consumer.submit_labels(&["project-pod"]).await;
        harness.wait_for_reason(&id, "exceeded quota").await;
        // Three attempts would have made three projects.
        let created = harness.cluster.state().await["counters"]["created"]["namespaces"].as_u64().unwrap();
        assert!(created < 3, "{created}");
        harness.cluster.knobs(json!({"faults": []})).await;
        assert_eq!(harness.wait_for_end(&id).await, RequestState::Fulfilled);
        harness.release(&id).await;
        harness.wait_until_empty().await;
    });
}

#[test]
fn requests_take_turns_within_the_quota_of_a_project() {
    on_real_time(async {
        let harness = start("0.1").await;
        let admin = Client::connect(&harness.cluster.kubeconfig(), "admin");
        let quota = json!({"metadata": {"name": "rq"}, "spec": {"hard": {"pods": "1"}}});
        admin.post("/api/v1/namespaces/shared/resourcequotas", quota).await.expect(201);
        let first = harness.node("pod").await.0;
        let second = harness.consumer.submit_labels(&["pod"]).await;
        // If the launcher did not know the quota, the first refusal makes it look.
        harness.wait_for_reason(&second, "quota: the next node needs instances 1, free 0").await;
        harness.release(&first).await;
        assert_eq!(harness.wait_for_end(&second).await, RequestState::Fulfilled);
        let refusals = harness.cluster.state().await["counters"]["quota_refusals"].as_u64().unwrap();
        assert!(refusals <= 1, "{refusals}");
    });
}

#[test]
fn only_leaked_projects_and_pods_of_ours_are_deleted() {
    on_real_time(async {
        let harness = start("0.1").await;
        // One node, so that its id was issued by this ZooKeeper.
        let (id, raw) = harness.node("project").await;
        let node = raw["external_id"].as_str().unwrap().strip_prefix("main-").unwrap().to_owned();
        harness.release(&id).await;
        harness.wait_until_empty().await;
        let nodepool = Client::connect(&harness.cluster.kubeconfig(), "nodepool");
        let request = async |name: &str, provider: &str| {
            let marks = json!({
                "nodepool_provider_name": provider, "nodepool_pool_name": name.split_once('-').unwrap().0,
                "nodepool_node_id": node,
            });
            let body = json!({"metadata": {"name": name}, "description": format!("Node of Nodepool {marks}")});
            nodepool.post("/apis/project.openshift.io/v1/projectrequests", body).await.expect(201);
        };
        let (leaked, others, by_hand) = (format!("main-{node}"), format!("other-{node}"), "main-17");
        request(&leaked, "projects").await;
        request(&others, "another").await;
        request(by_hand, "projects").await;
        let pod = async |name: &str, labels: Value| {
            let container = json!({"name": "c", "image": "busybox"});
            let body = json!({"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container]}});
            nodepool.post("/api/v1/namespaces/shared/pods", body).await.expect(201);
        };
        let labels = |provider: &str| json!({"nodepool_provider_name": provider, "nodepool_node_id": node, "nodepool_node_label": "pod"});
        pod(&format!("pod-{node}"), labels("pods")).await;
        pod("mine", labels("pods")).await;
        pod(&format!("other-{node}"), labels("another")).await;
        let admin = Client::connect(&harness.cluster.kubeconfig(), "admin");
        for path in [format!("/api/v1/namespaces/{leaked}"), format!("/api/v1/namespaces/shared/pods/pod-{node}")] {
            wait::until(&format!("{path} to be deleted"), TIMEOUT, async || admin.get(&path).await.status == 404).await;
        }
        for name in [&*others, by_hand] {
            admin.get(&format!("/api/v1/namespaces/{name}")).await.expect(200);
        }
        for name in ["mine".to_owned(), format!("other-{node}")] {
            admin.get(&format!("/api/v1/namespaces/shared/pods/{name}")).await.expect(200);
        }
    });
}
