//! What every driver promises, whatever its cloud: one line per driver in `drivers`, the same cases for all.

mod provider;

use std::sync::Arc;
use std::time::Duration;

use nodepool::drivers::{self, ApiCall, Driver, OpenDriver};
use nodepool::model::cloud::{CloudError, ExternalId, HostIdentity, Instance, Job, LaunchOrder, News, Outcome};
use nodepool::model::config::ProviderConfig;
use nodepool::policy::machine::{InFlight, Input, Next, StateMachine};
use provider::{Provider, launch, on_real_time, provider_section};
use tokio::time::{Instant, timeout};

struct Case {
    driver: &'static str,
    config: &'static str,
    /// A host that the configuration names, for drivers that have such.
    host: Option<HostIdentity>,
}

fn drivers_under_test() -> Vec<Case> {
    let fake = Case {
        driver: "fake",
        config: "labels: [{name: small}]
providers:
  - name: contract
    driver: fake
    cloud: fake
    fake: {max-instances: 2}
    cloud-images: [{name: image}]
    pools:
      - name: main
        labels: [{name: small, cloud-image: image, flavor-name: Fake Flavor}]
",
        host: None,
    };
    let statics = Case {
        driver: "static",
        config: "labels: [{name: small}]
providers:
  - name: contract
    driver: static
    pools:
      - name: main
        nodes:
          - {name: fake-host, labels: small, timeout: 1}
          - {name: 127.0.0.1, labels: small, connection-port: 1, timeout: 1}
",
        host: Some(HostIdentity { name: String::from("127.0.0.1"), username: String::from("zuul"), port: 1 }),
    };
    vec![statics, fake]
}

/// Every job a provider may be given.
fn jobs(case: &Case) -> Vec<Job> {
    let Job::Launch(order) = launch("contract-0000000001") else { unreachable!("launch makes a launch") };
    let found = LaunchOrder { found: Some(ExternalId::text("no-such-id")), ..*order.clone() };
    let stranger = HostIdentity { name: String::from("stranger"), username: String::from("nobody"), port: 22 };
    let mut jobs = vec![
        Job::Survey,
        Job::Launch(order),
        Job::Launch(Box::new(found)),
        Job::Delete(ExternalId::text("no-such-id")),
        Job::Inspect(stranger.clone()),
        Job::Probe(stranger),
    ];
    jobs.extend(case.host.iter().flat_map(|host| [Job::Inspect(host.clone()), Job::Probe(host.clone())]));
    jobs
}

#[test]
fn every_built_driver_is_held_to_the_contract() {
    let tested: Vec<&str> = drivers_under_test().iter().map(|case| case.driver).collect();
    assert_eq!(tested, drivers::BUILT);
    for case in drivers_under_test() {
        assert_eq!(provider_section(case.config).driver, case.driver);
    }
}

#[test]
fn every_job_ends_exactly_once_and_soon() {
    for case in drivers_under_test() {
        on_real_time(async move {
            let mut provider = Provider::of_config(case.config);
            for job in jobs(&case) {
                provider.submit(1, job.clone());
                let end = timeout(Duration::from_secs(30), provider.end()).await;
                end.unwrap_or_else(|_| panic!("{}: {job:?} does not end", case.driver)).1.ok();
            }
            // Whatever came late for an earlier job would be heard before the end of this one.
            provider.submit(2, Job::Survey);
            assert!(matches!(provider.next().await, (2, News::Ended(_))), "{}: news after the end", case.driver);
        });
    }
}

