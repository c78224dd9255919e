//! Full disks: the coordinator reports them and loses nothing, builds fail, and everything continues when there is
//! space again. Real processes on small file systems, which the tests mount; without the right to mount, they are
//! skipped.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{ChildStdin, Command};
use std::time::Duration;

use bytes::Bytes;
use nix::sys::signal::Signal;
use nodepool::actors::process::pidfile::{PidFile, PidFileError};
use nodepool_model::records::image_build::BuildState;
use nodepool_zk::Zk;
use nodepool_zk::client::{ConnectOptions, connect};
use testkit::builder_process::{BuilderProcessHarness, IMAGES, SETTLE_TIMEOUT};
use testkit::disk_faults::SmallDisk;
use testkit::real::child_process::{ChildProcess, Output};
use testkit::{programs, real, wait};
use tokio::time::timeout;
use zookeeper_server::types::CreateMode;

const TIMEOUT: Duration = Duration::from_secs(60);

/// The example `coordinator`, which cargo builds with the tests.
struct Coordinator {
    running: ChildProcess,
    zk: Zk,
    _input: ChildStdin,
}

fn command(data_dir: &Path) -> Command {
    let mut command = Command::new(programs::example("coordinator"));
    command.arg(data_dir).arg("0");
    command
}

impl Coordinator {
    /// Starts the coordinator. If it exits instead, the error is its log.
    async fn start(data_dir: &Path, home: &Path) -> Result<Coordinator, String> {
        let log = home.join("log");
        let mut running = ChildProcess::start("coordinator", &mut command(data_dir), Output::Piped, &log, home);
        let (input, output) = running.pipes();
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("the coordinator's output is text");
        let Some((address, _)) = line.split_once(' ') else {
            running.wait(TIMEOUT).await;
            return Err(running.log());
        };
        let (host, port) = address.rsplit_once(':').expect("an address ends with its port");
        let zk: Zk = connect(ConnectOptions::plain(host, port.parse().unwrap())).await.unwrap();
        Ok(Coordinator { running, zk, _input: input })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zookeeper_server_reports_a_full_disk_and_loses_nothing() {
    let Some(disk) = SmallDisk::mount(64) else { return };
    let home = tempfile::tempdir().unwrap();
    let data_dir = disk.path().join("data");
    let mut coordinator = Coordinator::start(&data_dir, home.path()).await.expect("the disk has space");
    disk.fill(4 << 20);
    let mut acknowledged = Vec::new();
    for number in 0.. {
        let path = format!("/n{number}");
        let data = Bytes::from(vec![b'x'; 20_000]);
        let created = coordinator.zk.create(&path, data, CreateMode::Persistent);
        // A coordinator that has exited does not reply.
        match timeout(Duration::from_secs(5), created).await {
            Ok(Ok(_)) => acknowledged.push(path),
            Ok(Err(_)) | Err(_) => break,
        }
    }
    let status = coordinator.running.wait(TIMEOUT).await;
    let log = coordinator.running.log();
    assert!(!status.success() && log.contains("No space left on device"), "{status}: {log}");
    // A service manager would restart it on the full disk. An attempt may fail only because the disk is full, and no
    // attempt damages the data.
    for _ in 0..3 {
        if let Err(log) = Coordinator::start(&data_dir, home.path()).await {
            assert!(log.contains("No space left on device"), "{log}");
        }
    }
    disk.empty();
    let coordinator = Coordinator::start(&data_dir, home.path()).await.expect("the disk has space again");
    assert!(acknowledged.len() > 10, "{}", acknowledged.len());
    for path in &acknowledged {
        assert_eq!(coordinator.zk.get(path).await.expect("an acknowledged write is durable").0.len(), 20_000);
    }
    coordinator.zk.create("/after", Bytes::new(), CreateMode::Persistent).await.expect("writes succeed again");
}

#[test]
fn a_pid_file_that_cannot_be_written_is_removed() {
    let Some(disk) = SmallDisk::mount(1) else { return };
    let path = disk.path().join("nodepool.pid");
    disk.fill(0);
    let error = PidFile::acquire(&path, Duration::ZERO).unwrap_err();
    assert!(matches!(error, PidFileError::Unusable { action: "create", .. }), "{error}");
    assert!(!path.exists());
    disk.empty();
    PidFile::acquire(&path, Duration::ZERO).expect("the disk has space again").release();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn builds_fail_on_a_full_disk_and_succeed_afterwards() {
    if real::skipped() {
        return;
    }
    let Some(disk) = SmallDisk::mount(64) else { return };
    let harness = BuilderProcessHarness::start(Some(disk.path())).await;
    let mut builder = harness.builder();
    harness.wait_until_settled(&builder, 0).await;
    for free_bytes in [0, 100_000, 2_000_000] {
        // The deletion of older builds frees space meanwhile, so that other builds may succeed.
        wait::until("a build to find the disk full", TIMEOUT, async || {
            if harness.find_problem().await.is_none() {
                disk.fill(free_bytes);
                for image in IMAGES {
                    harness.request_build(image).await;
                }
            }
            builder.log().contains("No space left on device")
        })
        .await;
        wait::until("a build to fail", TIMEOUT, async || {
            let records = harness.records().await;
            records.builds().any(|(_, stored)| stored.record.state == BuildState::Failed)
        })
        .await;
        // The next builder starts with a full disk.
        builder.kill();
        builder = harness.builder();
        disk.empty();
        harness.wait_until_settled(&builder, 0).await;
    }
    builder.signal(Signal::SIGTERM);
    assert!(builder.wait(SETTLE_TIMEOUT).await.success());
}
