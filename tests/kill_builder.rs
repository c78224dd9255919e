//! A builder that is killed at any moment leaves no record stuck, no file and no image of a cloud without a record, and touches
//! nothing of others.
//!
//! NODEPOOL_KILLS=50 makes it a long run, NODEPOOL_SEED repeats one as far as chance goes.

mod grown;
mod stack;
mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use nodepool::model::build::BuildState;
use nodepool::model::cloud::ExternalId;
use nodepool::model::images::Images;
use nodepool::model::upload::UploadState;
use nodepool::zk::lock::make_path;
use nodepool::zk::session::{ConnectOptions, connect};
use nodepool::zk::{CreateMode, Zk, paths, transfer};
use rand::{Rng, SeedableRng, rngs::StdRng};
use reqwest::Method;
use serde_json::{Value, json};
use stack::client::Client;
use support::real;
use support::real::process::Nodepool;
use support::real::simulated_openstack::SimulatedOpenStack;
use support::real::zookeeper::{Options, Server};
use tokio::time::{Instant, sleep};

const KILLS: usize = 10;
/// After so many kills it is looked whether everything settles.
const ROUND: usize = 5;
/// A session's end, the time for others to go on, the time for what a cloud does late, and looks at everything: 10 to 30 s where nothing
/// else runs.
const SETTLES: Duration = Duration::from_secs(150);
const IMAGES: [&str; 2] = ["debian", "fedora"];

/// Takes its time, in a child of its own, and leaves files of some size.
const DIB: &str = r#"#!/bin/bash
while [ $# -gt 0 ]; do
    case "$1" in -o) out=$2; shift ;; -t) formats=$2; shift ;; esac
    shift
