//! Names and values of all metrics, for statsd and for Prometheus.

pub mod prometheus_metrics;
pub mod prometheus_text;
pub mod statsd_metrics;
