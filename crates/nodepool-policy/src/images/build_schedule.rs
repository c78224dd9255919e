//! Which images are to be built: missing, too old, without a format that is wanted, or asked for.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::inputs::Inputs;
use nodepool_model::config::DiskImage;
use nodepool_model::records::ids::{BuildId, ImageName};
use nodepool_model::records::image_build::ImageBuild;
use nodepool_model::records::time::{MonotonicTime, Seconds, Timestamp};
use nodepool_model::snapshot::Versioned;
use nodepool_model::snapshot::images::Image;

/// What is dated further ahead than this was dated by a clock that was wrong, or is the next build after such a one.
const MAX_CLOCK_SKEW: Seconds = Seconds(600.0);

/// One image to be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildOrder {
    pub image: ImageName,
    pub formats: BTreeSet<String>,
    pub reason: BuildReason,
    /// The build that was the newest when this was decided: where there is another one, it is decided again.
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
            BuildReason::Missing => "there is no build that can be used",
            BuildReason::Old => "the newest build is older than rebuild-age",
            BuildReason::LacksFormats => "the newest build lacks a format",
            BuildReason::Requested => "a build was asked for",
        }
    }
}

/// All that may be built now: scheduled builds first, then those that somebody asked for.
pub fn due(world: &Inputs<'_>) -> Vec<BuildOrder> {
    let order = |image: &DiskImage, reason: BuildReason, newest: Option<BuildId>| BuildOrder {
        image: image.name.clone(),
        formats: wanted_formats(image, world),
        reason,
        newest,
    };
    let (mut scheduled, mut requested) = (Vec::new(), Vec::new());
    for image in world.config.diskimages.values().filter(|image| may_be_built(image, world)) {
        let view = world.snapshot.images.image(&image.name);
        let newest = view.and_then(|view| view.ready().first().map(|(id, _)| (*id).clone()));
        if let Some(reason) = schedule_reason(image, view, world) {
            scheduled.push(order(image, reason, newest));
        } else if view.is_some_and(|view| view.requested_ms.is_some()) {
            requested.push(order(image, BuildReason::Requested, newest));
        }
    }
    scheduled.extend(requested);
    scheduled
}

/// When the next image comes of age. Everything else is heard of.
pub fn next_due(world: &Inputs<'_>) -> Option<MonotonicTime> {
    let images = world.config.diskimages.values().filter(|image| may_be_built(image, world));
    let ages = images.filter_map(|image| {
        let view = world.snapshot.images.image(&image.name)?;
        let due = ready_since(view.ready().first()?.1, world) + image.rebuild_age;
        (due > world.now).then(|| world.monotonic_time_of(due))
    });
    ages.min()
}

/// Those of the image itself, and those of all providers that take it, paused or not.
pub fn wanted_formats(image: &DiskImage, world: &Inputs<'_>) -> BTreeSet<String> {
    let uploading_providers = world.facts.values().filter_map(|facts| facts.upload_config.as_ref());
    let uploading_providers = uploading_providers.filter(|uploading| uploading.images.contains_key(&image.name));
    image.formats.iter().cloned().chain(uploading_providers.map(|uploading| uploading.format.clone())).collect()
}

fn may_be_built(image: &DiskImage, world: &Inputs<'_>) -> bool {
    let view = world.snapshot.images.image(&image.name);
    let is_free = view.is_none_or(|view| !view.paused && !view.lock.is_held());
    is_free && !image.pause && !wanted_formats(image, world).is_empty()
}

fn schedule_reason(image: &DiskImage, view: Option<&Image>, world: &Inputs<'_>) -> Option<BuildReason> {
    let ready = view.map(Image::ready).unwrap_or_default();
    let Some((_, newest)) = ready.first() else { return Some(BuildReason::Missing) };
    if world.now - ready_since(newest, world) >= image.rebuild_age {
        return Some(BuildReason::Old);
    }
    let lacks = !newest.record.formats.is_superset(&wanted_formats(image, world));
    lacks.then_some(BuildReason::LacksFormats)
}

/// As its record says, or where that cannot be, as ZooKeeper does: it would not come of age before that time.
fn ready_since(build: &Versioned<ImageBuild>, world: &Inputs<'_>) -> Timestamp {
    let recorded = build.record.state_time;
    if recorded - world.now > MAX_CLOCK_SKEW { Timestamp(build.mtime_ms as f64 / 1000.0) } else { recorded }
}

/// Whether an image's name can be part of a file's name and of a znode's path; else what is wrong with it.
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
    text.starts_with('-').then_some("it begins like an option")
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
        // By its record, by ZooKeeper, and how long it is good for.
        for (said, written, good_for) in [
            (NOW + year, NOW, Some(Seconds(3600.0))),
            (NOW + year, NOW + Seconds(-3599.0), Some(Seconds(1.0))),
            (NOW + year, NOW + Seconds(-3600.0), None),
            (NOW + Seconds(500.0), NOW + Seconds(-9000.0), Some(Seconds(4100.0))),
            (NOW + Seconds(-600.0), NOW, Some(Seconds(3000.0))),
            (NOW + Seconds(-3600.0), NOW, None),
        ] {
            let mut build = ImageBuild::started("nb01", "id", ["qcow2".to_owned()].into(), said);
            build.state = BuildState::Ready;
            let mut snapshot = Snapshot::default();
            let key = BuildKey { image: "debian".into(), build: "1".into() };
            let mtime_ms = (written.0 * 1000.0) as i64;
            snapshot.images.put_build(&key, Versioned { record: build.into(), version: 0, mzxid: 1, mtime_ms });
            let facts = Default::default();
            let world = Inputs {
                config: &config,
                snapshot: &snapshot,
                facts: &facts,
                now: NOW,
                monotonic_now: MonotonicTime::at(5.0),
            };
            let due: Vec<BuildReason> = due(&world).iter().map(|order| order.reason).collect();
            assert_eq!(due, if good_for.is_none() { vec![BuildReason::Old] } else { vec![] }, "{said:?} {written:?}");
            assert_eq!(next_due(&world), good_for.map(|wait| MonotonicTime::at(5.0) + wait), "{said:?} {written:?}");
        }
    }
}
