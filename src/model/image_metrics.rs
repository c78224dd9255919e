//! What builders tell statsd, by the names of the reference.

use super::ids::{ImageName, ProviderName};
use super::image_status;
use super::metrics::Sample;
use super::time::Timestamp;
use super::world::World;

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

/// After each upload that came to a good end, the hook included.
pub fn uploaded(image: &ImageName, provider: &ProviderName, duration_ms: f64) -> [Sample; 2] {
    let key = format!("nodepool.image_update.{image}.{provider}");
    [Sample::timer(key.clone(), duration_ms), Sample::counter(key, 1.0)]
}

/// What a builder is asked for and does, with each look at everything: 0 is idle, 1 building, 2 uploading, 3 paused.
pub fn states(
    world: &World<'_>,
    builder: &str,
    is_building: impl Fn(&ImageName) -> bool,
    is_uploading: impl Fn(&ProviderName, &ImageName) -> bool,
) -> Vec<Sample> {
    let images = &world.snapshot.images;
    let asked = |name: &ImageName| {
        let view = images.image(name);
        view.is_some_and(|view| view.requested_ms.is_some() && !image_status::is_building(view))
    };
    let pending = images.names().filter(|name| asked(name)).count();
    let mut samples = vec![Sample::gauge("nodepool.image_build_requests".to_owned(), pending as f64)];
    samples.extend(images.names().map(|name| {
        Sample::gauge(format!("nodepool.image.{name}.image_build_requests"), f64::from(u8::from(asked(name))))
    }));
    for (name, image) in &world.config.diskimages {
        let is_paused = image.pause || images.image(name).is_some_and(|view| view.paused);
        let state = if is_building(name) {
            1.0
        } else if is_paused {
            3.0
        } else {
            0.0
        };
        samples.push(Sample::gauge(format!("nodepool.builder.{builder}.image.{name}.build.state"), state));
    }
    for (provider, facts) in world.facts {
        for (name, entry) in facts.uploading.iter().flat_map(|uploading| &uploading.images) {
            let state = if is_uploading(provider, name) {
                2.0
            } else if entry.paused {
                3.0
            } else {
                0.0
            };
            let key = format!("nodepool.builder.{builder}.image.{name}.provider.{provider}.upload.state");
            samples.push(Sample::gauge(key, state));
        }
    }
    samples
}
