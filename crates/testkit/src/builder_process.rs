//! Builder process: a `nodepool-builder` with ZooKeeper, a simulated cloud, and foreign files and images. The harness
//! checks the settled state, and that foreign objects still exist.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clouds::simulated_openstack::SimulatedOpenStack;
use crate::openstack_harness::client::OpenStackClient;
use crate::real::nodepool_process::NodepoolProcess;
use crate::real::zookeeper::{Options, Server};
use crate::{fake_dib, programs};
use nodepool_model::records::ids::{BuildId, ExternalId};
use nodepool_model::records::image_build::BuildState;
use nodepool_model::records::image_upload::{UploadKey, UploadState};
use nodepool_model::snapshot::images::Images;
use nodepool_policy::images::retention::RETAINED;
use nodepool_zk::client::{ConnectOptions, connect};
use nodepool_zk::locks::lock::make_path;
use nodepool_zk::tools::transfer;
use nodepool_zk::{Zk, paths};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use zookeeper_server::types::CreateMode;

/// Timeout until the state is settled. Session timeout, takeover, delayed cloud effects and periodic runs take 10 to 30
/// s together on an idle machine.
pub const SETTLE_TIMEOUT: Duration = Duration::from_secs(150);
pub const IMAGES: [&str; 2] = ["debian", "fedora"];
pub const PROVIDER: &str = "lab";

pub struct BuilderProcessHarness {
    pub cloud: SimulatedOpenStack,
    pub server: Server,
    home: tempfile::TempDir,
    images: PathBuf,
    zk: Zk,
    client: OpenStackClient,
    configuration: String,
}

impl BuilderProcessHarness {
    /// Starts the services. Builds are stored in a subdirectory of `images`, or of the harness's own directory.
    pub async fn start(images: Option<&Path>) -> BuilderProcessHarness {
        let server = Server::start(Options::short_sessions()).await;
        let cloud = SimulatedOpenStack::start(&["--latency-ms", "image=20-200"]).await;
        let client = OpenStackClient::log_in(&cloud.clouds_yaml(), "simulated", "").await;
        let address = server.address();
        let (host, port) = address.rsplit_once(':').expect("an address ends with its port");
        let zk: Zk = connect(ConnectOptions::plain(host, port.parse().unwrap())).await.unwrap();
        let home = tempfile::tempdir().unwrap();
        let images = images.map_or_else(|| home.path().join("images"), |disk| disk.join("images"));
        std::fs::create_dir(&images).unwrap();
        FOREIGN_FILES.iter().for_each(|name| std::fs::write(images.join(name), "foreign").unwrap());
        let dib = fake_dib::install(home.path());
        let configuration = configuration(home.path(), &dib, &images, host, port);
        let harness = BuilderProcessHarness { cloud, server, home, images, zk, client, configuration };
        harness.put_foreign_image("foreign", json!({})).await;
        let marks = json!({"nodepool_provider_name": "other", "nodepool_build_id": "b"});
        harness.put_foreign_image("other-provider", marks).await;
        harness
    }

    pub fn builder(&self) -> NodepoolProcess {
        let clouds = self.cloud.clouds_yaml();
        let environment = [("OS_CLIENT_CONFIG_FILE", clouds.as_path())];
        let arguments = ["-d", "--cleanup-interval", "1", "--build-interval", "1", "--upload-interval", "1"];
        NodepoolProcess::start_in(&environment, programs::builder(), &self.configuration, &arguments)
    }

    /// The directory of the fake `dib-cmd`.
    pub fn dib_directory(&self) -> &Path {
        self.home.path()
    }

    pub async fn request_build(&self, image: &str) {
        let path = paths::image_build_request(&image.into());
        make_path(&self.zk, paths::parent(&path).unwrap()).await.unwrap();
        // A request may exist already.
        let _ = self.zk.create(&path, bytes::Bytes::new(), CreateMode::Persistent).await;
    }

    pub async fn records(&self) -> Images {
        transfer::images(&self.zk).await.expect("ZooKeeper answers").0
    }

    /// Ids and metadata of all images in the cloud except the initial public ones.
    pub async fn cloud_images(&self) -> Vec<Value> {
        let listed = self.client.get("image", "/images?limit=1000").await;
        let images = listed["images"].as_array().unwrap_or_else(|| panic!("{listed}")).clone();
        images.into_iter().filter(|image| image["visibility"] != "public").collect()
    }

    async fn put_foreign_image(&self, name: &str, marks: Value) {
        let mut record = json!({"name": name, "disk_format": "raw", "container_format": "bare"});
        record.as_object_mut().unwrap().extend(marks.as_object().unwrap().clone());
        let (status, answer) = self.client.call(Method::POST, "image", "/images", Some(record)).await;
        assert!(status.is_success(), "{answer}");
    }

