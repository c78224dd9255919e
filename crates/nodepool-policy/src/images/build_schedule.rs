//! Build schedule: the images to build, and why. An image is built if its build is missing, too old or lacks a format,
//! or if a build was requested.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::inputs::Inputs;
use nodepool_model::config::DiskImage;
use nodepool_model::records::ids::{BuildId, ImageName};
use nodepool_model::records::image_build::ImageBuild;
use nodepool_model::records::time::{MonotonicTime, Seconds, Timestamp};
use nodepool_model::snapshot::Versioned;
use nodepool_model::snapshot::images::Image;

/// A timestamp further in the future than this does not show when the build became ready. A wrong clock wrote it, or
/// the build follows such a build, because each build receives a later timestamp than the one before.
const MAX_CLOCK_SKEW: Seconds = Seconds(600.0);

/// An image to build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildOrder {
    pub image: ImageName,
    pub formats: BTreeSet<String>,
    pub reason: BuildReason,
    /// The newest build at the time of the decision. If another build is the newest when this build starts, the
    /// decision is repeated.
    pub newest: Option<BuildId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildReason {
    Missing,
    Old,
    LacksFormats,
    Requested,
}

impl BuildReason {
    pub fn text(self) -> &'static str {
        match self {
            BuildReason::Missing => "no usable build exists",
            BuildReason::Old => "the newest build is older than rebuild-age",
            BuildReason::LacksFormats => "the newest build lacks a format",
            BuildReason::Requested => "a build was requested",
        }
    }
}

/// All images that may be built now: scheduled builds first, then manual requests.
pub fn due(inputs: &Inputs<'_>) -> Vec<BuildOrder> {
    let order = |image: &DiskImage, reason: BuildReason, newest: Option<BuildId>| BuildOrder {
        image: image.name.clone(),
        formats: wanted_formats(image, inputs),
        reason,
        newest,
    };
    let (mut scheduled, mut requested) = (Vec::new(), Vec::new());
    for image in inputs.config.diskimages.values().filter(|image| may_be_built(image, inputs)) {
        let view = inputs.snapshot.images.image(&image.name);
        let newest = view.and_then(|view| view.ready().first().map(|(id, _)| (*id).clone()));
        if let Some(reason) = schedule_reason(image, view, inputs) {
            scheduled.push(order(image, reason, newest));
        } else if view.is_some_and(|view| view.requested_ms.is_some()) {
            requested.push(order(image, BuildReason::Requested, newest));
        }
    }
    scheduled.extend(requested);
    scheduled
}

/// Time at which the next image reaches its `rebuild-age`. Every other cause of a build is an event.
pub fn next_due(inputs: &Inputs<'_>) -> Option<MonotonicTime> {
    let images = inputs.config.diskimages.values().filter(|image| may_be_built(image, inputs));
    let ages = images.filter_map(|image| {
        let view = inputs.snapshot.images.image(&image.name)?;
        let due = ready_since(view.ready().first()?.1, inputs) + image.rebuild_age;
        (due > inputs.now).then(|| inputs.monotonic_time_of(due))
    });
    ages.min()
}

/// The formats of the image itself, and those of all providers that upload it, paused or not.
pub fn wanted_formats(image: &DiskImage, inputs: &Inputs<'_>) -> BTreeSet<String> {
    let uploading_providers = inputs.facts.values().filter_map(|facts| facts.upload_config.as_ref());
    let uploading_providers =
        uploading_providers.filter(|upload_config| upload_config.images.contains_key(&image.name));
    image.formats.iter().cloned().chain(uploading_providers.map(|upload_config| upload_config.format.clone())).collect()
}

fn may_be_built(image: &DiskImage, inputs: &Inputs<'_>) -> bool {
    let view = inputs.snapshot.images.image(&image.name);
    let is_free = view.is_none_or(|view| !view.paused && !view.lock.is_held());
    is_free && !image.pause && !wanted_formats(image, inputs).is_empty()
}

