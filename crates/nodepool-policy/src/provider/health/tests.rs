//! Tests of a provider's health: outages and refusals, event by event.

use super::*;
use nodepool_driver::facts::{LabelImage, LaunchConfig, LaunchLabel, Login};
use nodepool_model::records::resources::Resources;
use std::sync::Arc;

const WALL: Timestamp = Timestamp(1000.0);

fn outage_error() -> CloudError {
    CloudError::Outage { detail: "503 Service Unavailable".to_owned(), may_have_worked: true }
}

fn down() -> ProviderHealth {
    let mut health = ProviderHealth::default();
    health.call_failed(&outage_error(), Seconds(10.0));
    health.probe_started();
    assert_eq!(health.listing_ended(Some(&outage_error()), Seconds(10.5), WALL), OutageChange::Began);
    health
}

#[test]
fn a_failed_call_is_checked_by_a_listing_at_once() {
    let mut health = ProviderHealth::default();
    assert_eq!(health.probe_due(), None);
    health.call_failed(&CloudError::not_found("gone"), Seconds(9.0));
    assert_eq!(health.probe_due(), None);
    health.call_failed(&CloudError::Deadline, Seconds(10.0));
    assert!(health.is_suspected() && !health.is_down());
    assert_eq!(health.probe_due(), Some(Seconds(10.0)));
    health.probe_started();
    assert_eq!(health.probe_due(), None);
    assert_eq!(health.rejection(&"a".into()), None);
    assert_eq!(health.listing_ended(None, Seconds(10.5), WALL), OutageChange::Cleared);
    assert_eq!(health.health(), CloudHealth::default());
}

#[test]
fn a_listing_fails_twice_before_it_counts_as_an_outage() {
    let mut health = ProviderHealth::default();
    assert_eq!(health.listing_ended(Some(&outage_error()), Seconds(1.0), WALL), OutageChange::None);
    assert_eq!(health.probe_due(), Some(Seconds(1.0)));
    assert_eq!(health.listing_ended(Some(&outage_error()), Seconds(1.0), WALL), OutageChange::Began);
}

#[test]
fn probes_of_an_outage_double_up_to_30_seconds() {
    let mut health = down();
    let mut now = 10.5;
    for delay in [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0] {
        now += delay;
        assert_eq!(health.probe_due(), Some(Seconds(now)));
        health.probe_started();
        assert_eq!(health.listing_ended(Some(&CloudError::Deadline), Seconds(now), WALL), OutageChange::None);
    }
    let outage = Outage { since: WALL, error: "deadline passed".to_owned() };
    assert_eq!(health.health().outage, Some(outage));
    assert!(matches!(health.rejection(&"a".into()), Some(CloudError::Outage { .. })));
    assert_eq!(health.listing_ended(None, Seconds(now), WALL), OutageChange::Ended);
    assert_eq!(health.probe_due(), None);
    assert_eq!(health.rejection(&"a".into()), None);
}

#[test]
fn a_cloud_that_denies_a_listing_responds() {
    let denied = CloudError::Denied("401".to_owned());
    assert_eq!(down().listing_ended(Some(&denied), Seconds(20.0), WALL), OutageChange::Ended);
}

#[test]
fn a_throttled_listing_decides_nothing() {
    let throttled = CloudError::Throttled { retry_after: Seconds(1.0) };
    assert_eq!(down().listing_ended(Some(&throttled), Seconds(20.0), WALL), OutageChange::None);
    let mut health = ProviderHealth::default();
    assert_eq!(health.listing_ended(Some(&throttled), Seconds(1.0), WALL), OutageChange::None);
    assert!(!health.is_suspected());
    health.call_failed(&outage_error(), Seconds(2.0));
    assert_eq!(health.listing_ended(Some(&throttled), Seconds(2.0), WALL), OutageChange::None);
    assert!(health.is_suspected());
    assert_eq!(health.probe_due(), Some(Seconds(3.0)));
}

