//! In-process builder with its production actors, on a ZooKeeper in memory, with a recording `dib-cmd` and a cloud for
//! images.

pub mod image_cloud;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::executable;
use crate::in_process_launcher::{InProcessDaemon, until, zookeeper};
use bytes::Bytes;
use image_cloud::ImageCloud;
use nodepool::actors::builder::builder::{BuilderOptions, BuilderSetup, run_session};
use nodepool::actors::process::config_files::LoadedConfig;
use nodepool::actors::process::context::SessionEnd;
use nodepool::actors::provider::providers::ExtraDrivers;
use nodepool::actors::runtime::clock;
use nodepool_drivers::common::dib::DiskImageBuilder;
use nodepool_model::records::ids::{BuildId, ImageName, ProviderName, UploadId};
use nodepool_model::records::image_build::{BuildState, ImageBuild};
use nodepool_model::records::image_upload::{ImageUpload, UploadKey, UploadState};
use nodepool_model::records::time::{Seconds, Timestamp};
use nodepool_zk::locks::lock::make_path;
use nodepool_zk::memory::MemoryZooKeeper;
use nodepool_zk::{Connection, Zk, paths};
use tokio::task::JoinHandle;
use zookeeper_server::types::CreateMode;

/// Fake `dib-cmd` that records its arguments and environment, and writes a file of each format. Flag files of the
/// harness change its behaviour.
const RECORDING_DIB: &str = r#"#!/bin/sh
here=$(dirname "$0")
[ -e "$here/slow-exit" ] && trap 'sleep 0.3; echo "$DIB_IMAGE_FILENAME" >> "$here/exited"; exit 1' TERM
echo "$@" >> "$here/calls"
echo "DIB_RELEASE=$DIB_RELEASE DIB_IMAGE_NAME=$DIB_IMAGE_NAME DIB_IMAGE_FILENAME=$DIB_IMAGE_FILENAME ELEMENTS_PATH=$ELEMENTS_PATH COLOUR=$COLOUR" >> "$here/environment"
echo "building $DIB_IMAGE_NAME"
while [ -e "$here/hang" ]; do sleep 0.01; done
[ -e "$here/fail" ] && exit 127
while [ $# -gt 0 ]; do
    case "$1" in -o) out=$2; shift ;; -t) formats=$2; shift ;; esac
    shift
done
[ -e "$here/empty" ] && exit 0
mkdir -p "$out.d"
for format in $(echo "$formats" | tr , ' '); do
    if [ -e "$here/size" ]; then head -c "$(cat "$here/size")" /dev/zero > "$out.$format"; else echo image > "$out.$format"; fi
done
"#;

pub struct BuilderHarness {
    pub folder: tempfile::TempDir,
    pub zookeeper: MemoryZooKeeper,
    pub zk: Zk,
    /// Shared by all providers.
    pub cloud: ImageCloud,
}

