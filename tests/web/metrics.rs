//! Metrics: statsd, `/metrics` scraped by Debian's Prometheus, and the alert rules and dashboard in contrib.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nodepool_model::metrics::prometheus_metrics::{self, MetricKind};
use serde_json::Value;
use testkit::daemon_process::{Coordinator, WorkDir};
use testkit::real::child_process::{ChildProcess, Output};
use testkit::real::ports;
use testkit::{programs, wait};
use tokio::net::UdpSocket;

/// Prometheus reads its configuration, scrapes and evaluates within some seconds.
const TIMEOUT: Duration = Duration::from_secs(60);

fn contrib(name: &str) -> PathBuf {
    programs::repository().join("contrib").join(name)
}

/// All words of a text that look like Prometheus names of our metrics.
fn mentioned(text: &str) -> BTreeSet<&str> {
    let words = text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    words.filter(|word| ["nodepool_", "process_"].iter().any(|prefix| word.starts_with(prefix))).collect()
}

fn series() -> BTreeSet<String> {
    let names = prometheus_metrics::ALL.iter().flat_map(|meter| match meter.kind {
        MetricKind::Histogram(_) => ["_bucket", "_sum", "_count"].map(|end| format!("{}{end}", meter.name)).to_vec(),
        _ => vec![meter.name.to_owned()],
    });
    names.collect()
}

#[test]
fn alert_rules_and_dashboard_query_existing_metrics() {
    let known = series();
    for file in ["prometheus/nodepool-alerts.yml", "grafana/nodepool.json"] {
        let text = std::fs::read_to_string(contrib(file)).unwrap();
        // Comments and descriptions name histograms without their suffixes.
        let queried = mentioned(&text);
        let unknown: Vec<&&str> = queried
            .iter()
            .filter(|name| !known.contains(**name) && !prometheus_metrics::ALL.iter().any(|meter| meter.name == **name))
            .collect();
        assert!(unknown.is_empty() && queried.len() > 10, "{file} queries {unknown:?}");
        // Only builders count these, and a builder has no web port.
        let is_builders =
            |name: &&str| ["nodepool_dib_image", "nodepool_image_update"].iter().any(|b| name.starts_with(b));
        assert!(!queried.iter().any(is_builders), "{file} queries metrics of builders");
    }
    let dashboard: Value =
        serde_json::from_str(&std::fs::read_to_string(contrib("grafana/nodepool.json")).unwrap()).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 15);
}

#[test]
fn every_alert_says_what_to_check() {
    let text = std::fs::read_to_string(contrib("prometheus/nodepool-alerts.yml")).unwrap();
    let undescribed: Vec<&str> = text
        .split("- alert: ")
        .skip(1)
        .filter(|rule| !rule.contains("\n          description: "))
        .filter_map(|rule| rule.lines().next())
        .collect();
    assert!(undescribed.is_empty(), "{undescribed:?}");
}

#[test]
fn promtool_accepts_rules_and_configuration() {
    if testkit::real::skipped() {
        return;
    }
    for (what, file) in [("rules", "prometheus/nodepool-alerts.yml"), ("config", "prometheus/prometheus.yml")] {
        let ended = Command::new("promtool").args(["check", what]).arg(contrib(file)).output().unwrap();
        assert!(
            ended.status.success(),
            "{}{}",
            testkit::daemon_process::text(&ended.stdout),
            testkit::daemon_process::text(&ended.stderr)
        );
    }
}

/// A launcher with an in-memory cloud whose nodes boot immediately.
async fn launcher() -> (WorkDir, Coordinator, testkit::daemon_process::Daemon) {
    launcher_for(None).await
}