struct Launches {
    health: ProviderHealth,
    facts: ProviderFacts,
}

impl Launches {
    fn new() -> Self {
        let label = |need: Resources| LaunchLabel {
            need: Some(need),
            image: Some(LabelImage::Cloud("i".to_owned())),
            login: Login::default(),
            host_key_checking: false,
            console_log: false,
            unavailable: None,
            backing: None,
        };
        let server = || Resources::none().with("instances", 1.0).with("cores", 4.0);
        let labels = [
            ("small".into(), label(server())),
            ("disk".into(), label(server().with("volumes", 1.0).with("volume-gb", 9.0))),
        ];
        let config = LaunchConfig {
            attempts: 1,
            timeout: Seconds(1.0),
            boot_timeout: Seconds(1.0),
            zones: Vec::new(),
            resource_kinds: Vec::new(),
            labels: [("main".into(), labels.into())].into(),
        };
        let facts = ProviderFacts { launch_config: Some(Arc::new(config)), ..ProviderFacts::initial() };
        Self { health: ProviderHealth::default(), facts }
    }

    fn refuse(&mut self, label: &str, reason: &str, began: f64, now: f64) {
        let refused = RefusedLaunch { label: &label.into(), reason, instance: None, began: Seconds(began) };
        self.health.refused(refused, &self.facts, Seconds(now), WALL);
    }

    fn refuse_later(&mut self, instance: &str, began: f64, now: f64) {
        let (label, instance) = ("small".into(), ExternalId::text(instance));
        let refused =
            RefusedLaunch { label: &label, reason: "ports", instance: Some(&instance), began: Seconds(began) };
        self.health.refused(refused, &self.facts, Seconds(now), WALL);
    }

    fn accept(&mut self, began: f64, now: f64) {
        self.health.accepted(&"small".into(), Decision::Creation, Seconds(began), Seconds(now));
    }

    fn window(&self) -> Option<usize> {
        self.health.health().full.map(|full| full.window)
    }

    fn advance(&mut self, now: f64) {
        assert!(self.health.due().is_some_and(|due| due <= Seconds(now)), "{:?}", self.health.due());
        self.health.advance(Seconds(now));
    }
}

#[test]
fn probes_of_a_full_cloud_double_up_to_60_seconds() {
    let mut launches = Launches::new();
    launches.refuse("small", "Quota exceeded for ports", 0.0, 1.0);
    let mut now = 1.0;
    for delay in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0] {
        assert_eq!(launches.window(), Some(0));
        assert!(matches!(launches.health.rejection(&"disk".into()), Some(CloudError::Quota(_))));
        assert_eq!(launches.health.due(), Some(Seconds(now + delay)));
        launches.health.advance(Seconds(now + delay - 0.1));
        assert_eq!(launches.window(), Some(0));
        now += delay;
        launches.advance(now);
        assert_eq!(launches.window(), Some(1));
        assert_eq!(launches.health.rejection(&"small".into()), None);
        launches.refuse("small", "Quota exceeded for ports", now, now);
    }
    let full = launches.health.health().full.unwrap();
    assert_eq!((full.since, full.reason.as_str()), (WALL, "Quota exceeded for ports"));
}

#[test]
fn launches_that_began_before_the_refusal_change_nothing() {
    let mut launches = Launches::new();
    launches.refuse("small", "ports", 0.0, 1.0);
    launches.refuse("small", "ports", 0.0, 1.5);
    launches.accept(0.9, 1.7);
    assert_eq!((launches.window(), launches.health.due()), (Some(0), Some(Seconds(2.0))));
}

#[test]
fn after_a_success_two_launches_may_begin_then_four() {
    let mut launches = Launches::new();
    launches.refuse("small", "ports", 0.0, 1.0);
    launches.advance(2.0);
    let windows = [3.0, 4.0, 5.0, 6.0].map(|now| {
        launches.accept(2.0, now);
        launches.window().unwrap()
    });
    assert_eq!(windows, [2, 2, 4, 4]);
    assert_eq!(launches.health.health().full.unwrap().accepted, 4);
    launches.refuse("small", "ports", 5.0, 7.0);
    assert_eq!((launches.window(), launches.health.due()), (Some(0), Some(Seconds(8.0))));
}

