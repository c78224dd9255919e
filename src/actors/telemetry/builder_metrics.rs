//! statsd metrics of builders, with Nodepool 11's names.

use nodepool_model::metrics::prometheus_metrics;
use nodepool_model::metrics::statsd_metrics::Sample;
use nodepool_model::records::ids::{ImageName, ProviderName};
use nodepool_model::records::time::Timestamp;
use nodepool_model::report::image_status;
use nodepool_policy::inputs::Inputs;

/// Samples of a build whose command was started. `code`: its exit status, 1 after a timeout.
pub fn build_samples(image: &ImageName, duration_ms: f64, code: i32, now: Timestamp) -> [Sample; 3] {
    let key = |what: &str| format!("nodepool.dib_image_build.{image}.status.{what}");
    [
        // Nodepool 11's Prometheus mapping puts the key segment `status` into the label `ext`.
        Sample::timer(key("duration"), duration_ms)
            .with_series(&prometheus_metrics::BUILD_TIME, [image.as_str(), "status"]),
        Sample::gauge(key("rc"), f64::from(code))
            .with_series(&prometheus_metrics::BUILD_CODE, [image.as_str(), "status"]),
        Sample::gauge(key("last_build"), now.0.floor()).with_series(&prometheus_metrics::LAST_BUILD, [image]),
    ]
}

/// Size of one format of a build, in bytes on disk.
pub fn build_size_sample(image: &ImageName, format: &str, bytes: u64) -> Sample {
    Sample::gauge(format!("nodepool.dib_image_build.{image}.{format}.size"), bytes as f64)
        .with_series(&prometheus_metrics::BUILD_SIZE, [image.as_str(), format])
}

/// Samples of an upload that succeeded, including its hook.
pub fn upload_samples(image: &ImageName, provider: &ProviderName, duration_ms: f64) -> [Sample; 2] {
    let key = format!("nodepool.image_update.{image}.{provider}");
    let labels = [image.as_str(), provider.as_str()];
    [
        Sample::timer(key.clone(), duration_ms).with_series(&prometheus_metrics::UPDATE_TIME, labels),
        Sample::counter(key, 1.0).with_series(&prometheus_metrics::UPDATE, labels),
    ]
}

/// Utilization of a builder. Nodepool 11 documents these gauges but does not send them.
pub struct BuilderUtilization {
    pub builds: usize,
    pub uploads: usize,
    pub build_workers: usize,
    pub upload_workers: usize,
}

pub fn utilization_samples(builder: &str, utilization: &BuilderUtilization) -> [Sample; 4] {
    let gauge = |what: &str, number: usize| Sample::gauge(format!("nodepool.builder.{builder}.{what}"), number as f64);
    [
        gauge("current_builds", utilization.builds),
        gauge("current_uploads", utilization.uploads),
        gauge("build_workers", utilization.build_workers),
        gauge("upload_workers", utilization.upload_workers),
    ]
}

/// Build requests, and states of builds and uploads, sent with each complete run: 0 idle, 1 building, 2 uploading, 3
/// paused.
pub fn state_samples(
    inputs: &Inputs<'_>,
    builder: &str,
    is_building: impl Fn(&ImageName) -> bool,
    is_uploading: impl Fn(&ProviderName, &ImageName) -> bool,
) -> Vec<Sample> {
    let images = &inputs.snapshot.images;
    let is_requested = |name: &ImageName| {
        let image = images.image(name);
        image.is_some_and(|image| image.requested_ms.is_some() && !image_status::is_building(image))
    };
    let pending = images.names().filter(|name| is_requested(name)).count();
    let mut samples = vec![Sample::gauge("nodepool.image_build_requests".to_owned(), pending as f64)];
    samples.extend(images.names().map(|name| {
        Sample::gauge(format!("nodepool.image.{name}.image_build_requests"), f64::from(u8::from(is_requested(name))))
    }));
    for (name, image) in &inputs.config.diskimages {
        let is_paused = image.pause || images.image(name).is_some_and(|image| image.paused);
        let state = if is_building(name) {
            1.0
        } else if is_paused {
            3.0
        } else {
            0.0
        };
        samples.push(Sample::gauge(format!("nodepool.builder.{builder}.image.{name}.build.state"), state));
    }
    for (provider, facts) in inputs.facts {
        for (name, entry) in facts.upload_config.iter().flat_map(|config| &config.images) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use nodepool_driver::facts::ProviderFacts;
    use nodepool_model::config::diagnostics::Source;
    use nodepool_model::config::resolve::resolve;
    use nodepool_model::config::upload_config::{UploadConfig, UploadEntry};
    use nodepool_model::records::time::{MonotonicTime, Seconds};
    use nodepool_model::snapshot::Snapshot;
    use python_yaml::parse;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    #[test]
    fn states_have_the_names_and_numbers_of_nodepool11() {
        let text = "zookeeper-servers: [{host: localhost}]\ndiskimages: [{name: busy}, {name: idle}, {name: held}]";
        let root = parse::parse(text, &mut Vec::new()).unwrap();
        let config = resolve(Source { file: "nodepool.yaml", root: &root }, None, &[]).config.unwrap();
        let mut snapshot = Snapshot::default();
        snapshot.images.add_image("held".into());
        snapshot.images.set_paused(&"held".into(), true);
        snapshot.images.set_requested(&"idle".into(), Some(5));
        let entry = |paused: bool| UploadEntry { paused, ..UploadEntry::default() };
        let images = [("busy", entry(false)), ("idle", entry(false)), ("held", entry(true))];
        let upload_config = UploadConfig {
            format: "raw".to_owned(),
            name_format: String::new(),
            hook: None,
            timeout: Seconds(3600.0),
            images: images.map(|(name, entry)| (ImageName::from(name), entry)).into(),
        };
        let facts = ProviderFacts { upload_config: Some(Arc::new(upload_config)), ..ProviderFacts::initial() };
        let facts = BTreeMap::from([(ProviderName::from("lab"), Arc::new(facts))]);
        let inputs = Inputs {
            config: &config,
            snapshot: &snapshot,
            facts: &facts,
            now: Timestamp(9.0),
            monotonic_now: MonotonicTime::at(9.0),
        };
        let is_busy = |image: &ImageName| image.as_str() == "busy";
        let samples = state_samples(&inputs, "nb01", is_busy, |_, image| is_busy(image));
        let own = |image: &str, what: &str| format!("nodepool.builder.nb01.image.{image}.{what}.state");
        let lab = "provider.lab.upload";
        let mut expected = vec![
            Sample::gauge("nodepool.image_build_requests".to_owned(), 1.0),
            Sample::gauge("nodepool.image.held.image_build_requests".to_owned(), 0.0),
            Sample::gauge("nodepool.image.idle.image_build_requests".to_owned(), 1.0),
        ];
        for (image, build, upload) in [("busy", 1.0, 2.0), ("held", 3.0, 3.0), ("idle", 0.0, 0.0)] {
            expected.push(Sample::gauge(own(image, "build"), build));
            expected.push(Sample::gauge(own(image, lab), upload));
        }
        let sorted = |mut samples: Vec<Sample>| {
            samples.sort_by_key(|sample| format!("{sample:?}"));
            samples
        };
        assert_eq!(sorted(samples), sorted(expected));
    }
}
