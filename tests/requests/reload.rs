//! Reload of the configuration while the launcher runs: an unusable section affects no other one.

use std::time::Duration;

use nodepool::actors::process::config_files;
use nodepool::actors::process::process::newest_config;
use nodepool_drivers::BUILT_IN_DRIVERS;
use nodepool_model::records::request::RequestState;
use nodepool_zk::memory::Fault;
use testkit::in_process_launcher::{Consumer, InProcessDaemon, on_paused_time, start_process, until};

/// Configuration of two providers, each with one pool, one label and these hosts.
fn two_providers(servers: &str, of_a: &str, of_b: &str) -> String {
    let provider = |name: &str, hosts: &str| {
        format!("  - {{name: p-{name}, driver: static, pools: [{{name: main, nodes: [{hosts}]}}]}}\n")
    };
    format!(
        "zookeeper-servers: {servers}\nlabels: [{{name: a}}, {{name: b}}]\nproviders:\n{}{}",
        provider("a", of_a),
        provider("b", of_b)
    )
}

const SERVERS: &str = "[{host: localhost, port: 2181}]";
const A: &str = "{name: fake-a, labels: [a], host-key-checking: false}";
const B: &str = "{name: fake-b, labels: [b], host-key-checking: false}";

async fn pools(consumer: &Consumer) -> Vec<String> {
    let (names, _) = consumer.zk.children("/nodepool/components/pool").await.unwrap();
    let mut labels = Vec::new();
    for name in names {
        // The pool may be unregistered between the two reads.
        let Ok((data, _)) = consumer.zk.get(&format!("/nodepool/components/pool/{name}")).await else { continue };
        let record: serde_json::Value = serde_json::from_slice(&data).unwrap();
        labels.push(record["provider_name"].as_str().unwrap().to_owned());
    }
    labels.sort();
    labels
}

async fn served(consumer: &Consumer, label: &str) -> RequestState {
    let id = consumer.submit_labels(&[label]).await;
    let ended = consumer.wait_for_end(&id).await;
    if ended.state == RequestState::Fulfilled {
        let nodes = consumer.accept(&id).await;
        consumer.use_and_release(nodes).await;
    }
    ended.state
}

#[test]
fn a_rejected_section_removes_only_its_own_pools() {
    on_paused_time(async {
        let process = InProcessDaemon::new(&two_providers(SERVERS, A, B));
        let (_zookeeper, consumer, process) = start_process(process, 2).await;
        assert_eq!(pools(&consumer).await, ["p-a", "p-b"]);

        let twice = format!("{A}, {A}");
        std::fs::write(&process.file, two_providers(SERVERS, &twice, B)).unwrap();
        until("the pool to be unregistered", async || pools(&consumer).await == ["p-b"]).await;
        assert_eq!(served(&consumer, "b").await, RequestState::Fulfilled);
        assert_eq!(served(&consumer, "a").await, RequestState::Failed, "no pool has the label");
        let in_force = process.shared.active_config().unwrap().config;
        let reason = &in_force.out_of_service["p-a"];
        assert!(reason.starts_with("static node zuul@fake-a:22 already defined ("), "{reason}");

        std::fs::write(&process.file, two_providers(SERVERS, A, B)).unwrap();
        until("the pool to be registered again", async || pools(&consumer).await == ["p-a", "p-b"]).await;
        assert_eq!(served(&consumer, "a").await, RequestState::Fulfilled);
    });
}

// Found by simulation seed 46510: a pool registered itself again while its registration was being deleted. Requests
// that all others had declined waited for it.
#[test]
fn a_removed_pool_stays_unregistered_after_a_disconnection() {
    for lost in [0, 5] {
        on_paused_time(async {
            let process = InProcessDaemon::new(&two_providers(SERVERS, A, B));
            let (zookeeper, consumer, process) = start_process(process, 2).await;
            zookeeper.suspend(process.session_id);
            let without = two_providers(SERVERS, A, B)
                .replace("p-a, driver: static, pools: [{name: main", "p-c, driver: static, pools: [{name: other");
            std::fs::write(&process.file, without).unwrap();
            tokio::time::sleep(Duration::from_secs(5)).await;
            zookeeper.fail_next(process.session_id, lost, Fault::BeforeApplying);
            zookeeper.resume(process.session_id);
            let is_unregistered = async || pools(&consumer).await == ["p-b", "p-c"];
            until("the pool to be unregistered", is_unregistered).await;
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert!(is_unregistered().await, "the pool stays unregistered, {lost} requests lost");
        });
    }
}

#[test]
fn a_failed_provider_start_does_not_affect_others() {
    on_paused_time(async {
        let twice = format!("{A}, {A}");
        let process = InProcessDaemon::new(&two_providers(SERVERS, &twice, B));
        let (_zookeeper, consumer, _process) = start_process(process, 1).await;
        assert_eq!(pools(&consumer).await, ["p-b"]);
        assert_eq!(served(&consumer, "b").await, RequestState::Fulfilled);
    });
}

