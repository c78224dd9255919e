//! What builders tell statsd, by the names of the reference.

use super::ids::ImageName;
use super::metrics::Sample;
use super::time::Timestamp;

/// After each build whose command could be started. `code`: its exit status, 1 for one that took too long.
pub fn build_ended(image: &ImageName, duration_ms: f64, code: i32, now: Timestamp) -> [Sample; 3] {
    let key = |what: &str| format!("nodepool.dib_image_build.{image}.status.{what}");
    [
        Sample::timer(key("duration"), duration_ms),
        Sample::gauge(key("rc"), f64::from(code)),
        Sample::gauge(key("last_build"), now.0.floor()),
    ]
}

/// Of one format of a build, in bytes on disk.
pub fn size(image: &ImageName, format: &str, bytes: u64) -> Sample {
    Sample::gauge(format!("nodepool.dib_image_build.{image}.{format}.size"), bytes as f64)
}
