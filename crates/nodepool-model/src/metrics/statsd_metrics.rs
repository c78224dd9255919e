//! Statsd metrics: samples, and all metric names that operators see, in one place.

use std::collections::{BTreeMap, BTreeSet};

use super::prometheus_metrics::{self, Metric};
use crate::config::Config;
use crate::records::ids::{LabelName, PoolName, ProviderName, TenantName};
use crate::records::node::NodeState;
use crate::snapshot::Snapshot;

/// One value with the metric name that operators see.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub value: f64,
    pub kind: SampleKind,
    /// The Prometheus series, if there is one.
    pub series: Option<Series>,
}

/// A Prometheus metric and the values of its labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub metric: &'static Metric,
    pub labels: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleKind {
    /// Current value.
    Gauge,
    /// Increment.
    Counter,
    /// Duration, in milliseconds.
    Timer,
}

impl Sample {
    pub fn gauge(name: impl Into<String>, value: f64) -> Self {
        Self { name: name.into(), value, kind: SampleKind::Gauge, series: None }
    }

    pub fn counter(name: impl Into<String>, value: f64) -> Self {
        Self { name: name.into(), value, kind: SampleKind::Counter, series: None }
    }

    pub fn timer(name: impl Into<String>, milliseconds: f64) -> Self {
        Self { name: name.into(), value: milliseconds, kind: SampleKind::Timer, series: None }
    }

    /// Adds the Prometheus metric and the values of its labels.
    pub fn with_series(mut self, metric: &'static Metric, labels: impl IntoIterator<Item = impl ToString>) -> Self {
        self.series = Some(Series { metric, labels: labels.into_iter().map(|label| label.to_string()).collect() });
        self
    }
}

/// Default port of statsd.
pub const STATSD_PORT: u16 = 8125;

/// Destination of samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatsdAddress {
    pub host: String,
    pub port: u16,
}

impl StatsdAddress {
    /// Reads `STATSD_HOST` and `STATSD_PORT`; either of them turns statsd on. `Ok(None)` if both are unset; the error
    /// names the wrong variable.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let (host, port) = (set("STATSD_HOST"), set("STATSD_PORT"));
        if host.is_none() && port.is_none() {
            return Ok(None);
        }
        let port = match port {
            Some(text) => text.trim().parse().ok().filter(|port| *port != 0).ok_or_else(|| {
                format!("STATSD_PORT must be a port between 1 and 65535, not `{text}`; no statistics are sent")
            })?,
            None => STATSD_PORT,
        };
        Ok(Some(Self { host: host.unwrap_or_else(|| "localhost".to_owned()), port }))
    }
}

/// Outcome of one launch attempt, with the labels of its metrics.
pub struct LaunchAttempt<'a> {
    /// `ready`, or `error.` and the kind of failure.
    pub result: &'a str,
    pub milliseconds: f64,
    pub provider: &'a ProviderName,
    pub zone: Option<&'a str>,
    pub requestor: Option<&'a str>,
    /// Name of the booted image: a cloud image or a diskimage.
    pub image: Option<&'a str>,
}

impl LaunchAttempt<'_> {
    /// A timer and a counter under each name of the launch attempt.
    pub fn samples(&self) -> Vec<Sample> {
        let LaunchAttempt { result, provider, milliseconds, .. } = *self;
        let both = |name: String, count: &'static Metric, time: &'static Metric, labels: &[&str]| {
            [
                Sample::timer(name.clone(), milliseconds).with_series(time, labels),
                Sample::counter(name, 1.0).with_series(count, labels),
            ]
        };
        let mut samples = Vec::from(both(
            format!("nodepool.launch.{result}"),
            &prometheus_metrics::LAUNCH,
            &prometheus_metrics::LAUNCH_TIME,
            &[result],
        ));
        let (name, labels) = (format!("nodepool.launch.provider.{provider}.{result}"), [provider.as_str(), result]);
        samples.extend(both(
            name,
            &prometheus_metrics::LAUNCH_BY_PROVIDER,
            &prometheus_metrics::LAUNCH_BY_PROVIDER_TIME,
            &labels,
        ));
        if let Some(zone) = self.zone {
            let name = format!("nodepool.launch.provider.{provider}.{zone}.{result}");
            let labels = [provider.as_str(), zone, result];
            samples.extend(both(
                name,
                &prometheus_metrics::LAUNCH_BY_ZONE,
                &prometheus_metrics::LAUNCH_BY_ZONE_TIME,
                &labels,
            ));
        }
        if let Some(image) = self.image {
            let name = format!("nodepool.launch.image.{}.{result}", normalised(image));
            samples.extend(both(
                name,
                &prometheus_metrics::LAUNCH_BY_IMAGE,
                &prometheus_metrics::LAUNCH_BY_IMAGE_TIME,
                &[image, result],
            ));
        }
        if let Some(requestor) = self.requestor {
            // Every CLI invocation is its own requestor; without this common name, each would create a series.
            let requestor = if requestor.starts_with("nodepool-cli:") { "nodepool-cli" } else { requestor };
            let requestor = normalised(requestor);
            let name = format!("nodepool.launch.requestor.{requestor}.{result}");
            samples.extend(both(
                name,
                &prometheus_metrics::LAUNCH_BY_REQUESTOR,
                &prometheus_metrics::LAUNCH_BY_REQUESTOR_TIME,
                &[&requestor, result],
            ));
        }
        samples
    }
}

