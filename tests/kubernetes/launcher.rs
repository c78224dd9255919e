//! A launcher with a kubernetes provider: records of nodes, reasons, leaks, and a launcher that stops in the middle.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nodepool::actors::process::context::LauncherOptions;
use nodepool::actors::runtime::messages::{Dump, ExplainRequest};
use nodepool_model::records::ids::RequestId;
use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::RequestState;
use nodepool_zk::memory::MemoryZooKeeper;
use serde_json::{Value, json};
use testkit::clouds::simulated_kubernetes::{InProcessKubernetes, SimulatedKubernetes};
use testkit::in_process_launcher::{Consumer, InProcessDaemon, on_real_time, zookeeper};
use testkit::real::python::{self, Interpreter};
use testkit::wait;

use crate::client::Client;

const TIMEOUT: Duration = Duration::from_secs(60);

pub const CONFIG: &str = "
zookeeper-servers: [{host: localhost}]
labels: [{name: ns}, {name: pod}, {name: unschedulable}, {name: Fedora_28}]
providers:
  - name: kube
    driver: kubernetes
    context: nodepool
    pools:
      - name: main
        node-attributes: {site: a}
        labels:
          - {name: ns, type: namespace}
          - {name: pod, type: pod, image: busybox, cpu: 2, memory: 512, python-path: /usr/bin/python3}
          - {name: unschedulable, type: pod, image: busybox, annotations: {loopback/unschedulable: no node has enough cpu}}
          - {name: Fedora_28, type: pod, image: busybox}
";

pub struct LauncherHarness {
    config: String,
    pub cluster: SimulatedKubernetes,
    zookeeper: MemoryZooKeeper,
    pub consumer: Consumer,
    process: InProcessDaemon,
}

fn process(config: &str, kubeconfig: &Path) -> InProcessDaemon {
    let quick = |options: &mut LauncherOptions| {
        options.cleanup_interval.0 = 0.5;
        options.delete_interval.0 = 0.2;
    };
    let drivers = InProcessKubernetes(vec![kubeconfig.to_owned()]);
    InProcessDaemon::with_drivers(config, quick, Some(Box::new(drivers)))
}

impl LauncherHarness {
    async fn start(pod_start_s: &str) -> Self {
        Self::start_with(CONFIG, &["--pod-start-s", pod_start_s]).await
    }

    pub async fn start_with(config: &str, flags: &[&str]) -> Self {
        let cluster = SimulatedKubernetes::start(&[&["--tls"], flags].concat()).await;
        let zookeeper = zookeeper();
        let mut process = process(config, &cluster.kubeconfig());
        process.run(&zookeeper);
        let consumer = Consumer::of(&zookeeper);
        wait::until("the pool to be registered", TIMEOUT, async || {
            consumer.count("/nodepool/components/pool").await > 0
        })
        .await;
        Self { config: config.to_owned(), consumer, cluster, zookeeper, process }
    }

    /// Ends the launcher as a crash does, and starts another one.
    pub fn restart(&mut self) {
        self.process.stop();
        self.process = process(&self.config, &self.cluster.kubeconfig());
        self.process.run(&self.zookeeper);
    }

    pub async fn wait_for_end(&self, id: &RequestId) -> RequestState {
        wait::until_some("the end of the request", TIMEOUT, async || {
            let state = self.consumer.request(id).await.expect("only the requestor deletes its request").state;
            matches!(state, RequestState::Fulfilled | RequestState::Failed).then_some(state)
        })
        .await
    }

    /// The node of a fulfilled request for one label.
    pub async fn node(&self, label: &str) -> (RequestId, Value) {
        let id = self.consumer.submit_labels(&[label]).await;
        assert_eq!(self.wait_for_end(&id).await, RequestState::Fulfilled);
        let node = self.consumer.request(&id).await.unwrap().nodes[0].clone();
        (id, self.consumer.raw_node(&node).await)
    }

    pub async fn release(&self, id: &RequestId) {
        let nodes = self.consumer.accept(id).await;
        self.consumer.use_and_release(nodes).await;
    }

    pub async fn wait_for_reason(&self, id: &RequestId, words: &str) {
        wait::until(&format!("the reason {words}"), TIMEOUT, async || {
            let ask = ExplainRequest(id.clone());
            let replies = self.process.shared.explain_registry.request_all(ask, Duration::from_secs(5)).await;
            let mut verdicts = replies.into_iter().filter_map(|(_, reply)| reply.ok().flatten());
            verdicts.any(|verdict| verdict.reason.contains(words))
        })
        .await;
    }

    pub async fn wait_until_empty(&self) {
        wait::until("all objects to be deleted", TIMEOUT, async || {
            self.consumer.nodes().await.is_empty() && self.cluster.state().await["objects"] == json!({})
        })
        .await;
    }
}

