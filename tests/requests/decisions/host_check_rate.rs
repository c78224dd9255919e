//! Rate at which static hosts are checked again after a failed check.

use std::collections::VecDeque;
use std::sync::Arc;

use nodepool_model::records::ids::ProviderName;
use nodepool_model::records::static_host::HostCheck;
use nodepool_model::records::time::Seconds;
use nodepool_policy::cleanup::planner::{CleanupPlanner, Effect, Event};
use testkit::fixtures::{FixtureSpec, build};

#[test]
fn checks_of_hundreds_of_dead_hosts_are_spread_out() {
    let hosts = (0..120).map(|number| format!("h{number} labels=a check=failed")).collect();
    let mut built = build(&FixtureSpec { hosts, ..FixtureSpec::default() });
    let mut planner = CleanupPlanner::new(Seconds(28_800.0));
    let inspected = |effects: Vec<Effect>| {
        let host = |effect| match effect {
            Effect::Inspect { host, .. } => host,
            other => panic!("{other:?}"),
        };
        effects.into_iter().map(host).collect::<VecDeque<_>>()
    };
    let mut in_flight = inspected(planner.step(Event::Sweep, &built.inputs()));
    assert_eq!(in_flight.len(), 50);
    assert!(inspected(planner.step(Event::Sweep, &built.inputs())).is_empty(), "the next sweep adds none");
    // A host that passes a check of the pool meanwhile is not checked again.
    let provider = ProviderName::from("lab");
    let last = built.facts[&provider].static_hosts[119].identity.clone();
    Arc::make_mut(built.facts.get_mut(&provider).unwrap()).record_check(&last, HostCheck::Pending);
    let mut checked = 0;
    while let Some(host) = in_flight.pop_front() {
        checked += 1;
        in_flight.extend(inspected(planner.step(Event::Inspected(provider.clone(), host), &built.inputs())));
        assert!(in_flight.len() <= 50);
    }
    assert_eq!(checked, 119);
    assert_eq!(inspected(planner.step(Event::Sweep, &built.inputs())).len(), 50, "every host was checked once");
}
