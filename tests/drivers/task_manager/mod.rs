//! TaskManager on paused time with an in-memory cloud: rate, calls in flight, deadlines, and a reply for every job.

mod cloud;
mod cloud_health;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cloud::{Cloud, CloudState, instance};
use nodepool::actors::provider::jobs::{Drain, ProviderHandle};
use nodepool::actors::provider::providers::{self, ExtraDrivers, StartProvider};
use nodepool::actors::provider::task_manager::{Fence, TaskManager, TaskManagerDeps};
use nodepool::actors::runtime::dump;
use nodepool::actors::runtime::messages::Shutdown;
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::instance::Inventory;
use nodepool_driver::job::{Job, JobEvent, Outcome};
use nodepool_driver::state_machine::{InFlightLimit, RateLimits, Spacing};
use nodepool_drivers::OpenDriver;
use nodepool_model::config::ProviderConfig;
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;
use nodepool_zk::Connection;
use nodepool_zk::memory::MemoryZooKeeper;
use python_yaml::diagnostics::Diagnostic;
use testkit::provider_harness::{ProviderHarness, delete, launch, on_paused_time, provider_section};
use tokio::time::{Instant, timeout};

struct TaskManagerHarness {
    provider: ProviderHarness,
    state: Arc<Mutex<CloudState>>,
}

impl std::ops::Deref for TaskManagerHarness {
    type Target = ProviderHarness;
    fn deref(&self) -> &ProviderHarness {
        &self.provider
    }
}

impl std::ops::DerefMut for TaskManagerHarness {
    fn deref_mut(&mut self) -> &mut ProviderHarness {
        &mut self.provider
    }
}

const UNLIMITED: RateLimits = RateLimits {
    spacing: Spacing::NONE,
    in_flight: InFlightLimit::Configurable,
    listing_delay: Seconds(1.0),
    refresh: None,
};

impl TaskManagerHarness {
    /// A provider that has finished its initial refresh and is idle.
    async fn new(rate_limits: RateLimits) -> Self {
        let mut harness = Self::started(rate_limits, CloudState::default());
        harness.wait_for_refresh().await;
        harness.state.lock().unwrap().starts.clear();
        while harness.samples.try_recv().is_ok() {}
        harness
    }

    fn started(rate_limits: RateLimits, state: CloudState) -> Self {
        Self::with(rate_limits, state, None)
    }

    fn with_fence(rate_limits: RateLimits, fence: Fence) -> Self {
        Self::with(rate_limits, CloudState::default(), Some(fence))
    }

    fn with(rate_limits: RateLimits, state: CloudState, fence: Option<Fence>) -> Self {
        let state = Arc::new(Mutex::new(state));
        let cloud = Cloud { state: state.clone(), pace: rate_limits, started_at: Instant::now() };
        let start = |deps| TaskManager::launch("cloud-a".into(), cloud, TaskManagerDeps { fence, ..deps });
        Self { provider: ProviderHarness::new(start), state }
    }

