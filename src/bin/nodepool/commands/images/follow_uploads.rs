//! `image-build --wait --uploads`: from a build that is ready to the providers that take it, with a bar for each on a terminal.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Context;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use nodepool_model::config::{Config, ProviderConfig, driver_limits};
use nodepool_model::records::ids::{ImageName, ProviderName, UploadId};
use nodepool_model::records::image_build::BuildKey;
use nodepool_model::records::image_upload::UploadState;
use nodepool_model::records::time::Timestamp;
use nodepool_model::snapshot::images::Images;
use nodepool_zk::locks::lock;
use nodepool_zk::mirror::mirror::Mirror;
use nodepool_zk::{Zk, paths};
use python_yaml::tree::YamlNode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::output::Output;

/// Between two looks at how far the uploads are; builders tell it every second.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// What a builder keeps with the lock of an upload.
#[derive(Deserialize)]
struct Progress {
    bytes: u64,
    of: u64,
}

/// The providers that take an image and are not paused for it.
pub fn upload_targets(config: &Config, image: &ImageName) -> BTreeSet<ProviderName> {
    let is_target = |section: &ProviderConfig| {
        driver_limits::find(&section.driver).is_some_and(|facts| facts.manages_images)
            && diskimages(section).any(|(name, entry)| name == *image && !entry.boolean("pause").unwrap_or(false))
    };
    let providers = config.providers.iter().filter(|(_, section)| is_target(section));
    providers.map(|(name, _)| name.clone()).collect()
}

/// The images that a provider's section names, with what it says of them.
pub fn diskimages(section: &ProviderConfig) -> impl Iterator<Item = (ImageName, &YamlNode)> {
    let entries = section.section.list("diskimages").unwrap_or_default();
    entries.iter().filter_map(|entry| Some((ImageName::from(entry.get("name")?.as_text()?), entry)))
}

