//! Contract of all drivers: the same tests for each, with one entry per driver in `contract/cases.rs`.
//!
//! The drivers run in the test's process and in real time. Those of OpenStack and Kubernetes use the simulated clouds,
//! which are processes of their own.

mod cases;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cases::{Case, ContractHarness, SimulatedCloud, drivers_under_test};
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::driver::{ApiCall, Driver};
use nodepool_driver::error::CloudError;
use nodepool_driver::instance::Instance;
use nodepool_driver::job::{Job, JobEvent, LaunchOrder, Outcome};
use nodepool_driver::state_machine::{InFlightLimit, Input, Next};
use nodepool_drivers::OpenDriver;
use nodepool_model::config::upload_config::{BUILD_MARK, PROVIDER_MARK, Progress, UPLOAD_MARK, UploadOrder};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::static_host::HostIdentity;
use serde_json::{Value, json};
use testkit::provider_harness::{ProviderHarness, launch, on_real_time, provider_section};
use tokio::time::{Instant, timeout};

fn upload(file: PathBuf, number: &str) -> Job {
    let marks = [(BUILD_MARK, "b1"), (UPLOAD_MARK, number), (PROVIDER_MARK, "contract")];
    let size = std::fs::metadata(&file).map_or(5, |metadata| metadata.len());
    Job::Upload(Arc::new(UploadOrder {
        image: "debian".into(),
        name: format!("contract-{number}"),
        file,
        size,
        format: "qcow2".to_owned(),
        meta: BTreeMap::from([("colour".to_owned(), serde_json::json!("blue"))]),
        marks: marks.map(|(mark, value)| (mark.to_owned(), value.to_owned())).into(),
        md5: None,
        sha256: None,
        may_exist: true,
        progress: Progress::default(),
    }))
}

/// Every job that a provider accepts.
fn jobs(case: &Case) -> Vec<Job> {
    let Job::Launch(order) = launch("contract-0000000001") else { unreachable!("launch makes a launch") };
    let retried = LaunchOrder { prior_instance: Some(ExternalId::text("no-such-id")), ..LaunchOrder::clone(&order) };
    let unknown_host = HostIdentity { name: String::from("unknown-host"), username: String::from("nobody"), port: 22 };
    let mut jobs = vec![
        Job::Refresh,
        Job::Launch(order),
        Job::Launch(Arc::new(retried)),
        Job::Delete(ExternalId::text("no-such-id")),
        Job::List,
        Job::ListServerIds,
        Job::Inspect(unknown_host.clone()),
        Job::Probe(unknown_host),
        Job::ListImages,
        Job::DeleteImage(ExternalId::text("no-such-id")),
        // This file does not exist.
        upload(PathBuf::from("/no/such/image.qcow2"), "0000000001"),
    ];
    jobs.extend(case.host.iter().flat_map(|host| [Job::Inspect(host.clone()), Job::Probe(host.clone())]));
    jobs
}

#[test]
fn the_contract_covers_every_built_driver() {
    let tested: Vec<&str> = drivers_under_test().iter().map(|case| case.driver).collect();
    assert_eq!(tested, nodepool_drivers::BUILT_IN_DRIVERS);
    for case in drivers_under_test() {
        assert_eq!(provider_section(case.config).driver, case.driver);
    }
}

#[test]
fn every_job_finishes_exactly_once_and_in_time() {
    for case in drivers_under_test() {
        on_real_time(async move {
            let ContractHarness { mut provider, cloud: _cloud } = case.start().await;
            for job in jobs(&case) {
                provider.submit(1, job.clone());
                let end = timeout(Duration::from_secs(30), provider.wait_for_end()).await;
                end.unwrap_or_else(|_| panic!("{}: {job:?} does not finish", case.driver)).1.ok();
            }
            // A late event of an earlier job would be received before the end of this refresh.
            provider.submit(2, Job::Refresh);
            assert!(
                matches!(provider.next().await, (2, JobEvent::Finished(_))),
                "{}: a job sent an event after its end",
                case.driver
            );
        });
    }
}