    async fn wait_until(&self, what: impl Fn(&CloudState) -> bool) {
        let wait = async {
            while !what(&self.state.lock().unwrap()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(3600), wait).await.expect("the condition is met");
    }

    fn starts(&self) -> Vec<(f64, String)> {
        self.state.lock().unwrap().starts.clone()
    }
}

fn assert_cancelled(result: &Result<Outcome, CloudError>) {
    assert!(matches!(result, Err(CloudError::Failed { kind: FailureKind::Nodepool, .. })), "{result:?}");
}

#[test]
fn a_launch_reports_its_id_first_and_its_instance_last() {
    on_paused_time(async {
        let mut harness = TaskManagerHarness::new(UNLIMITED).await;
        harness.submit(1, launch("one"));
        assert_eq!(harness.next().await, (1, JobEvent::InstanceKnown(ExternalId::text("one"))));
        let ended = JobEvent::Finished(Ok(Outcome::Launched(Box::new(instance("one")))));
        assert_eq!(harness.next().await, (1, ended));
    });
}

#[test]
fn calls_start_at_the_rate_of_the_provider() {
    on_paused_time(async {
        let mut harness =
            TaskManagerHarness::new(RateLimits { spacing: Spacing::Shared(Seconds(0.5)), ..UNLIMITED }).await;
        (0..6).for_each(|number| harness.submit(number, delete("unknown")));
        for _ in 0..6 {
            assert_eq!(harness.wait_for_end().await.1, Err(CloudError::not_found("gone")));
        }
        let starts: Vec<f64> = harness.starts().iter().map(|(at, _)| *at).collect();
        for pair in starts.windows(2) {
            assert!((0.5..0.51).contains(&(pair[1] - pair[0])), "{starts:?}");
        }
    });
}

#[test]
fn calls_in_flight_respect_the_configured_maximum() {
    for (in_flight, expected) in
        [(InFlightLimit::Fixed(1), 1), (InFlightLimit::Fixed(3), 3), (InFlightLimit::Configurable, 10)]
    {
        on_paused_time(async move {
            let mut harness = TaskManagerHarness::new(RateLimits { in_flight, ..UNLIMITED }).await;
            (0..25).for_each(|number| harness.submit(number, delete("unknown")));
            for _ in 0..25 {
                assert_eq!(harness.wait_for_end().await.1, Err(CloudError::not_found("gone")));
            }
            assert_eq!(harness.state.lock().unwrap().max_running, expected);
        });
    }
}

#[test]
fn a_hanging_call_ends_by_its_deadline() {
    on_paused_time(async {
        let mut harness = TaskManagerHarness::new(UNLIMITED).await;
        let started_at = Instant::now();
        harness.submit(1, delete("hang"));
        assert_eq!(harness.wait_for_end().await, (1, Err(CloudError::Deadline)));
        // A listing, which takes a second, shows that the cloud responds.
        assert_eq!(started_at.elapsed().as_secs(), 31);
    });
}

#[test]
fn a_throttled_call_is_retried_silently() {
    on_paused_time(async {
        let mut harness = TaskManagerHarness::new(UNLIMITED).await;
        harness.submit(1, launch("busy-3"));
        assert!(matches!(harness.wait_for_end().await, (1, Ok(Outcome::Launched(_)))));
        let creates: Vec<f64> =
            harness.starts().iter().filter(|(_, name)| name == "busy-3").map(|(at, _)| *at).collect();
        assert_eq!(creates.len(), 4);
        assert!(creates.windows(2).all(|pair| pair[1] - pair[0] >= 5.0), "{creates:?}");
    });
}

#[test]
fn long_throttling_fails_no_job() {
    on_paused_time(async {
        let mut harness = TaskManagerHarness::new(UNLIMITED).await;
        harness.submit(1, launch("busy-50"));
        assert!(matches!(harness.wait_for_end().await, (1, Ok(Outcome::Launched(_)))));
        assert_eq!(harness.state.lock().unwrap().refusals, 50);
    });
}

#[test]
fn a_throttled_job_ends_when_its_submitter_cancels_it() {
    on_paused_time(async {
        let mut harness = TaskManagerHarness::new(UNLIMITED).await;
        harness.submit(1, delete("always-busy"));
        harness.wait_until(|state| state.refusals >= 20).await;
        harness.abandon(1);
        assert_cancelled(&harness.wait_for_end().await.1);
        harness.submit(2, delete("unknown"));
        assert_eq!(harness.wait_for_end().await, (2, Err(CloudError::not_found("gone"))));
    });
}

#[test]
fn fifty_booting_servers_cost_one_listing_per_round() {
    on_paused_time(async {
        let mut harness =
            TaskManagerHarness::new(RateLimits { in_flight: InFlightLimit::Fixed(100), ..UNLIMITED }).await;
        (0..50).for_each(|number| harness.submit(number, launch(&format!("host-{number}"))));
        for _ in 0..50 {
            assert!(matches!(harness.wait_for_end().await.1, Ok(Outcome::Launched(_))));
        }
        let listings = harness.starts().iter().filter(|(_, name)| name == "list").count();
        assert_eq!(listings, 3);
    });
}

#[test]
fn a_failed_listing_is_repeated_while_jobs_wait() {
    on_paused_time(async {
        let mut harness = TaskManagerHarness::new(UNLIMITED).await;
        harness.state.lock().unwrap().listing_fails = true;
        harness.submit(1, launch("one"));
        harness.wait_until(|state| state.starts.iter().filter(|(_, name)| name == "list").count() >= 3).await;
        // No job fails because of a failed listing, so its error is in the dump and in the log.
        let error = dump::collect(&harness.registry).await[0]["listing_error"].clone();
        assert!(error.as_str().is_some_and(|error| !error.is_empty()), "{error}");
        harness.state.lock().unwrap().listing_fails = false;
        assert!(matches!(harness.wait_for_end().await, (1, Ok(Outcome::Launched(_)))));
        assert!(dump::collect(&harness.registry).await[0]["listing_error"].is_null());
    });
}

#[test]
fn the_initial_refresh_is_retried_until_it_succeeds() {
    on_paused_time(async {
        let harness =
            TaskManagerHarness::started(UNLIMITED, CloudState { listing_fails: true, ..CloudState::default() });
        harness.wait_until(|state| state.starts.len() >= 3).await;
        assert_eq!(harness.facts().refreshed_at.0, 0.0);
        let views = dump::collect(&harness.registry).await;
        assert_eq!((&views[0]["facts_age_s"], &views[0]["refresh_error"]), (&serde_json::Value::Null, &"500".into()));
        harness.state.lock().unwrap().listing_fails = false;
        harness.wait_for_refresh().await;
        let listings = harness.starts().len();
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(harness.starts().len(), listings, "no other refresh is due");
    });
}

#[test]
fn concurrent_refresh_jobs_share_one_refresh() {
    on_paused_time(async {
        let mut harness = TaskManagerHarness::started(UNLIMITED, CloudState::default());
        (1..4).for_each(|job_id| harness.submit(job_id, Job::Refresh));
        harness.abandon(2);
        let mut ends = Vec::new();
        for _ in 0..3 {
            ends.push(harness.wait_for_end().await);
        }
        ends.sort_by_key(|(job_id, _)| *job_id);
        let facts = Ok(Outcome::Refreshed(harness.facts(), Arc::default()));
        assert_eq!((&ends[0], &ends[2]), (&(1, facts.clone()), &(3, facts)));
        assert_cancelled(&ends[1].1);
        assert_eq!(harness.starts().len(), 1);
    });
}

#[test]
fn a_refresh_replaces_provider_facts_only_if_it_succeeds() {
    on_paused_time(async {
        let mut harness = TaskManagerHarness::new(UNLIMITED).await;
        harness.state.lock().unwrap().instances.insert(String::from("old"), 1);
        harness.submit(1, Job::Refresh);
        let (_, result) = harness.wait_for_end().await;
        let facts = harness.handle.facts.borrow().clone();
        let inventory = Arc::new(Inventory::new(vec![instance("old")]));
        assert_eq!(result, Ok(Outcome::Refreshed(facts.clone(), inventory)));
        assert!(facts.refreshed_at.0 > 1e9, "{:?}", facts.refreshed_at);
        harness.state.lock().unwrap().listing_fails = true;
        harness.submit(2, Job::Refresh);
        assert!(matches!(harness.wait_for_end().await, (2, Err(CloudError::Failed { .. }))));
        assert_eq!(*harness.handle.facts.borrow(), facts);
    });
}

#[test]
fn a_draining_provider_finishes_its_jobs_and_stops() {
    on_paused_time(async {
        let mut harness = TaskManagerHarness::new(UNLIMITED).await;
        harness.submit(1, launch("one"));
        harness.wait_until(|state| !state.starts.is_empty()).await;
        harness.handle.drain.do_send(Drain);
        assert!(matches!(harness.wait_for_end().await, (1, Ok(Outcome::Launched(_)))));
        // A job from a pool that does not know of the drain, or that continues a launch, is accepted.
        harness.submit(2, launch("two"));
        assert!(matches!(harness.wait_for_end().await, (2, Ok(Outcome::Launched(_)))));
        // A draining provider stops only when no handle is subscribed to its facts.
        let (_, unwatched) = tokio::sync::watch::channel(harness.handle.facts.borrow().clone());
        harness.handle.facts = unwatched;
        let stopped = async {
            while harness.handle.submit.connected() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(60), stopped).await.expect("an empty provider that drains stops");
        harness.submit(3, launch("three"));
        let (job_id, refused) = harness.wait_for_end().await;
        assert_eq!(job_id, 3);
        assert_cancelled(&refused);
        assert!(harness.registry.is_empty());
    });
}

#[test]
fn a_draining_provider_refreshes_while_launches_may_need_it() {
    on_paused_time(async {
        let mut harness =
            TaskManagerHarness::started(UNLIMITED, CloudState { listing_fails: true, ..CloudState::default() });
        harness.submit(1, launch("hang"));
        harness.handle.drain.do_send(Drain);
        harness.wait_until(|state| state.starts.len() > 3).await;
        harness.state.lock().unwrap().listing_fails = false;
        harness.wait_for_refresh().await;
        assert_eq!(harness.wait_for_end().await, (1, Err(CloudError::Deadline)));
    });
}

#[test]
fn a_cancelled_job_ends_at_once_unless_its_call_is_in_flight() {
    on_paused_time(async {
        let mut harness = TaskManagerHarness::new(RateLimits { in_flight: InFlightLimit::Fixed(1), ..UNLIMITED }).await;
        harness.submit(1, launch("slow"));
        harness.submit(2, launch("two"));
        harness.wait_until(|state| !state.starts.is_empty()).await;
        harness.abandon(1);
        harness.abandon(2);
        let (job_id, result) = harness.wait_for_end().await;
        assert_eq!(job_id, 2);
        assert_cancelled(&result);
        // The instance of the call in flight is reported before the job ends, so that it can be deleted.
        assert_eq!(harness.next().await, (1, JobEvent::InstanceKnown(ExternalId::text("slow"))));
        let (job_id, result) = harness.wait_for_end().await;
        assert_eq!(job_id, 1);
        assert_cancelled(&result);
        assert_eq!(harness.starts().len(), 1, "the abandoned create is never sent");
        harness.submit(3, delete("slow"));
        assert_eq!(harness.wait_for_end().await, (3, Ok(Outcome::Deleted)));
    });
}

#[test]
fn a_cancelled_job_that_waits_for_its_server_ends_at_once() {
    on_paused_time(async {
        let mut harness = TaskManagerHarness::new(UNLIMITED).await;
        harness.submit(1, launch("one"));
        harness.next().await;
        harness.abandon(1);
        assert_cancelled(&harness.wait_for_end().await.1);
        harness.abandon(1);
        harness.submit(2, delete("one"));
        assert_eq!(harness.wait_for_end().await, (2, Ok(Outcome::Deleted)));
    });
}

#[test]
fn a_provider_that_stops_answers_every_open_job() {
    on_paused_time(async {
        let mut harness = TaskManagerHarness::new(RateLimits { in_flight: InFlightLimit::Fixed(1), ..UNLIMITED }).await;
        (0..5).for_each(|number| harness.submit(number, delete("slow")));
        harness.wait_until(|state| !state.starts.is_empty()).await;
        harness.handle.stop.do_send(Shutdown);
        for _ in 0..5 {
            assert_cancelled(&harness.wait_for_end().await.1);
        }
    });
}

#[test]
fn a_panic_in_a_driver_answers_every_open_job_and_is_reported() {
    on_paused_time(async {
        let mut harness = TaskManagerHarness::new(UNLIMITED).await;
        harness.submit(1, delete("slow"));
        harness.submit(2, launch("panic"));
        for _ in 0..2 {
            assert_cancelled(&harness.wait_for_end().await.1);
        }
        assert_eq!(harness.panics.panicked().await, "TaskManager cloud-a");
    });
}

#[test]
fn every_call_is_timed_and_counted_under_its_key() {
    on_paused_time(async {
        let mut harness = TaskManagerHarness::new(UNLIMITED).await;
        harness.submit(1, delete("unknown"));
        assert_eq!(harness.wait_for_end().await.1, Err(CloudError::not_found("gone")));
        let (timer, counter) = (harness.samples.try_recv().unwrap(), harness.samples.try_recv().unwrap());
        assert_eq!([timer.name, counter.name], ["nodepool.task.cloud-a.compute.DELETE.servers"; 2]);
        assert!((1000.0..1010.0).contains(&timer.value), "{}", timer.value);
        assert_eq!(counter.value, 1.0);
    });
}

#[test]
fn a_dump_shows_what_is_in_flight_and_what_waits() {
    on_paused_time(async {
        let harness = TaskManagerHarness::new(RateLimits { in_flight: InFlightLimit::Fixed(1), ..UNLIMITED }).await;
        harness.submit(1, delete("slow"));
        harness.submit(2, launch("two"));
        harness.wait_until(|state| !state.starts.is_empty()).await;
        let views = dump::collect(&harness.registry).await;
        let view = &views[0];
        assert_eq!((view["actor"].as_str(), view["name"].as_str()), (Some("TaskManager"), Some("cloud-a")));
        assert_eq!(view["lifecycle"], "serving");
        assert_eq!(view["in_flight"][0]["call"], "compute.DELETE.servers");
        assert_eq!(view["queued"], serde_json::json!({"change": 1, "read": 0, "bulk": 0}));
        assert_eq!(view["tasks"], 2);
        assert_eq!(view["jobs"][1]["job"], "launch");
        assert!(view["facts_age_s"].as_f64().is_some_and(|age| (0.0..60.0).contains(&age)), "{view}");
    });
}

#[test]
fn an_out_of_tree_driver_takes_precedence() {
    struct OutOfTreeDriver {
        state: Arc<Mutex<CloudState>>,
    }
    impl ExtraDrivers for OutOfTreeDriver {
        fn names(&self) -> Vec<&'static str> {
            vec!["static"]
        }
        fn open(&self, _: &ProviderConfig, start: StartProvider) -> Result<ProviderHandle, Vec<Diagnostic>> {
            Ok(start.with(Cloud { state: self.state.clone(), pace: UNLIMITED, started_at: Instant::now() }))
        }
    }
    on_paused_time(async {
        let state = Arc::new(Mutex::new(CloudState::default()));
        let section = provider_section(
            "labels: [{name: a}]
providers: [{name: mine, driver: static, pools: [{name: main, nodes: [{name: fake-host, labels: a}]}]}]",
        );
        let outside = OutOfTreeDriver { state: state.clone() };
        let mut provider =
            ProviderHarness::new(|deps| providers::start(&section, deps, Some(&outside)).expect("it starts"));
        assert!(matches!(provider.run(launch("one")).await, Ok(Outcome::Launched(_))));
        assert_eq!(provider.handle.provider, "mine".into());
        assert!(!state.lock().unwrap().starts.is_empty());
    });
}

