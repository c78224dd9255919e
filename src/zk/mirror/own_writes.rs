//! Recognises the watch events of own writes, so that the mirror does not read back what this process has just written.
//!
//! An event reports only that a znode changed. Events of one znode arrive in the order of its changes, one per change,
//! but they may overtake the reply to the write that caused them. So events are counted: for each successful own write,
//! the earliest event counts as its own. If another process wrote too, at least the last event is left over and causes
//! a read. A failed write has no event.
//!
//! A transaction may change some znodes and delete others. The events of its deletions wait for the reply, so that all
//! its changes become visible at once.

use rustc_hash::FxHashMap;

#[derive(Debug, Default)]
pub struct OwnWriteTracker {
    /// Changes when events may have been lost: earlier counts are void.
    epoch: u64,
    paths: FxHashMap<String, WriteCount>,
    /// Znodes that a write in flight deletes, and whether the event of the deletion has arrived.
    deletions: FxHashMap<String, bool>,
}

#[derive(Debug, Default)]
struct WriteCount {
    /// Writes that are not answered yet.
    in_flight: u32,
    /// Events received meanwhile; the reply decides whether they belong to an own write.
    early_events: u32,
    /// Answered writes whose events have not arrived yet.
    expected_events: u32,
}

/// A write that is about to be sent. It ends in `done` or `failed`.
#[derive(Debug)]
pub struct PendingWrite {
    paths: Vec<String>,
    epoch: u64,
}

impl OwnWriteTracker {
    /// Must be called before the write is sent. The write sets the data of these znodes, each once.
    pub fn begin_write(&mut self, paths: Vec<String>) -> PendingWrite {
        for path in &paths {
            self.paths.entry(path.clone()).or_default().in_flight += 1;
        }
        PendingWrite { paths, epoch: self.epoch }
    }

    /// Counts an event. If this returns true, no read is due: the event belongs to an own write, or the reply decides
    /// later.
    pub fn on_event(&mut self, path: &str) -> bool {
        let Some(count) = self.paths.get_mut(path) else { return false };
        if count.expected_events > 0 {
            count.expected_events -= 1;
        } else if count.in_flight > 0 {
            count.early_events += 1;
        } else {
            return false;
        }
        self.remove_if_idle(path);
        true
    }

    /// Must be called before a write is sent that deletes these znodes. It ends in `end_deletions`.
    pub fn begin_deletions(&mut self, paths: &[String]) {
        self.deletions.extend(paths.iter().map(|path| (path.clone(), false)));
    }

    /// The znode was deleted. If this returns true, the deletion has to wait for the reply to an own write.
    pub fn on_deleted(&mut self, path: &str) -> bool {
        self.deletions.get_mut(path).map(|has_arrived| *has_arrived = true).is_some()
    }

    /// The znode was created again. If this returns true, its deletion must not wait any longer.
    pub fn on_created(&mut self, path: &str) -> bool {
        self.deletions.get_mut(path).is_some_and(std::mem::take)
    }

    /// The write has ended. Returns the znodes that are known to be deleted.
    pub fn end_deletions(&mut self, paths: Vec<String>) -> Vec<String> {
        paths.into_iter().filter(|path| self.deletions.remove(path) == Some(true)).collect()
    }

    /// The write succeeded. Returns the znodes to read, because another process wrote them too.
    pub fn done(&mut self, write: PendingWrite) -> Vec<String> {
        if write.epoch != self.epoch {
            return self.failed(write);
        }
        for path in &write.paths {
            let Some(count) = self.paths.get_mut(path) else { continue };
            match count.early_events.checked_sub(1) {
                Some(remaining) => count.early_events = remaining,
                None => count.expected_events += 1,
            }
        }
        self.failed(write)
    }

    /// The write failed, or its outcome is unknown. Returns the znodes to read.
    pub fn failed(&mut self, write: PendingWrite) -> Vec<String> {
        let mut foreign_writes = Vec::new();
        for path in write.paths {
            let Some(count) = self.paths.get_mut(&path) else { continue };
            count.in_flight = count.in_flight.saturating_sub(1);
            let is_foreign = count.in_flight == 0 && std::mem::take(&mut count.early_events) > 0;
            self.remove_if_idle(&path);
            if is_foreign {
                foreign_writes.push(path);
            }
        }
        foreign_writes
    }

    /// Drops the counts of a deleted znode.
    pub fn forget(&mut self, path: &str) {
        self.paths.remove(path);
    }

