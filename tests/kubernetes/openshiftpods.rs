//! The openshiftpods driver on the simulated cluster: pods in projects that exist, and the login that comes with them.

use std::path::Path;

use nodepool::actors::provider::providers;
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::instance::Instance;
use nodepool_driver::job::{Job, Outcome};
use nodepool_drivers::kubernetes;
use nodepool_model::records::ids::ExternalId;
use serde_json::{Value, json};
use testkit::clouds::simulated_kubernetes::{InProcessKubernetes, SimulatedKubernetes};
use testkit::in_process_launcher::on_real_time;
use testkit::provider_harness::{ProviderHarness, provider_section};

use crate::client::Client;
use crate::credentials::changed_kubeconfig;
use crate::driver::{KubernetesHarness, connection, launch, user_of};

const LABELS: &[(&str, &str)] = &[("pod", "image: busybox, cpu: 1"), ("b-pod", "image: busybox")];
const PODS: &str = "/api/v1/namespaces/main/pods";

async fn start(flags: &[&str]) -> KubernetesHarness {
    let flags = [&["--openshift", "--project", "main"], flags].concat();
    KubernetesHarness::start_driver("openshiftpods", &flags, LABELS).await
}

/// A provider with several pools, each with the label `pod`.
pub fn provider(kubeconfig: &Path, pools: &[&str]) -> ProviderHarness {
    let pool = |name: &&str| format!("{{name: {name}, labels: [{{name: pod, image: busybox}}]}}");
    let pools = pools.iter().map(pool).collect::<Vec<_>>().join(", ");
    let section = provider_section(&format!(
        "labels: [{{name: pod}}]\nproviders: [{{name: kube, driver: openshiftpods, context: nodepool, pools: [{pools}]}}]\n"
    ));
    let drivers = InProcessKubernetes(vec![kubeconfig.to_owned()]);
    ProviderHarness::new(|deps| providers::start(&section, deps, Some(&drivers)).unwrap())
}

fn id(project: &str, pod: &str) -> ExternalId {
    ExternalId::of(&json!({"project": project, "pod": pod})).unwrap()
}

