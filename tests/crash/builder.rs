//! Builder crashes: a builder that is killed at any moment leaves no stuck record, and no file or cloud image without a
//! record. It does not change foreign images.
//!
//! NODEPOOL_KILLS=50 makes a long run; NODEPOOL_SEED repeats the random draws of an earlier run.

use std::time::Duration;

use nix::sys::signal::Signal;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;
use testkit::builder_process::{BuilderProcessHarness, IMAGES, PROVIDER, SETTLE_TIMEOUT};
use testkit::history_checker::HistoryChecker;
use testkit::{real, wait};
use tokio::time::sleep;

const KILLS: usize = 10;
/// Number of kills after which the test waits until everything has settled.
const ROUND: usize = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crashed_builder_leaks_nothing_and_touches_no_foreign_images() {
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
    let harness = BuilderProcessHarness::start(None).await;
    let mut builder = harness.builder();
    for kill in 0..kills {
        for image in IMAGES {
            if random.gen_ratio(2, 3) {
                harness.request_build(image).await;
            }
        }
        let faults = match random.gen_range(0..6) {
            0 => json!(["lost-answer method=POST path=/images$ times=1"]),
            1 => json!(["closed method=PUT path=/file$ times=1"]),
            2 => json!(["500 method=DELETE path=/images/ times=2"]),
            _ => json!([]),
        };
        harness.cloud.knobs(json!({ "faults": faults })).await;
        // The kill may be as early as the start of the process and as late as an upload.
        sleep(Duration::from_millis(random.gen_range(50..3500))).await;
        builder.kill();
        builder = harness.builder();
        if kill % ROUND == ROUND - 1 {
            harness.cloud.knobs(json!({"faults": []})).await;
            harness.wait_until_settled(&builder, seed).await;
        }
    }
    harness.cloud.knobs(json!({"faults": []})).await;
    harness.wait_until_settled(&builder, seed).await;
    builder.signal(Signal::SIGTERM);
    assert!(builder.wait(SETTLE_TIMEOUT).await.success());
    let mut history_checker = HistoryChecker::of_server(&harness.server, "", Some(&harness.cloud)).await;
    // Foreign images have no record in ZooKeeper.
    history_checker.images.retain(|image| image.key.0.as_str() == PROVIDER);
    history_checker.expected_images = IMAGES.map(|image| (image.into(), PROVIDER.into())).to_vec();
    let report = history_checker.check();
    report.assert_no_violations(&format!("kill-builder-{seed}"));
    let uploads = harness.cloud.state().await["images_uploaded"].clone();
    eprintln!(
        "{kills} kills, uploads {uploads}, images {}, changes of records {}",
        history_checker.images.len(),
        report.changes
    );
}

// A service manager kills all processes of a service as soon as its main process has exited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_builder_exits_after_its_builds_cleaned_up() {
    if real::skipped() {
        return;
    }
    let harness = BuilderProcessHarness::start(None).await;
    testkit::fake_dib::install_script(harness.dib_directory(), testkit::fake_dib::SLOW_EXIT_DIB);
    let mut builder = harness.builder();
    let has = |name: &str| harness.dib_directory().join(name).exists();
    wait::until("a build to start", SETTLE_TIMEOUT, async || has("started")).await;
    builder.signal(Signal::SIGTERM);
    assert!(builder.wait(SETTLE_TIMEOUT).await.success());
    assert!(has("exited"), "the builder did not wait for its build: {}", builder.log());
    assert_eq!(harness.build_processes(), 0);
}