    /// First difference from the settled state; `None` if there is none.
    pub async fn find_problem(&self) -> Option<String> {
        let records = self.records().await;
        for image in IMAGES {
            let view = records.image(&image.into()).cloned().unwrap_or_default();
            if view.requested_ms.is_some() || view.ready().is_empty() {
                return Some(format!("{image} has no build, or a pending build request"));
            }
        }
        if let Some((key, stored)) = records.builds().find(|(_, stored)| stored.record.state != BuildState::Ready) {
            return Some(format!("build {} is {:?}", key.file_name(), stored.record.state));
        }
        if let Some((key, stored)) = records.uploads().find(|(_, stored)| stored.record.state != UploadState::Ready) {
            return Some(format!("upload {key:?} is {:?}", stored.record.state));
        }
        for image in IMAGES {
            let uploaded: BTreeSet<&BuildId> =
                records.uploads().filter(|(key, _)| key.image.as_str() == image).map(|(key, _)| &key.build).collect();
            let uploads = records.uploads().filter(|(key, _)| key.image.as_str() == image).count();
            if uploads > uploaded.len() {
                return Some(format!("a build of {image} has several uploads"));
            }
            if let Some(key) = superfluous_upload(&records, image) {
                return Some(format!("upload {key:?} is neither recent nor of a recent build"));
            }
            // A build that has an upload is kept besides the newest ones, which may never have been uploaded.
            let view = records.image(&image.into()).cloned().unwrap_or_default();
            let ready = view.ready();
            if let Some((build, _)) = ready.iter().skip(RETAINED).find(|(build, _)| !uploaded.contains(*build)) {
                return Some(format!("build {build} of {image} is old and not uploaded"));
            }
            let newest =
                records.image(&image.into()).and_then(|view| view.ready().first().map(|(id, _)| (*id).clone()));
            let mut uploads = records.uploads();
            if !uploads.any(|(key, _)| key.image.as_str() == image && Some(&key.build) == newest.as_ref()) {
                return Some(format!("the newest build of {image} is not uploaded"));
            }
        }
        let recorded: BTreeSet<String> = records
            .uploads()
            .filter_map(|(_, stored)| stored.record.external_id.as_ref().map(ExternalId::to_string))
            .collect();
        let existing: BTreeSet<String> = self
            .cloud_images()
            .await
            .iter()
            .filter(|image| image["nodepool_provider_name"] == PROVIDER)
            .map(|image| image["id"].as_str().unwrap().to_owned())
            .collect();
        if recorded != existing {
            return Some(format!("the cloud has {existing:?}, records have {recorded:?}"));
        }
        let unexpected = fake_dib::unexpected_file(&[&self.images], &records, &FOREIGN_FILES);
        unexpected.map(|name| format!("{name} belongs to no build"))
    }

    /// Number of build processes.
    pub fn build_processes(&self) -> usize {
        fake_dib::build_processes(&self.images)
    }

    pub async fn wait_until_settled(&self, builder: &NodepoolProcess, seed: u64) {
        let began = Instant::now();
        while let Some(problem) = self.find_problem().await {
            assert!(began.elapsed() < SETTLE_TIMEOUT, "seed {seed}: {problem}\n{}", builder.log());
            sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(self.build_processes(), 0, "a build still runs");
        let foreign_images: BTreeSet<String> = self
            .cloud_images()
            .await
            .iter()
            .filter(|image| image["nodepool_provider_name"] != PROVIDER)
            .map(|image| image["name"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(foreign_images, ["foreign", "other-provider"].map(str::to_owned).into());
        assert!(FOREIGN_FILES.iter().all(|name| self.images.join(name).exists()));
    }
}

/// An upload that is none of the newest ones, and whose build is none of the newest ones. Two uploads can run at once,
/// so the upload of an older build may be the more recent one; then three are retained.
fn superfluous_upload(records: &Images, image: &str) -> Option<UploadKey> {
    let view = records.image(&image.into())?;
    let builds: BTreeSet<&BuildId> = view.ready().into_iter().take(RETAINED).map(|(id, _)| id).collect();
    let mut uploads: Vec<_> = records.uploads().filter(|(key, _)| key.image.as_str() == image).collect();
    uploads.sort_by_key(|(_, stored)| Reverse(stored.record.state_time));
    let mut older = uploads.into_iter().skip(RETAINED).map(|(key, _)| key);
    older.find(|key| !builds.contains(&key.build)).cloned()
}

const FOREIGN_FILES: [&str; 3] =
    ["notes-2024.txt", "debian-deadbeef.raw", "other-0123456789abcdef0123456789abcdef.qcow2"];

fn configuration(home: &Path, dib: &Path, images: &Path, host: &str, port: &str) -> String {
    let image = |name: &str| format!("  - {{name: {name}, formats: [raw], dib-cmd: {}}}\n", dib.display());
    format!(
        "zookeeper-servers: [{{host: {host}, port: {port}}}]\nzookeeper-timeout: 1\n\
         images-dir: {}\nbuild-log-dir: {}\ndiskimages:\n{}{}\
         providers:\n  - name: {PROVIDER}\n    driver: openstack\n    cloud: simulated\n    pools: []\n    diskimages:\n\
         \x20     - name: debian\n      - name: fedora\n",
        images.display(),
        home.join("logs").display(),
        image("debian"),
        image("fedora"),
    )
}
