//! Durations of requests, under the statsd names of openstacksdk.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nodepool_model::metrics::statsd_metrics::Sample;
use openstack_clouds::CloudSettings;

/// Slower requests have a separate counter.
const SLOW_MS: f64 = 1000.0;

pub struct Timings {
    /// `None` if no statsd server is configured; nothing is recorded then.
    prefix: Option<String>,
    samples: Mutex<Vec<Sample>>,
}

impl Timings {
    pub fn new(cloud: &CloudSettings) -> Self {
        Self { prefix: cloud.statsd.as_ref().map(|statsd| statsd.prefix.clone()), samples: Mutex::default() }
    }

    /// Records a finished request, with the status of its response if there is one.
    pub fn record(&self, key: &str, status: Option<u16>, took: Duration) {
        let Some(prefix) = &self.prefix else { return };
        let key = format!("{prefix}.{}", sdk_key(key));
        let took_ms = took.as_secs_f64() * 1000.0;
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        match status {
            Some(status) => {
                samples.push(Sample::timer(format!("{key}.{status}"), took_ms));
                samples.push(Sample::counter(format!("{key}.{status}"), 1.0));
                if took_ms > SLOW_MS {
                    samples.push(Sample::counter(format!("{key}.over_1000"), 1.0));
                }
            }
            None => samples.push(Sample::counter(format!("{key}.failed"), 1.0)),
        }
        samples.push(Sample::counter(format!("{key}.attempted"), 1.0));
    }

    pub fn take(&self) -> Vec<Sample> {
        std::mem::take(&mut *self.samples.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// openstacksdk joins the parts of a path by `_`, where our own keys have a `.`: `compute.GET.servers_detail`.
fn sdk_key(key: &str) -> String {
    let mut parts = key.splitn(3, '.');
    let (service, method) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    format!("{service}.{method}.{}", parts.next().unwrap_or_default().replace('.', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timings() -> Timings {
        Timings { prefix: Some("openstack.api".to_owned()), samples: Mutex::default() }
    }

    fn names(timings: &Timings) -> Vec<String> {
        timings.take().into_iter().map(|sample| sample.name).collect()
    }

    #[test]
    fn a_response_is_timed_and_counted_by_its_status() {
        let timings = timings();
        timings.record("compute.GET.servers.detail", Some(200), Duration::from_millis(5));
        let key = "openstack.api.compute.GET.servers_detail";
        assert_eq!(names(&timings), [format!("{key}.200"), format!("{key}.200"), format!("{key}.attempted")]);
        assert!(timings.take().is_empty());
    }

    #[test]
    fn slow_and_failed_requests_have_their_own_counters() {
        let timings = timings();
        timings.record("image.GET.images", Some(200), Duration::from_millis(1500));
        timings.record("image.GET.images", None, Duration::ZERO);
        let key = "openstack.api.image.GET.images";
        let names = names(&timings);
        assert!(names.contains(&format!("{key}.over_1000")) && names.contains(&format!("{key}.failed")), "{names:?}");
    }
}
