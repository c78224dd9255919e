//! Tests of a launch: one node from its creation to ready or failed, event by event.

use super::*;
use nodepool_driver::facts::{LabelImage, Login};

fn rules() -> LaunchConfig {
    LaunchConfig {
        attempts: 2,
        timeout: Seconds(100.0),
        boot_timeout: Seconds(60.0),
        zones: Vec::new(),
        resource_kinds: Vec::new(),
        labels: Default::default(),
    }
}

fn label(host_key_checking: bool) -> LaunchLabel {
    let login = Login { connection_type: Some("ssh".to_owned()), connection_port: 22, ..Login::default() };
    let image = LabelImage::Cloud("i".to_owned());
    LaunchLabel {
        need: None,
        image: Some(image),
        login,
        host_key_checking,
        console_log: false,
        unavailable: None,
        backing: None,
    }
}

fn order() -> LaunchOrder {
    LaunchOrder {
        pool: "main".into(),
        label: "a".into(),
        hostname: "np0000000001".to_owned(),
        identity: "identity".to_owned(),
        attempt: 1,
        zone: None,
        image: None,
        request: Arc::default(),
        metadata: Default::default(),
        prior_instance: None,
        may_exist: false,
        may_appear: false,
    }
}

fn begun(host_key_checking: bool) -> Launch {
    let (launch, effects) =
        Launch::begin(order(), &label(host_key_checking), &rules(), OnRefusal::Abort, MonotonicTime::at(0.0));
    assert_eq!(effects, [create()]);
    launch
}

fn create() -> LaunchEffect {
    LaunchEffect::Submit(Job::Launch(Arc::new(order())))
}

/// The creation after the instance of the last one was deleted.
fn create_again() -> LaunchEffect {
    LaunchEffect::Submit(Job::Launch(Arc::new(LaunchOrder { attempt: 2, ..order() })))
}

fn delete(id: &str) -> LaunchEffect {
    LaunchEffect::Submit(Job::Delete(ExternalId::text(id)))
}

fn ended(result: Result<Outcome, CloudError>) -> LaunchEvent {
    LaunchEvent::JobUpdate(JobEvent::Finished(result))
}

fn known(id: &str) -> LaunchEvent {
    LaunchEvent::JobUpdate(JobEvent::InstanceKnown(ExternalId::text(id)))
}

fn report(result: &'static str, took: f64) -> LaunchEffect {
    LaunchEffect::Report { result, took: Seconds(took), zone: None }
}

fn failure() -> CloudError {
    CloudError::Failed { kind: FailureKind::Status, detail: "server in error state".to_owned() }
}

fn launched() -> (Box<Instance>, LaunchEvent) {
    let mut instance = Instance::new(ExternalId::text("s1"));
    instance.interface_ip = Some("127.80.0.5".to_owned());
    let instance = Box::new(instance);
    (instance.clone(), ended(Ok(Outcome::Launched(instance))))
}

#[test]
fn what_belongs_to_others_is_neither_recorded_nor_deleted() {
    let mut launch = begun(false);
    launch.step(known("s1"), MonotonicTime::at(1.0));
    let effects = launch.step(LaunchEvent::JobUpdate(JobEvent::NoInstance), MonotonicTime::at(1.0));
    assert_eq!((effects, launch.recorded_id()), (vec![LaunchEffect::ForgetId], RecordedId::Void));
    let effects = launch.step(ended(Err(failure())), MonotonicTime::at(2.0));
    assert!(!effects.contains(&delete("s1")), "{effects:?}");
}

#[test]
fn without_a_check_a_running_instance_is_ready() {
    let mut launch = begun(false);
    assert_eq!(launch.step(known("s1"), MonotonicTime::at(1.0)), [LaunchEffect::SaveId(ExternalId::text("s1"))]);
    let (instance, input) = launched();
    let ready = LaunchEffect::Finished(LaunchOutcome::Ready { instance, host_keys: vec![] });
    assert_eq!(launch.step(input, MonotonicTime::at(2.0)), [report("ready", 2.0), ready]);
    assert!(launch.is_finished() && launch.due().is_none());
}

