//! The line of launches at a provider that is full: its pools take turns by the rank of their requests. Launches of a
//! provider that does not respond wait without a line.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::reason::Reason;
use nodepool_driver::health::{CloudHealth, Decision, Outage, Refusal};
use nodepool_model::records::ids::LabelName;
use nodepool_model::records::request::Rank;

/// Launches that share a line: those of one label, or all of the provider.
type Scope = Option<LabelName>;

/// Part of one pool in the lines of its provider, for the provider's other pools. Empty unless the provider is full.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolLine {
    /// Number of launches for which the cloud has yet to show whether it has capacity.
    undecided: BTreeMap<Scope, usize>,
    /// The first request that waits in each line.
    heads: BTreeMap<Scope, Rank>,
}

impl PoolLine {
    pub fn is_empty(&self) -> bool {
        self.undecided.is_empty() && self.heads.is_empty()
    }
}

/// The lines of a provider as one scheduling pass sees them.
#[derive(Debug, Default)]
pub struct LaunchLine {
    outage: Option<Outage>,
    lines: BTreeMap<Scope, Line>,
    own: PoolLine,
}

#[derive(Debug)]
struct Line {
    refusal: Refusal,
    /// Number of launches that may begin.
    free: usize,
    /// The first request of the other pools.
    head_of_others: Option<Rank>,
}

impl Line {
    fn reason(&self) -> Reason {
        Reason::CloudFull(self.refusal.reason.clone())
    }
}

impl LaunchLine {
    /// Starts a pass. `undecided`: labels of this pool's own undecided launches, by what decides about them.
    pub fn begin_pass<'a, I: Iterator<Item = &'a LabelName>>(
        &mut self,
        health: &CloudHealth,
        undecided: impl Fn(Decision) -> I,
        others: &[Arc<PoolLine>],
    ) {
        *self = Self { outage: health.outage.clone(), ..Self::default() };
        let of_labels = health.full_labels.iter().map(|(label, refusal)| (Some(label.clone()), refusal));
        for (scope, refusal) in health.full.iter().map(|refusal| (None, refusal)).chain(of_labels) {
            let concerns = |label: &&LabelName| scope.as_ref().is_none_or(|scope| scope == *label);
            let own = undecided(refusal.decided_by).filter(concerns).count();
            let of_others: usize = others.iter().filter_map(|line| line.undecided.get(&scope)).sum();
            let line = Line {
                refusal: refusal.clone(),
                free: refusal.window.saturating_sub(own + of_others),
                head_of_others: others.iter().filter_map(|line| line.heads.get(&scope)).min().cloned(),
            };
            self.own.undecided.insert(scope.clone(), own);
            self.lines.insert(scope, line);
        }
    }

    /// Whether the cloud responds and is not full.
    pub fn is_open(&self) -> bool {
        self.outage.is_none() && self.lines.is_empty()
    }

    /// The reason why nothing is launched, if the cloud does not respond.
    pub fn outage(&self) -> Option<Reason> {
        self.outage.as_ref().map(|outage| Reason::Outage(outage.error.clone()))
    }

    /// The reason why no launch for this request may begin now.
    pub fn obstacle(&self, rank: &Rank, label: &LabelName) -> Option<Reason> {
        self.outage().or_else(|| self.closed_scope(rank, label).map(|scope| self.lines[&scope].reason()))
    }

    /// Whether a launch for this request may begin now; if so, it takes its turn.
    pub fn admit(&mut self, rank: &Rank, label: &LabelName) -> Result<(), Reason> {
        if let Some(outage) = self.outage() {
            return Err(outage);
        }
        if let Some(scope) = self.closed_scope(rank, label) {
            let reason = self.lines[&scope].reason();
            let head = self.own.heads.entry(scope).or_insert_with(|| rank.clone());
            *head = rank.min(head).clone();
            return Err(reason);
        }
        for scope in scopes(label) {
            if let Some(line) = self.lines.get_mut(&scope) {
                line.free -= 1;
                *self.own.undecided.entry(scope).or_insert(0) += 1;
            }
        }
        Ok(())
    }

