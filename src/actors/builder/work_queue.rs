//! Work queue of a builder's workers: leases each build and upload to one worker, and backs off items that failed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use nodepool_model::records::ids::{BuildId, ImageName, ProviderName};
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::images::UploadLockKey;

/// Age of a back-off after which it is dropped: its build may no longer exist.
const FORGET_AFTER: Duration = Duration::from_secs(24 * 3600);

/// A build or an upload that a worker can lease.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkItem {
    Build(ImageName),
    Upload(UploadLockKey),
}

#[derive(Clone, Default)]
pub struct WorkQueue {
    state: Arc<Mutex<State>>,
    /// Number of leased builds.
    builds: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    /// Leased items. An image has the id of its build once the build has started.
    leased: BTreeMap<WorkItem, Option<BuildId>>,
    is_closed: bool,
    /// Items that were attempted and did not succeed.
    backoffs: BTreeMap<WorkItem, Backoff>,
    failures: u64,
}

#[derive(Clone, Copy)]
struct Backoff {
    /// The item is not leased again before this time (monotonic).
    retry_at: Instant,
    /// Sequence number of its last failure; 0 if it has not failed.
    failure: u64,
}

/// Exclusive right to work on an item; dropping it releases the item.
pub struct WorkLease {
    item: WorkItem,
    queue: WorkQueue,
}

impl WorkQueue {
    /// Leases the first item that is neither leased nor backed off. Failed items rank after others, or an item that
    /// always fails would starve those after it. Uploads to a provider with failures rank after uploads to other
    /// providers.
    pub fn lease_first<T>(&self, due: impl IntoIterator<Item = (WorkItem, T)>) -> Option<(T, WorkLease)> {
        let mut state = self.lock();
        if state.is_closed {
            return None;
        }
        let now = Instant::now();
        let is_available = |item: &WorkItem| {
            !state.leased.contains_key(item) && state.backoffs.get(item).is_none_or(|backoff| backoff.retry_at <= now)
        };
        let providers = state.failures_by_provider();
        let rank = |item: &WorkItem| {
            let provider = match item {
                WorkItem::Upload(lock_key) => providers.get(&lock_key.provider).copied().unwrap_or(0),
                WorkItem::Build(_) => 0,
            };
            (state.backoffs.get(item).map_or(0, |backoff| backoff.failure), provider)
        };
        // `min_by_key` returns the first of equal ranks.
        let (item, payload) =
            due.into_iter().filter(|(item, _)| is_available(item)).min_by_key(|(item, _)| rank(item))?;
        state.leased.insert(item.clone(), None);
        self.builds.send_replace(state.builds());
        Some((payload, WorkLease { item, queue: self.clone() }))
    }

    /// The started build of each image.
    pub fn running_builds(&self) -> BTreeMap<ImageName, BuildId> {
        let running = |(item, build): (&WorkItem, &Option<BuildId>)| match (item, build) {
            (WorkItem::Build(image), Some(build)) => Some((image.clone(), build.clone())),
            _ => None,
        };
        self.lock().leased.iter().filter_map(running).collect()
    }

    pub fn is_building(&self, image: &ImageName) -> bool {
        self.lock().leased.contains_key(&WorkItem::Build(image.clone()))
    }

    /// Whether any build of the image is being uploaded to the provider.
    pub fn is_uploading(&self, provider: &ProviderName, image: &ImageName) -> bool {
        self.lock().leased.keys().any(|item| match item {
            WorkItem::Upload(lock_key) => lock_key.provider == *provider && lock_key.build.image == *image,
            WorkItem::Build(_) => false,
        })
    }

    /// Numbers of leased builds and uploads.
    pub fn busy(&self) -> (usize, usize) {
        let state = self.lock();
        let builds = state.builds();
        (builds, state.leased.len() - builds)
    }

    /// Time until the first back-off ends.
    pub fn next_due(&self) -> Option<Seconds> {
        let now = Instant::now();
        let retry_at = self.lock().backoffs.values().map(|backoff| backoff.retry_at).filter(|until| *until > now).min();
        retry_at.map(|until| Seconds((until - now).as_secs_f64()))
    }

