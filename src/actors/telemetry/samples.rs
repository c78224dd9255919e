//! Sample sink: bounded queue to the statsd task. Sending never blocks; samples that do not fit are dropped and
//! counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use super::metrics_registry::MetricsRegistry;
use nodepool_model::metrics::prometheus_metrics::Metric;
use nodepool_model::metrics::statsd_metrics::Sample;

/// Capacity of the queue, which bounds the memory that a slow or unavailable statsd server costs.
pub const MAX_QUEUED_SAMPLES: usize = 20_000;

/// Handle for sending samples; cheap to clone.
#[derive(Clone)]
pub struct SampleSink {
    /// `None` without a configured statsd server.
    sender: Option<mpsc::Sender<Sample>>,
    dropped: Arc<AtomicU64>,
    /// Registry for Prometheus; `None` without a web port.
    metrics: Option<MetricsRegistry>,
}

impl SampleSink {
    /// A sink without a statsd server.
    pub fn discard() -> Self {
        Self { sender: None, dropped: Arc::default(), metrics: None }
    }

    pub fn channel() -> (Self, mpsc::Receiver<Sample>) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_SAMPLES);
        (Self { sender: Some(sender), dropped: Arc::default(), metrics: None }, receiver)
    }

    /// Records samples in this registry as well.
    pub fn with_metrics(self, metrics: MetricsRegistry) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    pub fn metrics(&self) -> Option<&MetricsRegistry> {
        self.metrics.as_ref()
    }

    /// Whether samples have a destination. Otherwise costly samples need not be computed.
    pub fn is_enabled(&self) -> bool {
        self.sender.is_some() || self.metrics.is_some()
    }

    /// Whether a statsd server is configured.
    pub fn has_server(&self) -> bool {
        self.sender.is_some()
    }

    /// Records a metric without a statsd name.
    pub fn record(&self, metric: &'static Metric, labels: Vec<String>, value: f64) {
        if let Some(metrics) = &self.metrics {
            metrics.record(metric, labels, value);
        }
    }

    pub fn send(&self, sample: Sample) {
        if let Some(metrics) = &self.metrics {
            metrics.record_sample(&sample);
        }
        self.send_to_statsd(sample);
    }

    /// Sends a gauge to statsd only: for Prometheus it is computed from the snapshot at each scrape.
    pub fn send_to_statsd(&self, sample: Sample) {
        if let Some(sender) = &self.sender
            && sender.try_send(sample).is_err()
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends many samples to statsd only, waiting while the queue is full.
    pub async fn send_all(&self, samples: Vec<Sample>) {
        let Some(sender) = &self.sender else { return };
        for sample in samples {
            if sender.send(sample).await.is_err() {
                return; // The statsd task ended, because the process exits.
            }
        }
    }

    /// Number of samples dropped since the start.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_beyond_the_limit_are_dropped_and_counted() {
        let (sink, mut receiver) = SampleSink::channel();
        for number in 0..MAX_QUEUED_SAMPLES + 3 {
            sink.send(Sample::gauge("nodepool.nodes.ready", number as f64));
        }
        assert_eq!((sink.dropped(), receiver.len()), (3, MAX_QUEUED_SAMPLES));
        assert_eq!(receiver.try_recv().unwrap().value, 0.0);
    }

    #[test]
    fn without_a_server_nothing_is_kept_or_counted() {
        let sink = SampleSink::discard();
        sink.send(Sample::counter("nodepool.launch.ready", 1.0));
        assert_eq!((sink.is_enabled(), sink.dropped()), (false, 0));
    }
}