#[test]
fn host_keys_are_gathered_before_ready() {
    let mut launch = begun(true);
    let (instance, input) = launched();
    let effects = launch.step(input, MonotonicTime::at(2.0));
    let target = ScanTarget {
        attempt: 1,
        address: "127.80.0.5".to_owned(),
        port: 22,
        gathers_keys: true,
        timeout: Seconds(60.0),
    };
    assert_eq!(effects, [LaunchEffect::SaveId(ExternalId::text("s1")), LaunchEffect::Scan(target)]);
    let host_keys = vec!["ssh-ed25519 AAAA".to_owned()];
    let effects = launch.step(LaunchEvent::Scanned(1, Ok(host_keys.clone())), MonotonicTime::at(3.0));
    assert_eq!(effects, [report("ready", 3.0), LaunchEffect::Finished(LaunchOutcome::Ready { instance, host_keys })]);
}

#[test]
fn the_instance_of_a_failed_attempt_is_deleted_before_the_next_attempt() {
    let mut launch = begun(false);
    launch.step(known("s1"), MonotonicTime::at(1.0));
    let effects = launch.step(ended(Err(failure())), MonotonicTime::at(2.0));
    assert_eq!(effects, [report("error.status", 2.0), delete("s1")]);
    // The deletion fails and is retried.
    assert_eq!(launch.step(ended(Err(CloudError::Deadline)), MonotonicTime::at(3.0)), []);
    assert_eq!(launch.due(), Some(MonotonicTime::at(8.0)));
    assert_eq!(launch.step(LaunchEvent::Clock, MonotonicTime::at(7.9)), []);
    assert_eq!(launch.step(LaunchEvent::Clock, MonotonicTime::at(8.0)), [delete("s1")]);
    assert_eq!(launch.step(ended(Err(CloudError::not_found("gone"))), MonotonicTime::at(9.0)), [create_again()]);
    let effects = launch.step(ended(Err(failure())), MonotonicTime::at(10.0));
    assert_eq!(effects, [report("error.status", 10.0), LaunchEffect::Finished(LaunchOutcome::Failed(failure()))]);
}

#[test]
fn an_attempt_without_an_instance_is_followed_by_the_next_at_once() {
    let mut launch = begun(false);
    let effects = launch.step(ended(Err(CloudError::Capacity("full".to_owned()))), MonotonicTime::at(1.0));
    let next = Arc::new(LaunchOrder { may_exist: true, attempt: 2, ..order() });
    assert_eq!(effects, [report("error.capacity", 1.0), LaunchEffect::Submit(Job::Launch(next))]);
}

#[test]
fn over_quota_is_no_failure() {
    let mut launch = begun(false);
    let effects = launch.step(ended(Err(CloudError::Quota("cores".to_owned()))), MonotonicTime::at(1.0));
    assert_eq!(
        effects,
        [report("error.quota", 1.0), LaunchEffect::Finished(LaunchOutcome::Aborted("cores".to_owned()))]
    );
}

#[test]
fn an_attempt_that_times_out_is_cancelled_and_its_instance_deleted() {
    let mut launch = begun(false);
    assert_eq!(launch.step(LaunchEvent::Clock, MonotonicTime::at(100.0)), [LaunchEffect::Abandon]);
    // The cancelled job still reports an instance.
    let effects = launch.step(launched().1, MonotonicTime::at(101.0));
    let deletion =
        [LaunchEffect::SaveId(ExternalId::text("s1")), report("error.servercreatetimeout", 101.0), delete("s1")];
    assert_eq!(effects, deletion);
    // The deletion times out: the node fails, and the clean-up deletes its instance.
    let effects = launch.step(LaunchEvent::Clock, MonotonicTime::at(201.0));
    let ended = LaunchEffect::Finished(LaunchOutcome::Failed(timeout_error()));
    assert_eq!(effects, [LaunchEffect::Abandon, report("error.servercreatetimeout", 201.0), ended]);
}

