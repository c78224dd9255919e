//! What the workers of one builder have in hand, so that none of them takes up what another one has, and what is to rest first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use nodepool_model::records::ids::{BuildId, ImageName, ProviderName};
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::images::UploadPlace;

/// What has not been tried for so long is forgotten: its build may be gone.
const FORGOTTEN: Duration = Duration::from_secs(24 * 3600);

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
    /// With the build, when it has begun.
    claimed: BTreeMap<Work, Option<BuildId>>,
    is_closed: bool,
    /// What was tried and is not done.
    tried: BTreeMap<Work, Trial>,
    failures: u64,
}

#[derive(Clone, Copy)]
struct Trial {
    /// It is not taken up again before then. By a clock that nobody sets.
    rests_until: Instant,
    /// The number of its last failure; 0 where it has not failed.
    failure: u64,
}

/// Dropped, the work is free again.
pub struct Claim {
    work: Work,
    desk: Desk,
}

impl Desk {
    /// The first of these that nobody has and that does not rest. What has failed comes after what has not, else one that always fails
    /// would keep everybody from what comes after it; and what goes to a provider where something has failed after what does not.
    pub fn claim_first<T>(&self, due: impl IntoIterator<Item = (Work, T)>) -> Option<(T, Claim)> {
        let mut state = self.lock();
        if state.is_closed {
            return None;
        }
        let now = Instant::now();
        let may = |work: &Work| {
            !state.claimed.contains_key(work) && state.tried.get(work).is_none_or(|trial| trial.rests_until <= now)
        };
        let providers = state.failures_by_provider();
        let rank = |work: &Work| {
            let provider = match work {
                Work::Upload(place) => providers.get(&place.provider).copied().unwrap_or(0),
                Work::Build(_) => 0,
            };
            (state.tried.get(work).map_or(0, |trial| trial.failure), provider)
        };
        // The first of those that rank alike.
        let (work, what) = due.into_iter().filter(|(work, _)| may(work)).min_by_key(|(work, _)| rank(work))?;
        state.claimed.insert(work.clone(), None);
        self.builds.send_replace(state.builds());
        Some((what, Claim { work, desk: self.clone() }))
    }

    /// The build of each image that this builder has the lock of.
    pub fn begun(&self) -> BTreeMap<ImageName, BuildId> {
        let begun = |(work, build): (&Work, &Option<BuildId>)| match (work, build) {
            (Work::Build(image), Some(build)) => Some((image.clone(), build.clone())),
            _ => None,
        };
        self.lock().claimed.iter().filter_map(begun).collect()
    }

    pub fn is_building(&self, image: &ImageName) -> bool {
        self.lock().claimed.contains_key(&Work::Build(image.clone()))
    }

    /// Any build of it.
    pub fn is_uploading(&self, provider: &ProviderName, image: &ImageName) -> bool {
        self.lock().claimed.keys().any(|work| match work {
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

    /// In what time the first of what rests may be taken up again.
    pub fn next_due(&self) -> Option<Seconds> {
        let now = Instant::now();
        let rests = self.lock().tried.values().map(|trial| trial.rests_until).filter(|until| *until > now).min();
        rests.map(|until| Seconds((until - now).as_secs_f64()))
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
        self.claimed.keys().filter(|work| matches!(work, Work::Build(_))).count()
    }

    /// The number of the last one.
    fn failures_by_provider(&self) -> BTreeMap<ProviderName, u64> {
        let mut last = BTreeMap::new();
        for (work, trial) in &self.tried {
            if let Work::Upload(place) = work {
                let of_provider = last.entry(place.provider.clone()).or_insert(0);
                *of_provider = trial.failure.max(*of_provider);
            }
        }
        last
    }

    fn rest(&mut self, work: &Work, rest: Seconds, failure: u64) {
        let now = Instant::now();
        self.tried.retain(|_, trial| now.saturating_duration_since(trial.rests_until) < FORGOTTEN);
        self.tried.insert(work.clone(), Trial { rests_until: now + rest.to_duration(), failure });
    }
}

impl Claim {
    /// The build of the image has begun.
    pub fn begins(&self, build: &BuildId) {
        self.desk.lock().claimed.insert(self.work.clone(), Some(build.clone()));
    }

    /// It is not to be taken up again before this has passed, and then after what has not failed, or not as lately.
    pub fn failed(&self, rest: Seconds) {
        let mut state = self.desk.lock();
        state.failures += 1;
        let failure = state.failures;
        state.rest(&self.work, rest, failure);
    }

    /// It is not to be taken up again before this has passed, but that says nothing of what it is worth to try.
    pub fn rests(&self, rest: Seconds) {
        let mut state = self.desk.lock();
        let failure = state.tried.get(&self.work).map_or(0, |trial| trial.failure);
        state.rest(&self.work, rest, failure);
    }

    pub fn succeeded(&self) {
        self.desk.lock().tried.remove(&self.work);
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
    use nodepool_model::records::image_build::BuildKey;

    fn build(image: &str) -> (Work, ()) {
        (Work::Build(image.into()), ())
    }

    fn upload(provider: &str, image: &str) -> (Work, ()) {
        let build = BuildKey { image: image.into(), build: "1".into() };
        (Work::Upload(UploadPlace { build, provider: provider.into() }), ())
    }

    fn claim(desk: &Desk, due: impl IntoIterator<Item = (Work, ())>) -> Option<Claim> {
        desk.claim_first(due).map(|((), claim)| claim)
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_had_by_one_and_rests_after_a_failure() {
        let desk = Desk::default();
        let first = claim(&desk, [build("debian")]).unwrap();
        assert!(claim(&desk, [build("debian")]).is_none());
        assert!(claim(&desk, [build("other")]).is_some());
        first.failed(Seconds(10.0));
        drop(first);
        assert_eq!(desk.next_due(), Some(Seconds(10.0)));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(claim(&desk, [build("debian")]).is_none());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(claim(&desk, [build("debian")]).is_some());
        assert_eq!(desk.next_due(), None);
    }

    // With one worker, two images whose builds fail after half an hour kept it from all images after them.
    #[tokio::test(start_paused = true)]
    async fn what_always_fails_keeps_nobody_from_anything() {
        let desk = Desk::default();
        let mut tried = String::new();
        for _ in 0..7 {
            let missing = ["a", "b", "c"].into_iter().filter(|image| !tried.contains('c') || *image != "c");
            let claim = claim(&desk, missing.map(build)).unwrap();
            tokio::time::advance(Duration::from_secs(1800)).await;
            let Work::Build(image) = &claim.work else { panic!("{:?}", claim.work) };
            tried += image.as_str();
            if image.as_str() == "c" { claim.succeeded() } else { claim.failed(Seconds(10.0)) }
        }
        assert_eq!(tried, "abcabab");
    }

    #[tokio::test(start_paused = true)]
    async fn a_provider_where_uploads_fail_comes_after_others() {
        let desk = Desk::default();
        claim(&desk, [upload("a", "debian")]).unwrap().failed(Seconds(10.0));
        let next = claim(&desk, [upload("a", "fedora"), upload("b", "fedora")]).unwrap();
        assert_eq!(next.work, upload("b", "fedora").0);
        let last = claim(&desk, [upload("a", "fedora"), upload("b", "fedora")]).unwrap();
        assert_eq!(last.work, upload("a", "fedora").0);
    }
}