    /// Voids the counts of events, because events may have been lost and everything is re-read.
    pub fn reset(&mut self) {
        self.epoch += 1;
        self.deletions.values_mut().for_each(|has_arrived| *has_arrived = false);
        self.paths.retain(|_, count| {
            (count.early_events, count.expected_events) = (0, 0);
            count.in_flight > 0
        });
    }

    fn remove_if_idle(&mut self, path: &str) {
        let is_idle =
            |count: &WriteCount| count.in_flight == 0 && count.early_events == 0 && count.expected_events == 0;
        if self.paths.get(path).is_some_and(is_idle) {
            self.paths.remove(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/nodepool/nodes/0000000001";

    fn begin_write(tracker: &mut OwnWriteTracker) -> PendingWrite {
        tracker.begin_write(vec![PATH.to_owned()])
    }

    #[test]
    fn an_event_before_the_reply_is_of_the_own_write() {
        let mut tracker = OwnWriteTracker::default();
        let write = begin_write(&mut tracker);
        assert!(tracker.on_event(PATH));
        assert_eq!(tracker.done(write), Vec::<String>::new());
        assert!(!tracker.on_event(PATH));
        assert!(tracker.paths.is_empty());
    }

    #[test]
    fn one_event_after_the_reply_is_of_the_own_write() {
        let mut tracker = OwnWriteTracker::default();
        let write = begin_write(&mut tracker);
        assert_eq!(tracker.done(write), Vec::<String>::new());
        assert!(tracker.on_event(PATH));
        assert!(!tracker.on_event(PATH));
        assert!(tracker.paths.is_empty());
    }

    #[test]
    fn a_second_event_is_a_foreign_write() {
        let mut tracker = OwnWriteTracker::default();
        let write = begin_write(&mut tracker);
        assert!(tracker.on_event(PATH) && tracker.on_event(PATH));
        assert_eq!(tracker.done(write), [PATH]);
        assert!(tracker.paths.is_empty());
    }

    #[test]
    fn an_event_during_a_failed_write_is_a_foreign_write() {
        let mut tracker = OwnWriteTracker::default();
        let write = begin_write(&mut tracker);
        assert!(tracker.on_event(PATH));
        assert_eq!(tracker.failed(write), [PATH]);
        let write = begin_write(&mut tracker);
        assert_eq!(tracker.failed(write), Vec::<String>::new());
        assert!(!tracker.on_event(PATH));
    }

    #[test]
    fn no_event_is_expected_after_a_gap() {
        let mut tracker = OwnWriteTracker::default();
        let (lost, open) = (begin_write(&mut tracker), begin_write(&mut tracker));
        assert_eq!(tracker.done(lost), Vec::<String>::new());
        tracker.reset();
        assert!(tracker.on_event(PATH)); // The reply to the open write decides.
        assert_eq!(tracker.done(open), [PATH]);
        assert!(!tracker.on_event(PATH));
        assert!(tracker.paths.is_empty());
    }

    #[test]
    fn the_event_of_an_own_deletion_waits_for_the_reply() {
        let mut tracker = OwnWriteTracker::default();
        let paths = vec![PATH.to_owned(), "/nodepool/nodes/0000000002".to_owned()];
        tracker.begin_deletions(&paths);
        assert!(tracker.on_deleted(PATH));
        assert_eq!(tracker.end_deletions(paths), [PATH]);
        assert!(!tracker.on_deleted(PATH));
        assert!(tracker.deletions.is_empty());
    }

    #[test]
    fn a_znode_created_again_is_deleted_once() {
        let mut tracker = OwnWriteTracker::default();
        let paths = vec![PATH.to_owned()];
        tracker.begin_deletions(&paths);
        assert!(tracker.on_deleted(PATH));
        assert!(tracker.on_created(PATH));
        assert_eq!(tracker.end_deletions(paths), Vec::<String>::new());
    }

    #[test]
    fn concurrent_writes_each_have_their_own_event() {
        let mut tracker = OwnWriteTracker::default();
        let (first, second) = (begin_write(&mut tracker), begin_write(&mut tracker));
        assert!(tracker.on_event(PATH) && tracker.on_event(PATH));
        assert_eq!(tracker.done(first), Vec::<String>::new());
        assert_eq!(tracker.failed(second), [PATH]);
        assert!(tracker.paths.is_empty());
    }
}