    /// The line in which it is not this request's turn.
    fn closed_scope(&self, rank: &Rank, label: &LabelName) -> Option<Scope> {
        let is_closed = |line: &Line| line.free == 0 || line.head_of_others.as_ref().is_some_and(|other| other < rank);
        scopes(label).into_iter().find(|scope| self.lines.get(scope).is_some_and(is_closed))
    }

    /// Whether no request in line for launches of this label precedes this one.
    pub fn is_first(&self, rank: &Rank, label: &LabelName) -> bool {
        scopes(label).iter().all(|scope| {
            let of_others = self.lines.get(scope).and_then(|line| line.head_of_others.as_ref());
            self.own.heads.get(scope).into_iter().chain(of_others).all(|head| rank <= head)
        })
    }

    /// This pool's part, after the pass.
    pub fn own(&self) -> &PoolLine {
        &self.own
    }
}

/// The lines in which launches of this label take their turn.
fn scopes(label: &LabelName) -> [Scope; 2] {
    [None, Some(label.clone())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodepool_model::records::ids::RequestId;
    use nodepool_model::records::time::Timestamp;

    fn rank(id: &str) -> Rank {
        let id = RequestId::from(id);
        Rank { priority: id.priority().to_owned(), relative_priority: 0, id }
    }

    fn refusal(window: usize) -> Refusal {
        let reason = "ports".to_owned();
        Refusal { since: Timestamp(7.0), reason, window, decided_by: Decision::Creation, accepted: 0 }
    }

    fn line(health: &CloudHealth, undecided: &[LabelName], others: &[Arc<PoolLine>]) -> LaunchLine {
        let mut line = LaunchLine::default();
        line.begin_pass(health, |_| undecided.iter(), others);
        line
    }

    fn full(window: usize) -> CloudHealth {
        CloudHealth { full: Some(refusal(window)), ..CloudHealth::default() }
    }

    #[test]
    fn launches_take_their_turn_by_rank_as_far_as_the_window_allows() {
        let mut line = line(&full(3), &["a".into()], &[]);
        let admitted = ["100-1", "100-2", "100-3", "100-4"].map(|id| line.admit(&rank(id), &"a".into()).is_ok());
        assert_eq!(admitted, [true, true, false, false]);
        assert!(line.is_first(&rank("100-3"), &"a".into()) && !line.is_first(&rank("100-4"), &"a".into()));
        assert_eq!(line.own().undecided[&None], 3);
    }

    #[test]
    fn the_first_request_of_another_pool_goes_first() {
        let other = PoolLine { undecided: [(None, 1)].into(), heads: [(None, rank("100-2"))].into() };
        let mut line = line(&full(4), &[], &[Arc::new(other)]);
        let admitted = ["100-1", "100-2", "100-3"].map(|id| line.admit(&rank(id), &"a".into()).is_ok());
        assert_eq!(admitted, [true, true, false]);
        assert!(!line.is_first(&rank("100-3"), &"a".into()));
    }

    #[test]
    fn a_label_that_is_full_delays_no_other() {
        let health = CloudHealth { full_labels: [("disk".into(), refusal(0))].into(), ..CloudHealth::default() };
        let mut line = line(&health, &[], &[]);
        let reason = Reason::CloudFull("ports".to_owned());
        assert_eq!(line.admit(&rank("100-1"), &"disk".into()), Err(reason));
        assert_eq!(line.admit(&rank("100-2"), &"small".into()), Ok(()));
    }

    #[test]
    fn nothing_is_launched_during_an_outage() {
        let outage = Outage { since: Timestamp(7.0), error: "503".to_owned() };
        let mut line = line(&CloudHealth { outage: Some(outage), ..full(1) }, &[], &[]);
        assert!(matches!(line.admit(&rank("100-1"), &"a".into()), Err(Reason::Outage(_))));
        assert!(line.own().heads.is_empty());
    }
}
