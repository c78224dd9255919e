//! Metrics registry: counters, gauges and histograms since the process started, for Prometheus. Its size is bounded,
//! and updates are cheap.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nodepool_model::metrics::prometheus_metrics::{self, Metric, MetricKind};
use nodepool_model::metrics::prometheus_text::{Distribution, MetricValue, PrometheusText};
use nodepool_model::metrics::statsd_metrics::{Sample, SampleKind};

/// Maximum number of series. Label values come from records of other programs, so their number is not bounded.
const MAX_SERIES: usize = 20_000;

#[derive(Clone, Default)]
pub struct MetricsRegistry(Arc<RegistryData>);

#[derive(Default)]
struct RegistryData {
    series: Mutex<HashMap<Key, MetricValue>>,
    dropped_series: AtomicU64,
}

#[derive(PartialEq, Eq, Hash)]
struct Key {
    name: &'static str,
    labels: Vec<String>,
}

impl MetricsRegistry {
    /// Records a statsd sample that has a Prometheus series. Timers are converted from milliseconds to seconds.
    pub fn record_sample(&self, sample: &Sample) {
        let Some(series) = &sample.series else { return };
        let value = if sample.kind == SampleKind::Timer { sample.value / 1000.0 } else { sample.value };
        self.record(series.metric, series.labels.clone(), value);
    }

    /// Sets a gauge, adds to a counter, or adds to a histogram.
    pub fn record(&self, metric: &'static Metric, labels: Vec<String>, value: f64) {
        let mut series = self.0.series.lock().unwrap_or_else(PoisonError::into_inner);
        let key = Key { name: metric.name, labels };
        if series.len() >= MAX_SERIES && !series.contains_key(&key) {
            self.0.dropped_series.fetch_add(1, Ordering::Relaxed);
            return;
        }
        match metric.kind {
            MetricKind::Gauge => drop(series.insert(key, MetricValue::Number(value))),
            MetricKind::Counter => {
                if let MetricValue::Number(total) = series.entry(key).or_insert(MetricValue::Number(0.0)) {
                    *total += value;
                }
            }
            MetricKind::Histogram(bounds) => {
                let entry = series.entry(key).or_insert_with(|| MetricValue::Distribution(Distribution::new(bounds)));
                if let MetricValue::Distribution(distribution) = entry {
                    distribution.add(bounds, value);
                }
            }
        }
    }

    /// Writes all series, ordered by name and labels.
    pub fn export(&self, out: &mut PrometheusText) {
        let mut all: Vec<(&'static Metric, Vec<String>, MetricValue)> = {
            let series = self.0.series.lock().unwrap_or_else(PoisonError::into_inner);
            let metric = |name: &str| prometheus_metrics::ALL.iter().copied().find(|metric| metric.name == name);
            series
                .iter()
                .filter_map(|(key, value)| Some((metric(key.name)?, key.labels.clone(), value.clone())))
                .collect()
        };
        all.sort_by(|one, other| (one.0.name, &one.1).cmp(&(other.0.name, &other.1)));
        all.into_iter().for_each(|(metric, labels, value)| out.put(metric, labels, value));
        out.unlabeled(&prometheus_metrics::SERIES_DROPPED, self.0.dropped_series.load(Ordering::Relaxed) as f64);
    }

    /// Label values and numbers of one metric.
    pub fn numbers(&self, metric: &'static Metric) -> Vec<(Vec<String>, f64)> {
        let series = self.0.series.lock().unwrap_or_else(PoisonError::into_inner);
        let of_metric = series.iter().filter(|(key, _)| key.name == metric.name);
        of_metric
            .filter_map(|(key, value)| match value {
                MetricValue::Number(number) => Some((key.labels.clone(), *number)),
                MetricValue::Distribution(_) => None,
            })
            .collect()
    }

    /// Label values and distributions of one metric.
    pub fn distributions(&self, metric: &'static Metric) -> Vec<(Vec<String>, Distribution)> {
        let series = self.0.series.lock().unwrap_or_else(PoisonError::into_inner);
        let of_metric = series.iter().filter(|(key, _)| key.name == metric.name);
        let mut found: Vec<_> = of_metric
            .filter_map(|(key, value)| match value {
                MetricValue::Distribution(found) => Some((key.labels.clone(), found.clone())),
                MetricValue::Number(_) => None,
            })
            .collect();
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_beyond_the_limit_are_dropped_and_counted() {
        let metrics = MetricsRegistry::default();
        for number in 0..MAX_SERIES + 5 {
            metrics.record(&prometheus_metrics::LAUNCH, vec![number.to_string()], 1.0);
        }
        metrics.record(&prometheus_metrics::LAUNCH, vec!["0".to_owned()], 1.0);
        let mut out = PrometheusText::default();
        metrics.export(&mut out);
        let text = out.text();
        assert!(text.contains("nodepool_launch{result=\"0\"} 2\n") && text.contains("nodepool_metrics_left_out 5\n"));
    }
}
