//! Cluster under fault injection: three ZooKeeper servers, a simulated cloud, hosts with sshd, and launchers and
//! builders that connect through proxies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::proxy::{LinkState, LinkStats, Proxy};
use super::supervised_process::{ProcessSpec, Role, SupervisedProcess};
use crate::clouds::simulated_openstack::SimulatedOpenStack;
use crate::disk_faults::{SlowDisk, SmallDisk};
use crate::real::sshd;
use crate::real::zookeeper::{Ensemble, Options};
use crate::workload::harness::{self, WorkloadHarness, children, find_leftover};
use crate::workload::retry_unknown;
use crate::{fake_dib, history_checker, programs};
use bytes::Bytes;
use nodepool_model::records::json;
use nodepool_model::records::node::Node;
use nodepool_policy::invariants::images::{ImageInvariantChecker, ImageObservation};
use nodepool_zk::locks::lock::make_path;
use nodepool_zk::tools::transfer;
use nodepool_zk::{Zk, paths};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;
use zookeeper_server::types::CreateMode;

/// `max-parallel-jobs` of each host.
const SLOTS: usize = 3;
const HOSTS: u8 = 2;
/// Size of a builder's disk.
const MEGABYTES: usize = 64;
/// The image that builders build.
pub const IMAGE: &str = "debian";

pub struct TestCluster {
    /// Prefix of the log files that a failed test writes.
    pub name: String,
    pub ensemble: Ensemble,
    pub cloud: SimulatedOpenStack,
    /// Launchers first, then builders.
    pub processes: Vec<SupervisedProcess>,
    pub zk: Zk,
    pub session: Duration,
    /// Time after which the ZooKeeper servers replace a silent leader.
    pub sync_timeout: Duration,
    /// The disk of the ZooKeeper servers.
    pub zookeeper_disk: SlowDisk,
    /// The disks of the builders.
    pub builder_disks: Vec<SmallDisk>,
    launchers: usize,
    /// The folder of images of each builder.
    images: Vec<PathBuf>,
    _hosts: Vec<sshd::Host>,
    home: TempDir,
}

/// Parameters of a cluster.
pub struct ClusterSpec {
    pub name: String,
    /// ZooKeeper's `tickTime`, and the session timeout of launchers.
    pub tick: Duration,
    pub session: Duration,
    /// Time for which the ZooKeeper servers wait for each other.
    pub sync_timeout: Duration,
    pub launchers: usize,
    /// Builders; if there are any, the label `c` exists and uses their image.
    pub builders: usize,
    /// Flags of the cloud.
    pub cloud: &'static [&'static str],
}

impl ClusterSpec {
    pub fn quick(name: &str) -> Self {
        let name = name.to_owned();
        let cloud = &["--boot-time-s", "0.4", "--delete-time-s", "0.2", "--latency-ms", "compute=5-60"];
        Self {
            name,
            tick: Duration::from_millis(200),
            sync_timeout: Options::default().sync_timeout,
            session: Duration::from_secs(1),
            launchers: 2,
            builders: 0,
            cloud,
        }
    }
}

impl TestCluster {
    pub async fn start(spec: &ClusterSpec) -> TestCluster {
        let disk = SlowDisk::build();
        let options = Options {
            tick: spec.tick,
            sync_timeout: spec.sync_timeout,
            environment: disk.environment(),
            ..harness::options()
        };
        let ensemble = Ensemble::start(3, options).await;
        let cloud = SimulatedOpenStack::start(spec.cloud).await;
        let mut hosts = Vec::new();
        for last in 0..HOSTS {
            hosts.push(sshd::Host::start(sshd::Options::at(90 + last)).await);
        }
        let home =
            tempfile::Builder::new().prefix("nodepool-test-").tempdir().expect("temporary directories can be created");
        let workload = WorkloadHarness {
            addresses: ensemble.address(),
            chroot: String::new(),
            provider: "lab",
            hosts: &[],
            session: spec.session,
            padding: 0,
        };
        let zk = workload.connect().await;
        let dib = (spec.builders > 0).then(|| fake_dib::install(home.path()));
        let (mut processes, mut images, mut builder_disks) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..spec.launchers + spec.builders {
            let role = if number < spec.launchers { Role::Launcher } else { Role::Builder };
            let (link, link_state) = watch::channel(LinkState::Up);
            let (mut proxies, link_stats) = (Vec::new(), LinkStats::default());
            for server in &ensemble.servers {
                proxies.push(Proxy::start(server.address(), link_state.clone(), link_stats.clone()).await);
            }
            let (user, clouds) = (format!("nodepool-{number}"), home.path().join(format!("clouds-{number}.yaml")));
            std::fs::write(&clouds, clouds_yaml_with_timeout(&cloud, &user)).expect("a new directory is writable");
            let addresses: Vec<&str> = proxies.iter().map(|proxy| &*proxy.address).collect();
            let mut configuration = configuration(&addresses, spec.session, &hosts);
            if let Some(dib) = &dib {
                let mut own = home.path().join(format!("of-{number}"));
                if role == Role::Builder {
                    let disk = SmallDisk::mount(MEGABYTES).expect("the test may mount file systems");
                    own = disk.path().to_owned();
                    builder_disks.push(disk);
                }
                add_image(&mut configuration, dib, &own);
                if role == Role::Builder {
                    std::fs::create_dir_all(own.join("images")).expect("a new directory is writable");
                    images.push(own.join("images"));
                }
            }
            let clock = (number == 0).then(|| home.path().join("clock"));
            let process_spec = ProcessSpec { role, configuration: configuration.to_string(), user, clouds, clock };
            processes.push(SupervisedProcess::start(process_spec, link, link_stats, proxies));
        }
        let (launchers, session) = (spec.launchers, spec.session);
        let name = spec.name.clone();
        let sync = spec.sync_timeout;
        TestCluster {
            name,
            sync_timeout: sync,
            ensemble,
            cloud,
            processes,
            zk,
            session,
            zookeeper_disk: disk,
            builder_disks,
            launchers,
            images,
            _hosts: hosts,
            home,
        }
    }