fn schedule_reason(image: &DiskImage, view: Option<&Image>, inputs: &Inputs<'_>) -> Option<BuildReason> {
    let ready = view.map(Image::ready).unwrap_or_default();
    let Some((_, newest)) = ready.first() else { return Some(BuildReason::Missing) };
    if inputs.now - ready_since(newest, inputs) >= image.rebuild_age {
        return Some(BuildReason::Old);
    }
    let lacks = !newest.record.formats.is_superset(&wanted_formats(image, inputs));
    lacks.then_some(BuildReason::LacksFormats)
}

/// `state_time` of the record. If it lies in the future, ZooKeeper's mtime is used instead: otherwise the build would
/// not reach `rebuild-age` before that time.
fn ready_since(build: &Versioned<ImageBuild>, inputs: &Inputs<'_>) -> Timestamp {
    let recorded = build.record.state_time;
    if recorded - inputs.now > MAX_CLOCK_SKEW { Timestamp(build.mtime_ms as f64 / 1000.0) } else { recorded }
}

/// Reason why a name cannot be part of a file name and of a znode path; `None` if it can.
pub fn name_problem(name: &ImageName) -> Option<&'static str> {
    let text = name.as_str();
    if text.is_empty() || text == "." || text == ".." {
        return Some("it names a folder");
    }
    if text.contains('/') {
        return Some("it contains a /");
    }
    if text.chars().any(char::is_control) {
        return Some("it contains a control character");
    }
    text.starts_with('-').then_some("it starts with a dash, like an option")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodepool_model::config::diagnostics::Source;
    use nodepool_model::config::resolve::resolve;
    use nodepool_model::records::image_build::{BuildKey, BuildState};
    use nodepool_model::snapshot::Snapshot;
    use python_yaml::parse;

    const NOW: Timestamp = Timestamp(1_000_000.0);

    #[test]
    fn a_build_dated_in_the_future_reaches_rebuild_age_like_others() {
        let text =
            "zookeeper-servers: [{host: localhost}]\ndiskimages: [{name: debian, formats: [qcow2], rebuild-age: 3600}]";
        let root = parse::parse(text, &mut Vec::new()).unwrap();
        let config = resolve(Source { file: "nodepool.yaml", root: &root }, None, &[]).config.unwrap();
        let year = Seconds(365.0 * 86_400.0);
        // The record's time, ZooKeeper's time, and the time until a rebuild.
        for (recorded, written, remaining) in [
            (NOW + year, NOW, Some(Seconds(3600.0))),
            (NOW + year, NOW + Seconds(-3599.0), Some(Seconds(1.0))),
            (NOW + year, NOW + Seconds(-3600.0), None),
            (NOW + Seconds(500.0), NOW + Seconds(-9000.0), Some(Seconds(4100.0))),
            (NOW + Seconds(-600.0), NOW, Some(Seconds(3000.0))),
            (NOW + Seconds(-3600.0), NOW, None),
        ] {
            let mut build = ImageBuild::started("nb01", "id", ["qcow2".to_owned()].into(), recorded);
            build.state = BuildState::Ready;
            let mut snapshot = Snapshot::default();
            let key = BuildKey { image: "debian".into(), build: "1".into() };
            let mtime_ms = (written.0 * 1000.0) as i64;
            snapshot.images.put_build(&key, Versioned { record: build.into(), version: 0, mzxid: 1, mtime_ms });
            let facts = Default::default();
            let inputs = Inputs {
                config: &config,
                snapshot: &snapshot,
                facts: &facts,
                now: NOW,
                monotonic_now: MonotonicTime::at(5.0),
            };
            let due: Vec<BuildReason> = due(&inputs).iter().map(|order| order.reason).collect();
            assert_eq!(
                due,
                if remaining.is_none() { vec![BuildReason::Old] } else { vec![] },
                "{recorded:?} {written:?}"
            );
            assert_eq!(
                next_due(&inputs),
                remaining.map(|wait| MonotonicTime::at(5.0) + wait),
                "{recorded:?} {written:?}"
            );
        }
    }
}