#[test]
fn an_unusable_static_host_is_reported_and_affects_no_others() {
    on_paused_time(async {
        let odd = "{name: fake-0, labels: [a], max-parallel-jobs: 0, host-key-checking: false}, \
                   {name: fake-1, labels: [], host-key: nonsense, host-key-checking: false}, \
                   {name: fake-2, labels: [a], timeout: 0}";
        let process = InProcessDaemon::new(&two_providers(SERVERS, odd, B));
        let loaded =
            config_files::load(&process.shared.options.files, &process.file, None, BUILT_IN_DRIVERS).await.unwrap();
        let messages: Vec<&str> = loaded.diagnostics.iter().map(|problem| problem.message.as_str()).collect();
        let expected = [
            "a static node without slots is never used (zuul@fake-0:22)",
            "a static node without labels is never used (zuul@fake-1:22)",
            "invalid host key (zuul@fake-1:22)",
            "a static node without a timeout is never used (zuul@fake-2:22)",
        ];
        assert_eq!(messages, expected);
        assert!(loaded.diagnostics.iter().all(|problem| !problem.is_error() && problem.at.line > 0));
        assert_eq!(config_files::validate(&process.file, BUILT_IN_DRIVERS).await, loaded.diagnostics);
    });
}

#[test]
fn unreachable_zookeeper_servers_keep_the_running_configuration() {
    on_paused_time(async {
        let (_zookeeper, consumer, process) =
            start_process(InProcessDaemon::new(&two_providers(SERVERS, A, B)), 2).await;
        let more = format!("{B}, {{name: fake-c, labels: [b], host-key-checking: false}}");
        for servers in ["[]", "[{host: a b}]", "[{host: localhost, port: 0}]", "[{host: h, chroot: x//y}]"] {
            std::fs::write(&process.file, two_providers(servers, A, &more)).unwrap();
            tokio::time::sleep(std::time::Duration::from_secs(5)).await;
            assert_eq!(consumer.count("/nodepool/nodes").await, 2, "{servers}");
            assert_eq!(served(&consumer, "b").await, RequestState::Fulfilled, "{servers}");
            until("the node to be registered again", async || consumer.ready_nodes().await == 2).await;
        }
        std::fs::write(&process.file, two_providers(SERVERS, A, &more)).unwrap();
        until("the third node", async || consumer.ready_nodes().await == 3).await;
    });
}

#[test]
fn a_new_session_uses_the_last_valid_configuration() {
    on_paused_time(async {
        let process = InProcessDaemon::new(&two_providers(SERVERS, A, B));
        let first =
            config_files::load(&process.shared.options.files, &process.file, None, BUILT_IN_DRIVERS).await.unwrap();
        let (_zookeeper, consumer, process) = start_process(process, 2).await;
        let more = format!("{B}, {{name: fake-c, labels: [b], host-key-checking: false}}");
        std::fs::write(&process.file, two_providers(SERVERS, A, &more)).unwrap();
        until("the third node", async || consumer.ready_nodes().await == 3).await;
        for broken in ["providers: [".to_owned(), two_providers("[]", A, B)] {
            std::fs::write(&process.file, broken).unwrap();
            let next = newest_config(&process.shared, first.clone()).await;
            assert_ne!(next.config, first.config);
            assert_eq!(next.config, process.shared.active_config().unwrap().config);
        }
        std::fs::write(&process.file, two_providers(SERVERS, B, A)).unwrap();
        let next = newest_config(&process.shared, first.clone()).await;
        assert_eq!(next.config, process.shared.active_config().unwrap().config);
        assert!(next.config.providers["p-a"].pools["main"].labels.contains("b"));
    });
}

/// Configuration of a cloud whose instances boot in half a minute, with one attempt per node.
fn slow_cloud(more: &str) -> String {
    format!(
        "zookeeper-servers: {SERVERS}\nlabels: [{{name: a}}]\nproviders:\n  - name: lab\n    driver: fake\n    cloud: fake\n    \
         launch-retries: 1\n    fake: {{boot-time: 30}}\n{more}    cloud-images: [{{name: image, image-name: Fake Precise, username: zuul}}]\n    pools:\n      \
         - {{name: main, labels: [{{name: a, cloud-image: image, flavor-name: Fake Flavor}}]}}\n"
    )
}

#[test]
fn booting_nodes_finish_when_their_provider_is_replaced_or_removed() {
    on_paused_time(async {
        let without = format!("zookeeper-servers: {SERVERS}\nlabels: [{{name: a}}]\nproviders: []\n");
        for changed in [slow_cloud("    boot-timeout: 77\n"), without] {
            let (_zookeeper, consumer, process) = start_process(InProcessDaemon::new(&slow_cloud("")), 0).await;
            until("the pool to be registered", async || consumer.count("/nodepool/components/pool").await == 1).await;
            let id = consumer.submit_labels(&["a", "a"]).await;
            until("its nodes to boot", async || {
                consumer.nodes().await.iter().filter(|(_, node)| node.external_id.is_string()).count() == 2
            })
            .await;
            std::fs::write(&process.file, &changed).unwrap();
            let request = consumer.wait_for_end(&id).await;
            assert_eq!((request.state, request.nodes.len()), (RequestState::Fulfilled, 2), "{changed}");
            assert_eq!(consumer.nodes().await.len(), 2, "no launch was restarted");
        }
    });
}
