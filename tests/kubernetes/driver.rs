//! The kubernetes driver on the simulated cluster: nodes, lost responses, pods that never run, and watches that end.

use std::path::PathBuf;
use std::sync::Arc;

use nodepool::actors::provider::providers;
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::instance::Instance;
use nodepool_driver::job::{Job, JobEvent, LaunchOrder, Outcome};
use nodepool_model::records::ids::ExternalId;
use serde_json::{Value, json};
use testkit::clouds::simulated_kubernetes::{InProcessKubernetes, SimulatedKubernetes};
use testkit::in_process_launcher::on_real_time;
use testkit::provider_harness::{ProviderHarness, launch_order, provider_section};

use crate::client::Client;

pub struct KubernetesHarness {
    pub cluster: SimulatedKubernetes,
    pub provider: ProviderHarness,
}

/// Labels with their keys.
pub const LABELS: &[(&str, &str)] = &[
    ("ns", "type: namespace"),
    (
        "pod",
        "type: pod, image: busybox, cpu: 1, labels: {purpose: test}, dynamic-labels: {tenant: '{request.tenant_name}'}",
    ),
];

impl KubernetesHarness {
    pub async fn start(flags: &[&str], labels: &[(&str, &str)]) -> Self {
        Self::start_driver("kubernetes", flags, labels).await
    }

    pub async fn start_driver(driver: &str, flags: &[&str], labels: &[(&str, &str)]) -> Self {
        let cluster = SimulatedKubernetes::start(&[&["--tls", "--pod-start-s", "0.1"], flags].concat()).await;
        let kubeconfig = cluster.kubeconfig();
        Self { provider: Self::provider(driver, kubeconfig, labels), cluster }
    }

    pub fn provider(driver: &str, kubeconfig: PathBuf, labels: &[(&str, &str)]) -> ProviderHarness {
        let names = labels.iter().map(|(name, _)| format!("{{name: {name}}}")).collect::<Vec<_>>().join(", ");
        let labels =
            labels.iter().map(|(name, keys)| format!("{{name: {name}, {keys}}}")).collect::<Vec<_>>().join(", ");
        let config = format!(
            "labels: [{names}]\nproviders:\n  - {{name: kube, driver: {driver}, context: nodepool, pools: [{{name: \
             main, labels: [{labels}]}}]}}\n"
        );
        let (section, drivers) = (provider_section(&config), InProcessKubernetes(vec![kubeconfig]));
        ProviderHarness::new(|deps| providers::start(&section, deps, Some(&drivers)).unwrap())
    }

    pub async fn launch(&mut self, label: &str, node: &str) -> Result<Instance, CloudError> {
        match self.provider.run(order(label, node)).await? {
            Outcome::Launched(instance) => Ok(*instance),
            other => panic!("{other:?}"),
        }
    }

    pub async fn delete(&mut self, instance: Instance) {
        assert_eq!(self.provider.run(Job::Delete(instance.external_id)).await, Ok(Outcome::Deleted));
    }

    pub async fn assert_empty(&self) {
        let state = self.cluster.state().await;
        assert_eq!((&state["objects"], &state["counters"]["double_creates"]), (&json!({}), &json!(0)), "{state}");
    }
}

pub fn order(label: &str, node: &str) -> Job {
    let request = json!({"id": "100-0000000001", "tenant_name": "acme", "created_time": 1.0});
    launch("kube", "main", label, node, request)
}

/// The launch of a node of a provider's pool.
pub fn launch(provider: &str, pool: &str, label: &str, node: &str, request: Value) -> Job {
    let mut order = launch_order(provider, node, 1);
    order.metadata.insert("nodepool_pool_name".to_owned(), pool.to_owned());
    Job::Launch(Arc::new(LaunchOrder { pool: pool.into(), label: label.into(), request: Arc::new(request), ..order }))
}

/// The account that a node's connection data contain.
pub fn user_of(harness: &KubernetesHarness, connection: &Value) -> Client {
    Client::connect(&harness.cluster.kubeconfig(), "admin").with_token(connection["token"].as_str())
}

/// The connection data of a node.
pub fn connection(instance: &Instance) -> Value {
    instance.login.as_ref().expect("a launched node has a login").connection_port.clone()
}

