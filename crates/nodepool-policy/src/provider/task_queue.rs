//! Task queue of a provider: decides which call may start now. Lanes are served in turn, starts are spaced by the rate
//! limit, and calls in flight are bounded.
//!
//! Times are durations since a fixed moment of a monotonic clock; the actor passes them in.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use nodepool_driver::state_machine::{Lane, Spacing};
use nodepool_model::records::time::Seconds;

/// Id of a call within its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct CallId(pub u64);

/// Next action of the actor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QueueStep {
    Start(CallId),
    /// Nothing may start before this time.
    WaitUntil(Seconds),
    /// A call is queued, and a call in flight has to end first.
    WaitForEnd,
    Empty,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueLengths {
    pub change: usize,
    pub read: usize,
    pub bulk: usize,
}

/// The queue that every call of a provider enters.
#[derive(Debug)]
pub struct TaskQueue {
    /// In the order of `LANES`.
    lanes: [VecDeque<CallId>; 3],
    /// Calls of a probe. They precede all others, and neither the bound nor `is_held` concerns them.
    probes: VecDeque<(CallId, Lane)>,
    /// Only probes start.
    is_held: bool,
    /// Index of the lane that is served next.
    turn: usize,
    spacing: Spacing,
    /// Maximum number of calls in flight, without bulk transfers.
    max_in_flight: usize,
    in_flight: BTreeMap<CallId, Running>,
    /// The earliest start of each lane by the spacing.
    next_start: [Seconds; 3],
    /// No call starts before this time, the end of a throttle.
    not_before: Seconds,
    /// Pause after a throttled call; it grows while the cloud continues to throttle.
    backoff: Seconds,
    /// Time at which the back-off started or was last raised.
    backoff_raised_at: Option<Seconds>,
}

/// A call in flight.
#[derive(Clone, Copy, Debug)]
struct Running {
    lane: Lane,
    is_probe: bool,
    started: Seconds,
}

const LANES: [Lane; 3] = [Lane::Change, Lane::Read, Lane::Bulk];
const INITIAL_BACKOFF: Seconds = Seconds(1.0);
const MAX_BACKOFF: Seconds = Seconds(60.0);
/// A longer `retry_after` counts as a mistake of the cloud.
const MAX_RETRY_AFTER: Seconds = Seconds(3600.0);

impl TaskQueue {
    pub fn new(spacing: Spacing, max_in_flight: usize) -> Self {
        assert!(max_in_flight > 0, "a queue that may start no call would wait forever");
        Self {
            lanes: Default::default(),
            probes: VecDeque::new(),
            is_held: false,
            turn: 0,
            spacing,
            max_in_flight,
            in_flight: BTreeMap::new(),
            next_start: [Seconds::ZERO; 3],
            not_before: Seconds::ZERO,
            backoff: INITIAL_BACKOFF,
            backoff_raised_at: None,
        }
    }

    /// Appends a call to its lane.
    pub fn push(&mut self, call: CallId, lane: Lane) {
        assert!(!self.in_flight.contains_key(&call), "{call:?} is already running");
        self.lanes[lane as usize].push_back(call);
    }

    /// Appends a call of a probe, which starts even while the queue is held, or full.
    pub fn push_probe(&mut self, call: CallId, lane: Lane) {
        self.probes.push_back((call, lane));
    }

