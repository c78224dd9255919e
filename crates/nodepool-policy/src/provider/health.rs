//! Health of a provider: a circuit breaker for outages of its cloud, and one for refusals of launches by a full cloud.
//!
//! The pattern is that of M. Nygard, "Release It!" (2007). A failure opens the breaker, so that no further calls are
//! made. A single probe is made after a delay, which doubles with each failure. Its success closes the breaker.
//!
//! Times are durations since a fixed moment of a monotonic clock, and `wall` is the time that operators see; the actor
//! passes both in.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use nodepool_driver::error::CloudError;
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::health::{CloudHealth, Decision, Outage, Refusal};
use nodepool_model::records::ids::{ExternalId, LabelName, PoolName};
use nodepool_model::records::time::{Seconds, Timestamp};

const INITIAL_DELAY: Seconds = Seconds(1.0);
const MAX_OUTAGE_DELAY: Seconds = Seconds(30.0);
const MAX_REFUSAL_DELAY: Seconds = Seconds(60.0);
/// Undecided launches at a time after the first success, and after that many further ones.
const WINDOWS: [usize; 2] = [2, 4];
/// A refusal is over if the cloud refuses nothing for this time after a success.
const RECOVERY_TIME: Seconds = Seconds(60.0);
/// A refusal is forgotten if no launch needs a probe for this time.
const UNUSED_PROBE_TIME: Seconds = Seconds(300.0);

/// Health of one provider, derived from the results of its calls and jobs.
#[derive(Debug, Default)]
pub struct ProviderHealth {
    outage: OutageState,
    /// By the label whose needs the cloud refuses; `None` if it refuses every launch.
    refusals: BTreeMap<Option<LabelName>, RefusalState>,
    /// Instances of launches that were refused after their creation. Their deletion releases no capacity.
    refused_instances: BTreeSet<String>,
}

#[derive(Debug, Default)]
enum OutageState {
    #[default]
    Responding,
    /// A call failed, and a listing shows whether the whole cloud is concerned.
    Suspected(Probe),
    Down(Outage, Probe),
}

/// Schedule of the listings that probe a cloud.
#[derive(Debug)]
struct Probe {
    /// `None` while the listing runs.
    due: Option<Seconds>,
    delay: Seconds,
}

#[derive(Debug)]
struct RefusalState {
    since: Timestamp,
    reason: String,
    decided_by: Decision,
    /// Time of the last refusal. The results of launches that began earlier change nothing.
    refused_at: Seconds,
    delay: Seconds,
    stage: Stage,
    accepted: u64,
    /// Time from which a deletion may trigger a probe before its time.
    early_from: Seconds,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// Nothing is launched until this time.
    Closed { until: Seconds },
    /// One launch may probe the cloud.
    Probing { since: Seconds, is_early: bool },
    /// Launches succeed again; the number of successes.
    Recovering { successes: usize, until: Seconds },
}

/// Change of the outage state, for the caller to act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutageChange {
    /// As before.
    None,
    Began,
    /// The cloud responds: failures that were suspected to be part of an outage are not.
    Cleared,
    Ended,
}

impl ProviderHealth {
    /// A call failed. An error that suggests an outage leads to a listing at once.
    pub fn call_failed(&mut self, error: &CloudError, now: Seconds) {
        if error.suggests_outage() && matches!(self.outage, OutageState::Responding) {
            self.outage = OutageState::Suspected(Probe { due: Some(now), delay: INITIAL_DELAY });
        }
    }

    /// Time at which a listing must probe the cloud; `None` while one runs, or if none is needed.
    pub fn probe_due(&self) -> Option<Seconds> {
        match &self.outage {
            OutageState::Responding => None,
            OutageState::Suspected(probe) | OutageState::Down(_, probe) => probe.due,
        }
    }

    pub fn probe_started(&mut self) {
        if let OutageState::Suspected(probe) | OutageState::Down(_, probe) = &mut self.outage {
            probe.due = None;
        }
    }

    /// A listing ended. Every response of the cloud shows that it is up, except for one that throttles: it may come
    /// from a proxy in front of the cloud.
    pub fn listing_ended(&mut self, error: Option<&CloudError>, now: Seconds, wall: Timestamp) -> OutageChange {
        let failed = error.filter(|error| error.suggests_outage() || matches!(error, CloudError::Throttled { .. }));
        let before = std::mem::take(&mut self.outage);
        let (after, change) = match (before, failed) {
            (OutageState::Responding, None) => (OutageState::Responding, OutageChange::None),
            (OutageState::Suspected(_), None) => (OutageState::Responding, OutageChange::Cleared),
            (OutageState::Down(..), None) => (OutageState::Responding, OutageChange::Ended),
            (OutageState::Responding, Some(CloudError::Throttled { .. })) => {
                (OutageState::Responding, OutageChange::None)
            }
            (OutageState::Responding, Some(_)) => {
                let probe = Probe { due: Some(now), delay: INITIAL_DELAY };
                (OutageState::Suspected(probe), OutageChange::None)
            }
            (OutageState::Suspected(probe), Some(CloudError::Throttled { .. })) => {
                (OutageState::Suspected(probe.delayed(now)), OutageChange::None)
            }
            (OutageState::Suspected(_), Some(error)) => {
                let outage = Outage { since: wall, error: error.to_string() };
                let probe = Probe { due: None, delay: INITIAL_DELAY }.delayed(now);
                (OutageState::Down(outage, probe), OutageChange::Began)
            }
            (OutageState::Down(outage, probe), Some(error)) => {
                let outage = Outage { error: error.to_string(), ..outage };
                (OutageState::Down(outage, probe.delayed(now)), OutageChange::None)
            }
        };
        self.outage = after;
        change
    }

