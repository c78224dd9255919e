//! Commands that follow a build: `image-build --wait` to its end, `build-log` through what it writes.

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

/// Between two looks at a log that is being written.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Built,
    /// By all providers that take the image.
    Uploaded,
}

/// Asks for a build and waits for its end. A build that fails is an error, though builders try again.
pub async fn image_build_and_wait(
    zk: &Zk,
    config: &Config,
    output: &mut Output<'_>,
    image: &ImageName,
    until: Until,
) -> anyhow::Result<()> {
    let mirror = Mirror::start_images_only(zk.clone(), &Handle::current()).await?;
    let mut snapshots = mirror.subscribe();
    let before = snapshots.latest().images.image(image).map(before).unwrap_or_default();
    images::request_build(zk, config, image).await?;
    let mut waiting = Waiting { image: image.clone(), before, begun: BTreeSet::new(), told_pause: false };
    loop {
        let snapshot = snapshots.latest_and_mark_seen();
        if let Some((build, builder)) = waiting.look(snapshot.images.image(image), output)? {
            let key = BuildKey::new(image, &build);
            let id = key.file_name();
            output.say(format_args!("{id} is ready"))?;
            let mut done = json!({"outcome": "ready", "image": image, "id": id, "builder": builder});
            if until == Until::Uploaded {
                let takers = follow_uploads::takers(config, image);
                done["uploads"] = follow_uploads::wait(zk, &mirror, output, &key, takers).await?.into();
            }
            return Ok(output.outcome(done)?);
        }
        if !waiting.is_under_way(zk, snapshot.images.image(image)).await? {
            bail!("the request for a build of {image} is gone, and there is no build");
        }
        output.flush()?;
        snapshots.changed().await.context("the ZooKeeper session is over; the build goes on without us")?;
        if !snapshots.latest().connected {
            output.note("the connection to ZooKeeper is lost, waiting for it")?;
        }
    }
}

/// Builds that are not what is asked for. Where somebody has asked already, the one that is under way may be, and its end takes the
/// request along.
fn before(image: &Image) -> BTreeSet<BuildId> {
    let is_joined =
        |stored: &Versioned<ImageBuild>| image.requested_ms.is_some() && stored.record.state == BuildState::Building;
    image.builds.iter().filter(|(_, stored)| !is_joined(stored)).map(|(id, _)| id.clone()).collect()
}

/// What is known of the build that was asked for.
struct Waiting {
    image: ImageName,
    /// Builds of before the request.
    before: BTreeSet<BuildId>,
    begun: BTreeSet<BuildId>,
    told_pause: bool,
}

impl Waiting {
    /// The build and its builder, when it is there.
    fn look(
        &mut self,
        image: Option<&Image>,
        output: &mut Output<'_>,
    ) -> anyhow::Result<Option<(BuildId, Option<String>)>> {
        let Some(image) = image else { return Ok(None) };
        if image.paused && !std::mem::replace(&mut self.told_pause, true) {
            output.note(format_args!("{0} is paused: its build begins after `image-unpause {0}`", self.image))?;
        }
        let new: Vec<(&BuildId, &Versioned<ImageBuild>)> =
            image.builds.iter().filter(|(id, _)| !self.before.contains(*id)).collect();
        for (id, stored) in &new {
            let build = &stored.record;
            let name = BuildKey::new(&self.image, id).file_name();
            let builder = build.builder.as_deref().unwrap_or("an unknown builder");
            if self.begun.insert((*id).clone()) {
                output.say(format_args!("{name} has been begun by {builder}"))?;
            }
            match build.state {
                BuildState::Ready => return Ok(Some(((*id).clone(), build.builder.clone()))),
                BuildState::Failed => {
                    bail!("{name} has failed; its log is on {builder}. The request stays, and the build is tried again")
                }
                BuildState::Building | BuildState::Deleting => {}
            }
        }
        Ok(None)
    }

