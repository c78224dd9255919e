//! Soak test: under a load of 50 server life cycles per second, a launcher uses no more memory, descriptors and watches
//! after hours than after minutes. Real processes: the launcher, Apache ZooKeeper and the simulated cloud.
//!
//! NODEPOOL_SOAK=3600 sets the duration in seconds and prints a report. A run of twenty minutes or more asserts that
//! the resources are bounded, a run of an hour or more also asserts the rate. By default the test runs a few seconds,
//! which proves that it works.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use testkit::clouds::simulated_openstack::SimulatedOpenStack;
use testkit::load::consumer::Consumers;
use testkit::real::nodepool_process::NodepoolProcess;
use testkit::real::zookeeper::{Options, Server};
use testkit::{programs, real, wait};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

const PER_SECOND: u32 = 50;
const DEFAULT_DURATION: Duration = Duration::from_secs(5);
/// Time until memory use has reached its plateau.
const WARM_UP: Duration = Duration::from_secs(300);
const MINUTE: u64 = 60;
/// Length of the last part of a run, whose samples are compared with earlier ones.
const FINAL_WINDOW: Duration = Duration::from_secs(600);
/// Minimum duration of a run whose resources are compared: it contains warm-up and final window.
const MIN_FLATNESS_DURATION: Duration = Duration::from_secs(1200);
/// Minimum duration of a run whose rate is checked: a pause at its beginning hardly affects the rate.
const AN_HOUR: Duration = Duration::from_secs(3600);
const TIMEOUT: Duration = Duration::from_secs(60);
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

/// Resources of the launcher at one time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    seconds: u64,
    cycles: usize,
    resident_kib: u64,
    descriptors: usize,
    watches: u64,
    znodes: u64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launcher_under_load_does_not_leak_resources() {
    if real::skipped() {
        return;
    }
    let setting = std::env::var("NODEPOOL_SOAK").ok();
    let time = setting
        .as_ref()
        .map_or(DEFAULT_DURATION, |text| Duration::from_secs(text.parse().expect("NODEPOOL_SOAK is seconds")));
    let server = Server::start(Options { java: vec!["-Xmx512m".to_owned()], ..Options::default() }).await;
    let cloud = SimulatedOpenStack::start(CLOUD).await;
    let clouds = cloud.clouds_yaml();
    let environment = [("OS_CLIENT_CONFIG_FILE", clouds.as_path())];
    let executable = programs::launcher();
    let launcher = NodepoolProcess::start_in(&environment, executable, &configuration(&server), &["-f", "--no-webapp"]);
    let consumers = consumers(&server).await;
    let cycles = Arc::new(AtomicUsize::new(0));
    let load = tokio::spawn(run_load(consumers.clone(), cycles.clone(), time));
    let samples = collect_samples(&server, &launcher, &cycles, time).await;
    let in_time = load.await.expect("a failed cycle panics with its reason");
    let is_empty = async || cloud.state().await["servers"] == json!(0);
    wait::until("all servers to be deleted", TIMEOUT, is_empty).await;
    let completed = cycles.load(Ordering::Relaxed);
    assert!(completed > 0, "no cycle was completed");
    assert_eq!(cloud.state().await["double_creates"], json!(0));
    let expected = time.as_secs_f64() * f64::from(PER_SECOND);
    println!("{completed} cycles in {time:?}, expected {expected:.0}");
    if setting.is_some() {
        print_report(&samples, time);
    }
    if time >= MIN_FLATNESS_DURATION {
        assert_flat(&samples, time);
    }
    if time >= AN_HOUR {
        assert!(in_time as f64 >= 0.99 * expected, "{in_time} cycles completed in time, expected {expected:.0}");
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
    let client = testkit::load::process::connect(&server.address()).await.expect("a running server accepts clients");
    Consumers::start(Arc::new(client), "bench").await.expect("a running server accepts watches")
}

/// Starts `PER_SECOND` cycles each second, independent of earlier ones. Returns the number that completed within
/// `time`.
async fn run_load(consumers: Consumers, cycles: Arc<AtomicUsize>, time: Duration) -> usize {
    let mut ticks = interval(Duration::from_secs(1) / PER_SECOND);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (began, mut under_way) = (Instant::now(), tokio::task::JoinSet::new());
    while began.elapsed() < time {
        ticks.tick().await;
        let (consumers, cycles) = (consumers.clone(), cycles.clone());
        under_way.spawn(async move {
            let request = consumers.submit_request().await.expect("a request is accepted");
            let fulfilled = consumers.wait_until_fulfilled(&request).await.expect("a request is fulfilled");
            for node in &fulfilled.nodes {
                consumers.use_node(&request, node).await.expect("a node is used");
            }
            cycles.fetch_add(1, Ordering::Relaxed);
        });
        while let Some(ended) = under_way.try_join_next() {
            ended.expect("a failed cycle panics with its reason");
        }
    }
    let in_time = cycles.load(Ordering::Relaxed);
    under_way.join_all().await;
    in_time
}

async fn collect_samples(
    server: &Server,
    launcher: &NodepoolProcess,
    cycles: &AtomicUsize,
    time: Duration,
) -> Vec<Sample> {
    let pause = (time / 60).clamp(Duration::from_secs(1), Duration::from_secs(30));
    let (began, mut samples) = (Instant::now(), Vec::new());
    println!("seconds  cycles  resident KiB  descriptors  watches  znodes");
    while began.elapsed() + pause < time {
        sleep(pause).await;
        let metrics = server.metrics().await;
        let metric = |name: &str| metrics[name].parse().expect("a metric is a number");
        let sample = Sample {
            seconds: began.elapsed().as_secs(),
            cycles: cycles.load(Ordering::Relaxed),
            resident_kib: resident_kib(launcher.pid()),
            descriptors: std::fs::read_dir(format!("/proc/{}/fd", launcher.pid())).expect("the process runs").count(),
            watches: metric("zk_watch_count"),
            znodes: metric("zk_znode_count"),
        };
        let Sample { seconds, cycles, resident_kib, descriptors, watches, znodes } = sample;
        println!("{seconds:7}  {cycles:6}  {resident_kib:12}  {descriptors:11}  {watches:7}  {znodes:6}");
        samples.push(sample);
    }
    samples
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()).expect("a process has its resident size");
    number.parse().expect("the size is a number")
}

