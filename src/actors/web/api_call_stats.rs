//! API call statistics of each provider over the last minutes, from differences of the metrics registry's counters.

use std::collections::{BTreeMap, VecDeque};

use super::live_view::CallStats;
use crate::actors::telemetry::metrics_registry::MetricsRegistry;
use nodepool_model::metrics::prometheus_metrics::{self, MetricKind};
use nodepool_model::metrics::prometheus_text::Distribution;
use nodepool_model::records::ids::ProviderName;
use nodepool_model::records::time::Timestamp;

/// Maximum number of samples: five minutes with one sample every 15 s.
const MAX_SAMPLES: usize = 21;

#[derive(Default)]
pub struct ApiCallStats {
    samples: VecDeque<(Timestamp, BTreeMap<ProviderName, CallSample>)>,
}

#[derive(Clone)]
struct CallSample {
    times: Distribution,
    failed: f64,
}

impl ApiCallStats {
    pub fn record_sample(&mut self, registry: &MetricsRegistry, now: Timestamp) {
        if self.samples.len() >= MAX_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((now, current_samples(registry)));
    }

    /// Statistics from the oldest sample until now.
    pub fn metrics(&self, registry: &MetricsRegistry, now: Timestamp) -> BTreeMap<ProviderName, CallStats> {
        let first = self.samples.front();
        let window_s = first.map_or(0.0, |(at, _)| (now - *at).0);
        let metrics = |(provider, newest): (ProviderName, CallSample)| {
            let before = first.and_then(|(_, samples)| samples.get(&provider));
            let metrics = metrics_between(&newest, before, window_s);
            (provider, metrics)
        };
        current_samples(registry).into_iter().map(metrics).collect()
    }
}

fn current_samples(registry: &MetricsRegistry) -> BTreeMap<ProviderName, CallSample> {
    let mut samples: BTreeMap<ProviderName, CallSample> = BTreeMap::new();
    for (labels, distribution) in registry.distributions(&prometheus_metrics::TASK_TIME) {
        let entry = samples.entry(ProviderName::from(labels[0].as_str()));
        let empty =
            || CallSample { times: Distribution { counts: vec![0; distribution.counts.len()], sum: 0.0 }, failed: 0.0 };
        let sample = entry.or_insert_with(empty);
        sample.times.counts.iter_mut().zip(&distribution.counts).for_each(|(sum, count)| *sum += count);
        sample.times.sum += distribution.sum;
    }
    for (labels, failed) in registry.numbers(&prometheus_metrics::TASK_FAILED) {
        // `not-found` is a normal reply: drivers often query objects that do not exist.
        if labels[2] != "not-found"
            && let Some(sample) = samples.get_mut(labels[0].as_str())
        {
            sample.failed += failed;
        }
    }
    samples
}

fn metrics_between(newest: &CallSample, before: Option<&CallSample>, window_s: f64) -> CallStats {
    let MetricKind::Histogram(bounds) = prometheus_metrics::TASK_TIME.kind else { return CallStats::default() };
    let count_before = |index: usize| before.map_or(0, |before| before.times.counts[index]);
    let counts: Vec<u64> =
        newest.times.counts.iter().enumerate().map(|(index, count)| count - count_before(index)).collect();
    let count: u64 = counts.iter().sum();
    let sum = newest.times.sum - before.map_or(0.0, |before| before.times.sum);
    let failed = (newest.failed - before.map_or(0.0, |before| before.failed)).max(0.0) as u64;
    let threshold = (count as f64 * 0.95).ceil() as u64;
    let mut cumulative = 0;
    let bucket = counts.iter().position(|count| {
        cumulative += count;
        cumulative >= threshold
    });
    let p95_s = bucket.filter(|_| count > 0).and_then(|bucket| bounds.get(bucket).copied());
    CallStats { window_s, count, failed, mean_s: (count > 0).then(|| sum / count as f64), p95_s }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_within_the_window_count() {
        let (registry, mut stats) = (MetricsRegistry::default(), ApiCallStats::default());
        let call = |seconds: f64, failed: bool| {
            let labels = vec!["lab".to_owned(), "compute.GET.servers".to_owned()];
            registry.record(&prometheus_metrics::TASK_TIME, labels.clone(), seconds);
            if failed {
                registry.record(&prometheus_metrics::TASK_FAILED, [labels, vec!["failed".to_owned()]].concat(), 1.0);
            }
        };
        call(50.0, true);
        stats.record_sample(&registry, Timestamp(0.0));
        for _ in 0..19 {
            call(0.004, false);
        }
        call(0.2, true);
        let metrics = stats.metrics(&registry, Timestamp(60.0));
        let lab = &metrics[&ProviderName::from("lab")];
        assert_eq!((lab.count, lab.failed, lab.p95_s, lab.window_s), (20, 1, Some(0.005), 60.0));
        for round in 0..MAX_SAMPLES {
            stats.record_sample(&registry, Timestamp(60.0 + round as f64));
        }
        assert_eq!(stats.metrics(&registry, Timestamp(99.0))[&ProviderName::from("lab")].count, 0);
    }
}
