//! Harness of a workload: a launcher process on a real ZooKeeper, its static hosts, and the checks at the end of a run.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use super::retry_unknown;
use crate::programs;
use crate::real::nodepool_process::NodepoolProcess;
use crate::real::zookeeper::Options;
use nodepool_model::records::ids::NodeId;
use nodepool_model::records::json;
use nodepool_model::records::node::Node;
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_zk::client::{ConnectOptions, RealConnection, ServerAddress, connect};
use nodepool_zk::{Zk, paths};
use tokio::time::Instant;

/// A static host. Launchers do not connect to it, because host keys are not checked.
#[derive(Clone, Copy)]
pub struct Host {
    pub name: &'static str,
    pub label: &'static str,
    pub slots: usize,
}

/// A ZooKeeper and the configuration of its launcher.
#[derive(Clone)]
pub struct WorkloadHarness {
    /// `host:port,host:port`
    pub addresses: String,
    /// Empty for none; otherwise the znode must exist.
    pub chroot: String,
    pub provider: &'static str,
    pub hosts: &'static [Host],
    pub session: Duration,
    /// Additional bytes in the record of every node.
    pub padding: usize,
}

/// Servers that grant sessions of a second to launchers, and long ones to the workload.
pub fn options() -> Options {
    Options { settings: vec!["maxSessionTimeout=60000".to_owned()], ..Options::short_sessions() }
}

/// Options of a ZooKeeper that is not killed. It does not fsync: a session of a second is lost after 400 ms without a
/// reply, and an fsync on a busy disk takes as long. `tests/fault_injection` tests slow disks.
pub fn options_without_fsync() -> Options {
    let mut options = options();
    options.settings.push("forceSync=no".to_owned());
    options
}

impl WorkloadHarness {
    pub fn configuration(&self) -> String {
        let mut text = "zookeeper-servers:\n".to_owned();
        let mut line = |line: String| writeln!(text, "{line}").expect("a string takes any text");
        for address in self.addresses.split(',') {
            let (host, port) = address.rsplit_once(':').expect("an address ends with its port");
            line(format!("  - {{host: {host}, port: {port}, chroot: '{}'}}", self.chroot));
        }
        line(format!("zookeeper-timeout: {:?}", self.session.as_secs_f64()));
        line("labels: [{name: a}, {name: b}]".to_owned());
        line(format!("providers:\n  - name: {}\n    driver: static\n    pools:\n      - name: main", self.provider));
        line(format!("        node-attributes: {{padding: '{}'}}", "x".repeat(self.padding)));
        line("        nodes:".to_owned());
        for Host { name, label, slots } in self.hosts {
            let rest = format!("max-parallel-jobs: {slots}, host-key-checking: false");
            line(format!("          - {{name: {name}, labels: {label}, {rest}}}"));
        }
        text
    }

    /// A launcher whose periodic rules do not run, so that a missed event is not repaired.
    pub fn launcher(&self) -> NodepoolProcess {
        let executable = programs::launcher();
        let mut arguments = vec!["-d", "--no-webapp"];
        for interval in ["--watermark-sleep", "--cleanup-interval", "--delete-interval"] {
            arguments.extend([interval, "1000"]);
        }
        NodepoolProcess::start(executable, &self.configuration(), &arguments)
    }

    /// A session that is longer than any outage of a run.
    pub async fn connect(&self) -> Zk {
        let connection: Zk = self.session(Duration::from_secs(30)).await;
        connection
    }

    /// A session with this timeout.
    pub async fn session(&self, session_timeout: Duration) -> Arc<RealConnection> {
        let servers = self.addresses.split(',').map(|address| {
            let (host, port) = address.rsplit_once(':').expect("an address ends with its port");
            ServerAddress { host: host.to_owned(), port: port.parse().expect("a port is a number") }
        });
        let options = ConnectOptions {
            servers: servers.collect(),
            chroot: self.chroot.clone(),
            session_timeout,
            ..ConnectOptions::plain("", 0)
        };
        connect(options).await.expect("a running server accepts clients")
    }

    pub fn slots(&self) -> Vec<(&'static str, usize)> {
        let labels: BTreeSet<&str> = self.hosts.iter().map(|host| host.label).collect();
        let of = |label: &str| self.hosts.iter().filter(|host| host.label == label).map(|host| host.slots).sum();
        labels.into_iter().map(|label| (label, of(label))).collect()
    }

    /// Waits for the initial state: every slot registered once and free, no lock, no request, and this many pools.
    pub async fn wait_until_settled(&self, zk: &Zk, pools: usize, within: Duration) {
        wait_until_correct(within, async || match self.busy_nodes(zk).await {
            None => find_leftover(zk, pools).await,
            busy => busy,
        })
        .await;
    }

    /// Waits for the initial state of the nodes only.
    pub async fn wait_until_nodes_settled(&self, zk: &Zk, within: Duration) {
        wait_until_correct(within, async || self.busy_nodes(zk).await).await;
    }