#[test]
fn deleting_what_is_not_there_is_no_failure_and_needs_only_the_id() {
    for case in drivers_under_test() {
        on_real_time(async move {
            let mut provider = Provider::of_config(case.config);
            let object = serde_json::from_str(r#"{"name": "no-such-thing"}"#).unwrap();
            for id in [ExternalId::text("no-such-id"), ExternalId::Object(object)] {
                let result = provider.run(Job::Delete(id)).await;
                assert!(matches!(result, Ok(Outcome::Deleted) | Err(CloudError::NotFound)), "{}", case.driver);
            }
        });
    }
}

#[test]
fn facts_are_unseen_until_a_survey_and_complete_after_it() {
    for case in drivers_under_test() {
        on_real_time(async move {
            let mut provider = Provider::of_config(case.config);
            let before = provider.facts();
            assert_eq!(before.seen_at.0, 0.0);
            let pool = provider_section(case.config).pools.values().next().unwrap().clone();
            for label in &pool.labels {
                let is_known =
                    before.label_needs.contains_key(label) || before.launch_label(&pool.name, label).is_some();
                assert!(is_known, "{}: what does {label} need?", case.driver);
            }
            assert!(matches!(provider.run(Job::Survey).await, Ok(Outcome::Surveyed(_))));
            let after = provider.facts();
            assert!(after.seen_at.0 > 0.0);
            assert_eq!(after.standing.len(), before.standing.len());
            assert_eq!(after.label_needs, before.label_needs);
            assert_eq!(after.launching.is_some(), before.launching.is_some());
        });
    }
}

#[test]
fn a_driver_without_launches_refuses_one_for_good_instead_of_trying() {
    for case in drivers_under_test() {
        on_real_time(async move {
            let mut provider = Provider::of_config(case.config);
            if provider.facts().launching.is_none() {
                assert!(matches!(provider.run(launch("one")).await, Err(CloudError::Denied(_))), "{}", case.driver);
            }
        });
    }
}

/// The drivers that launch nodes, each with a provider of its own.
fn launching() -> impl Iterator<Item = Case> {
    drivers_under_test().into_iter().filter(|case| case.driver != "static")
}

async fn launched(provider: &mut Provider, hostname: &str) -> Instance {
    let Job::Launch(mut order) = launch(hostname) else { unreachable!("launch makes a launch") };
    order.metadata.insert("nodepool_node_id".to_owned(), hostname.to_owned());
    provider.submit(1, Job::Launch(order));
    let mut known = None;
    loop {
        match provider.next().await.1 {
            News::Known(id) => known = Some(id),
            News::Ended(Ok(Outcome::Launched(instance))) => {
                assert_eq!(known.as_ref(), Some(&instance.external_id), "told before the end");
                return *instance;
            }
            other => panic!("{hostname}: {other:?}"),
        }
    }
}

async fn listed(provider: &mut Provider) -> Vec<Instance> {
    let Ok(Outcome::Surveyed(facts)) = provider.run(Job::Survey).await else { panic!("the survey fails") };
    facts.inventory.instances.clone()
}

#[test]
fn what_is_launched_is_listed_with_its_metadata_and_deleted_by_its_id() {
    for case in launching() {
        on_real_time(async move {
            let mut provider = Provider::of_config(case.config);
            let instance = launched(&mut provider, "np0000000001").await;
            let found = listed(&mut provider).await;
            let found = found.iter().find(|other| other.external_id == instance.external_id).expect("it is listed");
            assert_eq!(found.metadata["nodepool_node_id"], "np0000000001");
            assert!(found.interface_ip.is_some() && !found.amounts.is_empty(), "{}: {found:?}", case.driver);
            let id = instance.external_id;
            assert_eq!(provider.run(Job::Delete(id.clone())).await, Ok(Outcome::Deleted));
            assert!(listed(&mut provider).await.iter().all(|other| other.external_id != id));
        });
    }
}

#[test]
fn a_launch_of_what_was_found_creates_nothing() {
    for case in launching() {
        on_real_time(async move {
            let mut provider = Provider::of_config(case.config);
            let instance = launched(&mut provider, "np0000000001").await;
            let Job::Launch(order) = launch("np0000000001") else { unreachable!("launch makes a launch") };
            let again = LaunchOrder { found: Some(instance.external_id.clone()), ..*order };
            let Ok(Outcome::Launched(found)) = provider.run(Job::Launch(Box::new(again))).await else {
                panic!("{}: it runs, so it can be continued with", case.driver)
            };
            assert_eq!(found.external_id, instance.external_id);
            assert_eq!(listed(&mut provider).await.len(), 1);
        });
    }
}

#[test]
fn what_is_over_the_quota_is_told_as_that() {
    for case in launching() {
        on_real_time(async move {
            let mut provider = Provider::of_config(case.config);
            for number in 1..=2 {
                launched(&mut provider, &format!("np{number}")).await;
            }
            let refused = provider.run(launch("np3")).await;
            assert!(matches!(refused, Err(CloudError::Quota(_))), "{}: {refused:?}", case.driver);
        });
    }
}

#[test]
fn calls_end_by_deadlines_they_state_and_have_names_for_statsd() {
    for case in drivers_under_test() {
        let section = provider_section(case.config);
        for job in jobs(&case) {
            drivers::open(&section, CallOf { job, section: section.clone() }).unwrap();
        }
    }
}

/// Performs the first call of a job.
struct CallOf {
    job: Job,
    section: Arc<ProviderConfig>,
}

impl OpenDriver for CallOf {
    type Out = ();

    fn with<D: Driver>(self, driver: D) {
        let pace = driver.pace();
        assert!(pace.spacing.0 >= 0.0 && pace.in_flight != InFlight::Pinned(0));
        let mut machine = driver.begin(&self.job);
        let Next::Call(call) = machine.step(Input::Start) else { return };
        assert!(!machine.label().is_empty());
        let legal = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        assert!(call.key().chars().all(legal) && call.key().contains('.'), "{}", call.key());
        let deadline = call.deadline();
        assert!(deadline.0 > 0.0 && deadline.0 < 86_400.0, "{}: {deadline:?}", self.section.driver);
        on_real_time(async move {
            let began = Instant::now();
            let name = call.key();
            let ended = timeout(deadline.to_duration(), driver.call(call)).await;
            assert!(ended.is_ok(), "{name} is still running after {:?}", began.elapsed());
        });
    }
}