/// Image name from a node's `image_id`: a cloud image's name as it is, a diskimage's from the path of its upload.
pub fn image_of(image_id: &str) -> &str {
    match image_id.strip_prefix("/nodepool/images/") {
        Some(path) => path.split('/').next().unwrap_or(path),
        None => image_id,
    }
}

/// Samples of one completed API call; `key` is its service, method and path.
pub fn call_samples(provider: &ProviderName, key: &str, milliseconds: f64) -> [Sample; 2] {
    let name = format!("nodepool.task.{provider}.{key}");
    let labels = [provider.as_str(), key];
    [
        Sample::timer(name.clone(), milliseconds).with_series(&prometheus_metrics::TASK_TIME, labels),
        Sample::counter(name, 1.0).with_series(&prometheus_metrics::TASK, labels),
    ]
}

/// Sample of deleted leaked or unused resources.
pub fn leaked_sample(provider: &ProviderName, what: &str, number: usize) -> Sample {
    let name = format!("nodepool.provider.{provider}.leaked.{what}");
    Sample::counter(name, number as f64).with_series(&prometheus_metrics::LEAKED, [provider.as_str(), what])
}

/// Gauges that one launcher reports for all: nodes by state, provider and label, and addressable requests by pool.
pub fn global_gauges(snapshot: &Snapshot) -> Vec<Sample> {
    let mut samples = node_gauges(snapshot);
    samples.extend(addressable_requests(snapshot));
    samples
}

/// Gauges of nodes. Every state is reported, with 0 if no node is in it, so that a gauge returns to 0 after its last
/// node.
fn node_gauges(snapshot: &Snapshot) -> Vec<Sample> {
    let mut all = ByState::default();
    let mut providers: BTreeMap<&ProviderName, ByState> = BTreeMap::new();
    let mut labels: BTreeMap<&LabelName, ByState> = BTreeMap::new();
    for (_, pool) in snapshot.pools() {
        providers.extend(pool.record.provider_name.as_ref().map(|provider| (provider, ByState::default())));
        labels.extend(pool.record.supported_labels.iter().map(|label| (label, ByState::default())));
    }
    for (_, node) in snapshot.nodes() {
        let node = &node.record;
        all.count(node.state);
        if let Some(provider) = &node.provider {
            providers.entry(provider).or_default().count(node.state);
        }
        for label in &node.labels {
            labels.entry(label).or_default().count(node.state);
        }
    }
    let mut samples = all.gauges("nodepool.nodes", &prometheus_metrics::NODES, None);
    for (provider, nodes) in providers {
        samples.extend(nodes.gauges(
            &format!("nodepool.provider.{provider}.nodes"),
            &prometheus_metrics::NODES_BY_PROVIDER,
            Some(provider.as_str()),
        ));
    }
    for (label, nodes) in labels {
        samples.extend(nodes.gauges(
            &format!("nodepool.label.{label}.nodes"),
            &prometheus_metrics::NODES_BY_LABEL,
            Some(label.as_str()),
        ));
    }
    samples
}

