//! What the workers of one builder have in hand, so that none of them takes up what another one has, and what is to rest first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::model::ids::{ImageName, ProviderName};
use crate::model::images::UploadPlace;
use crate::model::time::Timestamp;

/// One thing that a worker can take up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    Build(ImageName),
    Upload(UploadPlace),
}

#[derive(Clone, Default)]
pub struct Desk {
    state: Arc<Mutex<State>>,
    /// Builds that are under way.
    builds: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    claimed: BTreeSet<Work>,
    is_closed: bool,
    /// Not before then: it has failed.
    resting: BTreeMap<Work, Timestamp>,
}

/// Dropped, the work is free again.
pub struct Claim {
    work: Work,
    desk: Desk,
}

impl Desk {
    /// Nothing where somebody has it, or it rests.
    pub fn claim(&self, work: Work, now: Timestamp) -> Option<Claim> {
        let mut state = self.lock();
        if state.is_closed || state.resting.get(&work).is_some_and(|until| *until > now) {
            return None;
        }
        state.resting.remove(&work);
        if !state.claimed.insert(work.clone()) {
            return None;
        }
        self.builds.send_replace(state.builds());
        Some(Claim { work, desk: self.clone() })
    }

    pub fn is_building(&self, image: &ImageName) -> bool {
        self.lock().claimed.contains(&Work::Build(image.clone()))
    }

    /// Any build of it.
    pub fn is_uploading(&self, provider: &ProviderName, image: &ImageName) -> bool {
        self.lock().claimed.iter().any(|work| match work {
            Work::Upload(place) => place.provider == *provider && place.build.image == *image,
            Work::Build(_) => false,
        })
    }

    /// Builds and uploads under way.
    pub fn busy(&self) -> (usize, usize) {
        let state = self.lock();
        let builds = state.builds();
        (builds, state.claimed.len() - builds)
    }

    /// When the first of what rests may be taken up again.
    pub fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        self.lock().resting.values().filter(|until| **until > now).min().copied()
    }

    /// Nothing is taken up any more; resolves when the last build has ended.
    pub async fn finish_builds(&self) {
        self.lock().is_closed = true;
        let mut builds = self.builds.subscribe();
        // The sender is ours.
        let _ = builds.wait_for(|builds| *builds == 0).await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn builds(&self) -> usize {
        self.claimed.iter().filter(|work| matches!(work, Work::Build(_))).count()
    }
}

impl Claim {
    /// It is not to be taken up again before then.
    pub fn rest_until(&self, until: Timestamp, now: Timestamp) {
        let mut state = self.desk.lock();
        // What is over is of no interest any more, and may never be claimed again.
        state.resting.retain(|_, until| *until > now);
        state.resting.insert(self.work.clone(), until);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut state = self.desk.lock();
        state.claimed.remove(&self.work);
        self.desk.builds.send_replace(state.builds());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_had_by_one_and_rests_after_a_failure() {
        let (desk, work) = (Desk::default(), || Work::Build("debian".into()));
        let claim = desk.claim(work(), Timestamp(1.0)).unwrap();
        assert!(desk.claim(work(), Timestamp(1.0)).is_none());
        assert!(desk.claim(Work::Build("other".into()), Timestamp(1.0)).is_some());
        claim.rest_until(Timestamp(11.0), Timestamp(1.0));
        drop(claim);
        assert_eq!(desk.next_due(Timestamp(1.0)), Some(Timestamp(11.0)));
        assert!(desk.claim(work(), Timestamp(10.0)).is_none());
        assert!(desk.claim(work(), Timestamp(11.0)).is_some());
        assert_eq!(desk.next_due(Timestamp(11.0)), None);
    }
}
