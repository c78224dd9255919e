//! Full disks: the coordinator reports them and loses nothing, builds fail, and everything continues when there is
//! space.

mod builder_process;
mod disk_faults;
mod fake_dib;
mod in_process_launcher;
mod openstack_harness;
mod support;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};
use std::time::Duration;

use builder_process::{BuilderProcessHarness, IMAGES, SETTLE_TIMEOUT};
use bytes::Bytes;
use disk_faults::SmallDisk;
use nix::sys::signal::Signal;
use nodepool::actors::process::pidfile::{PidFile, PidFileError};
use nodepool_model::records::image_build::BuildState;
use nodepool_zk::Zk;
use nodepool_zk::client::{ConnectOptions, connect};
use support::real::child_process::{ChildProcess, Output};
use support::{real, wait};
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
    let test = std::env::current_exe().expect("the path of the test's executable is known");
    let target: PathBuf = test.ancestors().nth(2).expect("the executable is in target/PROFILE/deps").into();
    let mut command = Command::new(target.join("examples/coordinator"));
    command.arg(data_dir).arg("0");
    command
}

impl Coordinator {
    /// The text of its log if it exits instead.
    async fn start(data_dir: &Path, home: &Path) -> Result<Coordinator, String> {
        let log = home.join("log");
        let mut running = ChildProcess::start("coordinator", &mut command(data_dir), Output::Piped, &log, home);
        let (input, output) = running.pipes();
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("its output is text");
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
    // A service manager restarts it: every attempt fails, and none does harm.
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
        // Older builds that are deleted meanwhile free space, and then others succeed.
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