#[test]
fn a_refusal_ends_after_a_minute_of_success() {
    let mut launches = Launches::new();
    launches.refuse("small", "ports", 0.0, 1.0);
    launches.advance(2.0);
    launches.accept(2.0, 3.0);
    assert_eq!(launches.health.due(), Some(Seconds(63.0)));
    launches.advance(63.0);
    assert_eq!(launches.health.health(), CloudHealth::default());
    assert_eq!(launches.health.due(), None);
}

#[test]
fn a_probe_that_nothing_needs_is_forgotten() {
    let mut launches = Launches::new();
    launches.refuse("small", "ports", 0.0, 1.0);
    launches.advance(2.0);
    launches.advance(302.0);
    assert_eq!(launches.window(), None);
}

#[test]
fn a_deletion_triggers_a_probe_at_once() {
    let mut launches = Launches::new();
    launches.refuse("small", "ports", 0.0, 1.0);
    launches.advance(2.0);
    launches.refuse("small", "ports", 2.0, 2.0);
    let delete = |launches: &mut Launches, now| launches.health.deleted(&ExternalId::text("x"), Seconds(now));
    delete(&mut launches, 2.1);
    assert_eq!(launches.window(), Some(1));
    // A probe in vain does not raise the delay, but further deletions trigger one only after a second.
    launches.refuse("small", "ports", 2.1, 2.2);
    assert_eq!(launches.health.due(), Some(Seconds(4.2)));
    delete(&mut launches, 2.3);
    assert_eq!((launches.window(), launches.health.due()), (Some(0), Some(Seconds(3.2))));
    launches.advance(3.2);
    assert_eq!(launches.window(), Some(1));
}

#[test]
fn the_deletion_of_a_refused_instance_triggers_no_probe() {
    let mut launches = Launches::new();
    launches.refuse_later("x", 0.0, 1.0);
    launches.health.deleted(&ExternalId::text("x"), Seconds(1.1));
    assert_eq!(launches.window(), Some(0));
    launches.health.deleted(&ExternalId::text("y"), Seconds(1.1));
    assert_eq!(launches.window(), Some(1));
}

#[test]
fn a_creation_proves_nothing_if_the_cloud_refuses_later() {
    let mut launches = Launches::new();
    launches.refuse_later("x", 0.0, 1.0);
    launches.advance(2.0);
    launches.accept(2.0, 2.1);
    assert_eq!(launches.window(), Some(1));
    launches.refuse("small", "ports", 3.0, 3.1);
    launches.advance(5.2);
    launches.accept(5.2, 5.3);
    assert_eq!(launches.window(), Some(1), "some refusals come at once, others later");
    launches.health.accepted(&"small".into(), Decision::Ready, Seconds(5.2), Seconds(9.0));
    assert_eq!(launches.window(), Some(2));
}

#[test]
fn a_resource_that_only_one_label_needs_concerns_that_label() {
    let mut launches = Launches::new();
    launches.refuse("disk", "VolumeLimitExceeded: Maximum number of volumes allowed (10) exceeded", 0.0, 1.0);
    let health = launches.health.health();
    assert_eq!(health.full, None);
    assert_eq!(health.full_labels.keys().map(LabelName::as_str).collect::<Vec<_>>(), ["disk"]);
    assert_eq!(launches.health.rejection(&"small".into()), None);
    assert!(launches.health.rejection(&"disk".into()).is_some());
    launches.refuse("disk", "Quota exceeded for cores", 2.0, 3.0);
    assert_eq!(launches.window(), Some(0));
    assert!(launches.health.rejection(&"small".into()).is_some());
}
