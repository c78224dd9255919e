//! Static driver: its configuration keys, and its checks of hosts.
//!
//! Providers run in the test's process: on paused time without connections, in real time with hosts on loopback. The
//! tests with a real sshd need `tests/run`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nodepool_driver::error::CloudError;
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::job::{Job, Outcome};
use nodepool_drivers::static_nodes;
use nodepool_model::config::ProviderConfig;
use nodepool_model::records::static_host::{HostCheck, HostIdentity, StaticHost};
use nodepool_model::records::time::{MonotonicTime, Seconds, Timestamp};
use nodepool_model::snapshot::Snapshot;
use nodepool_policy::cleanup::planner::{self, CleanupPlanner};
use nodepool_policy::inputs::Inputs;
use testkit::misbehaving_hosts::{ListenerBehavior, free_address, listen};
use testkit::provider_harness::{ProviderHarness, launch, on_paused_time, on_real_time, provider_section};
use testkit::real::skipped;
use testkit::real::sshd::{Host, KeyKind, Options};
use tokio::time::Instant;

/// A configuration with one static provider, one pool and these nodes.
fn config(nodes: &str) -> String {
    let mut yaml = String::from("zookeeper-servers: [{host: localhost}]\nlabels: [{name: a}, {name: b}, {name: c}]\n");
    yaml.push_str("providers:\n  - name: static-provider\n    driver: static\n    pools:\n      - name: main\n");
    yaml.push_str("        nodes:\n");
    nodes.lines().for_each(|line| yaml.push_str(&format!("          {}\n", line.trim())));
    yaml
}

fn hosts_of(nodes: &str) -> Vec<StaticHost> {
    let hosts = static_nodes::config::hosts(&provider_section(&config(nodes))).unwrap();
    hosts.iter().map(|host| (**host).clone()).collect()
}

fn diagnostics_of(nodes: &str) -> Vec<String> {
    let problems = static_nodes::config::hosts(&provider_section(&config(nodes))).unwrap_err();
    problems.iter().map(ToString::to_string).collect()
}

fn identity(name: &str, username: &str, port: u16) -> HostIdentity {
    HostIdentity { name: name.to_owned(), username: username.to_owned(), port }
}

fn zuul_at(address: SocketAddr) -> HostIdentity {
    identity(&address.ip().to_string(), "zuul", address.port())
}

fn check_of(facts: &ProviderFacts, identity: &HostIdentity) -> HostCheck {
    facts.static_host(identity).expect("the host is configured").check.clone()
}

fn reason(facts: &ProviderFacts, identity: &HostIdentity) -> String {
    match check_of(facts, identity) {
        HostCheck::Failed { reason, .. } => reason,
        other => panic!("{identity} should have failed: {other:?}"),
    }
}

#[test]
fn omitted_keys_of_a_static_node_have_nodepool_defaults() {
    // The default port is 22, also for winrm.
    let host = &hosts_of("- {name: host-1, labels: [a], connection-type: winrm}")[0];
    let expected = StaticHost {
        identity: identity("host-1", "zuul", 22),
        pool: "main".into(),
        labels: vec!["a".into()],
        slots: 1,
        connection_type: String::from("winrm"),
        shell_type: None,
        python_path: String::from("auto"),
        timeout: Seconds(5.0),
        host_key_checking: true,
        configured_keys: Vec::new(),
        check: HostCheck::Pending,
    };
    assert_eq!(*host, expected);
    assert!(!host.scans_host_keys());
}