    pub fn is_down(&self) -> bool {
        matches!(self.outage, OutageState::Down(..))
    }

    /// Whether the listing has yet to end that shows whether failed calls are part of an outage.
    pub fn is_suspected(&self) -> bool {
        matches!(self.outage, OutageState::Suspected(_))
    }

    /// The cloud refused a launch that began at this time. `instance`: it was created nevertheless, and failed.
    pub fn refused(&mut self, refused: RefusedLaunch<'_>, facts: &ProviderFacts, now: Seconds, wall: Timestamp) {
        let RefusedLaunch { label, reason, instance, began } = refused;
        self.refused_instances.extend(instance.map(ExternalId::to_string));
        let decided_by = if instance.is_some() { Decision::Ready } else { Decision::Creation };
        let scope = is_specific(label, reason, facts).then(|| label.clone());
        match self.refusals.entry(scope) {
            Entry::Vacant(vacant) => drop(vacant.insert(RefusalState::new(reason, decided_by, now, wall))),
            Entry::Occupied(mut state) if began >= state.get().refused_at => {
                state.get_mut().refuse(reason, decided_by, now);
            }
            Entry::Occupied(_) => {}
        }
    }

    /// The cloud took a launch that began at this time, as far as this event decides.
    pub fn accepted(&mut self, label: &LabelName, decision: Decision, began: Seconds, now: Seconds) {
        for (scope, state) in &mut self.refusals {
            let concerns = scope.as_ref().is_none_or(|scope| scope == label);
            if concerns && state.decided_by == decision && began >= state.refused_at {
                state.accept(now);
            }
        }
    }

    /// An instance of this provider was deleted: a probe is worthwhile now.
    pub fn deleted(&mut self, instance: &ExternalId, now: Seconds) {
        if !self.refused_instances.remove(&instance.to_string()) {
            self.refusals.values_mut().for_each(|state| state.released(now));
        }
    }

    /// Time at which `advance` must be called.
    pub fn due(&self) -> Option<Seconds> {
        self.refusals.values().map(RefusalState::due).min_by(|one, other| one.0.total_cmp(&other.0))
    }

    /// Time has passed: probes become due, and refusals end.
    pub fn advance(&mut self, now: Seconds) {
        self.refusals.retain(|_, state| match state.stage {
            Stage::Closed { until } if now >= until => {
                state.stage = Stage::Probing { since: now, is_early: false };
                true
            }
            Stage::Closed { .. } => true,
            Stage::Probing { .. } | Stage::Recovering { .. } => now < state.due(),
        });
        if self.refusals.is_empty() {
            self.refused_instances.clear();
        }
    }

    /// The reason why no launch of this label may begin now.
    pub fn rejection(&self, label: &LabelName) -> Option<CloudError> {
        if let OutageState::Down(outage, _) = &self.outage {
            return Some(CloudError::Outage { detail: outage.error.clone(), may_have_worked: false });
        }
        let concerns = |scope: &Option<LabelName>| scope.as_ref().is_none_or(|scope| scope == label);
        let closed = |state: &RefusalState| matches!(state.stage, Stage::Closed { .. });
        let found = self.refusals.iter().find(|(scope, state)| concerns(scope) && closed(state));
        found.map(|(_, state)| CloudError::Quota(state.reason.clone()))
    }

    /// The health as the provider facts show it.
    pub fn health(&self) -> CloudHealth {
        let outage = match &self.outage {
            OutageState::Down(outage, _) => Some(outage.clone()),
            OutageState::Responding | OutageState::Suspected(_) => None,
        };
        let full = self.refusals.get(&None).map(RefusalState::refusal);
        let of_label = |(scope, state): (&Option<LabelName>, &RefusalState)| Some((scope.clone()?, state.refusal()));
        CloudHealth { outage, full, full_labels: self.refusals.iter().filter_map(of_label).collect() }
    }
}