    /// Holds all calls but probes, or lets them start again.
    pub fn set_held(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Takes the next call that may start, counts it as in flight and starts the spacing.
    pub fn next(&mut self, now: Seconds) -> QueueStep {
        if self.probes.is_empty() && (self.is_held || self.lanes.iter().all(VecDeque::is_empty)) {
            return QueueStep::Empty;
        }
        let lane = match self.probes.front() {
            Some((_, lane)) => *lane,
            None => match self.next_lane(now) {
                Some(lane) => lane,
                None => return QueueStep::WaitForEnd,
            },
        };
        if now < self.earliest_start(lane) {
            return QueueStep::WaitUntil(self.earliest_start(lane));
        }
        let (call, is_probe) = match self.probes.pop_front() {
            Some((call, _)) => (call, true),
            None => {
                self.turn = (lane as usize + 1) % LANES.len();
                (self.lanes[lane as usize].pop_front().expect("next_lane names a lane that is not empty"), false)
            }
        };
        self.in_flight.insert(call, Running { lane, is_probe, started: now });
        self.space(lane, now);
        assert!(self.counted_in_flight() <= self.max_in_flight, "more calls in flight than allowed");
        QueueStep::Start(call)
    }

    /// A call finished, successfully or not. The cloud serves requests, so the back-off is reset.
    pub fn ended(&mut self, call: CallId) {
        let was_running = self.in_flight.remove(&call).is_some();
        assert!(was_running, "{call:?} ended without having started");
        (self.backoff, self.backoff_raised_at) = (INITIAL_BACKOFF, None);
    }

    /// The cloud throttled a call: the call returns to the head of its lane, and all calls pause. If calls that were in
    /// flight together are throttled, only the first raises the back-off. The others started before the pause, so they
    /// do not show that it was too short.
    pub fn throttled(&mut self, call: CallId, now: Seconds, retry_after: Seconds) {
        let running = self.in_flight.remove(&call).expect("only a started call can be throttled");
        let Running { lane, is_probe, started } = running;
        match is_probe {
            true => self.probes.push_front((call, lane)),
            false => self.lanes[lane as usize].push_front(call),
        }
        let started_after_pause = self.backoff_raised_at.is_some_and(|at| started > at);
        if started_after_pause {
            self.backoff = Seconds((self.backoff.0 * 2.0).min(MAX_BACKOFF.0));
        }
        if started_after_pause || self.backoff_raised_at.is_none() {
            self.backoff_raised_at = Some(now);
        }
        let pause = retry_after.0.min(MAX_RETRY_AFTER.0).max(self.backoff.0);
        self.not_before = Seconds(self.not_before.0.max(now.0 + pause));
    }

    /// Returns a call to the head of its lane.
    pub fn push_front(&mut self, call: CallId, lane: Lane) {
        self.lanes[lane as usize].push_front(call);
    }

    /// The calls of a lane that have not started.
    pub fn lane(&self, lane: Lane) -> impl Iterator<Item = CallId> {
        self.lanes[lane as usize].iter().copied()
    }

    /// Removes a queued call. False if it has started, or was never queued.
    pub fn cancel(&mut self, call: CallId) -> bool {
        if let Some(index) = self.probes.iter().position(|(queued, _)| *queued == call) {
            self.probes.remove(index);
            return true;
        }
        for lane in &mut self.lanes {
            if let Some(index) = lane.iter().position(|queued| *queued == call) {
                lane.remove(index);
                return true;
            }
        }
        false
    }

    pub fn queued(&self) -> QueueLengths {
        let [change, read, bulk] = &self.lanes;
        QueueLengths { change: change.len(), read: read.len(), bulk: bulk.len() }
    }

    pub fn in_flight(&self) -> impl Iterator<Item = CallId> {
        self.in_flight.keys().copied()
    }

    /// Starts the spacing after a call of this lane.
    fn space(&mut self, lane: Lane, now: Seconds) {
        let after = |spacing: Seconds| {
            let is_spaced = spacing.0.is_finite() && spacing > Seconds::ZERO;
            if is_spaced { Seconds(now.0 + spacing.0) } else { now }
        };
        match (self.spacing, lane) {
            (Spacing::Shared(spacing), _) => self.next_start = [after(spacing); 3],
            (Spacing::Apart { changes, .. }, Lane::Change) => self.next_start[lane as usize] = after(changes),
            (Spacing::Apart { reads, .. }, Lane::Read) => self.next_start[lane as usize] = after(reads),
            (Spacing::Apart { .. }, Lane::Bulk) => {}
        }
    }

    fn earliest_start(&self, lane: Lane) -> Seconds {
        Seconds(self.not_before.0.max(self.next_start[lane as usize].0))
    }

    /// The lane with a call that may start first; of several that may start now, the one whose turn is next.
    fn next_lane(&self, now: Seconds) -> Option<Lane> {
        let in_turn = (0..LANES.len()).map(|step| LANES[(self.turn + step) % LANES.len()]);
        let usable = in_turn.filter(|lane| !self.lanes[*lane as usize].is_empty() && self.has_capacity(*lane));
        usable.min_by(|one, other| {
            let [one, other] = [one, other].map(|lane| self.earliest_start(*lane).0.max(now.0));
            one.total_cmp(&other)
        })
    }

    fn has_capacity(&self, lane: Lane) -> bool {
        let counted = self.counted_in_flight();
        match lane {
            Lane::Bulk => true,
            Lane::Change => counted < self.max_in_flight,
            Lane::Read => {
                let is_read = |running: &&Running| running.lane == Lane::Read && !running.is_probe;
                let reads = self.in_flight.values().filter(is_read).count();
                counted < self.max_in_flight && reads < self.max_reads()
            }
        }
    }

    /// Maximum number of reads in flight: slow listings leave a fifth of the capacity to mutating calls.
    fn max_reads(&self) -> usize {
        (self.max_in_flight - self.max_in_flight.div_ceil(5)).max(1)
    }

    fn counted_in_flight(&self) -> usize {
        self.in_flight.values().filter(|running| running.lane != Lane::Bulk && !running.is_probe).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn started(queue: &mut TaskQueue, now: f64) -> Vec<u64> {
        let mut calls = Vec::new();
        while let QueueStep::Start(call) = queue.next(Seconds(now)) {
            calls.push(call.0);
        }
        calls
    }

    #[test]
    fn lanes_take_turns_and_keep_their_order() {
        let mut queue = TaskQueue::new(Spacing::NONE, 10);
        for call in 1..=3 {
            queue.push(CallId(call), Lane::Read);
            queue.push(CallId(10 + call), Lane::Change);
        }
        queue.push(CallId(21), Lane::Bulk);
        assert_eq!(started(&mut queue, 0.0), [11, 1, 21, 12, 2, 13, 3]);
        assert_eq!(queue.next(Seconds::ZERO), QueueStep::Empty);
    }

    #[test]
    fn starts_are_spaced() {
        let mut queue = TaskQueue::new(Spacing::Shared(Seconds(0.5)), 10);
        queue.push(CallId(1), Lane::Read);
        queue.push(CallId(2), Lane::Read);
        assert_eq!(queue.next(Seconds(7.0)), QueueStep::Start(CallId(1)));
        assert_eq!(queue.next(Seconds(7.25)), QueueStep::WaitUntil(Seconds(7.5)));
        assert_eq!(queue.next(Seconds(7.5)), QueueStep::Start(CallId(2)));
    }

    #[test]
    fn changes_and_reads_are_spaced_apart_and_transfers_not_at_all() {
        let spacing = Spacing::Apart { changes: Seconds(0.5), reads: Seconds(0.05) };
        let mut queue = TaskQueue::new(spacing, 100);
        for call in 0..10 {
            queue.push(CallId(call), Lane::Change);
            queue.push(CallId(100 + call), Lane::Read);
            queue.push(CallId(200 + call), Lane::Bulk);
        }
        let first = started(&mut queue, 0.0);
        assert_eq!(first.len(), 12, "one change, one read and all transfers: {first:?}");
        assert_eq!(queue.next(Seconds(0.0)), QueueStep::WaitUntil(Seconds(0.05)));
        assert_eq!(started(&mut queue, 0.05), [101]);
        assert_eq!(started(&mut queue, 0.5).len(), 2);
    }

    #[test]
    fn with_a_limit_of_one_a_call_waits_for_the_previous_to_end() {
        let mut queue = TaskQueue::new(Spacing::NONE, 1);
        queue.push(CallId(1), Lane::Read);
        queue.push(CallId(2), Lane::Change);
        assert_eq!(started(&mut queue, 0.0), [2]);
        assert_eq!(queue.next(Seconds::ZERO), QueueStep::WaitForEnd);
        queue.ended(CallId(2));
        assert_eq!(started(&mut queue, 0.0), [1]);
    }

    #[test]
    fn slow_listings_leave_capacity_for_changes() {
        let mut queue = TaskQueue::new(Spacing::NONE, 10);
        for call in 1..=20 {
            queue.push(CallId(call), Lane::Read);
        }
        assert_eq!(started(&mut queue, 0.0).len(), 8);
        queue.push(CallId(21), Lane::Change);
        assert_eq!(started(&mut queue, 0.0), [21]);
    }

    #[test]
    fn transfers_do_not_count_as_in_flight() {
        let mut queue = TaskQueue::new(Spacing::NONE, 1);
        queue.push(CallId(1), Lane::Bulk);
        queue.push(CallId(2), Lane::Bulk);
        queue.push(CallId(3), Lane::Change);
        assert_eq!(started(&mut queue, 0.0), [3, 1, 2]);
    }

    #[test]
    fn a_throttled_call_goes_first_after_a_growing_pause() {
        let mut queue = TaskQueue::new(Spacing::NONE, 10);
        queue.push(CallId(1), Lane::Read);
        queue.push(CallId(2), Lane::Read);
        assert_eq!(queue.next(Seconds(0.0)), QueueStep::Start(CallId(1)));
        queue.throttled(CallId(1), Seconds(1.0), Seconds(0.5));
        assert_eq!(queue.next(Seconds(1.0)), QueueStep::WaitUntil(Seconds(2.0)));
        assert_eq!(queue.next(Seconds(2.0)), QueueStep::Start(CallId(1)));
        queue.throttled(CallId(1), Seconds(2.0), Seconds(0.5));
        assert_eq!(queue.next(Seconds(2.0)), QueueStep::WaitUntil(Seconds(4.0)));
        assert_eq!(queue.next(Seconds(4.0)), QueueStep::Start(CallId(1)));
        queue.ended(CallId(1));
        assert_eq!(queue.next(Seconds(4.0)), QueueStep::Start(CallId(2)));
        queue.throttled(CallId(2), Seconds(5.0), Seconds(120.0));
        assert_eq!(queue.next(Seconds(5.0)), QueueStep::WaitUntil(Seconds(125.0)));
        assert_eq!(queue.next(Seconds(125.0)), QueueStep::Start(CallId(2)));
        queue.throttled(CallId(2), Seconds(125.0), Seconds(1e9));
        assert_eq!(queue.next(Seconds(125.0)), QueueStep::WaitUntil(Seconds(3725.0)));
    }

    #[test]
    fn calls_in_flight_that_are_throttled_together_make_one_pause() {
        let mut queue = TaskQueue::new(Spacing::NONE, 10);
        for call in 1..=10 {
            queue.push(CallId(call), Lane::Change);
        }
        assert_eq!(started(&mut queue, 0.0).len(), 10);
        for call in 1..=9 {
            queue.throttled(CallId(call), Seconds(0.5), Seconds(1.0));
        }
        assert_eq!(queue.next(Seconds(0.5)), QueueStep::WaitUntil(Seconds(1.5)));
        // The longest `retry_after` applies.
        queue.throttled(CallId(10), Seconds(1.0), Seconds(5.0));
        assert_eq!(queue.next(Seconds(1.0)), QueueStep::WaitUntil(Seconds(6.0)));
        assert_eq!(started(&mut queue, 6.0).len(), 10);
        for call in 1..=10 {
            queue.throttled(CallId(call), Seconds(6.5), Seconds(1.0));
        }
        assert_eq!(queue.next(Seconds(6.5)), QueueStep::WaitUntil(Seconds(8.5)), "a pause was made and was too short");
    }

    #[test]
    fn a_held_or_full_queue_starts_probes_only() {
        let mut queue = TaskQueue::new(Spacing::NONE, 1);
        queue.push(CallId(1), Lane::Change);
        queue.push(CallId(2), Lane::Change);
        queue.push_probe(CallId(3), Lane::Read);
        queue.push_probe(CallId(4), Lane::Read);
        assert_eq!(started(&mut queue, 0.0), [3, 4, 1]);
        assert_eq!(queue.next(Seconds::ZERO), QueueStep::WaitForEnd);
        queue.ended(CallId(1));
        queue.set_held(true);
        assert_eq!(queue.next(Seconds::ZERO), QueueStep::Empty);
        queue.throttled(CallId(3), Seconds::ZERO, Seconds(7.0));
        assert_eq!(queue.next(Seconds::ZERO), QueueStep::WaitUntil(Seconds(7.0)));
        assert!(queue.cancel(CallId(3)));
        queue.set_held(false);
        assert_eq!(started(&mut queue, 7.0), [2]);
    }

    #[test]
    fn only_a_call_that_has_not_started_can_be_cancelled() {
        let mut queue = TaskQueue::new(Spacing::NONE, 1);
        queue.push(CallId(1), Lane::Read);
        queue.push(CallId(2), Lane::Read);
        assert_eq!(started(&mut queue, 0.0), [1]);
        assert!(!queue.cancel(CallId(1)));
        assert!(queue.cancel(CallId(2)));
        assert!(!queue.cancel(CallId(2)));
        queue.ended(CallId(1));
        assert_eq!(queue.next(Seconds::ZERO), QueueStep::Empty);
    }

    fn lane() -> impl Strategy<Value = Lane> {
        prop_oneof![Just(Lane::Change), Just(Lane::Read), Just(Lane::Bulk)]
    }

    proptest! {
        #[test]
        fn starts_are_spaced_and_bounded_and_every_call_runs(
            spacing in prop_oneof![Just(0.0), 0.01..2.0_f64],
            bound in 1_usize..12,
            calls in prop::collection::vec((lane(), 0.0..5.0_f64, 0.0..4.0_f64, 0_u8..20), 1..80),
        ) {
            let mut queue = TaskQueue::new(Spacing::Shared(Seconds(spacing)), bound);
            let mut arrivals: Vec<(f64, u64)> =
                calls.iter().enumerate().map(|(index, call)| (call.1, index as u64)).collect();
            arrivals.sort_by(|one, other| other.0.total_cmp(&one.0));
            let mut running: Vec<(f64, u64)> = Vec::new();
            let mut throttled = std::collections::BTreeSet::new();
            let (mut starts, mut ended, mut now, mut last_start) = (0, 0, 0.0_f64, f64::NEG_INFINITY);
            for _ in 0..10_000 {
                while arrivals.last().is_some_and(|(at, _)| *at <= now) {
                    let (_, call) = arrivals.pop().unwrap();
                    queue.push(CallId(call), calls[call as usize].0);
                }
                while let Some(index) = running.iter().position(|(at, _)| *at <= now) {
                    let (_, call) = running.swap_remove(index);
                    if calls[call as usize].3 == 0 && throttled.insert(call) {
                        queue.throttled(CallId(call), Seconds(now), Seconds(0.5));
                    } else {
                        queue.ended(CallId(call));
                        ended += 1;
                    }
                }
                let mut wake = arrivals.last().map_or(f64::INFINITY, |(at, _)| *at);
                wake = running.iter().fold(wake, |soonest, (at, _)| soonest.min(*at));
                match queue.next(Seconds(now)) {
                    QueueStep::Start(call) => {
                        prop_assert!(now >= last_start + spacing - 1e-9, "{now} follows {last_start} too soon");
                        last_start = now;
                        starts += 1;
                        running.push((now + calls[call.0 as usize].2, call.0));
                        let counted = running.iter().filter(|(_, id)| calls[*id as usize].0 != Lane::Bulk).count();
                        prop_assert!(counted <= bound);
                        continue;
                    }
                    QueueStep::WaitUntil(at) => {
                        prop_assert!(at.0 > now);
                        wake = wake.min(at.0);
                    }
                    QueueStep::WaitForEnd => prop_assert!(!running.is_empty()),
                    QueueStep::Empty => {}
                }
                if wake.is_infinite() {
                    break;
                }
                now = now.max(wake);
            }
            prop_assert_eq!(ended, calls.len());
            prop_assert_eq!(starts, calls.len() + throttled.len());
            prop_assert_eq!(queue.next(Seconds(now)), QueueStep::Empty);
        }

        #[test]
        fn a_lane_waits_for_at_most_one_start_of_each_other_lane(
            others in prop::collection::vec(lane(), 0..60), mine in lane(),
        ) {
            let mut queue = TaskQueue::new(Spacing::NONE, 1000);
            for (index, lane) in others.iter().filter(|lane| **lane != mine).enumerate() {
                queue.push(CallId(index as u64), *lane);
            }
            queue.push(CallId(999), mine);
            let position = started(&mut queue, 0.0).iter().position(|call| *call == 999).unwrap();
            prop_assert!(position <= 2, "started as number {position}");
        }
    }
}