    /// The sessions of each user of the cloud.
    pub fn sessions(&self) -> BTreeMap<String, BTreeSet<i64>> {
        let sessions = |process: &SupervisedProcess| {
            (process.user().to_owned(), process.link_stats.sessions.lock().unwrap().clone())
        };
        self.processes.iter().map(sessions).collect()
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// First difference from the initial state: every slot of a host registered and free, and nothing else.
    pub async fn find_leftover(&self) -> Option<String> {
        let mut free = 0;
        for name in children(&self.zk, paths::NODES).await {
            let id = name.as_str().into();
            let Ok((data, _)) = retry_unknown(|| self.zk.get(&paths::node(&id))).await else {
                return Some(format!("node {id} cannot be read"));
            };
            let Ok(node) = json::from_bytes::<Node>(&data) else { return Some(format!("node {id} is unreadable")) };
            let contenders = children(&self.zk, &paths::node_lock(&id)).await;
            if node.provider.as_ref().is_none_or(|provider| provider.as_str() != "rack") {
                return Some(format!("node {id} was not deleted: {contenders:?} {node:?}"));
            }
            if !node.is_idle() || !contenders.is_empty() {
                return Some(format!("slot {id} is not free: {contenders:?} {node:?}"));
            }
            free += 1;
        }
        if free != usize::from(HOSTS) * SLOTS {
            return Some(format!("{free} slots are registered"));
        }
        let state = self.cloud.state().await;
        if state["servers"] != json!(0) {
            return Some(format!("servers were not deleted: {}", state["servers_by_state"]));
        }
        if let Some(leftover) = self.find_image_leftover().await {
            return Some(leftover);
        }
        find_leftover(&self.zk, 2 * self.launchers).await
    }

    /// First difference from the expected images: those exist, and no others.
    pub async fn find_image_leftover(&self) -> Option<String> {
        if self.images.is_empty() {
            return None;
        }
        let Ok((records, _)) = transfer::images(&self.zk).await else {
            return Some("ZooKeeper does not answer".into());
        };
        let mut checker = ImageInvariantChecker::default();
        for (key, stored) in records.builds() {
            checker.observe(ImageObservation::Build(&key, Some(&stored.record)));
        }
        for (key, stored) in records.uploads() {
            checker.observe(ImageObservation::Upload(key, Some(&stored.record)));
        }
        for image in
            history_checker::image_lifetimes(&self.cloud.history().await).iter().filter(|image| image.deleted.is_none())
        {
            checker.observe(ImageObservation::Created(&image.key));
        }
        if let Some(violation) = checker.at_quiescence(&[(IMAGE.into(), "lab".into())]).first() {
            return Some(violation.to_string());
        }
        if records.image(&IMAGE.into()).is_some_and(|image| image.requested_ms.is_some()) {
            return Some(format!("{IMAGE} has a pending build request"));
        }
        let directories: Vec<&Path> = self.images.iter().map(PathBuf::as_path).collect();
        if let Some(name) = fake_dib::unexpected_file(&directories, &records, &[]) {
            return Some(format!("{name} belongs to no build"));
        }
        let build_processes: usize = directories.iter().map(|images| fake_dib::build_processes(images)).sum();
        (build_processes > 0).then(|| format!("{build_processes} build processes still run"))
    }

    /// Number of builds that failed on a full disk.
    pub fn builds_out_of_space(&self) -> usize {
        self.processes.iter().map(|process| process.log().matches("No space left on device").count()).sum()
    }

    /// Requests a build. Has no effect if one was requested already, or if ZooKeeper does not answer.
    pub async fn request_build(&self) {
        let path = paths::image_build_request(&IMAGE.into());
        let parent = paths::parent(&path).expect("a build request is below its image");
        if make_path(&self.zk, parent).await.is_ok() {
            let _ = self.zk.create(&path, Bytes::new(), CreateMode::Persistent).await;
        }
    }

    /// Log lines of launchers and builders about the requests and nodes whose ids are in `text`.
    pub fn log_lines_about(&self, text: &str) -> String {
        let is_id =
            |word: &&str| word.rsplit('-').next().is_some_and(|tail| tail.len() == 10 && tail.parse::<u64>().is_ok());
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-');
        let ids: Vec<&str> = words.filter(is_id).collect();
        let mut lines = String::new();
        for (number, process) in self.processes.iter().enumerate() {
            let log = process.log();
            for line in log.lines().filter(|line| ids.iter().any(|id| line.contains(id))) {
                let _ = writeln!(lines, "{}-{number}: {line}", process.role().name());
            }
        }
        lines
    }

    /// Writes the logs of all launchers, builders and ZooKeeper servers to files.
    pub fn save_logs(&self) {
        let what = &self.name;
        for (number, process) in self.processes.iter().enumerate() {
            let file = programs::target_tmp().join(format!("{what}-{}-{number}.log", process.role().name()));
            // An error here must not hide the failure of the test.
            let _ = std::fs::write(file, process.log());
        }
        for (number, server) in self.ensemble.servers.iter().enumerate() {
            let file = programs::target_tmp().join(format!("{what}-zookeeper-{number}.log"));
            let _ = std::fs::copy(server.home().join("log"), file);
        }
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.save_logs();
        }
    }
}

