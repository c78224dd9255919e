//! Refresh schedule of a provider: refreshes run at the start, at intervals, and sooner if the facts may be outdated or
//! incomplete.
//!
//! Times are durations since a fixed moment of a monotonic clock; the actor passes them in.

use nodepool_model::records::time::Seconds;

/// Delay after the first failure; each further failure doubles it.
const INITIAL_RETRY_INTERVAL: Seconds = Seconds(1.0);
const MAX_RETRY_INTERVAL: Seconds = Seconds(60.0);
/// Minimum interval from the start of a refresh to a refresh because of stale facts.
const MIN_INTERVAL: Seconds = Seconds(10.0);

#[derive(Debug)]
pub struct RefreshSchedule {
    interval: Option<Seconds>,
    /// Interval of refreshes while an image is missing.
    missing_image_interval: Seconds,
    due: Option<Seconds>,
    retry: Seconds,
    started_at: Option<Seconds>,
    running: bool,
}

impl RefreshSchedule {
    /// The first refresh is due at once.
    pub fn new(refresh: Option<Seconds>, missing: Seconds) -> Self {
        Self {
            interval: refresh,
            missing_image_interval: missing,
            due: Some(Seconds::ZERO),
            retry: INITIAL_RETRY_INTERVAL,
            started_at: None,
            running: false,
        }
    }

    /// Time of the next refresh; `None` while one is running, or if none is scheduled.
    pub fn due(&self) -> Option<Seconds> {
        self.due.filter(|_| !self.running)
    }

    pub fn is_running(&self) -> bool {
        self.running
    }

    pub fn begin(&mut self, now: Seconds) {
        assert!(!self.running, "two refreshes of one provider");
        (self.running, self.started_at, self.due) = (true, Some(now), None);
    }

    /// The refresh succeeded. `image_missing`: a configured image does not exist.
    pub fn succeeded(&mut self, image_missing: bool, now: Seconds) {
        self.end();
        self.retry = INITIAL_RETRY_INTERVAL;
        let wait = match (self.interval, image_missing) {
            (Some(refresh), true) => Some(Seconds(refresh.0.min(self.missing_image_interval.0))),
            (refresh, _) => refresh,
        };
        if let Some(wait) = wait {
            self.schedule_at(Seconds(now.0 + wait.0));
        }
    }

    pub fn failed(&mut self, now: Seconds) {
        self.end();
        self.schedule_at(Seconds(now.0 + self.retry.0));
        self.retry = Seconds((self.retry.0 * 2.0).min(MAX_RETRY_INTERVAL.0));
    }

    /// The refresh succeeded, but the cloud did not answer every query: it is repeated as after a failure.
    pub fn partially_succeeded(&mut self, now: Seconds) {
        self.failed(now);
    }

    /// A caller needs current facts: the next refresh is due now.
    pub fn request_now(&mut self, now: Seconds) {
        self.schedule_at(now);
    }

    /// A launch failed: the facts may be outdated.
    pub fn mark_stale(&mut self, now: Seconds) {
        if self.interval.is_some() {
            self.schedule_at(self.started_at.map_or(now, |at| Seconds(now.0.max(at.0 + MIN_INTERVAL.0))));
        }
    }

    fn end(&mut self) {
        assert!(self.running, "end of a refresh that was not started");
        self.running = false;
    }

    fn schedule_at(&mut self, at: Seconds) {
        self.due = Some(self.due.map_or(at, |due| Seconds(due.0.min(at.0))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refreshed(image_missing: bool) -> RefreshSchedule {
        let mut schedule = RefreshSchedule::new(Some(Seconds(300.0)), Seconds(30.0));
        assert_eq!(schedule.due(), Some(Seconds::ZERO));
        schedule.begin(Seconds(1.0));
        assert_eq!(schedule.due(), None);
        schedule.succeeded(image_missing, Seconds(2.0));
        schedule
    }

    #[test]
    fn a_refresh_follows_after_the_interval() {
        assert_eq!(refreshed(false).due(), Some(Seconds(302.0)));
    }

    #[test]
    fn a_missing_image_shortens_the_interval() {
        assert_eq!(refreshed(true).due(), Some(Seconds(32.0)));
    }

    #[test]
    fn failures_back_off_and_a_success_resets_the_backoff() {
        let mut schedule = RefreshSchedule::new(None, Seconds(30.0));
        for wait in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0] {
            schedule.begin(Seconds::ZERO);
            schedule.failed(Seconds::ZERO);
            assert_eq!(schedule.due(), Some(Seconds(wait)));
        }
        schedule.begin(Seconds::ZERO);
        schedule.succeeded(true, Seconds::ZERO);
        assert_eq!(schedule.due(), None);
        schedule.request_now(Seconds(5.0));
        schedule.begin(Seconds(5.0));
        schedule.failed(Seconds(5.0));
        assert_eq!(schedule.due(), Some(Seconds(6.0)));
    }

    #[test]
    fn stale_facts_do_not_refresh_more_often_than_the_minimum() {
        let mut schedule = refreshed(false);
        schedule.mark_stale(Seconds(3.0));
        schedule.mark_stale(Seconds(4.0));
        assert_eq!(schedule.due(), Some(Seconds(11.0)));
        schedule.begin(Seconds(11.0));
        schedule.mark_stale(Seconds(12.0));
        schedule.succeeded(false, Seconds(13.0));
        assert_eq!(schedule.due(), Some(Seconds(21.0)));
        schedule.mark_stale(Seconds(40.0));
        assert_eq!(schedule.due(), Some(Seconds(21.0)));
    }

    #[test]
    fn a_partial_refresh_is_repeated_soon() {
        let mut schedule = refreshed(false);
        schedule.begin(Seconds(302.0));
        schedule.partially_succeeded(Seconds(303.0));
        assert_eq!(schedule.due(), Some(Seconds(304.0)));
    }

    #[test]
    fn a_requested_refresh_is_due_at_once() {
        let mut schedule = refreshed(false);
        schedule.request_now(Seconds(3.0));
        assert_eq!(schedule.due(), Some(Seconds(3.0)));
    }
}