/// Number of addressable requests of each registered pool: requests all of whose labels the pool supports. Requests for
/// the same labels are counted together first, because there are many requests and few combinations.
fn addressable_requests(snapshot: &Snapshot) -> Vec<Sample> {
    let mut label_counts: BTreeMap<BTreeSet<&LabelName>, f64> = BTreeMap::new();
    for (_, request) in snapshot.requests() {
        *label_counts.entry(request.record.node_types.iter().collect()).or_default() += 1.0;
    }
    let mut pools: BTreeMap<(&ProviderName, &PoolName), f64> = BTreeMap::new();
    for (_, pool) in snapshot.pools() {
        let pool = &pool.record;
        if let (Some(provider), Some(name)) = (&pool.provider_name, &pool.name) {
            let requests = label_counts
                .iter()
                .filter(|(labels, _)| pool.serves(labels))
                .map(|(_, count)| *count)
                .fold(0.0, |sum, count| sum + count);
            pools.insert((provider, name), requests);
        }
    }
    let gauge = |((provider, pool), requests): ((&ProviderName, &PoolName), f64)| {
        Sample::gauge(format!("nodepool.provider.{provider}.pool.{pool}.addressable_requests"), requests)
            .with_series(&prometheus_metrics::ADDRESSABLE, [provider.as_str(), pool.as_str()])
    };
    pools.into_iter().map(gauge).collect()
}

/// Gauges that every launcher reports from its own configuration.
pub fn limit_gauges(config: &Config) -> Vec<Sample> {
    let mut samples = Vec::new();
    for (name, provider) in &config.providers {
        let limit = |servers: Option<i64>| servers.map_or(f64::INFINITY, |servers| servers as f64);
        let servers = provider.pools.values().map(|pool| limit(pool.max_servers)).fold(0.0, |sum, limit| sum + limit);
        samples.push(
            Sample::gauge(format!("nodepool.provider.{name}.max_servers"), servers)
                .with_series(&prometheus_metrics::MAX_SERVERS, [name]),
        );
    }
    for (tenant, limits) in &config.tenant_limits {
        samples.extend(limits.iter().map(|(resource, limit)| tenant_limit(tenant, resource, limit)));
    }
    samples
}

fn tenant_limit(tenant: &TenantName, resource: &str, limit: f64) -> Sample {
    let (tenant, resource) = (normalised(tenant.as_str()), normalised(resource));
    Sample::gauge(format!("nodepool.tenant_limits.{tenant}.{resource}"), limit)
        .with_series(&prometheus_metrics::TENANT_LIMIT, [tenant, resource])
}

/// Queues of one launcher's ZooKeeper client. The mirror applies all events before it publishes a snapshot, so the
/// queues of Nodepool 11's caches are always empty here; the names stay for existing graphs.
pub fn client_gauges(hostname: &str) -> Vec<Sample> {
    const QUEUES: [&str; 7] = [
        "connection_queue",
        "node_cache.event_queue",
        "node_cache.playback_queue",
        "request_cache.event_queue",
        "request_cache.playback_queue",
        "image_cache.event_queue",
        "image_cache.playback_queue",
    ];
    let name = |queue: &str| match queue {
        "connection_queue" => format!("nodepool.launcher.{hostname}.zk.client.{queue}"),
        _ => format!("nodepool.launcher.{hostname}.zk.{queue}"),
    };
    QUEUES.iter().map(|queue| Sample::gauge(name(queue), 0.0)).collect()
}

#[derive(Default)]
struct ByState([f64; NodeState::ALL.len()]);

impl ByState {
    fn count(&mut self, state: NodeState) {
        self.0[state as usize] += 1.0;
    }

    fn gauges(&self, prefix: &str, metric: &'static Metric, of: Option<&str>) -> Vec<Sample> {
        let gauge = |state: &NodeState| {
            let labels = of.into_iter().chain([state.as_str()]);
            Sample::gauge(format!("{prefix}.{state}"), self.0[*state as usize]).with_series(metric, labels)
        };
        NodeState::ALL.iter().map(gauge).collect()
    }
}