#[test]
fn keys_of_a_static_node_are_read_as_nodepool_reads_them() {
    let hosts = hosts_of(
        "- {name: host-1, labels: a b, username: root, connection-port: '2022', ssh-port: 1, timeout: '13',
            host-key: ssh-rsa AAAA, host-key-checking: 0, connection-type: network_cli, shell-type: cmd,
            python-path: /usr/bin/python3, max-parallel-jobs: 3}
         - {name: host-2, labels: [a, c], ssh-port: 2222, host-key: [one x, two y], max-parallel-jobs: 0}",
    );
    let [first, second] = &hosts[..] else { panic!("expected two hosts") };
    assert_eq!(first.identity, identity("host-1", "root", 2022));
    assert_eq!(first.labels, ["a".into(), "b".into()]);
    assert_eq!((first.timeout, first.slots, first.host_key_checking), (Seconds(13.0), 3, false));
    assert_eq!(first.configured_keys, ["ssh-rsa AAAA"]);
    assert_eq!((first.shell_type.as_deref(), first.python_path.as_str()), (Some("cmd"), "/usr/bin/python3"));
    assert!(first.scans_host_keys());
    assert_eq!((second.identity.port, second.slots), (2222, 0));
    assert_eq!(second.configured_keys, ["one x", "two y"]);
}

// Regression: an empty key took its host out of service, because no host can present such a key.
#[test]
fn an_empty_host_key_is_none() {
    let hosts =
        hosts_of("- {name: host-1, labels: a, host-key: ''}\n         - {name: host-2, labels: a, host-key: ['']}");
    assert_eq!(hosts[0].configured_keys, [""; 0]);
    assert_eq!(hosts[1].configured_keys, [""], "an item of a list counts, as in Nodepool");
}

#[test]
fn one_machine_may_be_several_hosts_by_user_or_port() {
    let hosts = hosts_of(
        "- {name: host-1, labels: a}
         - {name: host-1, labels: a, username: root}
         - {name: host-1, labels: a, connection-port: 23}",
    );
    assert_eq!(hosts.len(), 3);
}

#[test]
fn every_diagnostic_has_a_position_and_a_remedy() {
    let problems = diagnostics_of(
        "- {name: host-1, labels: a}
         - {name: host-1, labels: b}
         - {name: host-2, labels: a, connection-port: 70000}
         - {name: host-3, labels: a, max-parallel-jobs: 99999999999}
         - {name: host-4, labels: a, connection-port: 0}",
    );
    let begins = [
        "static node zuul@host-1:22 already defined (line 10,",
        "connection-port of a static node is out of range (line 11,",
        "max-parallel-jobs of a static node is out of range (line 12,",
        "connection-port of a static node is out of range (line 13,",
    ];
    assert_eq!(problems.len(), begins.len(), "{problems:#?}");
    for (problem, begin) in problems.iter().zip(begins) {
        assert!(problem.starts_with(begin), "{problem}");
    }
    assert!(problems[0].contains("line 9 has a node with the same name"), "{}", problems[0]);
}

#[test]
fn a_driver_that_is_not_built_is_rejected_by_name() {
    let section = provider_section(&config("- {name: host-1, labels: a}"));
    let section = ProviderConfig { driver: String::from("test"), ..(*section).clone() };
    struct NoOpVisitor;
    impl nodepool_drivers::OpenDriver for NoOpVisitor {
        type Out = ();
        fn with<D: nodepool_driver::driver::Driver>(self, _: D) {}
    }
    let problems = nodepool_drivers::open(&section, NoOpVisitor).unwrap_err();
    assert!(problems[0].to_string().starts_with("the driver test is not part of this version"), "{}", problems[0]);
}

#[test]
fn static_hosts_come_from_the_configuration_alone() {
    on_paused_time(async {
        let provider = ProviderHarness::of_config(&config("- {name: fake-host-1, labels: a}"));
        let facts = provider.facts();
        assert_eq!(check_of(&facts, &identity("fake-host-1", "zuul", 22)), HostCheck::Pending);
        assert_eq!((facts.refreshed_at.0, facts.launch_config.is_none()), (0.0, true));
        assert_eq!(facts.label_needs.len(), 1);
        assert_eq!(facts.label_needs["a"].get("instances"), 1.0);
        assert_eq!(facts.limits.get("instances"), f64::INFINITY);
    });
}