// A suspended process does not know whether other launchers have taken over its work.
#[test]
fn mutating_calls_wait_until_the_session_is_known_alive() {
    on_paused_time(async {
        let zookeeper = MemoryZooKeeper::new();
        let session = zookeeper.connect();
        let fence = Fence::new(session.clone());
        let mut harness = TaskManagerHarness::with_fence(UNLIMITED, fence);
        harness.wait_for_refresh().await;
        zookeeper.suspend(session.session_id());
        // ZooKeeper keeps a session without heartbeats no longer than this.
        tokio::time::sleep(Duration::from_secs(10)).await;
        harness.submit(1, launch("one"));
        harness.submit(2, Job::List);
        assert!(matches!(harness.wait_for_end().await, (2, Ok(Outcome::Listed(_)))), "reading is not fenced");
        let started = |what: &str| harness.starts().iter().filter(|(_, name)| name == what).count();
        assert_eq!(
            (started("one"), started("before Create(\"one\")")),
            (0, 1),
            "only the preparation of the call is done"
        );
        zookeeper.resume(session.session_id());
        assert!(matches!(harness.wait_for_end().await, (1, Ok(Outcome::Launched(_)))));
        zookeeper.expire(session.session_id());
        harness.submit(3, delete("one"));
        harness.submit(4, Job::List);
        assert!(matches!(harness.wait_for_end().await, (4, Ok(Outcome::Listed(_)))));
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(harness.state.lock().unwrap().instances.len(), 1, "no call is sent after the session expired");
    });
}