/// A pod that Nodepool 11 has made.
fn pod_of_nodepool_11(name: &str, node: &str) -> Value {
    let labels = json!({"nodepool_provider_name": "kube", "nodepool_node_id": node, "nodepool_node_label": "pod"});
    let container = json!({"name": "pod", "image": "busybox"});
    json!({"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container]}})
}

async fn launched(provider: &mut ProviderHarness, job: Job) -> Instance {
    match provider.run(job).await {
        Ok(Outcome::Launched(instance)) => *instance,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pod_node_comes_with_the_login_of_the_account() {
    on_real_time(async {
        let mut harness = start(&[]).await;
        let node = harness.launch("pod", "0000000001").await.unwrap();
        assert_eq!(node.external_id, id("main", "pod-0000000001"));
        assert_eq!(node.interface_ip.as_deref(), Some("pod-0000000001"));
        assert_eq!((node.host_id.as_deref(), node.resources.get("cores")), (Some("loopback"), 1.0));
        assert_eq!(node.login.as_ref().unwrap().connection_type.as_deref(), Some("kubectl"));
        let data = connection(&node);
        assert_eq!((&data["pod"], &data["namespace"]), (&json!("pod-0000000001"), &json!("main")));
        user_of(&harness, &data).get(&format!("{PODS}/pod-0000000001")).await.expect(200);
        harness.delete(node).await;
        harness.assert_empty().await;
    });
}

#[test]
fn lost_responses_make_no_pod_twice() {
    on_real_time(async {
        let mut harness = start(&[]).await;
        for (number, kind) in ["lost-answer", "closed", "503", "html"].into_iter().enumerate() {
            harness.cluster.knobs(json!({"faults": [format!("{kind} times=2 verb=create resource=pods")]})).await;
            let launched = harness.launch("pod", &format!("000000000{number}")).await;
            harness.delete(launched.unwrap_or_else(|error| panic!("{kind}: {error}"))).await;
        }
        harness.assert_empty().await;
        let created = &harness.cluster.state().await["counters"]["created"]["pods"];
        assert_eq!(created, &json!(4));
    });
}

#[test]
fn a_pod_of_others_is_neither_used_nor_deleted() {
    on_real_time(async {
        let mut harness = start(&[]).await;
        let admin = Client::connect(&harness.cluster.kubeconfig(), "admin");
        admin.post(PODS, pod_of_nodepool_11("pod-0000000001", "0000000001")).await.expect(201);
        let error = harness.launch("pod", "0000000001").await.unwrap_err();
        let CloudError::Failed { kind: FailureKind::Nodepool, detail } = error else { panic!("{error:?}") };
        assert_eq!(detail, "the pod pod-0000000001 in project main exists already and belongs to kube");
        admin.get(&format!("{PODS}/pod-0000000001")).await.expect(200);
    });
}

#[test]
fn a_pod_of_a_removed_pool_is_deleted() {
    on_real_time(async {
        let mut harness = start(&["--project", "other"]).await;
        let node = harness.launch("pod", "0000000001").await.unwrap();
        let admin = Client::connect(&harness.cluster.kubeconfig(), "admin");
        admin.post(PODS, pod_of_nodepool_11("pod-0000000002", "0000000002")).await.expect(201);
        let mut other = provider(&harness.cluster.kubeconfig(), &["other"]);
        for id in [node.external_id, ExternalId::text("main-pod-0000000002")] {
            assert_eq!(other.run(Job::Delete(id)).await, Ok(Outcome::Deleted));
        }
        harness.assert_empty().await;
    });
}

/// Rights of the account `nodepool` in a new namespace.
async fn grant(cluster: &SimulatedKubernetes, namespace: &str, rules: Value) {
    let admin = Client::connect(&cluster.kubeconfig(), "admin");
    admin.post("/api/v1/namespaces", json!({"metadata": {"name": namespace}})).await.expect(201);
    let rbac = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}");
    let role = json!({"metadata": {"name": "some"}, "rules": rules});
    admin.post(&format!("{rbac}/roles"), role).await.expect(201);
    let binding = json!({
        "metadata": {"name": "some"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "some"},
        "subjects": [{"kind": "ServiceAccount", "name": "nodepool", "namespace": "default"}],
    });
    admin.post(&format!("{rbac}/rolebindings"), binding).await.expect(201);
}

#[test]
fn a_pod_in_a_project_that_no_longer_exists_is_gone() {
    on_real_time(async {
        let mut harness = start(&[]).await;
        for id in [ExternalId::text("gone-pod-0000000001"), id("gone", "pod-0000000001")] {
            assert_eq!(harness.provider.run(Job::Delete(id)).await, Ok(Outcome::Deleted));
        }
        // This one exists, but the account has lost its rights.
        let rules = json!([{"apiGroups": ["project.openshift.io"], "resources": ["projects"], "verbs": ["get"]}]);
        grant(&harness.cluster, "seen", rules).await;
        for id in [ExternalId::text("seen-pod-0000000001"), id("seen", "pod-0000000001")] {
            let error = harness.provider.run(Job::Delete(id)).await.unwrap_err().to_string();
            assert!(error.contains("the account may not look for pod") && error.ends_with("in seen"), "{error}");
        }
    });
}

#[test]
fn pods_that_may_not_be_watched_are_looked_at() {
    on_real_time(async {
        let harness = start(&[]).await;
        let verbs = json!(["create", "get", "delete"]);
        grant(&harness.cluster, "unwatched", json!([{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}])).await;
        let mut both = provider(&harness.cluster.kubeconfig(), &["main", "unwatched"]);
        let order = launch("kube", "unwatched", "pod", "0000000001", json!({"id": "100-0000000001"}));
        let node = launched(&mut both, order).await;
        assert_eq!(both.run(Job::Delete(node.external_id)).await, Ok(Outcome::Deleted));
    });
}

#[test]
fn names_of_pools_may_begin_with_those_of_others() {
    on_real_time(async {
        let flags = ["--tls", "--pod-start-s", "0", "--openshift", "--project", "a", "--project", "a-b"];
        let cluster = SimulatedKubernetes::start(&flags).await;
        let mut provider = provider(&cluster.kubeconfig(), &["a", "a-b"]);
        let order = |pool: &str, node: &str| launch("kube", pool, "pod", node, json!({"id": "100-0000000001"}));
        let nodes = [
            launched(&mut provider, order("a", "0000000001")).await,
            launched(&mut provider, order("a-b", "0000000002")).await,
        ];
        assert_eq!(nodes[1].external_id, id("a-b", "pod-0000000002"));
        // Two ids of Nodepool 11 that differ in the node only.
        let admin = Client::connect(&cluster.kubeconfig(), "admin");
        admin.post("/api/v1/namespaces/a/pods", pod_of_nodepool_11("b-pod-0000000003", "0000000003")).await.expect(201);
        admin.post("/api/v1/namespaces/a-b/pods", pod_of_nodepool_11("pod-0000000004", "0000000004")).await.expect(201);
        let old = ["a-b-pod-0000000003", "a-b-pod-0000000004"].map(ExternalId::text);
        for id in nodes.map(|node| node.external_id).into_iter().chain(old) {
            assert_eq!(provider.run(Job::Delete(id)).await, Ok(Outcome::Deleted));
        }
        assert_eq!(cluster.state().await["objects"], json!({}));
    });
}

#[test]
fn an_inventory_has_the_ids_of_its_records() {
    on_real_time(async {
        let mut harness = start(&[]).await;
        let node = harness.launch("pod", "0000000001").await.unwrap();
        let admin = Client::connect(&harness.cluster.kubeconfig(), "admin");
        admin.post(PODS, pod_of_nodepool_11("pod-0000000002", "0000000002")).await.expect(201);
        let Ok(Outcome::Listed(inventory)) = harness.provider.run(Job::List).await else { panic!("no list") };
        for (id, number) in [(node.external_id, "0000000001"), (ExternalId::text("main-pod-0000000002"), "0000000002")]
        {
            assert_eq!(inventory.find(&id).and_then(Instance::node), Some(number), "{inventory:?}");
        }
    });
}

#[test]
fn a_project_of_others_holds_up_only_its_own_pool() {
    on_real_time(async {
        let harness = start(&[]).await;
        let mut both = provider(&harness.cluster.kubeconfig(), &["foreign", "main"]);
        let order = |pool: &str| launch("kube", pool, "pod", "0000000001", json!({"id": "100-0000000001"}));
        launched(&mut both, order("main")).await;
        let error = both.run(order("foreign")).await.unwrap_err();
        assert!(matches!(&error, CloudError::Denied(text) if text.contains("forbidden")), "{error:?}");
        let mut alone = provider(&harness.cluster.kubeconfig(), &["foreign"]);
        let error = alone.run(Job::Refresh).await.unwrap_err();
        assert!(matches!(error, CloudError::Denied(_)), "{error:?}");
    });
}

#[test]
fn the_quota_of_a_project_limits_its_pool() {
    on_real_time(async {
        let mut harness = start(&[]).await;
        let admin = Client::connect(&harness.cluster.kubeconfig(), "admin");
        let body = json!({"metadata": {"name": "rq"}, "spec": {"hard": {"pods": "3", "requests.cpu": "2"}}});
        admin.post("/api/v1/namespaces/main/resourcequotas", body).await.expect(201);
        let container = json!({"name": "c", "image": "busybox", "resources": {"requests": {"cpu": "500m"}}});
        let other = json!({"metadata": {"name": "other"}, "spec": {"containers": [container]}});
        admin.post(PODS, other).await.expect(201);
        harness.launch("pod", "0000000001").await.unwrap();
        let Ok(Outcome::Refreshed(facts, _)) = harness.provider.run(Job::Refresh).await else { panic!("no facts") };
        let quota = &facts.pool_quotas["main"];
        assert_eq!((quota.limits.get("instances"), quota.limits.get("cores")), (3.0, 2.0));
        assert_eq!((quota.unmanaged.get("instances"), quota.unmanaged.get("cores")), (1.0, 0.5));
        let error = harness.launch("pod", "0000000002").await.unwrap_err();
        assert!(matches!(&error, CloudError::Quota(text) if text.contains("exceeded quota: rq")), "{error:?}");
    });
}

#[test]
fn an_account_without_a_token_is_refused_at_load() {
    on_real_time(async {
        let cluster = SimulatedKubernetes::start(&["--tls", "--openshift", "--project", "main"]).await;
        let section = provider_section(
            "labels: [{name: pod}]\nproviders:\n  - name: kube\n    driver: openshiftpods\n    context: nodepool\n    \
             pools: [{name: main, labels: [{name: pod, image: busybox}]}]\n",
        );
        let cases = [
            (
                json!({"client-certificate-data": "YQ==", "client-key-data": "YQ=="}),
                "a client certificate and no token",
            ),
            (json!({"username": "admin", "password": "secret"}), "a password and no token"),
        ];
        for (credentials, words) in cases {
            let kubeconfig = changed_kubeconfig(&cluster, |_, user| *user = credentials.clone());
            let errors = kubernetes::open_with(&section, vec![kubeconfig.path().to_owned()]).err().unwrap();
            let (error, shown) = (&errors[0], format!("{errors:?}"));
            assert!(error.message.contains(words) && !shown.contains("secret"), "{shown}");
            assert_eq!(error.at.line, 5, "{shown}");
        }
    });
}