#[test]
fn fake_hosts_pass_with_a_fake_key_and_without_an_address() {
    on_paused_time(async {
        let mut provider = ProviderHarness::of_config(&config(
            "- {name: fake-host-1, labels: a, host-key: ssh-rsa FAKEKEY}
             - {name: fake-host-2, labels: a, host-key: ssh-rsa OTHERKEY}
             - {name: fake-host-3, labels: a, connection-type: winrm}",
        ));
        let result = provider.run(Job::Refresh).await;
        let facts = provider.facts();
        assert_eq!(result, Ok(Outcome::Refreshed(facts.clone(), Default::default())));
        assert!(facts.refreshed_at.0 > 0.0);
        let [first, second, third] = &facts.static_hosts[..] else { panic!("expected three hosts") };
        assert_eq!(first.host_keys(), Some(&[String::from("ssh-rsa FAKEKEY")][..]));
        assert_eq!(first.address(), None);
        assert!(reason(&facts, &second.identity).starts_with("host key mismatches (fake-host-2): "));
        assert_eq!((second.host_keys(), third.host_keys()), (None, Some(&[][..])));
    });
}

#[test]
fn a_host_whose_keys_are_not_checked_is_never_connected_to() {
    on_real_time(async {
        let (hung_up, connections) = std::sync::mpsc::channel();
        let address = listen(ListenerBehavior::HangsUp, hung_up);
        let port = address.port();
        let mut provider = ProviderHarness::of_config(&config(&format!(
            "- {{name: 127.0.0.1, connection-port: {port}, labels: a, host-key: own key, host-key-checking: false}}
             - {{name: localhost, connection-port: {port}, labels: a, host-key-checking: false}}
             - {{name: unresolvable.invalid, connection-port: {port}, labels: a, host-key-checking: false}}"
        )));
        let facts = provider.wait_for_refresh().await;
        let [literal, named, unresolvable] = &facts.static_hosts[..] else { panic!("expected three hosts") };
        assert_eq!(literal.check, HostCheck::NotNeeded { address: Some(address.ip()) });
        assert_eq!(literal.host_keys(), Some(&[String::from("own key")][..]));
        assert!(named.address().is_some_and(|address| address.is_loopback()), "{named:?}");
        assert!(reason(&facts, &unresolvable.identity).starts_with("cannot resolve unresolvable.invalid: "));
        let probed = provider.run(Job::Probe(literal.identity.clone())).await;
        assert_eq!(probed, Ok(Outcome::Alive(literal.identity.clone())));
        assert!(connections.try_recv().is_err(), "no connection was made");
    });
}

#[test]
fn a_refresh_checks_hosts_independently() {
    if skipped() {
        return;
    }
    on_real_time(async {
        let good = Host::start(Options { keys: vec![KeyKind::Ed25519, KeyKind::Rsa], ..Options::at(31) }).await;
        let changed = Host::start(Options { keys: vec![KeyKind::Ed25519], ..Options::at(32) }).await;
        let (hung_up, _connections) = std::sync::mpsc::channel();
        let (silent, chatters) =
            (listen(ListenerBehavior::Silent, hung_up.clone()), listen(ListenerBehavior::Chatters, hung_up));
        let down = free_address("127.0.0.33");
        let node = |address: SocketAddr, timeout: u32, more: &str| {
            let (ip, port) = (address.ip(), address.port());
            format!("- {{name: {ip}, connection-port: {port}, labels: [a], timeout: {timeout}{more}}}\n")
        };
        let nodes = [
            node(good.address(), 20, &format!(", host-key: ['{} a comment']", good.keys()[1])),
            node(good.address(), 20, ", username: switch, connection-type: network_cli"),
            node(changed.address(), 20, &format!(", host-key: {}", good.keys()[0])),
            node(silent, 20, ", username: windows, connection-type: winrm"),
            node(silent, 3, ""),
            node(chatters, 2, ""),
            node(down, 1, ""),
        ];
        let provider = ProviderHarness::of_config(&config(&nodes.concat()));
        // The good hosts are known while the check of the silent one is in flight.
        let good_known =
            |facts: &ProviderFacts| facts.static_hosts.iter().filter(|host| host.check.is_good()).count() == 3;
        let facts = provider.wait_for_facts(good_known).await;
        assert_eq!(check_of(&facts, &zuul_at(silent)), HostCheck::Pending);

        // The initial refresh of a provider starts without a job.
        let facts = provider.wait_for_refresh().await;
        let [first, switch, mismatch, windows, hanging, other_service, refused] = &facts.static_hosts[..] else {
            panic!("expected seven hosts")
        };
        assert_eq!(first.host_keys(), Some(&good.keys()[..]));
        assert_eq!(switch.host_keys(), Some(&good.keys()[..]));
        assert_eq!(first.address(), Some(good.address().ip()));
        let HostCheck::Passed { at, .. } = &first.check else { panic!("{first:?}") };
        assert!(at.0 > 1e9, "the time of the check is recorded: {at:?}");
        assert!(reason(&facts, &mismatch.identity).starts_with("host key mismatches (127.0.0.32): "));
        assert_eq!((windows.check.is_good(), windows.host_keys()), (true, Some(&[][..])));
        for (host, address) in [(hanging, silent), (other_service, chatters), (refused, down)] {
            let expected = format!("Timeout connecting to {} on port {}: ", address.ip(), address.port());
            assert!(reason(&facts, &host.identity).starts_with(&expected), "{host:?}");
        }
    });
}

