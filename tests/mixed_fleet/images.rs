//! Mixed fleet of builders: ours and Nodepool 11's on one ZooKeeper, and both command lines on their images.
//!
//! The tests run real processes on a real ZooKeeper and the simulated OpenStack. A script replaces disk-image-create.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use nodepool_zk::Connection;
use nodepool_zk::client::{ConnectOptions, RealConnection, connect};
use nodepool_zk::txn::delete_tree;
use serde_json::Value;
use testkit::clouds::simulated_openstack::SimulatedOpenStack;
use testkit::real::nodepool_process::NodepoolProcess;
use testkit::real::nodepool11;
use testkit::real::zookeeper::{Options, Server};
use testkit::wait::{until, until_some};
use testkit::{executable, programs};
use tokio::net::UdpSocket;

/// Timeout for the Python builder, which polls every ten seconds.
const DEADLINE: Duration = Duration::from_secs(120);

/// Replacement for disk-image-create: records when a build starts and ends, and waits while a `hold-` file exists.
const DIB: &str = r#"#!/bin/sh
here=$(dirname "$0")
echo "begin $DIB_IMAGE_NAME $DIB_IMAGE_FILENAME" >> "$here/calls"
while [ -e "$here/hold-$DIB_IMAGE_NAME" ]; do sleep 0.05; done
while [ $# -gt 0 ]; do
    case "$1" in -o) out=$2; shift ;; -t) formats=$2; shift ;; esac
    shift
done
mkdir -p "$out.d"
for format in $(echo "$formats" | tr , ' '); do
    echo image > "$out.$format"
    md5sum "$out.$format" > "$out.$format.md5"
    sha256sum "$out.$format" > "$out.$format.sha256"
done
echo "end $DIB_IMAGE_NAME" >> "$here/calls"
"#;

const LAB: &str = "providers:\n  - {name: lab, driver: openstack, cloud: simulated, pools: [], rate: 0.001, \
                   diskimages: [{name: debian}, {name: fedora}]}\n";

struct ImageFleetHarness {
    home: tempfile::TempDir,
    zk: std::sync::Arc<RealConnection>,
    zookeeper: Server,
    /// The cloud that receives all uploads; without it, builders only build.
    cloud: Option<SimulatedOpenStack>,
}