#[test]
fn a_namespace_node_has_an_account_for_its_namespace_only() {
    on_real_time(async {
        let mut harness = KubernetesHarness::start(&[], LABELS).await;
        let node = harness.launch("ns", "0000000001").await.unwrap();
        assert_eq!((&node.external_id, &node.interface_ip), (&ExternalId::text("main-0000000001"), &None));
        assert_eq!(node.login.as_ref().unwrap().connection_type.as_deref(), Some("namespace"));
        let connection = connection(&node);
        let keys: Vec<&String> = connection.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["name", "namespace", "host", "skiptls", "token", "user", "ca_crt"]);
        assert_eq!((&connection["host"], &connection["user"]), (&json!(harness.cluster.base()), &json!("zuul-worker")));
        let user = user_of(&harness, &connection);
        let namespace = "/api/v1/namespaces/main-0000000001";
        let created = json!({"metadata": {"name": "c"}});
        user.post(&format!("{namespace}/configmaps"), created.clone()).await.expect(201);
        user.post("/apis/apps/v1/namespaces/main-0000000001/deployments", created).await.expect(201);
        user.get("/api/v1/nodes").await.expect(403);
        harness.delete(node).await;
        harness.assert_empty().await;
    });
}

#[test]
fn a_pod_node_runs_its_pod_and_may_use_it() {
    on_real_time(async {
        let mut harness = KubernetesHarness::start(&[], LABELS).await;
        let node = harness.launch("pod", "0000000001").await.unwrap();
        assert_eq!((node.interface_ip.as_deref(), node.host_id.as_deref()), (Some("pod"), Some("loopback")));
        assert_eq!((node.cloud.as_deref(), node.resources.get("cores")), (Some("nodepool"), 1.0));
        let connection = connection(&node);
        assert_eq!((&connection["pod"], &connection["skiptls"]), (&json!("pod"), &json!(false)));
        let admin = Client::connect(&harness.cluster.kubeconfig(), "admin");
        let pod = admin.get("/api/v1/namespaces/main-0000000001/pods/pod").await.expect(200);
        let expected = json!({
            "purpose": "test", "tenant": "acme", "nodepool_node_label": "pod", "nodepool_node_id": "0000000001",
            "nodepool_pool_name": "main", "nodepool_provider_name": "kube",
        });
        assert_eq!(pod["metadata"]["labels"], expected);
        let user = user_of(&harness, &connection);
        user.get("/api/v1/namespaces/main-0000000001/pods").await.expect(200);
        user.post("/api/v1/namespaces/main-0000000001/pods", json!({"metadata": {"name": "p"}})).await.expect(403);
        harness.delete(node).await;
        harness.assert_empty().await;
    });
}

#[test]
fn lost_responses_make_nothing_twice() {
    on_real_time(async {
        let mut harness = KubernetesHarness::start(&[], LABELS).await;
        let created = ["namespaces", "serviceaccounts", "secrets", "roles", "rolebindings", "pods"];
        for (number, kind) in ["lost-answer", "closed", "503", "html"].into_iter().enumerate() {
            let faults: Vec<String> =
                created.iter().map(|resource| format!("{kind} times=1 verb=create resource={resource}")).collect();
            harness.cluster.knobs(json!({ "faults": faults })).await;
            let launched = harness.launch("pod", &format!("000000000{number}")).await;
            harness.delete(launched.unwrap_or_else(|error| panic!("{kind}: {error}"))).await;
        }
        harness.assert_empty().await;
    });
}

#[test]
fn a_namespace_of_others_is_neither_used_nor_deleted() {
    on_real_time(async {
        let mut harness = KubernetesHarness::start(&[], LABELS).await;
        let admin = Client::connect(&harness.cluster.kubeconfig(), "admin");
        let foreign = json!({"metadata": {"name": "main-0000000001", "labels": {"nodepool_provider_name": "other"}}});
        admin.post("/api/v1/namespaces", foreign).await.expect(201);
        let error = harness.launch("ns", "0000000001").await.unwrap_err();
        assert!(error.to_string().contains("exists already and belongs to other"), "{error}");
        admin.get("/api/v1/namespaces/main-0000000001").await.expect(200);
    });
}

#[test]
fn a_pod_that_never_runs_fails_with_the_words_of_the_cluster() {
    on_real_time(async {
        let pod = |annotations: &str| format!("type: pod, image: busybox, annotations: {{{annotations}}}");
        let keys = [
            pod("loopback/end: Failed, loopback/pod-reason: Evicted, loopback/message: no disk"),
            pod("loopback/waiting: CrashLoopBackOff"),
            pod("loopback/waiting: CreateContainerConfigError, loopback/message: no secret"),
        ];
        let labels = [("ended", &*keys[0]), ("crashes", &keys[1]), ("config", &keys[2])];
        let mut harness = KubernetesHarness::start(&[], &labels).await;
        for (number, (label, words)) in
            [("ended", "Evicted"), ("crashes", "CrashLoopBackOff"), ("config", "CreateContainerConfigError")]
                .into_iter()
                .enumerate()
        {
            let error = harness.launch(label, &format!("000000000{number}")).await.unwrap_err();
            assert!(error.to_string().contains(words), "{label}: {error}");
        }
    });
}

