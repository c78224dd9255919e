//! Metrics for statsd and Prometheus, and traces.

pub mod builder_metrics;
pub mod gauges;
pub mod metrics_registry;
pub(crate) mod process_metrics;
pub mod samples;
pub mod statsd;
pub mod traces;