impl BuilderHarness {
    pub fn create() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("images")).unwrap();
        executable::install(&folder.path().join("dib"), RECORDING_DIB);
        let zookeeper = zookeeper();
        let zk: Zk = zookeeper.connect();
        Self { folder, zookeeper, zk, cloud: ImageCloud::default() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A configuration with these diskimages and providers in flow style. Each image uses the recording command.
    pub fn yaml(&self, images: &[&str], providers: &[&str]) -> String {
        let providers: String = providers
            .iter()
            .map(|provider| match provider.contains("driver") {
                true => format!("  - {{{provider}}}\n"),
                false => format!("  - {{driver: fake, pools: [{{name: main, labels: []}}], {provider}}}\n"),
            })
            .collect();
        let (images_dir, logs) = (self.path("images"), self.path("logs"));
        let dib = self.path("dib");
        let images: String = images
            .iter()
            .map(|image| format!("  - {{{image}, dib-cmd: {}, env-vars: {{COLOUR: blue}}}}\n", dib.display()))
            .collect();
        format!(
            "zookeeper-servers:\n  - host: localhost\n    port: 2181\nimages-dir: {}\nbuild-log-dir: {}\n\
             elements-dir: /elements\ndiskimages:\n{images}providers:\n{providers}",
            images_dir.display(),
            logs.display(),
        )
    }

    pub fn start(&self, images: &[&str]) -> Builder {
        self.start_with(images, |_| {})
    }

    pub fn start_with(&self, images: &[&str], tune: impl FnOnce(&mut BuilderOptions)) -> Builder {
        self.start_for(images, &[], tune)
    }

    pub fn start_for(&self, images: &[&str], providers: &[&str], tune: impl FnOnce(&mut BuilderOptions)) -> Builder {
        self.start_with_drivers(images, providers, Box::new(self.cloud.clone()), tune)
    }

    /// Starts a builder with providers of other drivers.
    pub fn start_with_drivers(
        &self,
        images: &[&str],
        providers: &[&str],
        drivers: Box<dyn ExtraDrivers>,
        tune: impl FnOnce(&mut BuilderOptions),
    ) -> Builder {
        self.start_with_yaml(&self.yaml(images, providers), drivers, tune)
    }

    /// Starts a builder with another configuration.
    pub fn start_with_yaml(
        &self,
        yaml: &str,
        drivers: Box<dyn ExtraDrivers>,
        tune: impl FnOnce(&mut BuilderOptions),
    ) -> Builder {
        let process =
            InProcessDaemon::with_drivers(yaml, |options| options.provider_retry = Seconds(0.2), Some(drivers));
        let mut options = BuilderOptions {
            build_interval: Seconds(0.2),
            upload_interval: Seconds(0.2),
            // Failed builds are not deleted, so that tests can check them.
            cleanup_interval: Seconds::ZERO,
            ..BuilderOptions::default()
        };
        tune(&mut options);
        let builder_id = "705c8f5d-6bcc-4bb5-bd96-f61902760199".to_owned();
        let session = BuilderSetup { options, builder_id, maker: Arc::new(DiskImageBuilder) };
        let connection = self.zookeeper.connect();
        let (session_id, shared) = (connection.session_id(), process.shared.clone());
        let running = actix_rt::spawn(async move {
            let loaded = shared.options.load().await.expect("a test's configuration loads");
            run_session(connection, shared, session, loaded).await
        });
        Builder { process, session_id, running }
    }

    pub async fn builds(&self, image: &str) -> Vec<(BuildId, ImageBuild)> {
        let image = ImageName::from(image);
        let Ok((names, _)) = self.zk.children(&paths::image_builds(&image)).await else { return Vec::new() };
        let mut builds = Vec::new();
        for name in names.into_iter().filter(|name| name != "lock") {
            let id = BuildId::from(name);
            if let Ok((data, _)) = self.zk.get(&paths::image_build(&image, &id)).await {
                builds.push((id, serde_json::from_slice::<ImageBuild>(&data).unwrap()));
            }
        }
        builds.sort_by_key(|(_, build)| build.state_time);
        builds
    }

    pub async fn uploads(&self, image: &str) -> Vec<(UploadKey, ImageUpload)> {
        let mut uploads: Vec<(UploadKey, ImageUpload)> = Vec::new();
        let image = ImageName::from(image);
        for build in self.children(&paths::image_builds(&image)).await {
            let build = BuildId::from(build);
            for provider in self.children(&paths::image_providers(&image, &build)).await {
                let provider = ProviderName::from(provider);
                for upload in self.children(&paths::image_uploads(&image, &build, &provider)).await {
                    let (image, build, provider) = (image.clone(), build.clone(), provider.clone());
                    let key = UploadKey { provider, image, build, upload: UploadId::from(upload) };
                    if let Ok((data, _)) = self.zk.get(&paths::image_upload(&key)).await {
                        uploads.push((key, serde_json::from_slice(&data).unwrap()));
                    }
                }
            }
        }
        uploads.sort_by(|(_, one), (_, other)| one.state_time.0.total_cmp(&other.state_time.0));
        uploads
    }

    async fn children(&self, path: &str) -> Vec<String> {
        let names = self.zk.children(path).await.map(|(names, _)| names).unwrap_or_default();
        names.into_iter().filter(|name| name != "lock").collect()
    }

    /// Number of uploads of an image to a provider in a state.
    pub async fn count_uploads(&self, image: &str, provider: &str, state: UploadState) -> usize {
        let uploads = self.uploads(image).await;
        uploads.iter().filter(|(key, upload)| key.provider.as_str() == provider && upload.state == state).count()
    }

    pub async fn until_uploaded(&self, image: &str, provider: &str, number: usize) {
        until(&format!("{number} uploads of {image} to {provider}"), async || {
            self.count_uploads(image, provider, UploadState::Ready).await == number
        })
        .await;
    }

    /// Edits the record of an upload.
    pub async fn set_upload(&self, key: &UploadKey, edit: impl FnOnce(&mut ImageUpload)) {
        let path = paths::image_upload(key);
        let (data, stat) = self.zk.get(&path).await.unwrap();
        let mut upload: ImageUpload = serde_json::from_slice(&data).unwrap();
        edit(&mut upload);
        self.zk.set(&path, Bytes::from(nodepool_model::records::json::to_bytes(&upload)), stat.version).await.unwrap();
    }

    pub async fn set_build(&self, image: &str, id: &BuildId, state: BuildState) {
        let path = paths::image_build(&image.into(), id);
        let (data, stat) = self.zk.get(&path).await.unwrap();
        let mut build: ImageBuild = serde_json::from_slice(&data).unwrap();
        build.state = state;
        self.zk.set(&path, Bytes::from(nodepool_model::records::json::to_bytes(&build)), stat.version).await.unwrap();
    }

    pub async fn count_builds(&self, image: &str, state: BuildState) -> usize {
        self.builds(image).await.iter().filter(|(_, build)| build.state == state).count()
    }

    pub async fn until_built(&self, image: &str, number: usize) -> Vec<(BuildId, ImageBuild)> {
        until(&format!("{number} builds of {image}"), async || {
            self.count_builds(image, BuildState::Ready).await == number
        })
        .await;
        self.builds(image).await
    }

    pub async fn request_build(&self, image: &str) {
        let path = paths::image_build_request(&image.into());
        make_path(&self.zk, paths::parent(&path).unwrap()).await.unwrap();
        self.zk.create(&path, Bytes::new(), CreateMode::Persistent).await.unwrap();
    }

    pub async fn is_build_requested(&self, image: &str) -> bool {
        self.zk.exists(&paths::image_build_request(&image.into())).await.unwrap().is_some()
    }

    /// Writes the record of a build by another builder.
    pub async fn put_foreign_build(&self, image: &str, age: f64, formats: &[&str]) {
        let time = Timestamp(clock::now().0 - age);
        let formats = formats.iter().map(|format| (*format).to_owned()).collect();
        let mut build = ImageBuild::started("elsewhere", "other", formats, time);
        build.state = BuildState::Ready;
        let path = paths::image_build(&image.into(), &BuildId::from(format!("{:032x}", age as u64)));
        make_path(&self.zk, paths::parent(&path).unwrap()).await.unwrap();
        let data = nodepool_model::records::json::to_bytes(&build);
        self.zk.create(&path, Bytes::from(data), CreateMode::Persistent).await.unwrap();
    }

    pub fn create_flag_file(&self, flag: &str) {
        std::fs::write(self.path(flag), "").unwrap();
    }

    pub fn remove_flag_file(&self, flag: &str) {
        std::fs::remove_file(self.path(flag)).unwrap();
    }

    pub fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

pub struct Builder {
    pub process: InProcessDaemon,
    pub session_id: i64,
    pub running: JoinHandle<SessionEnd>,
}

impl Builder {
    /// Edits the configuration file. Returns when the builder has loaded it.
    pub async fn reconfigure(&self, yaml: String) {
        let before = self.process.shared.active_config();
        std::fs::write(&self.process.file, yaml).unwrap();
        self.until_reconfigured(before).await;
    }

    /// Waits for a configuration other than `before`.
    pub async fn until_reconfigured(&self, before: Option<LoadedConfig>) {
        until("the new configuration", async || match (&before, &self.process.shared.active_config()) {
            (Some(before), Some(now)) => !Arc::ptr_eq(&before.config, &now.config),
            (before, now) => before.is_none() && now.is_some(),
        })
        .await;
    }
}

/// Whether a process with this text in its command line runs.
pub fn is_running(mark: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.any(|line| String::from_utf8_lossy(&line).contains(mark))
}

pub fn names(folder: &Path) -> BTreeSet<String> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}
