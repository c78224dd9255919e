//! Static hosts with a real sshd on loopback addresses: running, stopped, hanging, and with changed keys.

use std::time::Duration;

use nodepool_model::records::request::RequestState;
use nodepool_model::records::time::Seconds;
use testkit::in_process_launcher::{Consumer, InProcessDaemon, on_real_time, start_process, until};
use testkit::real::skipped;
use testkit::real::sshd::{Host, Options, start_silent_host};

/// A launcher that checks failed hosts every second.
fn process(nodes: &[String]) -> InProcessDaemon {
    let nodes: String = nodes.iter().map(|node| format!("          - {{{node}}}\n")).collect();
    let yaml = format!(
        "zookeeper-servers:\n  - host: localhost\nlabels:\n  - name: a\n  - name: b\nproviders:\n  - name: lab\n    driver: static\n    pools:\n      - name: main\n        node-attributes: {{executor-zone: lab}}\n        nodes:\n{nodes}"
    );
    InProcessDaemon::with(&yaml, |options| options.cleanup_interval = Seconds(1.0))
}

fn node(host: &Host, more: &str) -> String {
    format!("name: {}, connection-port: {}, labels: [a], timeout: 3{more}", host.address().ip(), host.port())
}

async fn submit(consumer: &Consumer, label: &str) -> (RequestState, Vec<String>) {
    let id = consumer.submit_labels(&[label]).await;
    let ended = consumer.wait_for_end(&id).await;
    let mut ports = Vec::new();
    for node in &ended.nodes {
        ports
            .push(consumer.node(node).await.expect("a node of a fulfilled request exists").connection_port.to_string());
    }
    (ended.state, ports)
}

#[test]
fn a_node_record_combines_host_and_pool_settings() {
    if skipped() {
        return;
    }
    on_real_time(async {
        let host = Host::start(Options::at(41)).await;
        let line = node(&host, ", python-path: /usr/bin/python3, shell-type: sh, username: ci");
        let (_zookeeper, consumer, _process) = start_process(process(&[line]), 1).await;
        let (_, node) = consumer.nodes().await.pop().unwrap();
        let mut keys = host.keys();
        let mut found = node.host_keys.clone();
        keys.sort();
        found.sort();
        assert_eq!(found, keys);
        assert_eq!((node.username.as_deref(), node.python_path.as_deref()), (Some("ci"), Some("/usr/bin/python3")));
        assert_eq!((node.shell_type.as_deref(), node.connection_type.as_deref()), (Some("sh"), Some("ssh")));
        assert_eq!(node.attributes["executor-zone"], "lab");
        assert_eq!(node.public_ipv4, Some(host.address().ip().to_string()));
        assert_eq!(submit(&consumer, "a").await.0, RequestState::Fulfilled);
    });
}

#[test]
fn a_dead_host_is_skipped_until_it_answers() {
    if skipped() {
        return;
    }
    on_real_time(async {
        let (mut first, second) = (Host::start(Options::at(42)).await, Host::start(Options::at(43)).await);
        let nodes = [node(&first, ""), node(&second, "")];
        let (_zookeeper, consumer, _process) = start_process(process(&nodes), 2).await;
        first.stop();
        let (state, ports) = submit(&consumer, "a").await;
        assert_eq!((state, ports), (RequestState::Fulfilled, vec![second.port().to_string()]));
        until("the dead host to be deregistered", async || {
            // A request for the host triggers its check.
            consumer.nodes().await.iter().all(|(_, node)| *node.connection_port != first.port()) || {
                let id = consumer.submit_labels(&["a"]).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
                consumer.zk.delete(&nodepool_zk::paths::request(&id), -1).await.unwrap();
                false
            }
        })
        .await;
        first.start_again().await;
        until("the host to be registered again", async || {
            consumer.nodes().await.iter().any(|(_, node)| *node.connection_port == first.port() && node.is_idle())
        })
        .await;
    });
}

#[test]
fn a_hanging_host_does_not_delay_others() {
    if skipped() {
        return;
    }
    on_real_time(async {
        let (host, hanging) =
            (Host::start(Options::at(44)).await, start_silent_host("127.0.0.45".parse().unwrap()).await);
        let stuck = format!("name: 127.0.0.45, connection-port: {}, labels: [b], timeout: 2", hanging.address.port());
        let (_zookeeper, consumer, _process) = start_process(process(&[stuck, node(&host, "")]), 1).await;
        assert_eq!(submit(&consumer, "a").await.0, RequestState::Fulfilled);
        assert!(consumer.nodes().await.iter().all(|(_, node)| node.hostname.as_deref() != Some("127.0.0.45")));
    });
}

#[test]
fn changed_host_keys_are_accepted_unless_configured() {
    if skipped() {
        return;
    }
    on_real_time(async {
        let mut free = Host::start(Options::at(46)).await;
        let mut pinned = Host::start(Options::at(47)).await;
        let key = pinned.keys().remove(0);
        let pinned_line = node(&pinned, &format!(", host-key: \"{key}\"")).replace("[a]", "[b]");
        let (_zookeeper, consumer, _process) = start_process(process(&[node(&free, ""), pinned_line]), 2).await;
        free.change_keys().await;
        pinned.change_keys().await;
        for label in ["a", "b"] {
            let id = consumer.submit_labels(&[label]).await;
            assert_eq!(consumer.wait_for_end(&id).await.state, RequestState::Fulfilled);
            let nodes = consumer.accept(&id).await;
            consumer.use_and_release(nodes).await;
        }
        until("a node with the new keys", async || {
            let nodes = consumer.nodes().await;
            nodes
                .iter()
                .any(|(_, node)| *node.connection_port == free.port() && node.host_keys.contains(&free.keys()[0]))
        })
        .await;
        let foreign_nodes =
            consumer.nodes().await.into_iter().filter(|(_, node)| *node.connection_port == pinned.port());
        assert_eq!(
            foreign_nodes.filter(|(_, node)| node.is_idle()).count(),
            0,
            "its keys differ from the configured ones"
        );
    });
}