/// A launcher with a statsd server on this port.
async fn launcher_for(statsd: Option<u16>) -> (WorkDir, Coordinator, testkit::daemon_process::Daemon) {
    let work_dir = WorkDir::new("");
    let coordinator = Coordinator::start(&work_dir.path("coordinator")).await;
    let servers = format!("zookeeper-servers: [{{host: 127.0.0.1, port: {}}}]\n", coordinator.port);
    work_dir.configure(&format!(
        "{servers}labels: [{{name: 'a\"b'}}]\ntenant-resource-limits: [{{tenant-name: t.x, max-cores: 9}}]\nproviders:\n- name: lab\n  driver: fake\n  region-name: r\n\
         \x20 cloud: fake\n  cloud-images: [{{name: fake-image-id, username: zuul}}]\n  pools:\n  - name: main\n    max-servers: 3\n\
         \x20   host-key-checking: false\n    labels: [{{name: 'a\"b', cloud-image: fake-image-id, min-ram: 1}}]\n"
    ));
    let mut command = work_dir.command(programs::launcher(), &["-f", "-c", "nodepool.yaml"]);
    if let Some(port) = statsd {
        command.env("STATSD_HOST", "127.0.0.1").env("STATSD_PORT", port.to_string());
    }
    let daemon = work_dir.start_command(command);
    work_dir.wait_until_ready().await;
    (work_dir, coordinator, daemon)
}

async fn serve_one_request(work_dir: &WorkDir) {
    let words = ["-c", "nodepool.yaml", "request", "--label", "a\"b", "--wait", "30", "--", "true"];
    let requested = tokio::process::Command::new(programs::nodepool())
        .args(words)
        .current_dir(work_dir.home())
        .output()
        .await
        .unwrap();
    assert!(requested.status.success(), "{}", testkit::daemon_process::text(&requested.stderr));
}

async fn wait_until_scraped(work_dir: &WorkDir, line: &str) {
    wait::until(line, TIMEOUT, async || {
        let (status, text) = work_dir.get("/metrics").await.unwrap();
        status == 200 && text.lines().any(|found| found == line)
    })
    .await;
}

#[tokio::test]
async fn a_request_is_counted_in_the_metrics() {
    let (work_dir, _coordinator, _launcher) = launcher().await;
    serve_one_request(&work_dir).await;
    for line in [
        "nodepool_launch_by_provider{provider=\"lab\",result=\"ready\"} 1",
        "nodepool_launch_by_provider_timer_count{provider=\"lab\",result=\"ready\"} 1",
        "nodepool_launch_by_image{image=\"fake-image-id\",result=\"ready\"} 1",
        "nodepool_request_time_to_ready_seconds_count{provider=\"lab\",pool=\"main\"} 1",
        "nodepool_nodes_by_label{label=\"a\\\"b\",state=\"ready\"} 0",
        "nodepool_addressable_requests{provider=\"lab\",pool=\"main\"} 0",
        "nodepool_provider_max_servers{provider=\"lab\"} 3",
        "nodepool_tenant_limit{tenant=\"t_x\",limit=\"cores\"} 9",
        "nodepool_zookeeper_connected 1",
        "nodepool_ready 1",
    ] {
        wait_until_scraped(&work_dir, line).await;
    }
    let (_, text) = work_dir.get("/metrics").await.unwrap();
    let documented = series();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        assert!(documented.contains(name), "{line}");
    }
}