#[test]
fn a_token_that_comes_late_is_waited_for() {
    on_real_time(async {
        let mut harness = KubernetesHarness::start(&["--secret-fill-s", "5"], LABELS).await;
        let node = harness.launch("ns", "0000000001").await.unwrap();
        assert!(connection(&node)["token"].as_str().is_some_and(|token| !token.is_empty()), "{node:?}");
        harness.delete(node).await;
        harness.assert_empty().await;
    });
}

#[test]
fn a_token_that_never_comes_ends_the_attempt() {
    on_real_time(async {
        let mut harness = KubernetesHarness::start(&["--secret-fill-s", "3600"], LABELS).await;
        let error = harness.launch("ns", "0000000001").await.unwrap_err();
        let CloudError::Failed { kind: FailureKind::Nodepool, detail } = error else { panic!("{error:?}") };
        assert_eq!(detail, "the account zuul-worker has no token after 30 s");
    });
}

#[test]
fn an_image_that_cannot_be_pulled_ends_the_attempt() {
    on_real_time(async {
        let keys = "type: pod, image: registry.example/missing, annotations: {loopback/waiting: ImagePullBackOff}";
        let mut harness = KubernetesHarness::start(&[], &[("pod", keys)]).await;
        harness.provider.submit(1, order("pod", "0000000001"));
        wait_for_obstacle(&mut harness.provider, "registry.example/missing").await;
        let error = harness.provider.wait_for_end().await.1.unwrap_err();
        let CloudError::Failed { kind: FailureKind::Status, detail } = error else { panic!("{error:?}") };
        assert!(detail.contains("ImagePullBackOff") && detail.contains("registry.example/missing"), "{detail}");
        // Three looks at least 10 s apart.
        let looks = &harness.cluster.state().await["counters"]["calls_by_kind"]["get pods"];
        assert_eq!(looks, &json!(3));
    });
}

/// Waits for an obstacle with these words among the events of the running job.
async fn wait_for_obstacle(provider: &mut ProviderHarness, words: &str) {
    loop {
        match provider.next().await.1 {
            JobEvent::Waiting(Some(obstacle)) if obstacle.contains(words) => return,
            JobEvent::Finished(result) => panic!("no obstacle {words}: {result:?}"),
            _ => {}
        }
    }
}

#[test]
fn an_unschedulable_pod_waits_with_the_words_of_the_cluster() {
    on_real_time(async {
        let keys = "type: pod, image: busybox, annotations: {loopback/unschedulable: no node has enough cpu, \
                    loopback/unschedulable-seconds: '2'}";
        let mut harness = KubernetesHarness::start(&[], &[("pod", keys)]).await;
        harness.provider.submit(1, order("pod", "0000000001"));
        wait_for_obstacle(&mut harness.provider, "Unschedulable: no node has enough cpu").await;
        let launched = harness.provider.wait_for_end().await.1;
        assert!(matches!(launched, Ok(Outcome::Launched(_))), "{launched:?}");
    });
}

#[test]
fn a_namespace_that_stays_in_deletion_says_why_and_goes_at_last() {
    on_real_time(async {
        let mut harness = KubernetesHarness::start(&["--stuck-namespaces-every", "1"], LABELS).await;
        let node = harness.launch("ns", "0000000001").await.unwrap();
        harness.provider.submit(1, Job::Delete(node.external_id));
        wait_for_obstacle(&mut harness.provider, "NamespaceDeletionDiscoveryFailure").await;
        harness.cluster.knobs(json!({"stuck_namespaces_every": 0})).await;
        assert_eq!(harness.provider.wait_for_end().await.1, Ok(Outcome::Deleted));
        harness.assert_empty().await;
    });
}

#[test]
fn nodes_are_ready_however_the_watches_end() {
    on_real_time(async {
        let cases: [&[&str]; 4] = [
            &["--watch-closes-after-s", "0.05"],
            &["--watch-closes-after-s", "0.05", "--history-size", "1"],
            &["--history-size", "1", "--gone-as-status", "--watch-closes-after-s", "0.05"],
            &["--no-watch", "403"],
        ];
        for flags in cases {
            let mut harness = KubernetesHarness::start(flags, LABELS).await;
            for number in 0..3 {
                let node = harness.launch("pod", &format!("000000000{number}")).await.unwrap();
                harness.delete(node).await;
            }
            harness.assert_empty().await;
        }
    });
}
