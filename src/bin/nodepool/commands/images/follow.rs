//! Commands that follow a build: `image-build --wait` until its end, `build-log` through its log.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use nodepool_model::config::Config;
use nodepool_model::records::ids::{BuildId, ImageName};
use nodepool_model::records::image_build::{BuildKey, BuildState, ImageBuild};
use nodepool_model::snapshot::Versioned;
use nodepool_model::snapshot::images::Image;
use nodepool_zk::mirror::mirror::Mirror;
use nodepool_zk::tools::transfer;
use nodepool_zk::{Zk, paths};
use serde_json::json;
use tokio::runtime::Handle;

use crate::commands::images;
use crate::commands::images::follow_uploads;
use crate::output::Output;

/// Pause between two reads of a growing log.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Condition to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowUntil {
    Built,
    /// To all providers that use the image.
    Uploaded,
}

/// Requests a build and waits for its end. A failed build is an error, although builders retry it.
pub async fn image_build_and_wait(
    zk: &Zk,
    config: &Config,
    output: &mut Output<'_>,
    image: &ImageName,
    until: FollowUntil,
) -> anyhow::Result<()> {
    let mirror = Mirror::start_images_only(zk.clone(), &Handle::current()).await?;
    let mut snapshots = mirror.subscribe();
    let before = snapshots.latest().images.image(image).map(earlier_builds).unwrap_or_default();
    images::request_build(zk, config, image).await?;
    let mut awaited = AwaitedBuild { image: image.clone(), before, started: BTreeSet::new(), pause_reported: false };
    loop {
        let snapshot = snapshots.latest_and_mark_seen();
        if let Some((build, builder)) = awaited.ready_build(snapshot.images.image(image), output)? {
            let key = BuildKey::new(image, &build);
            let id = key.file_name();
            output.print(format_args!("{id} is ready"))?;
            let mut done = json!({"outcome": "ready", "image": image, "id": id, "builder": builder});
            if until == FollowUntil::Uploaded {
                let targets = follow_uploads::upload_targets(config, image);
                done["uploads"] = follow_uploads::wait(zk, &mirror, output, &key, targets).await?.into();
            }
            return Ok(output.outcome(done)?);
        }
        if !awaited.is_in_progress(zk, snapshot.images.image(image)).await? {
            bail!("the build request for {image} was removed before a build started");
        }
        output.flush()?;
        snapshots.changed().await.context("the ZooKeeper session expired; the build continues")?;
        if !snapshots.latest().connected {
            output.note("connection to ZooKeeper lost, waiting for it")?;
        }
    }
}

/// Builds that do not satisfy the request. If a build was requested before, a running build satisfies it, because its
/// end removes the request.
fn earlier_builds(image: &Image) -> BTreeSet<BuildId> {
    let is_joined =
        |stored: &Versioned<ImageBuild>| image.requested_ms.is_some() && stored.record.state == BuildState::Building;
    image.builds.iter().filter(|(_, stored)| !is_joined(stored)).map(|(id, _)| id.clone()).collect()
}

/// Progress of the requested build.
struct AwaitedBuild {
    image: ImageName,
    /// Builds from before the request.
    before: BTreeSet<BuildId>,
    started: BTreeSet<BuildId>,
    pause_reported: bool,
}

impl AwaitedBuild {
    /// The requested build and its builder, once it is ready.
    fn ready_build(
        &mut self,
        image: Option<&Image>,
        output: &mut Output<'_>,
    ) -> anyhow::Result<Option<(BuildId, Option<String>)>> {
        let Some(image) = image else { return Ok(None) };
        if image.paused && !std::mem::replace(&mut self.pause_reported, true) {
            output.note(format_args!("{0} is paused: its build starts after `image-unpause {0}`", self.image))?;
        }
        let new: Vec<(&BuildId, &Versioned<ImageBuild>)> =
            image.builds.iter().filter(|(id, _)| !self.before.contains(*id)).collect();
        for (id, stored) in &new {
            let build = &stored.record;
            let name = BuildKey::new(&self.image, id).file_name();
            let builder = build.builder.as_deref().unwrap_or("an unknown builder");
            if self.started.insert((*id).clone()) {
                output.print(format_args!("{name} started on {builder}"))?;
            }
            match build.state {
                BuildState::Ready => return Ok(Some(((*id).clone(), build.builder.clone()))),
                BuildState::Failed => {
                    bail!("{name} has failed; its log is on {builder}. The request remains, and the build is retried")
                }
                BuildState::Building | BuildState::Deleting => {}
            }
        }
        Ok(None)
    }

