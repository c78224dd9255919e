//! `image-build --wait --uploads`: follows a ready build to all providers that use it, with a progress bar each on a
//! terminal.

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

/// Pause between two reads of the progress, which builders write every second.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Progress that a builder writes into the lock of an upload.
#[derive(Deserialize)]
struct Progress {
    bytes: u64,
    of: u64,
}

/// The providers that use an image and are not paused for it.
pub fn upload_targets(config: &Config, image: &ImageName) -> BTreeSet<ProviderName> {
    let is_target = |section: &ProviderConfig| {
        driver_limits::find(&section.driver).is_some_and(|facts| facts.manages_images)
            && diskimages(section).any(|(name, entry)| name == *image && !entry.boolean("pause").unwrap_or(false))
    };
    let providers = config.providers.iter().filter(|(_, section)| is_target(section));
    providers.map(|(name, _)| name.clone()).collect()
}

/// The images of a provider's section, with their entries.
pub fn diskimages(section: &ProviderConfig) -> impl Iterator<Item = (ImageName, &YamlNode)> {
    let entries = section.section.list("diskimages").unwrap_or_default();
    entries.iter().filter_map(|entry| Some((ImageName::from(entry.get("name")?.as_text()?), entry)))
}

/// Waits until all of these providers have a build, or a newer one that replaces it: older builds are not uploaded any
/// more. Failed uploads are reported; builders retry them.
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
                output.print(format_args!("{} replaced {}", newest.file_name(), build.file_name()))?;
                (build, missing, since) = (newest, targets.clone(), Some(time));
                done.clear();
            }
            // The snapshot may be older than the ready build.
            (_, None) => {}
            _ => anyhow::bail!("{} was deleted before it was uploaded to all providers", build.file_name()),
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
                        output.note(format_args!("upload {upload} to {provider} has failed; it is retried"))?;
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
                changed.context("the ZooKeeper session expired; the uploads continue")?;
            }
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }
}

/// The newest ready build, which is uploaded to providers that lack it, and the time since which it is ready.
fn newest(images: &Images, image: &ImageName) -> Option<(BuildKey, Timestamp)> {
    let (id, stored) = images.image(image)?.ready().into_iter().next()?;
    Some((BuildKey::new(image, id), stored.record.state_time))
}

fn uploads(images: &Images, build: &BuildKey, provider: &ProviderName) -> Vec<(UploadId, UploadState, String)> {
    let uploads = images.uploads_to(provider, &build.image).filter(|(key, _)| key.build == build.build);
    let id = |id: &Option<_>| id.as_ref().map_or_else(String::new, nodepool_model::records::ids::ExternalId::to_string);
    uploads.map(|(key, stored)| (key.upload.clone(), stored.record.state, id(&stored.record.external_id))).collect()
}

/// Progress of an upload; `None` if no upload is running or its builder does not write it.
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
    async fn upload_targets_are_providers_that_use_the_image_and_are_not_paused() {
        let text = "zookeeper-servers: [{host: localhost}]\ndiskimages: [{name: debian}, {name: other}]\nproviders:\n\
                    \x20 - {name: one, driver: fake, cloud: c, pools: [], diskimages: [{name: debian}]}\n\
                    \x20 - {name: two, driver: fake, cloud: c, pools: [], diskimages: [{name: other}]}\n\
                    \x20 - {name: three, driver: fake, cloud: c, pools: [], diskimages: [{name: debian, pause: true}]}\n\
                    \x20 - {name: four, driver: static, pools: []}\n";
        let config = config(text).await;
        assert_eq!(upload_targets(&config, &"debian".into()), BTreeSet::from(["one".into()]));
    }

    #[tokio::test]
    async fn wait_ends_with_the_uploads_and_reports_failures() {
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
    async fn a_newer_build_replaces_the_awaited_one() {
        let store = TestStore::new();
        store.put(BUILD, json!({"state": "ready", "state_time": 1.0}).to_string()).await;
        let mirror = Mirror::start_images_only(store.zk.clone(), &Handle::current()).await.unwrap();
        let build = BuildKey { image: "debian".into(), build: "b1".into() };
        let waiting = capture(OutputFormat::Table, async |output| {
            wait(&store.zk, &mirror, output, &build, BTreeSet::from(["one".into()])).await.map(drop)
        });
        let newer = "/nodepool/images/debian/builds/b2";
        let building = async {
            // The command reads the existing build first.
            tokio::task::yield_now().await;
            store.put(newer, json!({"state": "ready", "state_time": 2.0}).to_string()).await;
            let ready = json!({"state": "ready", "state_time": 3.0, "external_id": "image-8"}).to_string();
            store.put(&format!("{newer}/providers/one/images/0000000001"), ready).await;
        };
        let (captured, ()) = tokio::join!(waiting, building);
        assert_eq!(captured.out, "debian-b2 replaced debian-b1\ndebian-b2 is uploaded to one as image-8\n");
    }

    #[tokio::test]
    async fn the_progress_of_an_upload_is_read_from_its_lock() {
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