#[test]
fn the_records_of_nodes_have_what_zuul_reads() {
    on_real_time(async {
        let harness = LauncherHarness::start("0.1").await;
        let (first, raw) = harness.node("pod").await;
        let namespace = raw["external_id"].as_str().unwrap().to_owned();
        assert!(namespace.starts_with("main-0"), "{raw}");
        let port = &raw["connection_port"];
        assert_eq!((&raw["ssh_port"], &port["namespace"], &port["pod"]), (port, &json!(namespace), &json!("pod")));
        assert_eq!((&raw["connection_type"], &raw["interface_ip"]), (&json!("kubectl"), &json!("pod")));
        assert_eq!((&raw["python_path"], &raw["shell_type"]), (&json!("/usr/bin/python3"), &Value::Null));
        assert_eq!(
            (&raw["cloud"], &raw["image_id"], &raw["username"]),
            (&json!("nodepool"), &Value::Null, &Value::Null)
        );
        assert_eq!(raw["resources"], json!({"cores": 2, "instances": 1, "ram": 512}));
        assert_eq!((&raw["host_keys"], &raw["attributes"]), (&json!([]), &json!({"site": "a"})));
        let (second, raw) = harness.node("ns").await;
        assert_eq!((&raw["connection_type"], &raw["interface_ip"]), (&json!("namespace"), &Value::Null));
        harness.release(&first).await;
        harness.release(&second).await;
        harness.wait_until_empty().await;
    });
}

#[test]
fn the_executor_of_zuul_makes_a_kubeconfig_of_our_nodes() {
    on_real_time(async {
        let harness = LauncherHarness::start("0.1").await;
        let nodes = [harness.node("ns").await, harness.node("pod").await];
        let data = nodes.each_ref().map(|(_, raw)| raw["connection_port"].to_string());
        for zuul in Interpreter::ZUUL {
            let folder = tempfile::tempdir().unwrap();
            let kubeconfig = folder.path().join("kubeconfig");
            let arguments = [kubeconfig.to_str().unwrap(), &*data[0], &*data[1]];
            let contexts = python::run(zuul, "zuul_kubeconfig.py", &arguments, TIMEOUT).await;
            for (context, (_, raw)) in contexts.iter().zip(&nodes) {
                let user = Client::connect(&kubeconfig, context.as_str().unwrap());
                let namespace = raw["external_id"].as_str().unwrap();
                user.get(&format!("/api/v1/namespaces/{namespace}/pods")).await.expect(200);
                user.get("/api/v1/nodes").await.expect(403);
            }
            assert_eq!(contexts.len(), nodes.len());
        }
        for (id, _) in &nodes {
            harness.release(id).await;
        }
        harness.wait_until_empty().await;
    });
}

#[test]
fn a_request_shows_why_its_node_does_not_start() {
    on_real_time(async {
        let harness = LauncherHarness::start("0.1").await;
        let id = harness.consumer.submit_labels(&["unschedulable"]).await;
        harness.wait_for_reason(&id, "waits: Unschedulable: no node has enough cpu").await;
        // A label that Kubernetes would refuse takes only itself out of service.
        let refused = harness.consumer.submit_labels(&["Fedora_28"]).await;
        assert_eq!(harness.wait_for_end(&refused).await, RequestState::Failed);
        harness.wait_for_reason(&refused, "Kubernetes accepts no pod of the name Fedora_28").await;
    });
}

#[test]
fn a_request_waits_while_the_quota_of_the_cluster_is_exceeded() {
    on_real_time(async {
        let harness = LauncherHarness::start("0.1").await;
        harness.cluster.knobs(json!({"faults": ["quota verb=create resource=pods"]})).await;
        let id = harness.consumer.submit_labels(&["pod"]).await;
        harness.wait_for_reason(&id, "exceeded quota").await;
        harness.cluster.knobs(json!({"faults": []})).await;
        assert_eq!(harness.wait_for_end(&id).await, RequestState::Fulfilled);
        harness.release(&id).await;
        harness.wait_until_empty().await;
    });
}

