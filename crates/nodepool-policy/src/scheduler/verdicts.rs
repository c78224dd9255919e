//! Verdicts: a pool's last decision about each request, and its reason; retained for a while after the request ends.

use std::collections::{BTreeMap, VecDeque};
use std::mem::{Discriminant, discriminant};

use super::reason::Reason;
use nodepool_model::records::ids::RequestId;
use nodepool_model::records::time::{Seconds, Timestamp};
use nodepool_model::report::status::VerdictKind;

/// Maximum number of ended requests whose last verdict is retained.
const MAX_ENDED: usize = 1000;

/// Minimum interval between two reports about one request.
const REPORT_INTERVAL: Seconds = Seconds(60.0);

#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    pub kind: VerdictKind,
    pub reason: Reason,
    /// Time at which this verdict was first reached.
    pub since: Timestamp,
    /// Kind of the reason that was reported last for the log, and when.
    reported: Option<(Discriminant<Reason>, Timestamp)>,
}

#[derive(Clone, Debug, Default)]
pub struct Verdicts {
    open: BTreeMap<RequestId, Recorded>,
    ended: VecDeque<(RequestId, Recorded)>,
    /// Requests that wait, and why, for the log.
    reports: Vec<(RequestId, String)>,
}

impl Verdicts {
    pub fn record(&mut self, id: &RequestId, kind: VerdictKind, reason: Reason, now: Timestamp) {
        // "Declined before" says less than the recorded reason. A request that another pool handles is decided again
        // soon.
        if matches!(reason, Reason::DeclinedBefore | Reason::HandledByOtherPool) && self.open.contains_key(id) {
            return;
        }
        let recorded = self.open.entry(id.clone()).or_insert_with(|| Recorded {
            kind,
            reason: reason.clone(),
            since: now,
            reported: None,
        });
        if recorded.kind != kind || recorded.reason != reason {
            (recorded.kind, recorded.reason, recorded.since) = (kind, reason, now);
        }
        if kind == VerdictKind::Defer && recorded.reason.is_lasting() {
            let cause = discriminant(&recorded.reason);
            let is_due = recorded.reported.is_none_or(|(last, at)| last != cause && now - at >= REPORT_INTERVAL);
            if is_due {
                recorded.reported = Some((cause, now));
                self.reports.push((id.clone(), recorded.reason.to_string()));
            }
        }
    }

    /// Requests that have begun to wait, or wait for another reason, since the last call.
    pub fn take_reports(&mut self) -> Vec<(RequestId, String)> {
        std::mem::take(&mut self.reports)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_request_is_reported_once_and_when_its_reason_changes() {
        let mut verdicts = Verdicts::default();
        let mut defer = |reason: Reason, now: f64| {
            verdicts.record(&"200-1".into(), VerdictKind::Defer, reason, Timestamp(now));
            verdicts.take_reports().into_iter().map(|(_, reason)| reason).collect::<Vec<_>>()
        };
        let quota = |available| Reason::InsufficientCapacity { resource: "cores".to_owned(), wanted: 4.0, available };
        assert_eq!(defer(Reason::NotConnected, 0.0), [] as [&str; 0]);
        assert_eq!(defer(quota(2.0), 1.0), ["quota: the next node needs cores 4, free 2"]);
        assert_eq!(defer(quota(3.0), 99.0), [] as [&str; 0], "only the amount has changed");
        assert_eq!(defer(Reason::CloudFull("ports".to_owned()), 100.0).len(), 1);
        assert_eq!(defer(quota(3.0), 101.0), [] as [&str; 0], "the last report was less than a minute ago");
        assert_eq!(defer(quota(1.0), 160.0), ["quota: the next node needs cores 4, free 1"]);
    }
}
