//! Prometheus metrics: each name once, with its labels. Names that Nodepool 11's mapping for the statsd exporter
//! (its contrib/statsd_exporter) defines are kept; its timers become histograms, in seconds.

/// Definition of one metric.
#[derive(Debug)]
pub struct Metric {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricKind,
    pub labels: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricKind {
    Gauge,
    Counter,
    /// Upper bounds of the buckets, ascending.
    Histogram(&'static [f64]),
}

/// Metrics with equal names are the same metric.
impl PartialEq for Metric {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

const fn gauge(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Metric {
    Metric { name, help, kind: MetricKind::Gauge, labels }
}

const fn counter(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Metric {
    Metric { name, help, kind: MetricKind::Counter, labels }
}

const fn histogram(
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    bounds: &'static [f64],
) -> Metric {
    Metric { name, help, kind: MetricKind::Histogram(bounds), labels }
}

/// Bounds for launches: those of Nodepool 11's mapping, and smaller ones for faster clouds.
const LAUNCH_BOUNDS: &[f64] =
    &[1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 120.0, 150.0, 180.0, 300.0, 600.0, 900.0];
/// Bounds for requests, which take milliseconds with ready nodes, minutes with launches, and hours at quota.
const WAIT_BOUNDS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0, 1800.0, 3600.0];
const CALL_BOUNDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
const IMAGE_BOUNDS: &[f64] = &[10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0];

pub const NODES: Metric = gauge("nodepool_nodes", "Nodes by state", &["state"]);
pub const NODES_BY_PROVIDER: Metric =
    gauge("nodepool_nodes_by_provider", "Nodes by provider and state", &["provider", "state"]);
pub const NODES_BY_LABEL: Metric = gauge("nodepool_nodes_by_label", "Nodes by label and state", &["label", "state"]);
pub const ADDRESSABLE: Metric =
    gauge("nodepool_addressable_requests", "Node requests all of whose labels a pool supports", &["provider", "pool"]);
pub const MAX_SERVERS: Metric = gauge(
    "nodepool_provider_max_servers",
    "Sum of max-servers over the pools of a provider; +Inf if a pool has no limit",
    &["provider"],
);
pub const TENANT_LIMIT: Metric =
    gauge("nodepool_tenant_limit", "Configured limit of a tenant's resource", &["tenant", "limit"]);
pub const OUTAGE: Metric = gauge(
    "nodepool_provider_outage_seconds",
    "Time for which the cloud of a provider has not responded; 0 if it responds",
    &["provider"],
);
pub const FULL: Metric = gauge(
    "nodepool_provider_full_seconds",
    "Time for which the cloud of a provider has refused new nodes; 0 if it accepts them",
    &["provider"],
);
pub const LEAKED: Metric =
    counter("nodepool_leaked", "Leaked cloud resources that were deleted", &["provider", "resource"]);
pub const TASK: Metric = counter("nodepool_task", "Completed API calls of a cloud", &["provider", "task"]);
pub const TASK_TIME: Metric = histogram(
    "nodepool_task_timer",
    "Duration of API calls of a cloud, in seconds",
    &["provider", "task"],
    CALL_BOUNDS,
);
pub const TASK_FAILED: Metric =
    counter("nodepool_task_failed", "Failed API calls of a cloud", &["provider", "task", "error"]);
pub const LAUNCH: Metric = counter("nodepool_launch", "Completed launch attempts", &["result"]);
pub const LAUNCH_TIME: Metric =
    histogram("nodepool_launch_timer", "Duration of launch attempts, in seconds", &["result"], LAUNCH_BOUNDS);
pub const LAUNCH_BY_PROVIDER: Metric =
    counter("nodepool_launch_by_provider", "Launch attempts by provider", &["provider", "result"]);
pub const LAUNCH_BY_PROVIDER_TIME: Metric = histogram(
    "nodepool_launch_by_provider_timer",
    "Duration of launch attempts by provider, in seconds",
    &["provider", "result"],
    LAUNCH_BOUNDS,
);
pub const LAUNCH_BY_ZONE: Metric =
    counter("nodepool_launch_by_provider_az", "Launch attempts by zone", &["provider", "az", "result"]);
pub const LAUNCH_BY_ZONE_TIME: Metric = histogram(
    "nodepool_launch_by_provider_az_timer",
    "Duration of launch attempts by zone, in seconds",
    &["provider", "az", "result"],
    LAUNCH_BOUNDS,
);
pub const LAUNCH_BY_REQUESTOR: Metric =
    counter("nodepool_launch_by_requestor", "Launch attempts by requestor", &["requestor", "result"]);
pub const LAUNCH_BY_REQUESTOR_TIME: Metric = histogram(
    "nodepool_launch_by_requestor_timer",
    "Duration of launch attempts by requestor, in seconds",
    &["requestor", "result"],
    LAUNCH_BOUNDS,
);
pub const LAUNCH_BY_IMAGE: Metric =
    counter("nodepool_launch_by_image", "Launch attempts by image", &["image", "result"]);
pub const LAUNCH_BY_IMAGE_TIME: Metric = histogram(
    "nodepool_launch_by_image_timer",
    "Duration of launch attempts by image, in seconds",
    &["image", "result"],
    LAUNCH_BOUNDS,
);
pub const REQUEST_TIME: Metric = histogram(
    "nodepool_request_time_to_ready_seconds",
    "Time from a request's creation until it was fulfilled, in seconds",
    &["provider", "pool"],
    WAIT_BOUNDS,
);
pub const REQUESTS: Metric = gauge("nodepool_requests", "Node requests by state", &["state"]);
pub const OLDEST_REQUEST: Metric =
    gauge("nodepool_oldest_open_request_seconds", "Age of the oldest open request, in seconds", &[]);
pub const UPDATE: Metric = counter("nodepool_image_update", "Image uploads that succeeded", &["image", "provider"]);
pub const UPDATE_TIME: Metric = histogram(
    "nodepool_image_update_timer",
    "Duration of image uploads, in seconds",
    &["image", "provider"],
    IMAGE_BOUNDS,
);
pub const BUILD_CODE: Metric =
    gauge("nodepool_dib_image_build_result_code", "Exit status of the last build of an image", &["image", "ext"]);
pub const BUILD_SIZE: Metric =
    gauge("nodepool_dib_image_build_size", "Size of the last built image on disk, in bytes", &["image", "ext"]);
pub const BUILD_TIME: Metric = histogram(
    "nodepool_dib_image_build_duration",
    "Duration of image builds, in seconds",
    &["image", "ext"],
    IMAGE_BOUNDS,
);
pub const LAST_BUILD: Metric = gauge(
    "nodepool_dib_image_build_last_build",
    "Time at which the last build of an image ended, in seconds since the epoch",
    &["image"],
);
pub const BUILDS: Metric = gauge("nodepool_image_builds", "Image builds by state", &["image", "state"]);
pub const UPLOADS: Metric =
    gauge("nodepool_image_uploads", "Image uploads by provider and state", &["image", "provider", "state"]);
pub const NEWEST_BUILD: Metric = gauge(
    "nodepool_image_newest_build_timestamp_seconds",
    "Time at which the newest ready build of an image became ready, in seconds since the epoch",
    &["image"],
);
pub const QUOTA_LIMIT: Metric = gauge(
    "nodepool_provider_quota",
    "Quota of the project at the last refresh; +Inf if the cloud sets no limit",
    &["provider", "resource"],
);
pub const QUOTA_USED: Metric = gauge(
    "nodepool_provider_used",
    "Used quota: our nodes by our own count, other users at the last refresh",
    &["provider", "resource"],
);
pub const CONNECTED: Metric = gauge("nodepool_zookeeper_connected", "1 while a ZooKeeper server answers", &[]);
pub const READY: Metric =
    gauge("nodepool_ready", "1 once ZooKeeper has been read and providers and pools have been started", &[]);
pub const ACTORS: Metric = gauge("nodepool_actors", "Running actors", &["actor"]);
pub const PANICS: Metric = counter("nodepool_panics", "Panics of actors since the start", &[]);
pub const SAMPLES_DROPPED: Metric =
    counter("nodepool_statsd_samples_dropped", "Samples dropped because statsd was too slow", &[]);
pub const SERIES_DROPPED: Metric =
    counter("nodepool_metrics_left_out", "Values dropped because the series limit was reached", &[]);
pub const CPU: Metric = counter("process_cpu_seconds_total", "CPU time of this process, in seconds", &[]);
pub const RESIDENT: Metric = gauge("process_resident_memory_bytes", "Resident memory, in bytes", &[]);
pub const VIRTUAL: Metric = gauge("process_virtual_memory_bytes", "Virtual memory, in bytes", &[]);
pub const OPEN_FILES: Metric = gauge("process_open_fds", "Open file descriptors", &[]);
pub const MAX_OPEN_FILES: Metric = gauge("process_max_fds", "Maximum number of open file descriptors", &[]);
pub const THREADS: Metric = gauge("process_threads", "Threads of this process", &[]);
pub const STARTED: Metric =
    gauge("process_start_time_seconds", "Start time of this process, in seconds since the epoch", &[]);

/// All metrics that dashboards and alert rules may use.
pub const ALL: &[&Metric] = &[
    &NODES,
    &NODES_BY_PROVIDER,
    &NODES_BY_LABEL,
    &ADDRESSABLE,
    &MAX_SERVERS,
    &TENANT_LIMIT,
    &OUTAGE,
    &FULL,
    &LEAKED,
    &TASK,
    &TASK_TIME,
    &TASK_FAILED,
    &LAUNCH,
    &LAUNCH_TIME,
    &LAUNCH_BY_PROVIDER,
    &LAUNCH_BY_PROVIDER_TIME,
    &LAUNCH_BY_ZONE,
    &LAUNCH_BY_ZONE_TIME,
    &LAUNCH_BY_REQUESTOR,
    &LAUNCH_BY_REQUESTOR_TIME,
    &LAUNCH_BY_IMAGE,
    &LAUNCH_BY_IMAGE_TIME,
    &REQUEST_TIME,
    &REQUESTS,
    &OLDEST_REQUEST,
    &UPDATE,
    &UPDATE_TIME,
    &BUILD_CODE,
    &BUILD_SIZE,
    &BUILD_TIME,
    &LAST_BUILD,
    &BUILDS,
    &UPLOADS,
    &NEWEST_BUILD,
    &QUOTA_LIMIT,
    &QUOTA_USED,
    &CONNECTED,
    &READY,
    &ACTORS,
    &PANICS,
    &SAMPLES_DROPPED,
    &SERIES_DROPPED,
    &CPU,
    &RESIDENT,
    &VIRTUAL,
    &OPEN_FILES,
    &MAX_OPEN_FILES,
    &THREADS,
    &STARTED,
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_well_formed() {
        let names: BTreeSet<&str> = ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), ALL.len());
        for metric in ALL {
            let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            assert!(is_word(metric.name) && metric.labels.iter().all(|label| is_word(label)), "{}", metric.name);
            if let MetricKind::Histogram(bounds) = metric.kind {
                assert!(bounds.is_sorted(), "{}", metric.name);
            }
        }
    }
}