    /// Closes the queue: nothing is leased any more. Resolves when the last build has ended.
    pub async fn finish_builds(&self) {
        self.lock().is_closed = true;
        let mut builds = self.builds.subscribe();
        // This wait cannot fail, because `self` keeps the sender.
        let _ = builds.wait_for(|builds| *builds == 0).await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn builds(&self) -> usize {
        self.leased.keys().filter(|item| matches!(item, WorkItem::Build(_))).count()
    }

    /// Sequence number of the last failure per provider.
    fn failures_by_provider(&self) -> BTreeMap<ProviderName, u64> {
        let mut last = BTreeMap::new();
        for (item, backoff) in &self.backoffs {
            if let WorkItem::Upload(lock_key) = item {
                let of_provider = last.entry(lock_key.provider.clone()).or_insert(0);
                *of_provider = backoff.failure.max(*of_provider);
            }
        }
        last
    }

    fn back_off(&mut self, item: &WorkItem, delay: Seconds, failure: u64) {
        let now = Instant::now();
        self.backoffs.retain(|_, backoff| now.saturating_duration_since(backoff.retry_at) < FORGET_AFTER);
        self.backoffs.insert(item.clone(), Backoff { retry_at: now + delay.to_duration(), failure });
    }
}

impl WorkLease {
    /// Records that the build of the image has started.
    pub fn record_build(&self, build: &BuildId) {
        self.queue.lock().leased.insert(self.item.clone(), Some(build.clone()));
    }

    /// Backs the item off for `delay`; afterwards it ranks after items without failures or with older ones.
    pub fn failed(&self, delay: Seconds) {
        let mut state = self.queue.lock();
        state.failures += 1;
        let failure = state.failures;
        state.back_off(&self.item, delay, failure);
    }

    /// Backs the item off for `delay` without counting a failure, so its rank stays.
    pub fn back_off(&self, delay: Seconds) {
        let mut state = self.queue.lock();
        let failure = state.backoffs.get(&self.item).map_or(0, |backoff| backoff.failure);
        state.back_off(&self.item, delay, failure);
    }

    pub fn succeeded(&self) {
        self.queue.lock().backoffs.remove(&self.item);
    }
}

impl Drop for WorkLease {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.leased.remove(&self.item);
        self.queue.builds.send_replace(state.builds());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodepool_model::records::image_build::BuildKey;

    fn build(image: &str) -> (WorkItem, ()) {
        (WorkItem::Build(image.into()), ())
    }

    fn upload(provider: &str, image: &str) -> (WorkItem, ()) {
        let build = BuildKey { image: image.into(), build: "1".into() };
        (WorkItem::Upload(UploadLockKey { build, provider: provider.into() }), ())
    }

    fn lease(queue: &WorkQueue, due: impl IntoIterator<Item = (WorkItem, ())>) -> Option<WorkLease> {
        queue.lease_first(due).map(|((), lease)| lease)
    }

    #[tokio::test(start_paused = true)]
    async fn item_is_leased_once_and_backs_off_after_a_failure() {
        let queue = WorkQueue::default();
        let first = lease(&queue, [build("debian")]).unwrap();
        assert!(lease(&queue, [build("debian")]).is_none());
        assert!(lease(&queue, [build("other")]).is_some());
        first.failed(Seconds(10.0));
        drop(first);
        assert_eq!(queue.next_due(), Some(Seconds(10.0)));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(lease(&queue, [build("debian")]).is_none());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(lease(&queue, [build("debian")]).is_some());
        assert_eq!(queue.next_due(), None);
    }

    // With one worker, two images whose builds failed after half an hour starved all images after them.
    #[tokio::test(start_paused = true)]
    async fn failing_item_does_not_starve_others() {
        let queue = WorkQueue::default();
        let mut tried = String::new();
        for _ in 0..7 {
            let missing = ["a", "b", "c"].into_iter().filter(|image| !tried.contains('c') || *image != "c");
            let lease = lease(&queue, missing.map(build)).unwrap();
            tokio::time::advance(Duration::from_secs(1800)).await;
            let WorkItem::Build(image) = &lease.item else { panic!("{:?}", lease.item) };
            tried += image.as_str();
            if image.as_str() == "c" { lease.succeeded() } else { lease.failed(Seconds(10.0)) }
        }
        assert_eq!(tried, "abcabab");
    }

    #[tokio::test(start_paused = true)]
    async fn provider_with_failed_uploads_ranks_last() {
        let queue = WorkQueue::default();
        lease(&queue, [upload("a", "debian")]).unwrap().failed(Seconds(10.0));
        let next = lease(&queue, [upload("a", "fedora"), upload("b", "fedora")]).unwrap();
        assert_eq!(next.item, upload("b", "fedora").0);
        let last = lease(&queue, [upload("a", "fedora"), upload("b", "fedora")]).unwrap();
        assert_eq!(last.item, upload("a", "fedora").0);
    }
}
