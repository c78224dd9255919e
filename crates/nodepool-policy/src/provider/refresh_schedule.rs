//! When a provider is surveyed: at the start, in intervals, and sooner where what is known may be wrong or lacks something.
//!
//! Times are spans since some fixed moment, from a clock that never goes back; the shell passes them in.

use nodepool_model::records::time::Seconds;

/// After a first failure; each further one doubles it.
const FIRST_RETRY: Seconds = Seconds(1.0);
const LONGEST_RETRY: Seconds = Seconds(60.0);
/// Doubts do not make surveys begin closer together than this.
const APART: Seconds = Seconds(10.0);

#[derive(Debug)]
pub struct Surveys {
    refresh: Option<Seconds>,
    /// Between surveys while an image is missing.
    missing: Seconds,
    due: Option<Seconds>,
    retry: Seconds,
    begun_at: Option<Seconds>,
    running: bool,
}

impl Surveys {
    /// The first one is due at once.
    pub fn new(refresh: Option<Seconds>, missing: Seconds) -> Self {
        Self { refresh, missing, due: Some(Seconds::ZERO), retry: FIRST_RETRY, begun_at: None, running: false }
    }

    /// When the next one shall begin, unless one is running.
    pub fn due(&self) -> Option<Seconds> {
        self.due.filter(|_| !self.running)
    }

    pub fn is_running(&self) -> bool {
        self.running
    }

    pub fn begin(&mut self, now: Seconds) {
        assert!(!self.running, "two surveys of one provider");
        (self.running, self.begun_at, self.due) = (true, Some(now), None);
    }

    /// `lacks`: an image that is configured was not there.
    pub fn succeeded(&mut self, lacks: bool, now: Seconds) {
        self.end();
        self.retry = FIRST_RETRY;
        let wait = match (self.refresh, lacks) {
            (Some(refresh), true) => Some(Seconds(refresh.0.min(self.missing.0))),
            (refresh, _) => refresh,
        };
        if let Some(wait) = wait {
            self.want(Seconds(now.0 + wait.0));
        }
    }

    pub fn failed(&mut self, now: Seconds) {
        self.end();
        self.want(Seconds(now.0 + self.retry.0));
        self.retry = Seconds((self.retry.0 * 2.0).min(LONGEST_RETRY.0));
    }

    /// It ended well, but the cloud did not answer everything: it is repeated as if it had failed.
    pub fn answered_in_part(&mut self, now: Seconds) {
        self.failed(now);
    }

    /// Somebody wants to know now.
    pub fn ask(&mut self, now: Seconds) {
        self.want(now);
    }

    /// A launch failed: what is known of the cloud may be outdated.
    pub fn doubt(&mut self, now: Seconds) {
        if self.refresh.is_some() {
            self.want(self.begun_at.map_or(now, |begun| Seconds(now.0.max(begun.0 + APART.0))));
        }
    }

    fn end(&mut self) {
        assert!(self.running, "the end of a survey that was not begun");
        self.running = false;
    }

    fn want(&mut self, at: Seconds) {
        self.due = Some(self.due.map_or(at, |due| Seconds(due.0.min(at.0))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surveyed(lacks: bool) -> Surveys {
        let mut surveys = Surveys::new(Some(Seconds(300.0)), Seconds(30.0));
        assert_eq!(surveys.due(), Some(Seconds::ZERO));
        surveys.begin(Seconds(1.0));
        assert_eq!(surveys.due(), None);
        surveys.succeeded(lacks, Seconds(2.0));
        surveys
    }

    #[test]
    fn a_survey_follows_after_the_interval() {
        assert_eq!(surveyed(false).due(), Some(Seconds(302.0)));
    }

    #[test]
    fn a_missing_image_is_looked_for_sooner() {
        assert_eq!(surveyed(true).due(), Some(Seconds(32.0)));
    }

    #[test]
    fn failures_are_repeated_ever_more_slowly_and_a_success_ends_that() {
        let mut surveys = Surveys::new(None, Seconds(30.0));
        for wait in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0] {
            surveys.begin(Seconds::ZERO);
            surveys.failed(Seconds::ZERO);
            assert_eq!(surveys.due(), Some(Seconds(wait)));
        }
        surveys.begin(Seconds::ZERO);
        surveys.succeeded(true, Seconds::ZERO);
        assert_eq!(surveys.due(), None);
        surveys.ask(Seconds(5.0));
        surveys.begin(Seconds(5.0));
        surveys.failed(Seconds(5.0));
        assert_eq!(surveys.due(), Some(Seconds(6.0)));
    }

    #[test]
    fn doubts_are_looked_into_once_in_a_while() {
        let mut surveys = surveyed(false);
        surveys.doubt(Seconds(3.0));
        surveys.doubt(Seconds(4.0));
        assert_eq!(surveys.due(), Some(Seconds(11.0)));
        surveys.begin(Seconds(11.0));
        surveys.doubt(Seconds(12.0));
        surveys.succeeded(false, Seconds(13.0));
        assert_eq!(surveys.due(), Some(Seconds(21.0)));
        surveys.doubt(Seconds(40.0));
        assert_eq!(surveys.due(), Some(Seconds(21.0)));
    }

    #[test]
    fn a_survey_that_lacks_answers_is_repeated_soon() {
        let mut surveys = surveyed(false);
        surveys.begin(Seconds(302.0));
        surveys.answered_in_part(Seconds(303.0));
        assert_eq!(surveys.due(), Some(Seconds(304.0)));
    }

    #[test]
    fn who_asks_is_served_at_once() {
        let mut surveys = surveyed(false);
        surveys.ask(Seconds(3.0));
        assert_eq!(surveys.due(), Some(Seconds(3.0)));
    }
}
