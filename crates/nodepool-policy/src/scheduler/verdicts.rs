//! Verdicts: a pool's last decision about each request, and its reason; retained for a while after the request ends.

use std::collections::{BTreeMap, VecDeque};

use super::reason::Reason;
use nodepool_model::records::ids::RequestId;
use nodepool_model::records::time::Timestamp;
use nodepool_model::report::status::VerdictKind;

/// Maximum number of ended requests whose last verdict is retained.
const MAX_ENDED: usize = 1000;

#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    pub kind: VerdictKind,
    pub reason: Reason,
    /// Time at which this verdict was first reached.
    pub since: Timestamp,
}

#[derive(Clone, Debug, Default)]
pub struct Verdicts {
    open: BTreeMap<RequestId, Recorded>,
    ended: VecDeque<(RequestId, Recorded)>,
}

impl Verdicts {
    pub fn record(&mut self, id: &RequestId, kind: VerdictKind, reason: Reason, now: Timestamp) {
        // "Declined before" says less than the recorded reason. A request that another pool handles is decided again
        // soon.
        if matches!(reason, Reason::DeclinedBefore | Reason::HandledByOtherPool) && self.open.contains_key(id) {
            return;
        }
        match self.open.get_mut(id) {
            Some(known) if known.kind == kind && known.reason == reason => {}
            Some(known) => *known = Recorded { kind, reason, since: now },
            None => drop(self.open.insert(id.clone(), Recorded { kind, reason, since: now })),
        }
    }

    /// The last verdict about a request, while the request is open or ended recently.
    pub fn last(&self, id: &RequestId) -> Option<&Recorded> {
        let ended = || self.ended.iter().rev().find(|(ended, _)| ended == id).map(|(_, recorded)| recorded);
        self.open.get(id).or_else(ended)
    }

    /// Called when the request has ended.
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

    /// Open requests for which `holds` is false.
    pub fn without(&self, holds: impl Fn(&RequestId) -> bool) -> Vec<RequestId> {
        self.open.keys().filter(|id| !holds(id)).cloned().collect()
    }
}
