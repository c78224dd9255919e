//! A launcher at work for hours takes no more memory, descriptors and watches than after minutes: 50 life cycles of servers a second.
//!
//! NODEPOOL_SOAK=3600 lives so many seconds, tells what was taken and holds it to the promise; without it a few seconds show that
//! all of it works.

#[path = "../benches/load/consumer.rs"]
#[allow(dead_code)] // The benchmark uses the rest.
mod consumer;
#[path = "../benches/load/process.rs"]
#[allow(dead_code)]
mod process;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use consumer::Consumers;
use serde_json::json;
use support::real::process::Nodepool;
use support::real::simulated_openstack::SimulatedOpenStack;
use support::real::zookeeper::{Options, Server};
use support::{real, wait};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

const PER_SECOND: u32 = 50;
const SHORT: Duration = Duration::from_secs(5);
/// Not before memory has been used as much as it ever will be.
const WARM: Duration = Duration::from_secs(300);
const PATIENCE: Duration = Duration::from_secs(60);
const CLOUD: &[&str] = &[
    "--boot-time-s",
    "0.5",
    "--delete-time-s",
    "0.1",
    "--quota-servers",
    "-1",
    "--quota-cores",
    "-1",
    "--quota-ram-mib",
    "-1",
    "--quota-ports",
    "-1",
];

/// What the launcher takes at a moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    seconds: u64,
    lives: usize,
    resident_kib: u64,
    descriptors: usize,
    watches: u64,
    znodes: u64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launcher_at_work_takes_no_more_and_more() {
    if real::skipped() {
        return;
    }
    let asked = std::env::var("NODEPOOL_SOAK").ok();
    let time =
        asked.as_ref().map_or(SHORT, |text| Duration::from_secs(text.parse().expect("NODEPOOL_SOAK is seconds")));
    let server = Server::start(Options { java: vec!["-Xmx512m".to_owned()], ..Options::default() }).await;
    let cloud = SimulatedOpenStack::start(CLOUD).await;
    let clouds = cloud.clouds_yaml();
    let environment = [("OS_CLIENT_CONFIG_FILE", clouds.as_path())];
    let executable = env!("CARGO_BIN_EXE_nodepool-launcher");
    let launcher = Nodepool::start_in(&environment, executable, &configuration(&server), &["-f", "--no-webapp"]);
    let consumers = consumers(&server).await;
    let lives = Arc::new(AtomicUsize::new(0));
    let load = tokio::spawn(live(consumers.clone(), lives.clone(), time));
    let samples = watch(&server, &launcher, &lives, time).await;
    load.await.expect("a life that fails says why");
    let is_empty = async || cloud.state().await["servers"] == json!(0);
    wait::until("all servers to be gone", PATIENCE, is_empty).await;
    let lived = lives.load(Ordering::Relaxed);
    assert!(lived > 0, "somebody lived");
    assert_eq!(cloud.state().await["double_creates"], json!(0));
    println!("{lived} lives in {time:?}");
    if asked.is_some() {
        assert_flat(&samples, time);
    }
}

fn configuration(server: &Server) -> String {
    let address = server.address();
    let (host, port) = address.rsplit_once(':').expect("an address ends with its port");
    json!({
        "zookeeper-servers": [{"host": host, "port": port.parse::<u16>().expect("a port is a number")}],
        "labels": [{"name": "bench"}],
        "providers": [{
            "name": "lab", "driver": "openstack", "cloud": "simulated",
            "cloud-images": [{"name": "image", "image-name": "raw-1M", "username": "zuul"}],
            "pools": [{
                "name": "main", "auto-floating-ip": false, "host-key-checking": false, "networks": ["private"],
                "labels": [{"name": "bench", "cloud-image": "image", "flavor-name": "tiny"}],
            }],
        }],
    })
    .to_string()
}

async fn consumers(server: &Server) -> Consumers {
    let client = process::connect(&server.address()).await.expect("a server that serves accepts clients");
    Consumers::start(Arc::new(client), "bench").await.expect("a server that serves lets us watch")
}

/// Begins so many lives each second, whatever becomes of those before.
async fn live(consumers: Consumers, lives: Arc<AtomicUsize>, time: Duration) {
    let mut ticks = interval(Duration::from_secs(1) / PER_SECOND);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (began, mut under_way) = (Instant::now(), tokio::task::JoinSet::new());
    while began.elapsed() < time {
        ticks.tick().await;
        let (consumers, lives) = (consumers.clone(), lives.clone());
        under_way.spawn(async move {
            let request = consumers.ask().await.expect("a request is taken");
            let fulfilled = consumers.fulfilled(&request).await.expect("a request is fulfilled");
            for node in &fulfilled.nodes {
                consumers.use_up(&request, node).await.expect("a node is used");
            }
            lives.fetch_add(1, Ordering::Relaxed);
        });
        while let Some(ended) = under_way.try_join_next() {
            ended.expect("a life that fails says why");
        }
    }
    under_way.join_all().await;
}

async fn watch(server: &Server, launcher: &Nodepool, lives: &AtomicUsize, time: Duration) -> Vec<Sample> {
    let pause = (time / 60).clamp(Duration::from_secs(1), Duration::from_secs(30));
    let (began, mut samples) = (Instant::now(), Vec::new());
    println!("seconds  lives  resident KiB  descriptors  watches  znodes");
    while began.elapsed() + pause < time {
        sleep(pause).await;
        let figures = server.figures().await;
        let figure = |name: &str| figures[name].parse().expect("a figure is a number");
        let sample = Sample {
            seconds: began.elapsed().as_secs(),
            lives: lives.load(Ordering::Relaxed),
            resident_kib: resident_kib(launcher.pid()),
            descriptors: std::fs::read_dir(format!("/proc/{}/fd", launcher.pid())).expect("it runs").count(),
            watches: figure("zk_watch_count"),
            znodes: figure("zk_znode_count"),
        };
        let Sample { seconds, lives, resident_kib, descriptors, watches, znodes } = sample;
        println!("{seconds:7}  {lives:5}  {resident_kib:12}  {descriptors:11}  {watches:7}  {znodes:6}");
        samples.push(sample);
    }
    samples
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()).expect("a process has its resident size");
    number.parse().expect("it is a number")
}

type Of<'a> = &'a dyn Fn(&Sample) -> f64;

/// After five minutes, or half of a shorter time, nothing grows beyond a twentieth, nor shrinks.
fn assert_flat(samples: &[Sample], time: Duration) {
    let warm = WARM.min(time / 2).as_secs();
    let later: Vec<&Sample> = samples.iter().filter(|sample| sample.seconds >= warm).collect();
    let first = later.first().expect("it took long enough for a sample");
    let half = &later[later.len() / 2..];
    let mean = |of: Of<'_>, all: &[&Sample]| all.iter().map(|sample| of(sample)).sum::<f64>() / all.len() as f64;
    let parts: [(&str, Of<'_>); 3] = [
        ("memory", &|sample| sample.resident_kib as f64),
        ("descriptors", &|sample| sample.descriptors as f64),
        ("watches", &|sample| sample.watches as f64),
    ];
    for (what, of) in parts {
        let (before, after) = (mean(of, &later[..later.len().div_ceil(2)]), mean(of, half));
        let change = 100.0 * (after - before) / before;
        println!(
            "{what}: {:.0} after {} s, then {before:.0} and {after:.0} on average ({change:+.1} %)",
            of(first),
            first.seconds
        );
        assert!(change.abs() <= 5.0, "{what} is not flat");
    }
}