    /// Whether the request or a build of it exists. A snapshot without either may be old, so ZooKeeper is read.
    async fn is_in_progress(&self, zk: &Zk, image: Option<&Image>) -> anyhow::Result<bool> {
        let is_shown = image.is_some_and(|image| image.requested_ms.is_some() || self.has_new_build(image));
        if is_shown || zk.exists(&paths::image_build_request(&self.image)).await?.is_some() {
            return Ok(true);
        }
        let (images, _) = transfer::images(zk).await?;
        Ok(images.image(&self.image).is_some_and(|image| self.has_new_build(image)))
    }

    fn has_new_build(&self, image: &Image) -> bool {
        image.builds.keys().any(|id| !self.before.contains(id))
    }
}

/// Whether to follow the log until the build has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowMode {
    UntilBuildEnds,
    CurrentContent,
}

/// Shows the log of the newest build of an image, or of a running one. The log is a file on the builder's host.
pub async fn build_log(
    zk: &Zk,
    config: &Config,
    output: &mut Output<'_>,
    image: &ImageName,
    follow: FollowMode,
) -> anyhow::Result<()> {
    let Some((key, build)) = newest(zk, image).await? else {
        output.print(format_args!("No build of {image} found"))?;
        return Ok(output.outcome(json!({"outcome": "not found", "image": image}))?);
    };
    let path = config.log_dir_of_builds().join(format!("{}.log", key.file_name()));
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let builder = build.builder.as_deref().unwrap_or("an unknown builder");
            bail!("there is no {}; the build ran on {builder}, where its log is", path.display());
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let mut reader = LineReader::default();
    let mut state = build.state;
    loop {
        reader.read_new_lines(&mut file, output).with_context(|| format!("cannot read {}", path.display()))?;
        output.flush()?;
        if follow == FollowMode::CurrentContent || state != BuildState::Building {
            break;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        // Lines written before the end is recorded are read in the next pass.
        state = state_of(zk, &key).await?;
    }
    reader.finish(output)?;
    Ok(output.outcome(
        json!({"outcome": state.as_str(), "image": image, "id": key.file_name(), "log": path.display().to_string()}),
    )?)
}

async fn newest(zk: &Zk, image: &ImageName) -> anyhow::Result<Option<(BuildKey, Arc<ImageBuild>)>> {
    let (images, _) = transfer::images(zk).await?;
    let of_image = images.builds().filter(|(key, _)| key.image == *image);
    let newest = of_image.max_by(|(_, one), (_, other)| {
        let rank =
            |stored: &Versioned<ImageBuild>| (stored.record.state == BuildState::Building, stored.record.state_time);
        rank(one).partial_cmp(&rank(other)).unwrap_or(std::cmp::Ordering::Equal)
    });
    Ok(newest.map(|(key, stored)| (key, stored.record.clone())))
}

/// The state of a build; a build whose record is deleted has ended.
async fn state_of(zk: &Zk, key: &BuildKey) -> anyhow::Result<BuildState> {
    let (images, _) = transfer::images(zk).await?;
    Ok(images.build(key).map_or(BuildState::Deleting, |stored| stored.record.state))
}

/// Splits the bytes of a growing file into whole lines.
#[derive(Default)]
struct LineReader {
    rest: Vec<u8>,
}

impl LineReader {
    fn read_new_lines(&mut self, file: &mut File, output: &mut Output<'_>) -> anyhow::Result<()> {
        let mut buffer = [0; 1 << 16];
        loop {
            let read = file.read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            self.rest.extend_from_slice(&buffer[..read]);
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                output.print(String::from_utf8_lossy(&line[..end]))?;
            }
        }
    }

    fn finish(&mut self, output: &mut Output<'_>) -> anyhow::Result<()> {
        if !self.rest.is_empty() {
            output.print(String::from_utf8_lossy(&std::mem::take(&mut self.rest)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OutputFormat;
    use crate::testing::{TestStore, capture, config};
    use zookeeper_server::types::Op;

    async fn build(store: &TestStore, id: &str, state: &str) {
        // A higher number is newer.
        let time: f64 = id.trim_start_matches('b').parse().unwrap();
        let record = json!({"state": state, "state_time": time, "builder": "nb01"}).to_string();
        let path = format!("/nodepool/images/debian/builds/{id}");
        if store.exists(&path).await {
            store.zk.set(&path, record.into(), -1).await.unwrap();
        } else {
            store.put(&path, record).await;
        }
    }

    async fn wait_for_request(store: &TestStore) {
        while !store.exists("/nodepool/images/debian/request-build").await {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn wait_follows_the_requested_build_and_ignores_earlier_ones() {
        for (end, expected) in [("ready", None), ("failed", Some("debian-b2 has failed; its log is on nb01"))] {
            let store = TestStore::new();
            build(&store, "b1", "ready").await;
            let config =
                config("zookeeper-servers: [{host: localhost}]\ndiskimages: [{name: debian, formats: [raw]}]").await;
            let waiting = capture(OutputFormat::Table, async |output| {
                image_build_and_wait(&store.zk, &config, output, &"debian".into(), FollowUntil::Built).await
            });
            let building = async {
                wait_for_request(&store).await;
                build(&store, "b2", "building").await;
                build(&store, "b2", end).await;
            };
            let (captured, ()) = tokio::join!(waiting, building);
            assert!(captured.out.starts_with("debian-b2 started on nb01\n"), "{captured:?}");
            match expected {
                None => {
                    assert!(captured.out.ends_with("debian-b2 is ready\n") && captured.result.is_none(), "{captured:?}")
                }
                Some(message) => assert!(captured.error().starts_with(message), "{captured:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_running_build_satisfies_the_request_only_if_it_was_requested_before() {
        for is_requested in [true, false] {
            let store = TestStore::new();
            build(&store, "b1", "building").await;
            let request = "/nodepool/images/debian/request-build";
            if is_requested {
                store.put(request, "").await;
            }
            let config =
                config("zookeeper-servers: [{host: localhost}]\ndiskimages: [{name: debian, formats: [raw]}]").await;
            // The next write is then that of the command.
            drop(Mirror::start_images_only(store.zk.clone(), &Handle::current()).await.unwrap());
            let before = store.server.last_zxid();
            let waiting = capture(OutputFormat::Table, async |output| {
                image_build_and_wait(&store.zk, &config, output, &"debian".into(), FollowUntil::Built).await
            });
            let building = async {
                // A create that fails because the request exists counts as a write, too.
                while store.server.last_zxid() == before {
                    tokio::task::yield_now().await;
                }
                let ready = json!({"state": "ready", "state_time": 1.0, "builder": "nb01"}).to_string();
                let done = Op::set("/nodepool/images/debian/builds/b1", ready, -1);
                store.zk.multi(vec![done, Op::delete(request, -1)]).await.unwrap();
            };
            let (captured, ()) = tokio::join!(waiting, building);
            match is_requested {
                true => {
                    assert!(captured.out.ends_with("debian-b1 is ready\n") && captured.result.is_none(), "{captured:?}")
                }
                false => assert!(captured.error().contains("was removed"), "{captured:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_removed_build_request_ends_the_wait() {
        let store = TestStore::new();
        build(&store, "b1", "ready").await;
        let config =
            config("zookeeper-servers: [{host: localhost}]\ndiskimages: [{name: debian, formats: [raw]}]").await;
        let waiting = capture(OutputFormat::Table, async |output| {
            image_build_and_wait(&store.zk, &config, output, &"debian".into(), FollowUntil::Built).await
        });
        let withdrawing = async {
            wait_for_request(&store).await;
            store.zk.delete("/nodepool/images/debian/request-build", -1).await.unwrap();
        };
        let (captured, ()) = tokio::join!(waiting, withdrawing);
        assert!(captured.error().contains("was removed"), "{captured:?}");
    }

    #[tokio::test]
    async fn a_log_is_shown_and_followed_to_the_end_of_its_build() {
        let (store, folder) = (TestStore::new(), tempfile::tempdir().unwrap());
        let text = format!("zookeeper-servers: [{{host: localhost}}]\nbuild-log-dir: {}", folder.path().display());
        let config = config(&text).await;
        let log = async |follow: FollowMode| {
            capture(OutputFormat::Table, async |output| {
                build_log(&store.zk, &config, output, &"debian".into(), follow).await
            })
            .await
        };
        assert_eq!(log(FollowMode::CurrentContent).await.out, "No build of debian found\n");
        build(&store, "b1", "ready").await;
        assert!(log(FollowMode::CurrentContent).await.error().contains("the build ran on nb01"));
        build(&store, "b2", "building").await;
        let file = folder.path().join("debian-b2.log");
        std::fs::write(&file, "one\ntw").unwrap();
        assert_eq!(log(FollowMode::CurrentContent).await.out, "one\ntw\n");
        let writing = async {
            let mut file = std::fs::OpenOptions::new().append(true).open(&file).unwrap();
            std::io::Write::write_all(&mut file, b"o\nExit code: 0\n").unwrap();
            build(&store, "b2", "ready").await;
        };
        let (captured, ()) = tokio::join!(log(FollowMode::UntilBuildEnds), writing);
        assert_eq!(captured.out, "one\ntwo\nExit code: 0\n");
    }
}
