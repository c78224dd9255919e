//! What a pool last decided about each request, and why; kept for a while when the request has ended.

use std::collections::{BTreeMap, VecDeque};

use super::reason::Reason;
use nodepool_model::records::ids::RequestId;
use nodepool_model::records::time::Timestamp;
use nodepool_model::report::status::VerdictKind;

/// Ended requests whose last verdict is still known.
const MAX_ENDED: usize = 1000;

#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    pub kind: VerdictKind,
    pub reason: Reason,
    /// When it was first decided so.
    pub since: Timestamp,
}

#[derive(Clone, Debug, Default)]
pub struct Verdicts {
    open: BTreeMap<RequestId, Recorded>,
    ended: VecDeque<(RequestId, Recorded)>,
}

impl Verdicts {
    pub fn record(&mut self, id: &RequestId, kind: VerdictKind, reason: Reason, now: Timestamp) {
        // That it declined before says less than why it did; and what is tried elsewhere is decided anew in a moment.
        if matches!(reason, Reason::DeclinedBefore | Reason::HandledByOtherPool) && self.open.contains_key(id) {
            return;
        }
        match self.open.get_mut(id) {
            Some(known) if known.kind == kind && known.reason == reason => {}
            Some(known) => *known = Recorded { kind, reason, since: now },
            None => drop(self.open.insert(id.clone(), Recorded { kind, reason, since: now })),
        }
    }

    /// What was last decided about a request, while it is open or not long ended.
    pub fn last(&self, id: &RequestId) -> Option<&Recorded> {
        let ended = || self.ended.iter().rev().find(|(ended, _)| ended == id).map(|(_, recorded)| recorded);
        self.open.get(id).or_else(ended)
    }

    /// The request has ended.
    pub fn end(&mut self, id: &RequestId) {
        if let Some(recorded) = self.open.remove(id) {
            self.ended.push_back((id.clone(), recorded));
        }
        while self.ended.len() > MAX_ENDED {
            self.ended.pop_front();
        }
    }

    /// Requests with a verdict that are not known to have ended.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    pub fn deferred(&self) -> impl Iterator<Item = (&RequestId, &Recorded)> {
        self.open.iter().filter(|(_, recorded)| recorded.kind == VerdictKind::Defer)
    }

    /// Those of them for which something does not hold.
    pub fn without(&self, holds: impl Fn(&RequestId) -> bool) -> Vec<RequestId> {
        self.open.keys().filter(|id| !holds(id)).cloned().collect()
    }
}