#[test]
fn a_scan_that_fails_costs_the_attempt() {
    let mut launch = begun(true);
    launch.step(launched().1, MonotonicTime::at(1.0));
    let effects = launch.step(LaunchEvent::Scanned(1, Err("refused".to_owned())), MonotonicTime::at(61.0));
    assert_eq!(effects, [report("error.keyscan", 61.0), delete("s1")]);
}

// The console is read before its server is deleted; a failed read does not stop the deletion.
#[test]
fn console_log_shows_the_console_after_a_failed_scan() {
    for (answer, show_count) in [(Ok(Outcome::Console(Some("panic".to_owned()))), 1), (Err(CloudError::Deadline), 0)] {
        let label = LaunchLabel { console_log: true, ..label(true) };
        let (mut launch, _) = Launch::begin(order(), &label, &rules(), OnRefusal::Abort, MonotonicTime::at(0.0));
        launch.step(launched().1, MonotonicTime::at(1.0));
        let effects = launch.step(LaunchEvent::Scanned(1, Err("refused".to_owned())), MonotonicTime::at(61.0));
        assert_eq!(effects, [LaunchEffect::Submit(Job::Console(ExternalId::text("s1")))]);
        let effects = launch.step(ended(answer), MonotonicTime::at(62.0));
        assert_eq!(effects[show_count..], [report("error.keyscan", 62.0), delete("s1")]);
        let show = LaunchEffect::ShowConsole { external_id: ExternalId::text("s1"), text: "panic".to_owned() };
        assert!(effects[..show_count].iter().all(|effect| *effect == show));
    }
}

#[test]
fn a_scan_of_an_abandoned_attempt_does_not_affect_the_next() {
    let mut launch = begun(true);
    launch.step(launched().1, MonotonicTime::at(1.0));
    let effects = launch.step(LaunchEvent::Clock, MonotonicTime::at(100.0));
    assert_eq!(effects, [report("error.servercreatetimeout", 100.0), delete("s1")]);
    assert_eq!(launch.step(ended(Ok(Outcome::Deleted)), MonotonicTime::at(101.0)), [create_again()]);
    launch.step(launched().1, MonotonicTime::at(102.0));
    assert_eq!(launch.step(LaunchEvent::Scanned(1, Err("timeout".to_owned())), MonotonicTime::at(103.0)), []);
    assert_eq!(launch.step(LaunchEvent::Scanned(2, Ok(Vec::new())), MonotonicTime::at(104.0)).len(), 2);
}

// After a crash, one server may be recorded, and a second one may have been created since.
#[test]
fn an_unrecorded_instance_is_searched_for_after_the_recorded_one() {
    let known = LaunchOrder { prior_instance: Some(ExternalId::text("s1")), may_exist: true, ..order() };
    let (mut launch, _) = Launch::begin(known, &label(false), &rules(), OnRefusal::Abort, MonotonicTime::at(0.0));
    assert_eq!(launch.step(ended(Err(CloudError::not_found("gone"))), MonotonicTime::at(1.0))[1..], [delete("s1")]);
    let next = Arc::new(LaunchOrder { may_exist: true, attempt: 2, ..order() });
    let effects = launch.step(ended(Err(CloudError::not_found("gone"))), MonotonicTime::at(2.0));
    assert_eq!(effects, [LaunchEffect::Submit(Job::Launch(next))]);
}

#[test]
fn an_abandoned_node_ends_when_its_job_ends() {
    let mut launch = begun(false);
    assert_eq!(launch.step(LaunchEvent::Abandon, MonotonicTime::at(1.0)), [LaunchEffect::Abandon]);
    assert_eq!(launch.step(known("s1"), MonotonicTime::at(1.5)), [LaunchEffect::SaveId(ExternalId::text("s1"))]);
    let abandoned = CloudError::abandoned("abandoned");
    assert_eq!(
        launch.step(ended(Err(abandoned)), MonotonicTime::at(2.0)),
        [LaunchEffect::Finished(LaunchOutcome::Abandoned)]
    );
}
