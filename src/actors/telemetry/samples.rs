//! The way of samples to statsd: bounded, never blocking, and what does not fit is dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use super::metrics_registry::MetricsRegistry;
use nodepool_model::metrics::prometheus_metrics::Metric;
use nodepool_model::metrics::statsd_metrics::Sample;

/// Samples that may wait for the statsd socket. A server that is slow or gone costs these and nothing more.
pub const MAX_QUEUED_SAMPLES: usize = 20_000;

/// Where everybody drops samples; cheap to clone.
#[derive(Clone)]
pub struct SampleSink {
    /// `None` where no statsd server is configured: nobody is interested, nothing is counted.
    sender: Option<mpsc::Sender<Sample>>,
    dropped: Arc<AtomicU64>,
    /// The same for Prometheus; `None` where nobody can ask for it.
    metrics: Option<MetricsRegistry>,
}

impl SampleSink {
    /// Without a statsd server.
    pub fn discard() -> Self {
        Self { sender: None, dropped: Arc::default(), metrics: None }
    }

    pub fn channel() -> (Self, mpsc::Receiver<Sample>) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_SAMPLES);
        (Self { sender: Some(sender), dropped: Arc::default(), metrics: None }, receiver)
    }

    /// Counted here as well.
    pub fn with_metrics(self, metrics: MetricsRegistry) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    pub fn metrics(&self) -> Option<&MetricsRegistry> {
        self.metrics.as_ref()
    }

    /// Whether anybody listens; what is costly to count need not be counted otherwise.
    pub fn is_enabled(&self) -> bool {
        self.sender.is_some() || self.metrics.is_some()
    }

    /// Whether a statsd server listens.
    pub fn has_server(&self) -> bool {
        self.sender.is_some()
    }

    /// What has no name in statsd.
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

    /// What Prometheus gets from the picture of the moment when it asks.
    pub fn send_to_statsd(&self, sample: Sample) {
        if let Some(sender) = &self.sender
            && sender.try_send(sample).is_err()
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// As `report`. Waits for room, for those who send many at once and may be late.
    pub async fn send_all(&self, samples: Vec<Sample>) {
        let Some(sender) = &self.sender else { return };
        for sample in samples {
            if sender.send(sample).await.is_err() {
                return; // The socket's task ended, and with it the process.
            }
        }
    }

    /// Samples that did not fit since the start.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_beyond_the_bound_are_dropped_and_counted() {
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
