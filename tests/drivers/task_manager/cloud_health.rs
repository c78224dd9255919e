//! TaskManager while its cloud does not respond, or is full.

use std::time::Duration;

use super::{TaskManagerHarness, UNLIMITED};
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::state_machine::{InFlightLimit, RateLimits};
use testkit::provider_harness::{delete, launch, on_paused_time};

/// Start times of the calls with this name, in whole seconds since the first.
fn starts_of(harness: &TaskManagerHarness, name: &str) -> Vec<u64> {
    let starts = harness.starts();
    let times: Vec<f64> = starts.iter().filter(|(_, call)| call == name).map(|(at, _)| *at).collect();
    times.iter().map(|at| (at - times[0]).round() as u64).collect()
}

async fn wait_for_health(
    harness: &mut TaskManagerHarness,
    what: impl Fn(&nodepool_driver::health::CloudHealth) -> bool,
) {
    harness.handle.facts.wait_for(|facts| what(&facts.health)).await.unwrap();
}

#[test]
fn a_listing_confirms_an_outage_and_probes_until_it_ends() {
    on_paused_time(async {
        let mut harness = TaskManagerHarness::new(UNLIMITED).await;
        harness.state.lock().unwrap().is_absent = true;
        harness.submit(1, delete("one"));
        let (_, ended) = harness.wait_for_end().await;
        assert_eq!(ended, Err(CloudError::Outage { detail: "503".to_owned(), may_have_worked: true }));
        let outage = harness.facts().health.outage.clone().expect("an outage");
        assert_eq!(outage.error, "503");
        harness.submit(2, delete("two"));
        harness.submit(3, launch("three"));
        let (job, rejected) = harness.wait_for_end().await;
        assert_eq!((job, rejected), (3, Err(CloudError::Outage { detail: "503".to_owned(), may_have_worked: false })));
        tokio::time::sleep(Duration::from_secs(100)).await;
        // Each probe takes a second, and the delay doubles up to 30 seconds.
        assert_eq!(starts_of(&harness, "list")[..8], [0, 2, 5, 10, 19, 36, 67, 98]);
        assert_eq!(starts_of(&harness, "two"), [] as [u64; 0], "deletions wait");
        harness.state.lock().unwrap().is_absent = false;
        assert_eq!(harness.wait_for_end().await, (2, Err(CloudError::not_found("gone"))));
        assert_eq!(harness.facts().health.outage, None);
    });
}

#[test]
fn a_call_that_fails_alone_is_no_outage() {
    on_paused_time(async {
        let mut harness = TaskManagerHarness::new(UNLIMITED).await;
        harness.submit(1, delete("broken"));
        let failed = CloudError::Failed { kind: FailureKind::Unknown, detail: "503".to_owned() };
        assert_eq!(harness.wait_for_end().await, (1, Err(failed)));
        assert_eq!(starts_of(&harness, "list"), [0], "it was checked by one listing");
        assert_eq!(harness.facts().health.outage, None);
    });
}

#[test]
fn a_probe_starts_although_all_calls_hang() {
    on_paused_time(async {
        let in_flight = InFlightLimit::Fixed(2);
        let mut harness = TaskManagerHarness::new(RateLimits { in_flight, ..UNLIMITED }).await;
        harness.submit(1, delete("broken"));
        harness.submit(2, delete("hang"));
        harness.submit(3, delete("hang"));
        harness.state.lock().unwrap().is_absent = true;
        wait_for_health(&mut harness, |health| health.outage.is_some()).await;
        assert!(harness.state.lock().unwrap().running >= 2);
    });
}

#[test]
fn queued_creations_end_with_the_first_refusal() {
    on_paused_time(async {
        let in_flight = InFlightLimit::Fixed(2);
        let mut harness = TaskManagerHarness::new(RateLimits { in_flight, ..UNLIMITED }).await;
        harness.state.lock().unwrap().is_full = true;
        for number in 0..10 {
            harness.submit(number, launch(&format!("np{number}")));
        }
        for _ in 0..10 {
            assert_eq!(harness.wait_for_end().await.1, Err(CloudError::Quota("ports".to_owned())));
        }
        let created = harness.starts().iter().filter(|(_, call)| call.starts_with("np")).count();
        assert_eq!(created, 2);
        wait_for_health(&mut harness, |health| health.full.as_ref().is_some_and(|full| full.window == 1)).await;
        harness.state.lock().unwrap().is_full = false;
        harness.submit(11, launch("np11"));
        wait_for_health(&mut harness, |health| health.full.as_ref().is_some_and(|full| full.window == 2)).await;
    });
}