/// Replaces dots and colons, which are separators in statsd names.
fn normalised(name: &str) -> String {
    name.replace(['.', ':'], "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: Option<&str>, port: Option<&str>) -> Result<Option<StatsdAddress>, String> {
        StatsdAddress::from_environment(|name| match name {
            "STATSD_HOST" => host.map(str::to_owned),
            "STATSD_PORT" => port.map(str::to_owned),
            _ => None,
        })
    }

    #[test]
    fn either_variable_turns_statistics_on() {
        let given = |host: &str, port| Ok(Some(StatsdAddress { host: host.to_owned(), port }));
        assert_eq!(address(None, None), Ok(None));
        assert_eq!(address(Some(""), Some("")), Ok(None));
        assert_eq!(address(Some("graphs"), None), given("graphs", 8125));
        assert_eq!(address(None, Some("9125")), given("localhost", 9125));
        for port in ["x", "0", "70000", "-1"] {
            assert!(address(None, Some(port)).unwrap_err().contains("STATSD_PORT"), "{port}");
        }
    }

    use crate::records::component::PoolComponent;
    use crate::records::ids::{NodeId, RequestId};
    use crate::records::json;
    use crate::snapshot::Versioned;

    fn stored<T: serde::de::DeserializeOwned>(text: &str) -> Versioned<T> {
        Versioned { record: json::from_bytes::<T>(text.as_bytes()).unwrap().into(), version: 0, mzxid: 1, mtime_ms: 0 }
    }

    fn value(samples: &[Sample], name: &str) -> f64 {
        let found: Vec<&Sample> = samples.iter().filter(|sample| sample.name == name).collect();
        assert_eq!(found.len(), 1, "{name}");
        found[0].value
    }

    #[test]
    fn nodes_and_requests_are_counted_as_the_elected_launcher_reports_them() {
        let mut snapshot = Snapshot::default();
        let one = r#"{"kind": "pool", "name": "main", "provider_name": "p1", "supported_labels": ["a"]}"#;
        let two = r#"{"kind": "pool", "name": "main", "provider_name": "p2", "supported_labels": ["a", "b"]}"#;
        snapshot.put_pool("h0000000001".to_owned(), stored::<PoolComponent>(one));
        snapshot.put_pool("h0000000002".to_owned(), stored::<PoolComponent>(two));
        for (id, labels) in [("200-0000000001", r#"["a"]"#), ("200-0000000002", r#"["a", "b", "a"]"#)] {
            let request = format!(r#"{{"state": "requested", "node_types": {labels}}}"#);
            snapshot.put_request(RequestId::from(id), stored(&request));
        }
        let node = r#"{"state": "in-use", "state_time": 1.0, "provider": "gone", "type": ["a", "b"]}"#;
        snapshot.put_node(NodeId::from("0000000001"), stored(node));
        let samples = global_gauges(&snapshot);
        let check = |name: &str, expected: f64| assert_eq!(value(&samples, name), expected, "{name}");
        check("nodepool.nodes.in-use", 1.0);
        check("nodepool.nodes.deleted", 0.0);
        check("nodepool.provider.gone.nodes.in-use", 1.0);
        check("nodepool.provider.p1.nodes.ready", 0.0);
        check("nodepool.label.a.nodes.in-use", 1.0);
        check("nodepool.label.b.nodes.in-use", 1.0);
        check("nodepool.provider.p1.pool.main.addressable_requests", 1.0);
        check("nodepool.provider.p2.pool.main.addressable_requests", 2.0);
    }

    #[test]
    fn a_launch_is_timed_and_counted_under_all_its_names() {
        let provider = ProviderName::from("p.1");
        let attempt = LaunchAttempt {
            result: "ready",
            milliseconds: 5.0,
            provider: &provider,
            zone: Some("az1"),
            requestor: Some("NodePool:min-ready"),
            image: Some(image_of("/nodepool/images/deb.ian/builds/1/providers/p/images/2")),
        };
        let names: Vec<String> = attempt.samples().into_iter().map(|sample| sample.name).collect();
        let expected = [
            "nodepool.launch.ready",
            "nodepool.launch.provider.p.1.ready",
            "nodepool.launch.provider.p.1.az1.ready",
            "nodepool.launch.image.deb_ian.ready",
            "nodepool.launch.requestor.NodePool_min-ready.ready",
        ];
        assert_eq!(names, expected.map(|name| [name, name]).concat());
    }

    #[test]
    fn dots_in_a_tenants_name_become_underlines() {
        let sample = tenant_limit(&TenantName::from("a.b"), "volume-gb", f64::INFINITY);
        assert_eq!((sample.name.as_str(), sample.value), ("nodepool.tenant_limits.a_b.volume-gb", f64::INFINITY));
    }
}