#[test]
fn deleting_a_missing_instance_succeeds_with_the_id_alone() {
    for case in drivers_under_test() {
        on_real_time(async move {
            let ContractHarness { mut provider, cloud: _cloud } = case.start().await;
            let object = serde_json::from_str(r#"{"name": "no-such-thing"}"#).unwrap();
            for id in [ExternalId::text("no-such-id"), ExternalId::Object(object)] {
                let result = provider.run(Job::Delete(id)).await;
                assert!(matches!(result, Ok(Outcome::Deleted) | Err(CloudError::NotFound(_))), "{}", case.driver);
            }
        });
    }
}

#[test]
fn an_image_is_uploaded_once_listed_with_metadata_and_deleted() {
    // The driver ibmvpc needs a bucket, and its images have no properties: tests/ibm/uploads.rs.
    for case in drivers_under_test().into_iter().filter(|case| case.driver != "ibmvpc") {
        on_real_time(async move {
            let ContractHarness { mut provider, cloud: _cloud } = case.start().await;
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("image.qcow2");
            // Azure takes whole sectors.
            std::fs::write(&file, "an image".repeat(128)).unwrap();
            let takes_images = provider.facts().upload_config.is_some();
            let uploaded = provider.run(upload(file.clone(), "0000000001")).await;
            let Ok(Outcome::Uploaded(id)) = uploaded else {
                return assert!(!takes_images && uploaded.is_err(), "{}: {uploaded:?}", case.driver);
            };
            assert!(takes_images, "{}", case.driver);
            let again = provider.run(upload(file.clone(), "0000000001")).await;
            assert_eq!(again, Ok(Outcome::Uploaded(id.clone())), "{}: the image exists already", case.driver);
            let other = provider.run(upload(file, "0000000002")).await;
            let Ok(Outcome::Uploaded(other)) = other else { panic!("{}: {other:?}", case.driver) };
            assert_ne!(id, other, "{}", case.driver);
            let list_ours = async |provider: &mut ProviderHarness| {
                let listed = provider.run(Job::ListImages).await;
                let Ok(Outcome::Images(images)) = listed else { panic!("{}: {listed:?}", case.driver) };
                let ours =
                    images.into_iter().filter(|image| image.meta.get(BUILD_MARK).is_some_and(|mark| mark == "b1"));
                ours.map(|image| (image.id.to_string(), image.name, image.meta.get("colour").cloned()))
                    .collect::<Vec<_>>()
            };
            let mut listed = list_ours(&mut provider).await;
            listed.sort();
            let mut expected = [(&id, "0000000001"), (&other, "0000000002")]
                .map(|(id, number)| (id.to_string(), format!("contract-{number}"), Some("blue".to_owned())));
            expected.sort();
            assert_eq!(listed, expected, "{}", case.driver);
            assert_eq!(provider.run(Job::DeleteImage(id.clone())).await, Ok(Outcome::Deleted), "{}", case.driver);
            let missing = provider.run(Job::DeleteImage(id.clone())).await;
            assert!(matches!(missing, Err(CloudError::NotFound(_))), "{}: {missing:?}", case.driver);
            assert_eq!(list_ours(&mut provider).await.len(), 1, "{}", case.driver);
        });
    }
}

#[test]
fn provider_facts_are_complete_after_a_refresh() {
    for case in drivers_under_test() {
        on_real_time(async move {
            let ContractHarness { mut provider, cloud: _cloud } = case.start().await;
            let before = provider.facts();
            assert_eq!(before.refreshed_at.0, 0.0);
            let pool = provider_section(case.config).pools.values().next().unwrap().clone();
            for label in &pool.labels {
                let is_known =
                    before.label_needs.contains_key(label) || before.launch_label(&pool.name, label).is_some();
                assert!(is_known, "{}: the needs of {label} are unknown", case.driver);
            }
            assert!(matches!(provider.run(Job::Refresh).await, Ok(Outcome::Refreshed(..))));
            let after = provider.facts();
            assert!(after.refreshed_at.0 > 0.0);
            assert_eq!(after.static_hosts.len(), before.static_hosts.len());
            assert_eq!(after.label_needs, before.label_needs);
            assert_eq!(after.launch_config.is_some(), before.launch_config.is_some());
        });
    }
}

#[test]
fn a_driver_without_launches_rejects_a_launch_permanently() {
    for case in drivers_under_test() {
        on_real_time(async move {
            let ContractHarness { mut provider, cloud: _cloud } = case.start().await;
            if provider.facts().launch_config.is_none() {
                assert!(matches!(provider.run(launch("one")).await, Err(CloudError::Denied(_))), "{}", case.driver);
            }
        });
    }
}

/// The drivers that launch instances of their own, each with its own provider.
fn launching() -> impl Iterator<Item = Case> {
    drivers_under_test().into_iter().filter(|case| !["static", "metastatic"].contains(&case.driver))
}

fn launch_order(hostname: &str) -> LaunchOrder {
    let Job::Launch(order) = launch(hostname) else { unreachable!("launch makes a launch") };
    let mut order = Arc::unwrap_or_clone(order);
    let node = hostname.trim_start_matches("np");
    let metadata = [("nodepool_node_id", node), ("nodepool_pool_name", "main"), ("nodepool_provider_name", "contract")];
    order.metadata.extend(metadata.map(|(key, value)| (key.to_owned(), value.to_owned())));
    order.identity = hostname.to_owned();
    order
}

async fn launched(provider: &mut ProviderHarness, hostname: &str) -> Instance {
    provider.wait_for_refresh().await;
    launched_as(provider, launch_order(hostname)).await
}

async fn launched_as(provider: &mut ProviderHarness, order: LaunchOrder) -> Instance {
    let hostname = order.hostname.clone();
    provider.submit(1, Job::Launch(Arc::new(order)));
    let mut known = None;
    loop {
        match provider.next().await.1 {
            JobEvent::InstanceKnown(id) => known = Some(id),
            // An existing instance is checked before it counts as ours.
            JobEvent::NoInstance => known = None,
            JobEvent::Finished(Ok(Outcome::Launched(instance))) => {
                assert_eq!(known.as_ref(), Some(&instance.external_id), "the id is reported before the end");
                return *instance;
            }
            other => panic!("{hostname}: {other:?}"),
        }
    }
}

async fn listed(provider: &mut ProviderHarness) -> Vec<Instance> {
    let Ok(Outcome::Refreshed(_, inventory)) = provider.run(Job::Refresh).await else { panic!("the refresh failed") };
    inventory.instances().to_vec()
}

#[test]
fn an_instance_is_listed_with_metadata_and_deleted_by_id() {
    for case in launching() {
        on_real_time(async move {
            let ContractHarness { mut provider, cloud: _cloud } = case.start().await;
            let instance = launched(&mut provider, "np0000000001").await;
            let found = listed(&mut provider).await;
            let found =
                found.iter().find(|other| other.external_id == instance.external_id).expect("the instance is listed");
            assert_eq!(found.metadata["nodepool_node_id"], "0000000001");
            assert!(instance.interface_ip.is_some(), "{}: {instance:?}", case.driver);
            assert!(!found.resources.is_empty(), "{}: {found:?}", case.driver);
            let id = instance.external_id;
            assert_eq!(provider.run(Job::Delete(id.clone())).await, Ok(Outcome::Deleted));
            assert!(listed(&mut provider).await.iter().all(|other| other.external_id != id));
        });
    }
}

#[test]
fn a_launch_of_an_existing_instance_creates_nothing() {
    for case in launching() {
        on_real_time(async move {
            let ContractHarness { mut provider, cloud: _cloud } = case.start().await;
            let instance = launched(&mut provider, "np0000000001").await;
            let again =
                LaunchOrder { prior_instance: Some(instance.external_id.clone()), ..launch_order("np0000000001") };
            let Ok(Outcome::Launched(found)) = provider.run(Job::Launch(Arc::new(again))).await else {
                panic!("{}: a running instance was not adopted", case.driver)
            };
            assert_eq!(found.external_id, instance.external_id);
            assert_eq!(listed(&mut provider).await.len(), 1);
        });
    }
}

#[test]
fn exceeding_the_quota_is_reported_as_a_quota_error() {
    for case in launching().filter(|case| case.is_limited) {
        on_real_time(async move {
            let ContractHarness { mut provider, cloud: _cloud } = case.start().await;
            for number in 1..=2 {
                launched(&mut provider, &format!("np{number}")).await;
            }
            let rejected = provider.run(Job::Launch(Arc::new(launch_order("np3")))).await;
            assert!(matches!(rejected, Err(CloudError::Quota(_))), "{}: {rejected:?}", case.driver);
        });
    }
}

#[test]
fn a_retried_launch_finds_the_instance_it_already_created() {
    for case in launching() {
        on_real_time(async move {
            let ContractHarness { mut provider, cloud: _cloud } = case.start().await;
            let instance = launched(&mut provider, "np0000000001").await;
            let again = LaunchOrder { may_exist: true, ..launch_order("np0000000001") };
            assert_eq!(launched_as(&mut provider, again).await.external_id, instance.external_id, "{}", case.driver);
            assert_eq!(listed(&mut provider).await.len(), 1);
            let other = LaunchOrder { may_exist: true, ..launch_order("np0000000002") };
            assert_ne!(launched_as(&mut provider, other).await.external_id, instance.external_id, "{}", case.driver);
        });
    }
}

#[test]
fn an_id_is_known_before_the_second_call_of_its_launch() {
    for case in launching() {
        on_real_time(async move {
            let cloud = case.cloud().await;
            case.open(cloud.as_ref(), ManualLaunch).await;
        });
    }
}

/// Runs a launch through its driver without a TaskManager.
struct ManualLaunch;

impl OpenDriver for ManualLaunch {
    type Out = LocalBoxFuture<'static, ()>;

    fn with<D: Driver>(self, driver: D) -> Self::Out {
        async move {
            run_query(&driver, &Job::Refresh).await;
            let mut machine = driver.begin(&Job::Launch(Arc::new(launch_order("np0000000001"))));
            let (mut calls, mut next) = (0, machine.step(Input::Start));
            loop {
                next = match next {
                    Next::Call(call) => {
                        calls += 1;
                        assert!(calls == 1 || machine.external_id().is_some(), "{call:?} before the id is known");
                        machine.step(Input::Reply(driver.call(call, &CallGuard::none()).await))
                    }
                    Next::Observe => {
                        let Outcome::Listed(inventory) = run_query(&driver, &Job::List).await else {
                            panic!("the listing failed")
                        };
                        machine.step(Input::Observed(&inventory))
                    }
                    Next::Done(_) => return,
                    Next::Failed(error) => panic!("{error}"),
                };
            }
        }
        .boxed_local()
    }
}

/// Runs a job that only reads.
async fn run_query<D: Driver>(driver: &D, job: &Job) -> Outcome {
    let mut machine = driver.begin(job);
    let mut next = machine.step(Input::Start);
    loop {
        next = match next {
            Next::Call(call) => machine.step(Input::Reply(driver.call(call, &CallGuard::none()).await)),
            Next::Done(outcome) => return outcome,
            Next::Failed(error) => panic!("{job:?}: {error}"),
            Next::Observe => panic!("{job:?} waits for an inventory"),
        };
    }
}

#[test]
fn a_list_that_could_not_be_read_completely_is_an_error() {
    for case in launching().filter(|case| case.driver == "openstack") {
        on_real_time(async move {
            let ContractHarness { mut provider, cloud } = case.start().await;
            let Some(SimulatedCloud::OpenStack(cloud)) = cloud else { panic!("the case has a simulated cloud") };
            launched(&mut provider, "np0000000001").await;
            launched(&mut provider, "np0000000002").await;
            let kinds = ["500 after=1", "404 after=1", "closed after=1", "html after=1", "truncated after=1"];
            let odd = ["redirect after=1", "missing-fields fields=servers after=1"];
            for kind in kinds.into_iter().chain(odd) {
                let faults: Value = json!([format!("{kind} path=/servers/detail$")]);
                cloud.knobs(json!({"page_size": 1, "faults": faults})).await;
                let listed = provider.run(Job::List).await;
                assert!(listed.is_err(), "{}: {kind}: {listed:?}", case.driver);
                let faults: Value = json!([format!("{kind} path=/servers$")]);
                cloud.knobs(json!({"page_size": 1, "faults": faults})).await;
                let called = provider.run(Job::ListServerIds).await;
                assert!(called.is_err(), "{}: {kind}: {called:?}", case.driver);
            }
            // A repeated link does no harm if the driver knows the last id of a page.
            cloud.knobs(json!({"faults": ["repeated-marker path=/servers/detail$"]})).await;
            let Ok(Outcome::Listed(inventory)) = provider.run(Job::List).await else { panic!("{}", case.driver) };
            assert_eq!(inventory.instances().len(), 2, "{}", case.driver);
        });
    }
}

#[test]
fn listing_server_ids_returns_every_instance() {
    for case in launching() {
        on_real_time(async move {
            let ContractHarness { mut provider, cloud } = case.start().await;
            for name in ["np0000000001", "np0000000002"] {
                launched(&mut provider, name).await;
            }
            if let Some(cloud) = &cloud {
                cloud.limit_pages().await;
            }
            let listed = provider.run(Job::List).await;
            let Ok(Outcome::Listed(inventory)) = listed else { panic!("{}: {listed:?}", case.driver) };
            let all: Vec<String> = inventory.instances().iter().map(|one| one.external_id.to_string()).collect();
            match provider.run(Job::ListServerIds).await {
                Ok(Outcome::ServerIds(ids)) => assert_eq!(BTreeSet::from_iter(ids), BTreeSet::from_iter(all)),
                Ok(Outcome::Listed(same)) => assert_eq!(same.instances().len(), all.len(), "{}", case.driver),
                other => panic!("{}: {other:?}", case.driver),
            }
            assert!(inventory.instances().len() >= 2, "{}", case.driver);
        });
    }
}

#[test]
fn calls_have_deadlines_and_statsd_names() {
    for case in drivers_under_test() {
        on_real_time(async move {
            let cloud = case.cloud().await;
            for job in jobs(&case) {
                case.open(cloud.as_ref(), FirstCall(job)).await;
            }
        });
    }
}

/// Performs the first call of a job.
struct FirstCall(Job);

impl OpenDriver for FirstCall {
    type Out = LocalBoxFuture<'static, ()>;

    fn with<D: Driver>(self, driver: D) -> Self::Out {
        let rate_limits = driver.rate_limits();
        assert!(rate_limits.in_flight != InFlightLimit::Fixed(0));
        async move {
            let mut machine = driver.begin(&self.0);
            let Next::Call(call) = machine.step(Input::Start) else { return };
            assert!(!machine.label().is_empty());
            let legal = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
            assert!(call.key().chars().all(legal) && call.key().contains('.'), "{}", call.key());
            let deadline = call.deadline();
            assert!(deadline.0 > 0.0 && deadline.0 < 86_400.0, "{:?}: {deadline:?}", self.0);
            let began = Instant::now();
            let name = call.key();
            let reply = timeout(deadline.to_duration(), driver.call(call, &CallGuard::none())).await;
            assert!(reply.is_ok(), "{name} is still running after {:?}", began.elapsed());
        }
        .boxed_local()
    }
}