    /// Where the picture shows neither the request nor a build, it may be old.
    async fn is_under_way(&self, zk: &Zk, image: Option<&Image>) -> anyhow::Result<bool> {
        let is_shown = image.is_some_and(|image| image.requested_ms.is_some() || self.has_new(image));
        if is_shown || zk.exists(&paths::image_build_request(&self.image)).await?.is_some() {
            return Ok(true);
        }
        let (images, _) = transfer::images(zk).await?;
        Ok(images.image(&self.image).is_some_and(|image| self.has_new(image)))
    }

    fn has_new(&self, image: &Image) -> bool {
        image.builds.keys().any(|id| !self.before.contains(id))
    }
}

/// Whether to stay until the build has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    ToTheEnd,
    AsFarAsItIs,
}

/// Shows the log of the newest build of an image, of one that is under way if there is one. It is a file of the builder's host.
pub async fn build_log(
    zk: &Zk,
    config: &Config,
    output: &mut Output<'_>,
    image: &ImageName,
    follow: Follow,
) -> anyhow::Result<()> {
    let Some((key, build)) = newest(zk, image).await? else {
        output.say(format_args!("No build of {image} found"))?;
        return Ok(output.outcome(json!({"outcome": "not found", "image": image}))?);
    };
    let path = config.log_dir_of_builds().join(format!("{}.log", key.file_name()));
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let builder = build.builder.as_deref().unwrap_or("an unknown builder");
            bail!("there is no {}; the build belongs to {builder}, and its log is there", path.display());
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let mut lines = Lines::default();
    let mut state = build.state;
    loop {
        lines.read_on(&mut file, output).with_context(|| format!("cannot read {}", path.display()))?;
        output.flush()?;
        if follow == Follow::AsFarAsItIs || state != BuildState::Building {
            break;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        // What is written before the end is recorded is read after it.
        state = state_of(zk, &key).await?;
    }
    lines.end(output)?;
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

/// A record that is gone is that of a build which has ended.
async fn state_of(zk: &Zk, key: &BuildKey) -> anyhow::Result<BuildState> {
    let (images, _) = transfer::images(zk).await?;
    Ok(images.build(key).map_or(BuildState::Deleting, |stored| stored.record.state))
}

/// Whole lines, whatever pieces they come in.
#[derive(Default)]
struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    fn read_on(&mut self, file: &mut File, output: &mut Output<'_>) -> anyhow::Result<()> {
        let mut piece = [0; 1 << 16];
        loop {
            let read = file.read(&mut piece)?;
            if read == 0 {
                return Ok(());
            }
            self.rest.extend_from_slice(&piece[..read]);
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                output.say(String::from_utf8_lossy(&line[..end]))?;
            }
        }
    }

    fn end(&mut self, output: &mut Output<'_>) -> anyhow::Result<()> {
        if !self.rest.is_empty() {
            output.say(String::from_utf8_lossy(&std::mem::take(&mut self.rest)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Format;
    use crate::testing::{TestStore, capture, hear};
    use zookeeper_server::types::Op;

    async fn build(store: &TestStore, id: &str, state: &str) {
        // The higher the number, the newer.
        let time: f64 = id.trim_start_matches('b').parse().unwrap();
        let record = json!({"state": state, "state_time": time, "builder": "nb01"}).to_string();
        let path = format!("/nodepool/images/debian/builds/{id}");
        if store.exists(&path).await {
            store.zk.set(&path, record.into(), -1).await.unwrap();
        } else {
            store.put(&path, record).await;
        }
    }

    async fn asked(store: &TestStore) {
        while !store.exists("/nodepool/images/debian/request-build").await {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_build_is_waited_for_and_earlier_ones_are_none() {
        for (end, expected) in [("ready", None), ("failed", Some("debian-b2 has failed; its log is on nb01"))] {
            let store = TestStore::new();
            build(&store, "b1", "ready").await;
            let config = config("zookeeper-servers: [{host: localhost}]\ndiskimages: [{name: debian}]").await;
            let waiting = hear(Format::Table, async |output| {
                image_build_and_wait(&store.zk, &config, output, &"debian".into(), Until::Built).await
            });
            let building = async {
                asked(&store).await;
                build(&store, "b2", "building").await;
                build(&store, "b2", end).await;
            };
            let (said, ()) = tokio::join!(waiting, building);
            assert!(said.out.starts_with("debian-b2 has been begun by nb01\n"), "{said:?}");
            match expected {
                None => assert!(said.out.ends_with("debian-b2 is ready\n") && said.result.is_none(), "{said:?}"),
                Some(message) => assert!(said.error().starts_with(message), "{said:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_build_that_somebody_has_asked_for_is_joined_and_one_that_nobody_did_is_not() {
        for is_asked in [true, false] {
            let store = TestStore::new();
            build(&store, "b1", "building").await;
            let request = "/nodepool/images/debian/request-build";
            if is_asked {
                store.put(request, "").await;
            }
            let config = config("zookeeper-servers: [{host: localhost}]\ndiskimages: [{name: debian}]").await;
            // The next write is then that of who asks.
            drop(Mirror::start_images_only(store.zk.clone(), &Handle::current()).await.unwrap());
            let before = store.server.last_zxid();
            let waiting = hear(Format::Table, async |output| {
                image_build_and_wait(&store.zk, &config, output, &"debian".into(), Until::Built).await
            });
            let building = async {
                // Also one who asks in vain counts.
                while store.server.last_zxid() == before {
                    tokio::task::yield_now().await;
                }
                let ready = json!({"state": "ready", "state_time": 1.0, "builder": "nb01"}).to_string();
                let done = Op::set("/nodepool/images/debian/builds/b1", ready, -1);
                store.zk.multi(vec![done, Op::delete(request, -1)]).await.unwrap();
            };
            let (said, ()) = tokio::join!(waiting, building);
            match is_asked {
                true => assert!(said.out.ends_with("debian-b1 is ready\n") && said.result.is_none(), "{said:?}"),
                false => assert!(said.error().contains("is gone"), "{said:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_request_that_somebody_takes_back_ends_the_wait() {
        let store = TestStore::new();
        build(&store, "b1", "ready").await;
        let config = config("zookeeper-servers: [{host: localhost}]\ndiskimages: [{name: debian}]").await;
        let waiting = hear(Format::Table, async |output| {
            image_build_and_wait(&store.zk, &config, output, &"debian".into(), Until::Built).await
        });
        let taking_back = async {
            asked(&store).await;
            store.zk.delete("/nodepool/images/debian/request-build", -1).await.unwrap();
        };
        let (said, ()) = tokio::join!(waiting, taking_back);
        assert!(said.error().contains("is gone"), "{said:?}");
    }

    #[tokio::test]
    async fn a_log_is_shown_and_followed_to_the_end_of_its_build() {
        let (store, folder) = (TestStore::new(), tempfile::tempdir().unwrap());
        let text = format!("zookeeper-servers: [{{host: localhost}}]\nbuild-log-dir: {}", folder.path().display());
        let config = config(&text).await;
        let log = async |follow: Follow| {
            hear(Format::Table, async |output| build_log(&store.zk, &config, output, &"debian".into(), follow).await)
                .await
        };
        assert_eq!(log(Follow::AsFarAsItIs).await.out, "No build of debian found\n");
        build(&store, "b1", "ready").await;
        assert!(log(Follow::AsFarAsItIs).await.error().contains("the build belongs to nb01"));
        build(&store, "b2", "building").await;
        let file = folder.path().join("debian-b2.log");
        std::fs::write(&file, "one\ntw").unwrap();
        assert_eq!(log(Follow::AsFarAsItIs).await.out, "one\ntw\n");
        let writing = async {
            let mut file = std::fs::OpenOptions::new().append(true).open(&file).unwrap();
            std::io::Write::write_all(&mut file, b"o\nExit code: 0\n").unwrap();
            build(&store, "b2", "ready").await;
        };
        let (said, ()) = tokio::join!(log(Follow::ToTheEnd), writing);
        assert_eq!(said.out, "one\ntwo\nExit code: 0\n");
    }
}