/// A launch that the cloud refused.
#[derive(Clone, Copy, Debug)]
pub struct RefusedLaunch<'a> {
    pub label: &'a LabelName,
    pub reason: &'a str,
    /// The instance, if the cloud had created it before it refused.
    pub instance: Option<&'a ExternalId>,
    pub began: Seconds,
}

impl Probe {
    /// The probe failed at this time.
    fn delayed(self, now: Seconds) -> Self {
        let delay = Seconds((self.delay.0 * 2.0).min(MAX_OUTAGE_DELAY.0));
        Self { due: Some(after(now, self.delay)), delay }
    }
}

impl RefusalState {
    /// The first refusal.
    fn new(reason: &str, decided_by: Decision, now: Seconds, wall: Timestamp) -> Self {
        Self {
            since: wall,
            reason: reason.to_owned(),
            decided_by,
            refused_at: now,
            delay: INITIAL_DELAY,
            stage: Stage::Closed { until: after(now, INITIAL_DELAY) },
            accepted: 0,
            early_from: now,
        }
    }

    /// One more refusal.
    fn refuse(&mut self, reason: &str, decided_by: Decision, now: Seconds) {
        match self.stage {
            Stage::Closed { .. } => {}
            Stage::Probing { is_early: false, .. } => {
                self.delay = Seconds((self.delay.0 * 2.0).min(MAX_REFUSAL_DELAY.0));
            }
            Stage::Probing { is_early: true, .. } => self.early_from = after(now, INITIAL_DELAY),
            Stage::Recovering { .. } => self.delay = INITIAL_DELAY,
        }
        if decided_by == Decision::Ready {
            // The cloud has refused after a creation before: a creation shows nothing.
            self.decided_by = decided_by;
        }
        (self.reason, self.refused_at) = (reason.to_owned(), now);
        self.stage = Stage::Closed { until: after(now, self.delay) };
    }

    fn accept(&mut self, now: Seconds) {
        self.accepted += 1;
        self.stage = match self.stage {
            Stage::Recovering { successes, until } => Stage::Recovering { successes: successes + 1, until },
            Stage::Closed { .. } | Stage::Probing { .. } => {
                Stage::Recovering { successes: 1, until: after(now, RECOVERY_TIME) }
            }
        };
    }

    fn released(&mut self, now: Seconds) {
        match self.stage {
            Stage::Closed { .. } if now >= self.early_from => {
                self.stage = Stage::Probing { since: now, is_early: true };
            }
            Stage::Closed { until } => self.stage = Stage::Closed { until: Seconds(until.0.min(self.early_from.0)) },
            Stage::Probing { .. } | Stage::Recovering { .. } => {}
        }
    }

    /// Time of the next change that no event causes.
    fn due(&self) -> Seconds {
        match self.stage {
            Stage::Closed { until } | Stage::Recovering { until, .. } => until,
            Stage::Probing { since, .. } => after(since, UNUSED_PROBE_TIME),
        }
    }

    fn window(&self) -> usize {
        match self.stage {
            Stage::Closed { .. } => 0,
            Stage::Probing { .. } => 1,
            Stage::Recovering { successes, .. } if successes > WINDOWS[0] => WINDOWS[1],
            Stage::Recovering { .. } => WINDOWS[0],
        }
    }

    fn refusal(&self) -> Refusal {
        Refusal {
            since: self.since,
            reason: self.reason.clone(),
            window: self.window(),
            decided_by: self.decided_by,
            accepted: self.accepted,
        }
    }
}

/// Whether the refusal names a resource that this label needs, and another label of the provider does not.
fn is_specific(label: &LabelName, reason: &str, facts: &ProviderFacts) -> bool {
    /// Words for a resource in the messages of clouds, beside its own name.
    const WORDS: [(&str, &str); 2] = [("volumes", "volume"), ("volume-gb", "gigabytes")];
    let reason = reason.to_lowercase();
    let is_named = |resource: &str| {
        let words = WORDS.iter().filter(|(name, _)| *name == resource).map(|(_, word)| *word);
        words.chain([resource]).any(|word| reason.contains(word))
    };
    let pools = facts.launch_config.iter().flat_map(|config| &config.labels);
    let labels: Vec<(&PoolName, &LabelName)> =
        pools.flat_map(|(pool, labels)| labels.keys().map(move |name| (pool, name))).collect();
    let needs = |resource: &str, (pool, name): &(&PoolName, &LabelName)| facts.need(pool, name).get(resource) > 0.0;
    let mut own = labels.iter().filter(|(_, name)| *name == label);
    own.any(|(pool, _)| {
        let mut needed = facts.need(pool, label).iter().filter(|(_, amount)| *amount > 0.0);
        needed.any(|(resource, _)| is_named(resource) && !labels.iter().all(|other| needs(resource, other)))
    })
}

fn after(time: Seconds, delay: Seconds) -> Seconds {
    Seconds(time.0 + delay.0)
}

#[cfg(test)]
mod tests;