#[test]
fn a_host_that_passed_is_registered_while_another_check_is_pending() {
    let config = testkit::provider_harness::config(&config("- {name: fake-1, labels: a}\n- {name: fake-2, labels: a}"));
    let section = config.providers.values().next().unwrap();
    let mut facts =
        ProviderFacts { static_hosts: static_nodes::config::hosts(section).unwrap(), ..ProviderFacts::initial() };
    let check = HostCheck::Passed { at: Timestamp(900.0), host_keys: Vec::new(), address: None };
    facts.record_check(&identity("fake-2", "zuul", 22), check);
    let facts = BTreeMap::from([(section.name.clone(), Arc::new(facts))]);
    let mut snapshot = Snapshot::default();
    snapshot.connected = true;
    let inputs = Inputs {
        config: &config,
        snapshot: &snapshot,
        facts: &facts,
        now: Timestamp(1000.0),
        monotonic_now: MonotonicTime::at(1000.0),
    };
    let effects = CleanupPlanner::new(Seconds(28_800.0)).step(planner::Event::Wake, &inputs);
    let registered = effects.iter().filter_map(|effect| match effect {
        planner::Effect::Register { node, .. } => node.hostname.as_deref(),
        _ => None,
    });
    assert_eq!(registered.collect::<Vec<_>>(), ["fake-2"], "{effects:?}");
}

#[test]
fn a_host_check_detects_changed_keys() {
    if skipped() {
        return;
    }
    on_real_time(async {
        let mut host = Host::start(Options { keys: vec![KeyKind::Ed25519], ..Options::at(34) }).await;
        let (address, key) = (host.address(), host.keys().remove(0));
        let port = address.port();
        let nodes = format!("- {{name: 127.0.0.34, connection-port: {port}, labels: a, host-key: {key}, timeout: 20}}");
        let mut provider = ProviderHarness::of_config(&config(&nodes));
        let identity = zuul_at(address);
        // The initial refresh checks the same host, and must not end after the inspection.
        provider.wait_for_refresh().await;
        let inspected = provider.run(Job::Inspect(identity.clone())).await;
        let check = check_of(&provider.facts(), &identity);
        assert_eq!(inspected, Ok(Outcome::Inspected(identity.clone(), check.clone())));
        assert!(check.is_good());

        host.change_keys().await;
        let inspected = provider.run(Job::Inspect(identity.clone())).await;
        let check = check_of(&provider.facts(), &identity);
        assert_eq!(inspected, Ok(Outcome::Inspected(identity.clone(), check)));
        let reported = reason(&provider.facts(), &identity);
        assert!(reported.starts_with("host key mismatches"), "{reported}");
        assert!(!reported.contains(host.keys()[0].split(' ').nth(1).unwrap()), "it contains a key: {reported}");
    });
}