    async fn busy_nodes(&self, zk: &Zk) -> Option<String> {
        let mut slots: Vec<(String, i64)> = Vec::new();
        for name in children(zk, paths::NODES).await {
            let id = NodeId::from(name);
            let Ok((data, _)) = retry_unknown(|| zk.get(&paths::node(&id))).await else {
                return Some(format!("node {id} was not deleted"));
            };
            let Ok(node) = json::from_bytes::<Node>(&data) else { return Some(format!("node {id} is unreadable")) };
            let contenders = children(zk, &paths::node_lock(&id)).await;
            if !node.is_idle() || !contenders.is_empty() {
                return Some(format!("node {id} is not free: {contenders:?} {node:?}"));
            }
            slots.push((node.hostname.unwrap_or_default(), node.slot.unwrap_or(-1)));
        }
        slots.sort();
        let expected =
            self.hosts.iter().flat_map(|host| (0..host.slots as i64).map(|slot| (host.name.to_owned(), slot)));
        let mut expected: Vec<(String, i64)> = expected.collect();
        expected.sort();
        (slots != expected).then(|| format!("the registered slots are {slots:?}"))
    }
}

/// Waits until `wrong` returns `None`. Fails after `within`.
pub async fn wait_until_correct(within: Duration, wrong: impl AsyncFn() -> Option<String>) {
    let began = Instant::now();
    while let Some(wrong) = wrong().await {
        assert!(began.elapsed() < within, "after {within:?}: {wrong}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until each request that is open now has ended. Fails after `within`, the time that this may take without a
/// fault, and names the requests that are still open.
pub async fn wait_until_all_end(zk: &Zk, within: Duration) {
    let mut waiting = BTreeSet::new();
    for name in children(zk, paths::REQUESTS).await {
        if is_open(zk, &name).await {
            waiting.insert(name);
        }
    }
    let began = Instant::now();
    while let Some(name) = waiting.first() {
        if is_open(zk, name).await {
            assert!(began.elapsed() < within, "requests still waiting after {within:?} without a fault: {waiting:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        } else {
            waiting.pop_first();
        }
    }
}

async fn is_open(zk: &Zk, name: &str) -> bool {
    let Ok((data, _)) = retry_unknown(|| zk.get(&paths::request(&name.into()))).await else { return false };
    let record: NodeRequest = json::from_bytes(&data).expect("records of launchers are readable");
    matches!(record.state, RequestState::Requested | RequestState::Pending)
}

/// Leftovers of a run other than nodes: requests, their locks, or another number of pools.
pub async fn find_leftover(zk: &Zk, pools: usize) -> Option<String> {
    let requests = children(zk, paths::REQUESTS).await;
    if !requests.is_empty() {
        return Some(format!("requests were not deleted: {requests:?}"));
    }
    for request in children(zk, paths::REQUEST_LOCKS).await {
        let contenders = children(zk, &format!("{}/{request}", paths::REQUEST_LOCKS)).await;
        if !contenders.is_empty() {
            return Some(format!("request {request} is locked by {contenders:?}"));
        }
    }
    let registered = children(zk, "/nodepool/components/pool").await;
    (registered.len() != pools).then(|| format!("registered pools: {registered:?}"))
}

pub async fn children(zk: &Zk, path: &str) -> Vec<String> {
    retry_unknown(|| zk.children(path)).await.map(|(names, _)| names).unwrap_or_default()
}

/// Seed of all random numbers of a run; printed, so that the run can be repeated.
pub fn seed() -> u64 {
    let seed = match std::env::var("NODEPOOL_SEED") {
        Ok(text) => text.parse().expect("NODEPOOL_SEED is a number"),
        Err(_) => rand::random::<u32>().into(),
    };
    eprintln!("NODEPOOL_SEED={seed}");
    seed
}

/// Fails with all violations, and prints the log lines of the launchers about their requests and nodes.
pub fn assert_no_violations(
    checker: &Arc<super::consistency_checker::ConsistencyChecker>,
    launchers: &[&NodepoolProcess],
) {
    let violations = checker.violations();
    if violations.is_empty() {
        return;
    }
    let logs: Vec<String> = launchers.iter().map(|launcher| launcher.log()).collect();
    let all: Vec<&str> = logs.iter().flat_map(|log| log.lines()).collect();
    let mut ids = numbers(violations.iter().map(String::as_str));
    // The nodes of these requests.
    ids.extend(numbers(all.iter().copied().filter(|line| line.contains("claim") && names_any(line, &ids))));
    let relevant = all.iter().filter(|line| names_any(line, &ids) || line.contains(" starting"));
    eprintln!("--- log lines of {} launchers:\n{}", logs.len(), relevant.copied().collect::<Vec<_>>().join("\n"));
    eprintln!("--- last log lines:\n{}", all[all.len().saturating_sub(200)..].join("\n"));
    panic!("{} invariants were violated:\n{}", violations.len(), violations.join("\n"));
}

/// Numbers of ten digits, as in the ids of requests and nodes.
fn numbers<'a>(texts: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let words = texts.flat_map(|text| text.split(|character: char| !character.is_ascii_digit()));
    words.filter(|word| word.len() == 10).map(str::to_owned).collect()
}

fn names_any(line: &str, ids: &BTreeSet<String>) -> bool {
    !numbers(std::iter::once(line)).is_disjoint(ids)
}