#[test]
fn a_namespace_that_stays_in_deletion_keeps_its_record_and_says_why() {
    on_real_time(async {
        let harness = LauncherHarness::start("0.1").await;
        harness.cluster.knobs(json!({"stuck_namespaces_every": 1})).await;
        let (id, _) = harness.node("ns").await;
        harness.release(&id).await;
        wait::until("the condition of the namespace", TIMEOUT, async || {
            let dumps = harness.process.shared.registry.request_all(Dump, Duration::from_secs(5)).await;
            let texts = dumps.into_iter().filter_map(|(_, dump)| Some(dump.ok()??["obstacles"].to_string()));
            texts.into_iter().any(|text| text.contains("NamespaceDeletionDiscoveryFailure"))
        })
        .await;
        // It holds nothing else up.
        let (other, _) = harness.node("pod").await;
        let states: Vec<NodeState> = harness.consumer.nodes().await.into_iter().map(|(_, node)| node.state).collect();
        assert!(states.contains(&NodeState::Deleting), "{states:?}");
        harness.cluster.knobs(json!({"stuck_namespaces_every": 0})).await;
        harness.release(&other).await;
        harness.wait_until_empty().await;
    });
}

#[test]
fn only_leaked_namespaces_of_ours_are_deleted() {
    on_real_time(async {
        let harness = LauncherHarness::start("0.1").await;
        // One node, so that its id was issued by this ZooKeeper.
        let (id, raw) = harness.node("ns").await;
        let node = raw["external_id"].as_str().unwrap().strip_prefix("main-").unwrap().to_owned();
        harness.release(&id).await;
        harness.wait_until_empty().await;
        let admin = Client::connect(&harness.cluster.kubeconfig(), "admin");
        let create = async |name: &str, labels: Value| {
            let body = json!({"metadata": {"name": name, "labels": labels}});
            admin.post("/api/v1/namespaces", body).await.expect(201);
        };
        let labels = |provider: &str, pool: &str| json!({"nodepool_provider_name": provider, "nodepool_pool_name": pool, "nodepool_node_id": node});
        // The last one is of a pool that was removed.
        create(&format!("main-{node}"), labels("other", "main")).await;
        create("main-17", json!({})).await;
        create("mine", labels("kube", "main")).await;
        create(&format!("gone-{node}"), labels("kube", "gone")).await;
        wait::until("the leaked namespace to be deleted", TIMEOUT, async || {
            admin.get(&format!("/api/v1/namespaces/gone-{node}")).await.status == 404
        })
        .await;
        for name in [&format!("main-{node}"), "main-17", "mine"] {
            admin.get(&format!("/api/v1/namespaces/{name}")).await.expect(200);
        }
    });
}

#[test]
fn namespaces_of_others_survive_a_launch_of_their_name() {
    on_real_time(async {
        let harness = LauncherHarness::start("0.1").await;
        let admin = Client::connect(&harness.cluster.kubeconfig(), "admin");
        // The ids of the first nodes are known.
        let names: Vec<String> = (0..6).map(|node| format!("main-{node:010}")).collect();
        for name in &names {
            let labels = json!({"nodepool_provider_name": "other"});
            let body = json!({"metadata": {"name": name, "labels": labels}});
            admin.post("/api/v1/namespaces", body).await.expect(201);
        }
        let id = harness.consumer.submit_labels(&["ns"]).await;
        assert_eq!(harness.wait_for_end(&id).await, RequestState::Failed);
        wait::until("the record to be deleted", TIMEOUT, async || harness.consumer.nodes().await.is_empty()).await;
        for name in names {
            let namespace = admin.get(&format!("/api/v1/namespaces/{name}")).await.expect(200);
            assert_eq!(namespace["status"]["phase"], "Active", "{namespace}");
        }
    });
}

#[test]
fn a_launcher_that_stops_in_the_middle_makes_nothing_twice() {
    on_real_time(async {
        let mut harness = LauncherHarness::start("1").await;
        let ids =
            [harness.consumer.submit_labels(&["pod"]).await, harness.consumer.submit_labels(&["ns", "pod"]).await];
        wait::until("a pod to be created", TIMEOUT, async || {
            harness.cluster.state().await["objects"]["pods"].as_u64().unwrap_or_default() > 0
        })
        .await;
        harness.restart();
        for id in &ids {
            assert_eq!(harness.wait_for_end(id).await, RequestState::Fulfilled);
            harness.release(id).await;
        }
        harness.wait_until_empty().await;
        let state = harness.cluster.state().await;
        assert_eq!(state["counters"]["double_creates"], json!(0), "{state}");
    });
}

#[test]
fn an_outage_of_the_cluster_fails_no_request() {
    on_real_time(async {
        let harness = Arc::new(LauncherHarness::start("0.1").await);
        let (first, _) = harness.node("pod").await;
        harness.cluster.knobs(json!({"refuse_connections": true})).await;
        let id = harness.consumer.submit_labels(&["pod"]).await;
        harness.release(&first).await;
        harness.wait_for_reason(&id, "does not respond").await;
        harness.cluster.knobs(json!({"refuse_connections": false})).await;
        assert_eq!(harness.wait_for_end(&id).await, RequestState::Fulfilled);
        harness.release(&id).await;
        harness.wait_until_empty().await;
    });
}