#[test]
fn a_liveness_check_records_only_dead_hosts() {
    on_real_time(async {
        let address = free_address("127.0.0.1");
        let listener = std::net::TcpListener::bind(address).unwrap();
        let port = address.port();
        let nodes =
            format!("- {{name: 127.0.0.1, connection-port: {port}, labels: a, connection-type: winrm, timeout: 1}}");
        let mut provider = ProviderHarness::of_config(&config(&nodes));
        let identity = zuul_at(address);
        let before = provider.wait_for_refresh().await;
        assert_eq!(provider.run(Job::Probe(identity.clone())).await, Ok(Outcome::Alive(identity.clone())));
        assert_eq!(provider.facts(), before);
        drop(listener);
        let probed = provider.run(Job::Probe(identity.clone())).await;
        assert_eq!(probed, Ok(Outcome::Inspected(identity.clone(), check_of(&provider.facts(), &identity))));
        assert!(reason(&provider.facts(), &identity).starts_with("Timeout connecting to 127.0.0.1"));
        let names: Vec<String> =
            std::iter::from_fn(|| provider.samples.try_recv().ok()).map(|sample| sample.name).collect();
        let (check, probe) = ("nodepool.task.static-provider.host.check", "nodepool.task.static-provider.host.probe");
        assert_eq!(names, [check, check, probe, probe, probe, probe]);
    });
}

#[test]
fn a_liveness_check_does_not_wait_for_a_refresh() {
    on_real_time(async {
        let (hung_up, _connections) = std::sync::mpsc::channel();
        let silent = listen(ListenerBehavior::Silent, hung_up);
        let port = silent.port();
        let hanging = |number| {
            format!("- {{name: 127.0.0.1, username: u{number}, connection-port: {port}, labels: a, timeout: 4}}\n")
        };
        let nodes: String = (0..150).map(hanging).collect();
        let mut provider = ProviderHarness::of_config(&config(&nodes));
        let started = Instant::now();
        let probed = provider.run(Job::Probe(identity("127.0.0.1", "u149", port))).await;
        assert!(matches!(probed, Ok(Outcome::Alive(_))), "{probed:?}");
        assert_eq!(provider.facts().refreshed_at.0, 0.0, "the refresh is still running");
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
        // The last fifty hosts waited for a free slot; the wait does not count towards their own timeout.
        let facts = provider.wait_for_refresh().await;
        for host in &facts.static_hosts {
            let reported = reason(&facts, &host.identity);
            assert!(reported.ends_with("no response in the key exchange"), "{reported}");
        }
    });
}

#[test]
fn ten_thousand_hosts_are_refreshed_in_seconds() {
    on_real_time(async {
        let nodes: String = (0..10_000).map(|number| format!("- {{name: fake-{number}, labels: a}}\n")).collect();
        let provider = ProviderHarness::of_config(&config(&nodes));
        let started = Instant::now();
        assert!(provider.wait_for_refresh().await.static_hosts.iter().all(|host| host.check.is_good()));
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
        eprintln!("10,000 hosts in {:?}", started.elapsed());
    });
}

#[test]
fn jobs_a_static_provider_cannot_do_fail() {
    on_paused_time(async {
        let mut provider = ProviderHarness::of_config(&config("- {name: fake-host-1, labels: a}"));
        assert!(matches!(provider.run(launch("one")).await, Err(CloudError::Denied(_))));
        let unknown = identity("fake-host-1", "root", 22);
        assert_eq!(provider.run(Job::Inspect(unknown.clone())).await, Err(CloudError::not_found("no such host")));
        assert_eq!(provider.run(Job::Probe(unknown)).await, Err(CloudError::not_found("no such host")));
    });
}