/// Waits until all of these providers have a build, or a newer one that takes its place: older ones are not uploaded any more. Uploads
/// that fail are told; builders try them again.
pub async fn wait(
    zk: &Zk,
    mirror: &Mirror,
    output: &mut Output<'_>,
    build: &BuildKey,
    targets: BTreeSet<ProviderName>,
) -> anyhow::Result<Vec<Value>> {
    let (mut build, mut missing, mut since) = (build.clone(), targets.clone(), None);
    let mut snapshots = mirror.subscribe();
    let bars = std::io::stderr().is_terminal().then(ProgressBars::default);
    let (mut done, mut failed): (Vec<Value>, BTreeSet<(ProviderName, UploadId)>) = Default::default();
    loop {
        let snapshot = snapshots.latest_and_mark_seen();
        let before = since.or_else(|| snapshot.images.build(&build).map(|stored| stored.record.state_time));
        match (newest(&snapshot.images, &build.image), before) {
            (Some((newest, time)), _) if newest == build => since = Some(time),
            (Some((newest, time)), Some(before)) if time > before => {
                output.print(format_args!("{} has taken the place of {}", newest.file_name(), build.file_name()))?;
                (build, missing, since) = (newest, targets.clone(), Some(time));
                done.clear();
            }
            // The picture may be older than the build that was just seen.
            (_, None) => {}
            _ => anyhow::bail!("{} is gone before it was uploaded to all providers", build.file_name()),
        }
        for provider in missing.clone() {
            for (upload, state, id) in uploads(&snapshot.images, &build, &provider) {
                match state {
                    UploadState::Ready => {
                        missing.remove(&provider);
                        bars.iter().for_each(|bars| bars.finish(&provider));
                        output.print(format_args!("{} is uploaded to {provider} as {id}", build.file_name()))?;
                        done.push(json!({"provider": provider, "upload_id": upload, "external_id": id}));
                    }
                    UploadState::Failed if failed.insert((provider.clone(), upload.clone())) => {
                        output.note(format_args!("upload {upload} to {provider} has failed; it is tried again"))?;
                    }
                    UploadState::Uploading | UploadState::Failed | UploadState::Deleting => {}
                }
            }
        }
        if missing.is_empty() {
            return Ok(done);
        }
        output.flush()?;
        if let Some(bars) = &bars {
            for provider in &missing {
                if let Some(progress) = progress(zk, &build, provider).await {
                    bars.show(provider, &progress);
                }
            }
        }
        tokio::select! {
            changed = snapshots.changed() => {
                changed.context("the ZooKeeper session is over; the uploads go on without us")?;
            }
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }
}

/// The build that is uploaded where it is missing, and since when it is there.
fn newest(images: &Images, image: &ImageName) -> Option<(BuildKey, Timestamp)> {
    let view = images.image(image)?;
    let (id, stored) = view.ready().into_iter().next()?;
    Some((BuildKey::new(image, id), stored.record.state_time))
}

fn uploads(images: &Images, build: &BuildKey, provider: &ProviderName) -> Vec<(UploadId, UploadState, String)> {
    let uploads = images.uploads_to(provider, &build.image).filter(|(key, _)| key.build == build.build);
    let id = |id: &Option<_>| id.as_ref().map_or_else(String::new, nodepool_model::records::ids::ExternalId::to_string);
    uploads.map(|(key, stored)| (key.upload.clone(), stored.record.state, id(&stored.record.external_id))).collect()
}

/// Nothing where nobody uploads, or a builder that does not tell.
async fn progress(zk: &Zk, build: &BuildKey, provider: &ProviderName) -> Option<Progress> {
    let directory = paths::image_uploads_lock(&build.image, &build.build, provider);
    let holder = lock::contenders(zk, &directory).await.ok()?.into_iter().next()?;
    let (data, _) = zk.get(&format!("{directory}/{holder}")).await.ok()?;
    serde_json::from_slice(&data).ok()
}

#[derive(Default)]
struct ProgressBars {
    multi_progress: MultiProgress,
    bars: std::cell::RefCell<BTreeMap<ProviderName, ProgressBar>>,
}

impl ProgressBars {
    fn show(&self, provider: &ProviderName, progress: &Progress) {
        let mut bars = self.bars.borrow_mut();
        let bar = bars.entry(provider.clone()).or_insert_with(|| {
            let template = "{prefix} [{bar:40}] {percent} % of {total_bytes}, {bytes_per_sec}, {eta} left";
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = ProgressBar::new(progress.of).with_style(style).with_prefix(provider.to_string());
            self.multi_progress.add(bar)
        });
        bar.set_length(progress.of);
        bar.set_position(progress.bytes);
    }

    fn finish(&self, provider: &ProviderName) {
        if let Some(bar) = self.bars.borrow_mut().remove(provider) {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OutputFormat;
    use crate::testing::{TestStore, capture, config};
    use tokio::runtime::Handle;

    const BUILD: &str = "/nodepool/images/debian/builds/b1";

    #[tokio::test]
    async fn providers_that_take_an_image_are_waited_for_unless_they_are_paused() {
        let text = "zookeeper-servers: [{host: localhost}]\ndiskimages: [{name: debian}, {name: other}]\nproviders:\n\
                    \x20 - {name: one, driver: fake, cloud: c, pools: [], diskimages: [{name: debian}]}\n\
                    \x20 - {name: two, driver: fake, cloud: c, pools: [], diskimages: [{name: other}]}\n\
                    \x20 - {name: three, driver: fake, cloud: c, pools: [], diskimages: [{name: debian, pause: true}]}\n\
                    \x20 - {name: four, driver: static, pools: []}\n";
        let config = config(text).await;
        assert_eq!(upload_targets(&config, &"debian".into()), BTreeSet::from(["one".into()]));
    }

    #[tokio::test]
    async fn uploads_are_waited_for_and_failures_told() {
        let store = TestStore::new();
        store.put(BUILD, json!({"state": "ready", "state_time": 1.0}).to_string()).await;
        let upload = |number: &str| format!("{BUILD}/providers/one/images/{number}");
        let failed = json!({"state": "failed", "state_time": 2.0}).to_string();
        store.put(&upload("0000000001"), failed).await;
        let mirror = Mirror::start_images_only(store.zk.clone(), &Handle::current()).await.unwrap();
        let build = BuildKey { image: "debian".into(), build: "b1".into() };
        let waiting = capture(OutputFormat::Table, async |output| {
            wait(&store.zk, &mirror, output, &build, BTreeSet::from(["one".into()])).await.map(drop)
        });
        let ready = json!({"state": "ready", "state_time": 3.0, "external_id": "image-7"}).to_string();
        let uploading = async { store.put(&upload("0000000002"), ready).await };
        let (captured, ()) = tokio::join!(waiting, uploading);
        assert_eq!(captured.out, "debian-b1 is uploaded to one as image-7\n");
        assert!(captured.notes.contains("upload 0000000001 to one has failed"), "{captured:?}");
    }

    #[tokio::test]
    async fn a_newer_build_takes_the_place_of_the_one_that_was_waited_for() {
        let store = TestStore::new();
        store.put(BUILD, json!({"state": "ready", "state_time": 1.0}).to_string()).await;
        let mirror = Mirror::start_images_only(store.zk.clone(), &Handle::current()).await.unwrap();
        let build = BuildKey { image: "debian".into(), build: "b1".into() };
        let waiting = capture(OutputFormat::Table, async |output| {
            wait(&store.zk, &mirror, output, &build, BTreeSet::from(["one".into()])).await.map(drop)
        });
        let newer = "/nodepool/images/debian/builds/b2";
        let building = async {
            // It looks at what there is first.
            tokio::task::yield_now().await;
            store.put(newer, json!({"state": "ready", "state_time": 2.0}).to_string()).await;
            let ready = json!({"state": "ready", "state_time": 3.0, "external_id": "image-8"}).to_string();
            store.put(&format!("{newer}/providers/one/images/0000000001"), ready).await;
        };
        let (captured, ()) = tokio::join!(waiting, building);
        assert_eq!(
            captured.out,
            "debian-b2 has taken the place of debian-b1\ndebian-b2 is uploaded to one as image-8\n"
        );
    }

    #[tokio::test]
    async fn how_far_an_upload_is_lies_in_its_lock() {
        let store = TestStore::new();
        let build = BuildKey { image: "debian".into(), build: "b1".into() };
        store.put(BUILD, "{}".to_owned()).await;
        assert!(progress(&store.zk, &build, &"one".into()).await.is_none());
        let directory = paths::image_uploads_lock(&build.image, &build.build, &"one".into());
        let lock = lock::try_lock(&store.zk, &directory, r#"{"bytes": 5, "of": 20}"#).await.unwrap().unwrap();
        let known = progress(&store.zk, &build, &"one".into()).await.unwrap();
        assert_eq!((known.bytes, known.of), (5, 20));
        drop(lock);
    }
}