/// A clouds.yaml with a short timeout of calls, because the cloud may hang.
fn clouds_yaml_with_timeout(cloud: &SimulatedOpenStack, user: &str) -> String {
    let text = std::fs::read_to_string(cloud.clouds_yaml()).expect("the cloud wrote it");
    let mut clouds: Value = serde_yaml::from_str(&text).expect("the cloud writes YAML");
    clouds["clouds"]["simulated"]["api_timeout"] = json!(3);
    clouds["clouds"]["simulated"]["auth"]["username"] = user.into();
    clouds.to_string()
}

fn configuration(zookeepers: &[&str], session: Duration, hosts: &[sshd::Host]) -> Value {
    let zookeepers = zookeepers.iter().map(|address| {
        let (host, port) = address.rsplit_once(':').expect("an address ends with its port");
        json!({"host": host, "port": port.parse::<u16>().expect("a port is a number")})
    });
    let nodes = hosts.iter().map(|host| {
        let (name, port) = (host.address().ip().to_string(), host.port());
        json!({"name": name, "connection-port": port, "labels": ["s"], "max-parallel-jobs": SLOTS, "timeout": 5})
    });
    let of_cloud = |name: &str, flavor: &str| json!({"name": name, "cloud-image": "image", "flavor-name": flavor});
    json!({
        "zookeeper-servers": zookeepers.collect::<Vec<_>>(),
        "zookeeper-timeout": session.as_secs_f64(),
        // Nodes of abandoned requests are deleted soon.
        "labels": [{"name": "a", "max-ready-age": 2}, {"name": "b", "max-ready-age": 2}, {"name": "s"}],
        "providers": [
            {
                "name": "lab", "driver": "openstack", "cloud": "simulated", "launch-retries": 20,
                "cloud-images": [{"name": "image", "image-name": "raw-1M", "username": "zuul"}],
                "pools": [{
                    "name": "main", "auto-floating-ip": false, "host-key-checking": false, "networks": ["private"],
                    "labels": [of_cloud("a", "tiny"), of_cloud("b", "small")],
                }],
            },
            {"name": "rack", "driver": "static", "pools": [{"name": "main", "nodes": nodes.collect::<Vec<_>>()}]},
        ],
    })
}

/// Adds a label whose image `dib` builds. `own` is the folder of the process.
fn add_image(configuration: &mut Value, dib: &Path, own: &Path) {
    let push = |list: &mut Value, entry: Value| list.as_array_mut().expect("it is a list").push(entry);
    configuration["images-dir"] = json!(own.join("images"));
    configuration["build-log-dir"] = json!(own.join("logs"));
    configuration["diskimages"] = json!([{"name": IMAGE, "formats": ["raw"], "dib-cmd": dib, "username": "zuul"}]);
    push(&mut configuration["labels"], json!({"name": "c", "max-ready-age": 2}));
    let provider = &mut configuration["providers"][0];
    provider["diskimages"] = json!([{"name": IMAGE}]);
    push(&mut provider["pools"][0]["labels"], json!({"name": "c", "diskimage": IMAGE, "flavor-name": "tiny"}));
}