#[tokio::test]
async fn prometheus_scrapes_the_metrics() {
    if testkit::real::skipped() {
        return;
    }
    let (work_dir, _coordinator, _launcher) = launcher().await;
    serve_one_request(&work_dir).await;
    let port = ports::reserve();
    let configuration = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\nscrape_configs:\n\
         - {{job_name: nodepool, static_configs: [{{targets: ['127.0.0.1:{}']}}]}}\n",
        contrib("prometheus/nodepool-alerts.yml").display(),
        work_dir.web_port.number
    );
    work_dir.write("prometheus.yml", &configuration);
    let mut command = work_dir.command("prometheus", &["--config.file=prometheus.yml", "--storage.tsdb.path=data"]);
    command.arg(format!("--web.listen-address=127.0.0.1:{}", port.number));
    let _prometheus =
        ChildProcess::start("prometheus", &mut command, Output::Logged, &work_dir.path("p.log"), work_dir.home());
    let query_prometheus = async |query: &str| -> Option<Value> {
        let url = format!("http://127.0.0.1:{}/api/v1/{query}", port.number);
        let answer: Value = reqwest::get(url).await.ok()?.json().await.ok()?;
        Some(answer["data"].clone())
    };
    wait::until("the scrape", TIMEOUT, async || {
        let found = query_prometheus("query?query=nodepool_launch_by_provider").await;
        found.is_some_and(|found| {
            found["result"][0]["metric"]["result"] == "ready" && found["result"][0]["value"][1] == "1"
        })
    })
    .await;
    let targets = query_prometheus("targets").await.unwrap();
    let target = &targets["activeTargets"][0];
    assert_eq!((&target["health"], &target["lastError"]), (&"up".into(), &"".into()));
    wait::until("all rules to be evaluated", TIMEOUT, async || {
        let rules = query_prometheus("rules").await.unwrap();
        let rules = rules["groups"][0]["rules"].as_array().cloned().unwrap_or_default();
        let bad = rules.iter().find(|rule| rule["health"] == "err");
        assert!(bad.is_none(), "{bad:?}");
        rules.len() > 8 && rules.iter().all(|rule| rule["health"] == "ok")
    })
    .await;
}

/// Key and type of each line, without its value.
fn keys(datagram: &str) -> Vec<String> {
    let key = |line: &str| {
        let (name, rest) = line.rsplit_once(':').unwrap_or_else(|| panic!("{line}"));
        let (value, kind) = rest.split_once('|').unwrap_or_else(|| panic!("{line}"));
        assert!(value == "inf" || value.parse::<f64>().is_ok_and(|value| value >= 0.0), "{line}");
        assert!(!value.starts_with(['-', '+']), "a signed value changes a gauge by a delta: {line}");
        format!("{name}|{kind}")
    };
    datagram.lines().map(key).collect()
}

#[tokio::test]
async fn statsd_receives_every_key_of_a_launcher() {
    let statsd = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (work_dir, _coordinator, _launcher) = launcher_for(Some(statsd.local_addr().unwrap().port())).await;
    serve_one_request(&work_dir).await;
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let states = ["init", "building", "testing", "ready", "in-use", "used", "hold", "deleting", "failed", "aborted"];
    let mut expected: BTreeSet<String> = states
        .iter()
        .chain(&["deleted"])
        .flat_map(|state| ["", "provider.lab.", "label.a\"b."].map(|of| format!("nodepool.{of}nodes.{state}|g")))
        .collect();
    expected.extend(
        [
            "nodepool.provider.lab.pool.main.addressable_requests|g",
            "nodepool.provider.lab.max_servers|g",
            "nodepool.tenant_limits.t_x.cores|g",
        ]
        .map(str::to_owned),
    );
    for of in ["", "provider.lab.", "image.fake-image-id."] {
        expected.extend(["ms", "c"].map(|kind| format!("nodepool.launch.{of}ready|{kind}")));
    }
    for queue in ["client.connection_queue", "node_cache.event_queue", "image_cache.playback_queue"] {
        expected.insert(format!("nodepool.launcher.{host}.zk.{queue}|g"));
    }
    let (mut buffer, mut requestors) = ([0; 2048], BTreeSet::new());
    while !expected.is_empty() || requestors.len() < 2 {
        let received = tokio::time::timeout(TIMEOUT, statsd.recv(&mut buffer)).await;
        let length = received.unwrap_or_else(|_| panic!("still missing: {expected:?} {requestors:?}")).unwrap();
        assert!(length <= 1232, "{length}");
        for key in keys(std::str::from_utf8(&buffer[..length]).unwrap()) {
            expected.remove(&key);
            if key.starts_with("nodepool.launch.requestor.nodepool-cli.") {
                requestors.insert(key.rsplit_once('|').unwrap().1.to_owned());
            }
        }
    }
    // If the statsd server disappears, no samples are dropped.
    drop(statsd);
    serve_one_request(&work_dir).await;
    wait_until_scraped(&work_dir, "nodepool_statsd_samples_dropped 0").await;
}