done
mkdir -p "$out.d"
for format in ${formats//,/ }; do
    sleep 0.$((RANDOM % 4))
    head -c 3000000 /dev/zero > "$out.$format"
    md5sum "$out.$format" > "$out.$format.md5"
    sleep 0.$((RANDOM % 3))
done
"#;

struct Scene {
    home: tempfile::TempDir,
    zk: Zk,
    cloud: SimulatedOpenStack,
    client: Client,
}

impl Scene {
    fn images(&self) -> PathBuf {
        self.home.path().join("images")
    }

    fn configuration(&self, addresses: &str, chroot: &str) -> String {
        let (host, port) = addresses.rsplit_once(':').expect("an address ends with its port");
        let dib = self.home.path().join("dib");
        let image = |name: &str| format!("  - {{name: {name}, formats: [raw], dib-cmd: {}}}\n", dib.display());
        format!(
            "zookeeper-servers: [{{host: {host}, port: {port}, chroot: '/{chroot}'}}]\nzookeeper-timeout: 1\n\
             images-dir: {}\nbuild-log-dir: {}\ndiskimages:\n{}{}\
             providers:\n  - name: lab\n    driver: openstack\n    cloud: simulated\n    pools: []\n    diskimages:\n\
             \x20     - name: debian\n      - name: fedora\n",
            self.images().display(),
            self.home.path().join("logs").display(),
            image("debian"),
            image("fedora"),
        )
    }

    async fn ask(&self, image: &str) {
        let path = paths::image_build_request(&image.into());
        make_path(&self.zk, paths::parent(&path).unwrap()).await.unwrap();
        // It may be there already.
        let _ = self.zk.create(&path, bytes::Bytes::new(), CreateMode::Persistent).await;
    }

    async fn records(&self) -> Images {
        transfer::images(&self.zk).await.expect("ZooKeeper answers").0
    }

    /// Ids and marks of all images in the cloud but those that are there from the beginning.
    async fn cloud_images(&self) -> Vec<Value> {
        let listed = self.client.get("image", "/images?limit=1000").await;
        let images = listed["images"].as_array().unwrap_or_else(|| panic!("{listed}")).clone();
        images.into_iter().filter(|image| image["visibility"] != "public").collect()
    }

    async fn put_stranger(&self, name: &str, marks: Value) {
        let mut record = json!({"name": name, "disk_format": "raw", "container_format": "bare"});
        record.as_object_mut().unwrap().extend(marks.as_object().unwrap().clone());
        let (status, answer) = self.client.call(Method::POST, "image", "/images", Some(record)).await;
        assert!(status.is_success(), "{answer}");
    }

    /// What is not as it should be when nothing is left to be done; `None` where all is well.
    async fn trouble(&self) -> Option<String> {
        let records = self.records().await;
        for image in IMAGES {
            let view = records.image(&image.into()).cloned().unwrap_or_default();
            if view.requested_ms.is_some() || view.ready().is_empty() {
                return Some(format!("{image} waits to be built"));
            }
        }
        if let Some((key, stored)) = records.builds().find(|(_, stored)| stored.record.state != BuildState::Ready) {
            return Some(format!("build {} is {:?}", key.file_name(), stored.record.state));
        }
        if let Some((key, stored)) = records.uploads().find(|(_, stored)| stored.record.state != UploadState::Ready) {
            return Some(format!("upload {key:?} is {:?}", stored.record.state));
        }
        for image in IMAGES {
            let newest =
                records.image(&image.into()).and_then(|view| view.ready().first().map(|(id, _)| (*id).clone()));
            let mut uploads = records.uploads();
            if !uploads.any(|(key, _)| key.image.as_str() == image && Some(&key.build) == newest.as_ref()) {
                return Some(format!("the newest build of {image} is not uploaded"));
            }
        }
        let known: BTreeSet<String> = records
            .uploads()
            .filter_map(|(_, stored)| stored.record.external_id.as_ref().map(ExternalId::to_string))
            .collect();
        let there: BTreeSet<String> = self
            .cloud_images()
            .await
            .iter()
            .filter(|image| image["nodepool_provider_name"] == "lab")
            .map(|image| image["id"].as_str().unwrap().to_owned())
            .collect();
        if known != there {
            return Some(format!("the cloud has {there:?}, records know {known:?}"));
        }
        let builds: BTreeSet<String> = records.builds().map(|(key, _)| key.file_name()).collect();
        let is_known = |name: &str| builds.iter().any(|build| name == build || name.starts_with(&format!("{build}.")));
        let odd = self.files().into_iter().find(|name| !is_known(name));
        odd.map(|name| format!("{name} belongs to no build"))
    }

    /// Files and claims of builds; what was there before is none.
    fn files(&self) -> Vec<String> {
        let names = |path: PathBuf| {
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        let ours =
            names(self.images()).into_iter().filter(|name| !STRANGERS.contains(&name.as_str()) && name != ".builds");
        ours.filter(|name| name != "builder_id.txt").chain(names(self.images().join(".builds"))).collect()
    }

    /// Processes that make a build.
    fn makers(&self) -> usize {
        let mark = format!("DIB_IMAGE_FILENAME={}", self.images().display());
        let processes = std::fs::read_dir("/proc").expect("there is /proc").flatten();
        let environments = processes.filter_map(|entry| std::fs::read(entry.path().join("environ")).ok());
        environments.filter(|text| text.windows(mark.len()).any(|window| window == mark.as_bytes())).count()
    }

    async fn settles(&self, builder: &Nodepool, seed: u64) {
        let began = Instant::now();
        while let Some(trouble) = self.trouble().await {
            assert!(began.elapsed() < SETTLES, "seed {seed}: {trouble}\n{}", builder.log());
            sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(self.makers(), 0, "nothing is built any more");
        let strangers: BTreeSet<String> = self
            .cloud_images()
            .await
            .iter()
            .filter(|image| image["nodepool_provider_name"] != "lab")
            .map(|image| image["name"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(strangers, ["somebody's", "another-provider's"].map(str::to_owned).into());
        assert!(STRANGERS.iter().all(|name| self.images().join(name).exists()));
    }
}

const STRANGERS: [&str; 3] = ["notes-2024.txt", "debian-deadbeef.raw", "other-0123456789abcdef0123456789abcdef.qcow2"];

fn write_executable(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}

// operations.md §5.9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_builder_leaves_nothing_behind_and_touches_nothing_of_others() {
    if real::skipped() {
        return;
    }
    let kills = std::env::var("NODEPOOL_KILLS").map_or(KILLS, |text| text.parse().expect("NODEPOOL_KILLS is a number"));
    let seed = match std::env::var("NODEPOOL_SEED") {
        Ok(text) => text.parse().expect("NODEPOOL_SEED is a number"),
        Err(_) => rand::random::<u32>().into(),
    };
    eprintln!("NODEPOOL_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let server = Server::start(Options::short_sessions()).await;
    let chroot = server.chroot("kill-builder").await;
    let (addresses, chroot) = chroot.split_once('/').expect("a chroot begins with a slash");
    let cloud = SimulatedOpenStack::start(&["--latency-ms", "image=20-200"]).await;
    let client = Client::log_in(&cloud.clouds_yaml(), "simulated", "").await;
    let (host, port) = addresses.rsplit_once(':').unwrap();
    let mut options = ConnectOptions::plain(host, port.parse().unwrap());
    options.chroot = format!("/{chroot}");
    let zk: Zk = connect(options).await.unwrap();
    let scene = Scene { home: tempfile::tempdir().unwrap(), zk, cloud, client };
    std::fs::create_dir(scene.images()).unwrap();
    write_executable(&scene.home.path().join("dib"), DIB);
    STRANGERS.iter().for_each(|name| std::fs::write(scene.images().join(name), "mine").unwrap());
    scene.put_stranger("somebody's", json!({})).await;
    scene
        .put_stranger("another-provider's", json!({"nodepool_provider_name": "other", "nodepool_build_id": "b"}))
        .await;
    let configuration = scene.configuration(addresses, chroot);
    let clouds = scene.cloud.clouds_yaml();
    let start = || {
        let environment = [("OS_CLIENT_CONFIG_FILE", clouds.as_path())];
        let arguments = ["-d", "--cleanup-interval", "1", "--build-interval", "1", "--upload-interval", "1"];
        Nodepool::start_in(&environment, env!("CARGO_BIN_EXE_nodepool-builder"), &configuration, &arguments)
    };
    let mut builder = start();
    for kill in 0..kills {
        for image in IMAGES {
            if random.gen_ratio(2, 3) {
                scene.ask(image).await;
            }
        }
        let faults = match random.gen_range(0..6) {
            0 => json!(["lost-answer method=POST path=/images$ times=1"]),
            1 => json!(["closed method=PUT path=/file$ times=1"]),
            2 => json!(["500 method=DELETE path=/images/ times=2"]),
            _ => json!([]),
        };
        scene.cloud.knobs(json!({ "faults": faults })).await;
        // From the start of the process to well into an upload.
        sleep(Duration::from_millis(random.gen_range(50..3500))).await;
        builder.kill();
        builder = start();
        if kill % ROUND == ROUND - 1 {
            scene.cloud.knobs(json!({"faults": []})).await;
            scene.settles(&builder, seed).await;
        }
    }
    scene.cloud.knobs(json!({"faults": []})).await;
    scene.settles(&builder, seed).await;
    builder.signal(Signal::SIGTERM);
    assert!(builder.wait(SETTLES).await.success());
    eprintln!("uploads {}", scene.cloud.state().await["images_uploaded"]);
}