type Metric = fn(&Sample) -> u64;
const METRICS: [(&str, Metric); 3] = [
    ("memory", |sample| sample.resident_kib),
    ("descriptors", |sample| sample.descriptors as u64),
    ("watches", |sample| sample.watches),
];

/// Values of the samples in this interval, in seconds since the beginning.
fn within(samples: &[Sample], from: u64, to: u64, of: Metric) -> Vec<u64> {
    samples.iter().filter(|sample| (from..to).contains(&sample.seconds)).map(of).collect()
}

fn mean(of: &[u64]) -> f64 {
    of.iter().sum::<u64>() as f64 / of.len() as f64
}

/// Prints the change between the two halves of the time after the warm-up. The warm-up is at most half of the run.
fn print_report(samples: &[Sample], time: Duration) {
    let warm = WARM_UP.min(time / 2).as_secs();
    let middle = warm.midpoint(time.as_secs());
    for (what, of) in METRICS {
        let [before, after] = [(warm, middle), (middle, u64::MAX)].map(|(from, to)| within(samples, from, to, of));
        let [before, after] = [mean(&before), mean(&after)];
        let change = 100.0 * (after - before) / before;
        println!("{what}: {before:.0} and {after:.0} on average after {warm} and {middle} s ({change:+.1} %)");
    }
}

/// Asserts that memory stays within 5 % of the minute after the warm-up, and that the last ten minutes have no more
/// descriptors and watches than the ten minutes after the warm-up.
fn assert_flat(samples: &[Sample], time: Duration) {
    let (warm, end) = (WARM_UP.as_secs(), time.as_secs());
    let last = end - FINAL_WINDOW.as_secs();
    let [(_, memory), others @ ..] = METRICS;
    let before = mean(&within(samples, warm, warm + MINUTE, memory));
    for minute in (warm + MINUTE..end).step_by(MINUTE as usize) {
        let of_minute = within(samples, minute, minute + MINUTE, memory);
        // The last sample may be taken shortly before the last minute.
        let change = if of_minute.is_empty() { 0.0 } else { 100.0 * (mean(&of_minute) - before) / before };
        assert!(change.abs() <= 5.0, "memory changed by {change:+.1} % until second {minute}: {samples:?}");
    }
    for (what, of) in others {
        let [before, after] =
            [(warm, warm + FINAL_WINDOW.as_secs()), (last, end)].map(|(from, to)| within(samples, from, to, of));
        let [before, after] = [before.iter().max(), after.iter().max()];
        assert!(after.is_some() && after <= before, "{what} grew from {before:?} to {after:?}: {samples:?}");
    }
}