/// Keys that are received within `seconds`. The launcher sends a gauge of its own limits every second, so they are
/// counted.
async fn received_keys(statsd: &UdpSocket, seconds: usize) -> BTreeSet<String> {
    let (mut buffer, mut found, mut limits) = ([0; 2048], BTreeSet::new(), 0);
    while limits < seconds {
        let length = tokio::time::timeout(TIMEOUT, statsd.recv(&mut buffer)).await.unwrap().unwrap();
        let new = keys(std::str::from_utf8(&buffer[..length]).unwrap());
        limits += new.iter().filter(|key| key.ends_with(".max_servers|g")).count();
        found.extend(new);
    }
    found
}

// One elected launcher sends the global gauges, and each launcher its own limits.
#[tokio::test]
async fn one_launcher_at_a_time_sends_global_gauges() {
    let (first_statsd, second_statsd) =
        (UdpSocket::bind("127.0.0.1:0").await.unwrap(), UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let (_work_dir, coordinator, mut first) = launcher_for(Some(first_statsd.local_addr().unwrap().port())).await;
    let is_global = |key: &String| key == "nodepool.nodes.ready|g";
    wait::until("the first launcher to be elected", TIMEOUT, async || {
        received_keys(&first_statsd, 1).await.iter().any(is_global)
    })
    .await;
    let other = WorkDir::new("");
    other.configure(&format!(
        "zookeeper-servers: [{{host: 127.0.0.1, port: {}}}]\nlabels: []\n\
         providers: [{{name: other, driver: static, pools: []}}]\n",
        coordinator.port
    ));
    let mut command = other.command(programs::launcher(), &["-f", "-c", "nodepool.yaml"]);
    command.env("STATSD_HOST", "127.0.0.1").env("STATSD_PORT", second_statsd.local_addr().unwrap().port().to_string());
    let _second = other.start_command(command);
    other.wait_until_ready().await;
    // Unchanged gauges are not repeated for up to ten seconds.
    let received = received_keys(&second_statsd, 12).await;
    assert!(
        received.contains("nodepool.provider.other.max_servers|g") && !received.iter().any(is_global),
        "{received:?}"
    );
    first.kill();
    wait::until("the second launcher to take over", TIMEOUT, async || {
        received_keys(&second_statsd, 1).await.iter().any(is_global)
    })
    .await;
}

/// The history contains every step, although each of them is shorter than the page's update interval.
#[tokio::test]
async fn the_event_history_of_a_request_has_every_step() {
    let (work_dir, _coordinator, _launcher) = launcher().await;
    serve_one_request(&work_dir).await;
    let states = |document: &str| -> Vec<String> {
        let document: Value = serde_json::from_str(document).unwrap();
        let events = document["events"].as_array().unwrap();
        let mut states: Vec<String> =
            events.iter().map(|event| event["state"].as_str().unwrap_or("removed").to_owned()).collect();
        states.dedup();
        states
    };
    let of = async |path: &str| states(&work_dir.get(path).await.unwrap().1);
    wait::until("the node to be deleted", TIMEOUT, async || {
        of("/api/node/0000000000").await.last().is_some_and(|state| state == "removed")
    })
    .await;
    let mut node = of("/api/node/0000000000").await;
    // The consumer writes in-use twice, but fast writes may be observed as one.
    node.retain(|state| state != "in-use");
    assert_eq!(node, ["init", "building", "ready", "used", "deleting", "removed"]);
    let (_, document) = work_dir.get("/api/request/200-0000000000").await.unwrap();
    let document: Value = serde_json::from_str(&document).unwrap();
    let events = document["events"].as_array().unwrap().iter().filter(|event| event["node"].is_null());
    let request: Vec<&str> = events.map(|event| event["state"].as_str().unwrap_or("removed")).collect();
    assert_eq!(request, ["requested", "pending", "fulfilled", "removed"]);
}