impl ImageFleetHarness {
    async fn start() -> Self {
        let zookeeper = Server::start(Options::tls()).await;
        let home = tempfile::tempdir().unwrap();
        executable::install(&home.path().join("dib"), DIB);
        let plain = zookeeper.plain_address();
        let (host, port) = plain.rsplit_once(':').unwrap();
        let zk = connect(ConnectOptions::plain(host, port.parse().unwrap())).await.unwrap();
        Self { home, zk, zookeeper, cloud: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// The configuration of an implementation, with its own folders for images and logs.
    fn configuration(&self, implementation: &str) -> String {
        let (images, logs) =
            (self.path(&format!("{implementation}-images")), self.path(&format!("{implementation}-logs")));
        std::fs::create_dir_all(&images).unwrap();
        let dib = self.path("dib");
        let image = |name: &str| format!("  - {{name: {name}, formats: [raw], dib-cmd: {}}}\n", dib.display());
        let head = nodepool11::zookeeper_section(&self.zookeeper);
        format!(
            "{head}images-dir: {}\nbuild-log-dir: {}\ndiskimages:\n{}{}{}",
            images.display(),
            logs.display(),
            image("debian"),
            image("fedora"),
            if self.cloud.is_some() { LAB } else { "" },
        )
    }

    fn hold(&self, image: &str) {
        std::fs::write(self.path(&format!("hold-{image}")), "").unwrap();
    }

    fn release(&self, image: &str) {
        std::fs::remove_file(self.path(&format!("hold-{image}"))).unwrap();
    }

    fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn count(&self, start: &str) -> usize {
        self.calls().iter().filter(|call| call.starts_with(start)).count()
    }

    async fn until_called(&self, start: &str, number: usize) {
        until(&format!("{start}, {number} times"), DEADLINE, async || self.count(start) == number).await;
    }

    /// The implementations that built an image, as the folders of the builds show.
    fn builders(&self, image: &str) -> Vec<&'static str> {
        let calls = self.calls();
        let starts = calls.iter().filter(|call| call.starts_with(&format!("begin {image} ")));
        starts.map(|call| if call.contains("ours-images") { "ours" } else { "python" }).collect()
    }

    async fn until_ready(&self, image: &str, number: usize) {
        until(&format!("{number} builds of {image}"), DEADLINE, async || {
            let builds = self.ours(&["dib-image-list", "-o", "json"]).await;
            let builds: Vec<Value> = serde_json::from_str(&builds).unwrap();
            let ready = builds.iter().filter(|build| build["image"] == image && build["state"] == "ready");
            ready.count() == number
        })
        .await;
    }

    async fn ours(&self, arguments: &[&str]) -> String {
        let file = self.path("cli.yaml");
        std::fs::write(&file, self.configuration("ours")).unwrap();
        let mut command = tokio::process::Command::new(programs::nodepool());
        let output = command.arg("-c").arg(&file).args(arguments).output().await.unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    async fn python(&self, arguments: &[&str]) -> String {
        // The image commands of Nodepool 11 need no provider. Without a provider they need no clouds.yaml.
        let configuration = self.configuration("python").replace(LAB, "");
        let output = nodepool11::command(&configuration, arguments).await;
        assert_eq!(output.status, Some(0), "{arguments:?}: {}", output.stderr);
        output.stdout
    }

    async fn is_build_requested(&self, image: &str) -> bool {
        self.zk.exists(&format!("/nodepool/images/{image}/request-build")).await.unwrap().is_some()
    }
}

/// Builders and their uploads to a cloud.
impl ImageFleetHarness {
    fn start_builder(&self, implementation: &str) -> NodepoolProcess {
        self.start_builder_in(implementation, &[])
    }

    fn start_builder_in(&self, implementation: &str, more: &[(&str, &Path)]) -> NodepoolProcess {
        let clouds = self.cloud.as_ref().map(SimulatedOpenStack::clouds_yaml);
        let environment: Vec<(&str, &Path)> =
            clouds.iter().map(|file| ("OS_CLIENT_CONFIG_FILE", file.as_path())).chain(more.iter().copied()).collect();
        match implementation {
            "ours" => {
                NodepoolProcess::start_in(&environment, programs::builder(), &self.configuration("ours"), &["-d"])
            }
            _ => nodepool11::builder_in(&environment, &self.configuration("python")),
        }
    }

    async fn uploads(&self) -> Vec<Value> {
        serde_json::from_str(&self.ours(&["image-list", "-o", "json"]).await).unwrap()
    }

    /// Waits for a ready upload of an image other than these.
    async fn new_upload(&self, image: &str, known: &[&Value]) -> Value {
        let found = async || {
            let uploads = self.uploads().await.into_iter();
            uploads.into_iter().find(|upload| {
                upload["image"] == image
                    && upload["state"] == "ready"
                    && !known.iter().any(|known| known["external_id"] == upload["external_id"])
            })
        };
        until_some(&format!("an upload of {image}"), DEADLINE, found).await
    }

    async fn until_deleted(&self, upload: &Value) {
        until(&format!("{upload} to be deleted"), DEADLINE, async || {
            !self.uploads().await.iter().any(|other| other["external_id"] == upload["external_id"])
        })
        .await;
    }
}

fn delete_command(upload: &Value) -> Vec<&str> {
    let text = |key: &str| upload[key].as_str().unwrap();
    vec![
        "image-delete",
        "--provider",
        "lab",
        "--image",
        text("image"),
        "--build-id",
        text("id"),
        "--upload-id",
        text("upload_id"),
    ]
}

#[tokio::test]
async fn mixed_builders_manage_each_others_uploads_without_duplicates() {
    if testkit::real::skipped() {
        return;
    }
    let mut harness = ImageFleetHarness::start().await;
    harness.cloud = Some(SimulatedOpenStack::start(&[]).await);
    let ours = harness.start_builder("ours");
    let debian = harness.new_upload("debian", &[]).await;
    let fedora = harness.new_upload("fedora", &[]).await;
    // Our builder is busy, so the Python builder builds this image.
    let python = harness.start_builder("python");
    harness.hold("debian");
    harness.ours(&["image-build", "debian"]).await;
    harness.until_called("begin debian", 2).await;
    harness.python(&["image-build", "fedora"]).await;
    harness.until_called("end fedora", 2).await;
    assert_eq!(harness.builders("fedora"), ["ours", "python"], "{}", python.log());
    let pythons = harness.new_upload("fedora", &[&fedora]).await;
    assert_eq!(comparable(&harness.ours(&["image-list"]).await), comparable(&harness.python(&["image-list"]).await));
    // Each command line deletes an upload of the other builder. The builder that has the file uploads it again.
    harness.python(&delete_command(&debian)).await;
    harness.until_deleted(&debian).await;
    let again = harness.new_upload("debian", &[&debian]).await;
    harness.ours(&delete_command(&pythons)).await;
    harness.until_deleted(&pythons).await;
    harness.new_upload("fedora", &[&fedora, &pythons]).await;
    harness.release("debian");
    let newer = harness.new_upload("debian", &[&debian, &again]).await;
    harness.python(&["dib-image-delete", &format!("debian-{}", newer["id"].as_str().unwrap())]).await;
    harness.until_deleted(&newer).await;
    // Three of the six uploads were deleted by command.
    until("three uploads of six", DEADLINE, async || {
        let uploads = harness.uploads().await;
        let uploaded = harness.cloud.as_ref().unwrap().state().await["images_uploaded"].as_u64();
        uploads.len() == 3 && uploaded == Some(6)
    })
    .await;
    stop(ours).await;
}

/// Sorted rows of a table. Ages are cut to the hour, because the programs run one after the other.
fn comparable(table: &str) -> Vec<String> {
    let is_age = |word: &str| word.split(':').count() == 4;
    let masked = |word: &str| if is_age(word) { word[..5].to_owned() } else { word.to_owned() };
    let line = |line: &str| line.split_whitespace().map(masked).collect::<Vec<_>>().join(" ");
    let mut lines: Vec<String> = table.lines().map(line).filter(|line| !line.starts_with('+')).collect();
    lines.sort();
    lines
}

async fn stop(mut builder: NodepoolProcess) {
    builder.signal(Signal::SIGINT);
    assert!(builder.wait(DEADLINE).await.success());
}

#[tokio::test]
async fn no_image_is_built_twice_by_mixed_builders() {
    if testkit::real::skipped() {
        return;
    }
    for first in ["ours", "python"] {
        let harness = ImageFleetHarness::start().await;
        harness.hold("debian");
        let start = |implementation: &str| match implementation {
            "ours" => NodepoolProcess::start(programs::builder(), &harness.configuration("ours"), &["-d"]),
            _ => nodepool11::builder(&harness.configuration("python")),
        };
        let one = start(first);
        harness.until_called("begin debian", 1).await;
        // A builder has one worker, so the second builder, which finds the first image locked, builds the other image.
        let second = if first == "ours" { "python" } else { "ours" };
        let other = start(second);
        harness.until_called("end fedora", 1).await;
        assert_eq!((harness.builders("debian"), harness.builders("fedora")), (vec![first], vec![second]));
        harness.release("debian");
        harness.until_ready("debian", 1).await;
        harness.until_ready("fedora", 1).await;
        harness.python(&["image-build", "debian"]).await;
        until("the request to be served", DEADLINE, async || !harness.is_build_requested("debian").await).await;
        assert_eq!((harness.count("begin debian"), harness.count("begin fedora")), (2, 1));
        let (ours, python) = if first == "ours" { (one, other) } else { (other, one) };
        stop(ours).await;
        drop(python);
        lists_are_the_same(&harness).await;
        exports_are_exchanged(&harness).await;
    }
}

async fn lists_are_the_same(harness: &ImageFleetHarness) {
    for line in ["dib-image-list", "image-list", "image-status"] {
        assert_eq!(comparable(&harness.ours(&[line]).await), comparable(&harness.python(&[line]).await), "{line}");
    }
    harness.ours(&["image-pause", "debian"]).await;
    harness.python(&["image-pause", "fedora"]).await;
    harness.ours(&["image-build", "debian"]).await;
    for line in ["dib-image-list", "image-status"] {
        let (ours, python) = (harness.ours(&[line]).await, harness.python(&[line]).await);
        assert_eq!(comparable(&ours), comparable(&python), "{line}");
        assert!(ours.contains(if line == "image-status" { "pending" } else { "paused" }), "{ours}");
    }
    harness.python(&["image-unpause", "debian"]).await;
    harness.ours(&["image-unpause", "fedora"]).await;
    assert!(!harness.ours(&["dib-image-list"]).await.contains("paused"));
}

async fn exports_are_exchanged(harness: &ImageFleetHarness) {
    let files = ["ours", "python"].map(|implementation| harness.path(&format!("{implementation}.json")));
    let [of_ours, of_python] = files.each_ref().map(|file| file.to_str().unwrap());
    harness.ours(&["image-pause", "debian"]).await;
    harness.ours(&["export-image-data", of_ours]).await;
    harness.python(&["export-image-data", of_python]).await;
    let before = read(Path::new(of_ours));
    assert_eq!(before, read(Path::new(of_python)));
    assert!(before.as_object().unwrap().len() >= 4, "{before}");
    delete_tree::delete_tree(&*harness.zk, "/nodepool/images").await.unwrap();
    harness.ours(&["import-image-data", of_python]).await;
    harness.python(&["export-image-data", of_python]).await;
    assert_eq!(before, read(Path::new(of_python)));
    delete_tree::delete_tree(&*harness.zk, "/nodepool/images").await.unwrap();
    harness.python(&["import-image-data", of_ours]).await;
    harness.ours(&["export-image-data", of_ours]).await;
    assert_eq!(before, read(Path::new(of_ours)));
}

fn read(file: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// Keys and types of the metrics that a builder sends to statsd, from the builds of two images to the clean-up after
/// their uploads.
async fn received_statsd_keys(implementation: &str) -> BTreeSet<String> {
    let statsd = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut harness = ImageFleetHarness::start().await;
    harness.cloud = Some(SimulatedOpenStack::start(&[]).await);
    let port = statsd.local_addr().unwrap().port().to_string();
    let environment = [("STATSD_HOST", Path::new("127.0.0.1")), ("STATSD_PORT", Path::new(&port))];
    let builder = harness.start_builder_in(implementation, &environment);
    let (mut buffer, mut keys) = ([0; 4096], BTreeSet::new());
    // The last metrics of each image, of its upload, and of the clean-up after the upload.
    let last = [".lab|c", ".lab.upload.state|g", ".image_build_requests|g"];
    while !last.iter().all(|end| keys.iter().filter(|key: &&String| key.ends_with(end)).count() >= 2) {
        let received = tokio::time::timeout(DEADLINE, statsd.recv(&mut buffer)).await;
        let length = received.unwrap_or_else(|_| panic!("{implementation}: {keys:?}\n{}", builder.log())).unwrap();
        let datagram = std::str::from_utf8(&buffer[..length]).unwrap();
        let samples = datagram.lines().filter(|line| line.starts_with("nodepool."));
        keys.extend(samples.map(|line| {
            let (key, rest) = line.rsplit_once(':').unwrap();
            format!("{key}|{}", rest.rsplit_once('|').unwrap().1)
        }));
    }
    // Python may resolve the address of this host to `localhost`.
    let host = |key: &str| match key.strip_prefix("nodepool.builder.") {
        Some(rest) => format!("nodepool.builder.HOST.{}", rest.split_once('.').unwrap().1),
        None => key.to_owned(),
    };
    keys.iter().map(|key| host(key)).collect()
}

#[tokio::test]
async fn both_builders_send_the_same_statsd_keys() {
    if testkit::real::skipped() {
        return;
    }
    let (ours, theirs) = tokio::join!(received_statsd_keys("ours"), received_statsd_keys("python"));
    assert!(theirs.len() > 15, "{theirs:?}");
    assert_eq!(theirs.difference(&ours).collect::<Vec<_>>(), Vec::<&String>::new());
    // Nodepool 11 documents these metrics, but does not send them.
    let more = ["build_workers", "current_builds", "current_uploads", "upload_workers"];
    let more = more.map(|what| format!("nodepool.builder.HOST.{what}|g"));
    let ours: BTreeSet<String> = ours.into_iter().filter(|key| !key.starts_with("nodepool.task.lab.")).collect();
    assert_eq!(ours.difference(&theirs).collect::<Vec<_>>(), more.iter().collect::<Vec<_>>());
}
