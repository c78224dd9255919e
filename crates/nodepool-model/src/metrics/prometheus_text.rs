//! Prometheus text format, version 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use std::collections::BTreeMap;
use std::fmt::Write;

use super::prometheus_metrics::{Metric, MetricKind};

/// Content type of this format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All values of one scrape, by name and labels.
#[derive(Default)]
pub struct PrometheusText {
    families: BTreeMap<&'static str, Family>,
}

struct Family {
    metric: &'static Metric,
    /// Keyed by the values of the metric's labels.
    series: Vec<(Vec<String>, MetricValue)>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum MetricValue {
    Number(f64),
    Distribution(Distribution),
}

/// Number of values in each bucket of a histogram, and their sum.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Not cumulative; the last one counts values above all bounds.
    pub counts: Vec<u64>,
    pub sum: f64,
}

impl Distribution {
    pub fn new(bounds: &[f64]) -> Self {
        Self { counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    pub fn add(&mut self, bounds: &[f64], value: f64) {
        let bucket = bounds.partition_point(|bound| *bound < value);
        self.counts[bucket] += 1;
        self.sum += value;
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

impl PrometheusText {
    pub fn number(&mut self, metric: &'static Metric, labels: impl IntoIterator<Item = impl Into<String>>, value: f64) {
        self.put(metric, labels.into_iter().map(Into::into).collect(), MetricValue::Number(value));
    }

    /// Adds a value without labels.
    pub fn unlabeled(&mut self, metric: &'static Metric, value: f64) {
        self.put(metric, Vec::new(), MetricValue::Number(value));
    }

    pub fn put(&mut self, metric: &'static Metric, labels: Vec<String>, value: MetricValue) {
        debug_assert_eq!(labels.len(), metric.labels.len(), "{}", metric.name);
        let family = self.families.entry(metric.name).or_insert_with(|| Family { metric, series: Vec::new() });
        family.series.push((labels, value));
    }

    pub fn text(&self) -> String {
        let mut out = String::with_capacity(16 * 1024);
        for Family { metric, series } in self.families.values() {
            let kind = match metric.kind {
                MetricKind::Gauge => "gauge",
                MetricKind::Counter => "counter",
                MetricKind::Histogram(_) => "histogram",
            };
            let _ = write!(out, "# HELP {0} {1}\n# TYPE {0} {kind}\n", metric.name, metric.help);
            for (labels, value) in series {
                write_series(&mut out, metric, labels, value);
            }
        }
        out
    }
}

fn write_series(out: &mut String, metric: &Metric, labels: &[String], value: &MetricValue) {
    match (value, metric.kind) {
        (MetricValue::Number(number), _) => write_line(out, metric, "", labels, None, *number),
        (MetricValue::Distribution(distribution), MetricKind::Histogram(bounds)) => {
            let mut cumulative = 0;
            for (index, count) in distribution.counts.iter().enumerate() {
                cumulative += count;
                let bound = bounds.get(index).copied().unwrap_or(f64::INFINITY);
                write_line(out, metric, "_bucket", labels, Some(bound), cumulative as f64);
            }
            write_line(out, metric, "_sum", labels, None, distribution.sum);
            write_line(out, metric, "_count", labels, None, cumulative as f64);
        }
        (MetricValue::Distribution(_), _) => {}
    }
}

fn write_line(out: &mut String, metric: &Metric, suffix: &str, labels: &[String], bound: Option<f64>, value: f64) {
    out.push_str(metric.name);
    out.push_str(suffix);
    if !labels.is_empty() || bound.is_some() {
        out.push('{');
        let named = metric.labels.iter().zip(labels);
        for (index, (name, label)) in named.enumerate() {
            let _ = write!(out, "{}{name}=\"", if index == 0 { "" } else { "," });
            write_escaped(out, label);
            out.push('"');
        }
        if let Some(bound) = bound {
            let _ = write!(out, "{}le=\"{}\"", if labels.is_empty() { "" } else { "," }, number(bound));
        }
        out.push('}');
    }
    let _ = writeln!(out, " {}", number(value));
}

fn number(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        other => other.to_string(),
    }
}

/// A label's value may be any text of a record; the format requires escapes for these three characters.
fn write_escaped(out: &mut String, label: &str) {
    for character in label.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::prometheus_metrics::{CONNECTED, MAX_SERVERS, REQUEST_TIME};

    #[test]
    fn values_are_written_as_prometheus_reads_them() {
        let mut prometheus = PrometheusText::default();
        prometheus.unlabeled(&CONNECTED, 1.0);
        prometheus.number(&MAX_SERVERS, ["a\"b\\\nc"], f64::INFINITY);
        let text = prometheus.text();
        let expected = "# HELP nodepool_provider_max_servers Sum of max-servers over the pools of a provider; +Inf if a pool has no limit\n\
            # TYPE nodepool_provider_max_servers gauge\n\
            nodepool_provider_max_servers{provider=\"a\\\"b\\\\\\nc\"} +Inf\n\
            # HELP nodepool_zookeeper_connected 1 while a ZooKeeper server answers\n\
            # TYPE nodepool_zookeeper_connected gauge\nnodepool_zookeeper_connected 1\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_distribution_counts_values_at_or_below_each_bound() {
        let MetricKind::Histogram(bounds) = REQUEST_TIME.kind else { panic!("a histogram") };
        let mut distribution = Distribution::new(bounds);
        for seconds in [0.004, 0.005, 0.006, 7200.0] {
            distribution.add(bounds, seconds);
        }
        let mut prometheus = PrometheusText::default();
        prometheus.put(&REQUEST_TIME, vec!["p".to_owned(), "main".to_owned()], MetricValue::Distribution(distribution));
        let text = prometheus.text();
        for line in [
            "_bucket{provider=\"p\",pool=\"main\",le=\"0.005\"} 2",
            "_bucket{provider=\"p\",pool=\"main\",le=\"0.01\"} 3",
            "_bucket{provider=\"p\",pool=\"main\",le=\"3600\"} 3",
            "_bucket{provider=\"p\",pool=\"main\",le=\"+Inf\"} 4",
            "_sum{provider=\"p\",pool=\"main\"} 7200.015",
            "_count{provider=\"p\",pool=\"main\"} 4",
        ] {
            assert!(text.contains(&format!("nodepool_request_time_to_ready_seconds{line}\n")), "{line}\n{text}");
        }
    }
}
