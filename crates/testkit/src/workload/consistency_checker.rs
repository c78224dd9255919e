//! Consistency checker of a run: the requests and nodes as consumers observe them, and all violations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use nodepool_model::records::ids::{LabelName, NodeId, RequestId};
use nodepool_model::records::node::Node;
use tokio::time::Instant;

/// Slot of a host: the host's name and the number of the slot. One job at a time may use it.
pub type SlotKey = (String, i64);

/// Receives the observations of the consumers and of the poller of ZooKeeper's state.
pub struct ConsistencyChecker {
    /// Maximum wait of the request of the highest rank while enough slots are free.
    pub max_head_wait: Duration,
    slots: BTreeMap<LabelName, usize>,
    launchers: LauncherSetup,
    state: Mutex<CheckerState>,
}

#[derive(Clone, Copy, PartialEq)]
pub enum LauncherSetup {
    OnePerProvider,
    /// Both launchers may register the same slot for a moment. One may try to lock a node while the other assigns it,
    /// as all launchers that share nodes do. The other invariants of nodes hold.
    TwoPerProvider,
}

#[derive(Default)]
struct CheckerState {
    open: BTreeMap<RequestId, Vec<LabelName>>,
    assigned: BTreeMap<RequestId, Vec<(SlotKey, LabelName)>>,
    busy: BTreeMap<SlotKey, RequestId>,
    /// Nodes that were in use: they may not be assigned to another request.
    used: BTreeMap<NodeId, RequestId>,
    /// The request of the highest rank, the time since which it has capacity, and whether a violation was reported.
    head: Option<(RequestId, Instant, bool)>,
    /// Time at which a launcher was last killed.
    restarted: Option<Instant>,
    longest_head_wait: Duration,
    served: usize,
    by_provider: BTreeMap<String, usize>,
    cancelled: usize,
    violations: BTreeSet<String>,
}

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunSummary {
    pub served: usize,
    pub cancelled: usize,
    pub longest_head_wait: Duration,
}

impl ConsistencyChecker {
    /// `slots` has the number of slots per label. Every host has one label.
    pub fn new(max_head_wait: Duration, slots: &[(&str, usize)], launchers: LauncherSetup) -> ConsistencyChecker {
        let slots = slots.iter().map(|(label, count)| (LabelName::from(*label), *count)).collect();
        ConsistencyChecker { max_head_wait, slots, launchers, state: Mutex::default() }
    }

    pub fn report_violation(&self, text: String) {
        self.state().violations.insert(text);
    }

    /// A launcher has locked a node that is assigned to this request: a violation, unless two launchers share the node.
    pub fn locked_by_launcher(&self, id: &RequestId, node: &NodeId, contender: &str) {
        if self.launchers == LauncherSetup::OnePerProvider {
            self.report_violation(format!("node {node} of fulfilled request {id} is locked by {contender}"));
        }
    }

    pub fn violations(&self) -> Vec<String> {
        self.state().violations.iter().cloned().collect()
    }

    pub fn summary(&self) -> RunSummary {
        let state = self.state();
        RunSummary { served: state.served, cancelled: state.cancelled, longest_head_wait: state.longest_head_wait }
    }

    /// Number of assigned nodes of a provider.
    pub fn served_by(&self, provider: &str) -> usize {
        self.state().by_provider.get(provider).copied().unwrap_or(0)
    }

    pub fn submitted(&self, id: &RequestId, labels: &[LabelName]) {
        self.state().open.insert(id.clone(), labels.to_vec());
    }

    /// The requestor cancels its request. Call it before the write to ZooKeeper.
    pub fn cancelled(&self, id: &RequestId) {
        let mut state = self.state();
        state.cancelled += 1;
        state.open.remove(id);
        state.release_slots(id);
    }

    pub fn fulfilled(&self, id: &RequestId, nodes: &[(NodeId, Node)]) {
        let mut state = self.state();
        state.served += 1;
        state.open.remove(id);
        for (node, record) in nodes {
            if let Some(earlier) = state.used.get(node) {
                let text = format!("node {node} was used for {earlier} and is assigned again to {id}");
                state.violations.insert(text);
            }
            let provider = record.provider.as_ref().map(ToString::to_string).unwrap_or_default();
            *state.by_provider.entry(provider).or_insert(0) += 1;
            // Each cloud node counts as a host of its own.
            let host = record.hostname.clone().unwrap_or_else(|| node.to_string());
            let slot = (host, record.slot.unwrap_or(-1));
            if let Some(other) = state.busy.insert(slot.clone(), id.clone())
                && self.launchers == LauncherSetup::OnePerProvider
            {
                let text = format!("slot {} of {} is assigned to {other} and was assigned to {id}", slot.1, slot.0);
                state.violations.insert(text);
            }
            let label = record.labels.first().cloned().unwrap_or_else(|| LabelName::from(""));
            state.assigned.entry(id.clone()).or_default().push((slot, label));
        }
    }

    pub fn in_use(&self, id: &RequestId, node: &NodeId) {
        self.state().used.insert(node.clone(), id.clone());
    }

    /// The consumer returns its nodes. Call it before the write to ZooKeeper.
    pub fn released(&self, id: &RequestId) {
        self.state().release_slots(id);
    }

    /// Checks how long the request of the highest rank has been waiting.
    pub fn check_head_of_queue(&self) {
        let mut state = self.state();
        let Some((id, labels)) = state.open.first_key_value() else {
            state.head = None;
            return;
        };
        let (id, labels) = (id.clone(), labels.clone());
        let has_capacity = labels.iter().all(|label| {
            let requested = labels.iter().filter(|other| *other == label).count();
            let busy = state.assigned.values().flatten().filter(|(_, assigned)| assigned == label).count();
            self.slots.get(label).copied().unwrap_or(0) >= busy + requested
        });
        if !has_capacity {
            state.head = None;
            return;
        }
        let now = Instant::now();
        let (since, is_reported) = match &state.head {
            Some((head, since, is_reported)) if *head == id => (*since, *is_reported),
            _ => (now, false),
        };
        let waited = now - since;
        state.longest_head_wait = state.longest_head_wait.max(waited);
        if waited > self.max_head_wait && !is_reported {
            let text = format!("request {id} for {labels:?} waits {:?} although there is capacity", self.max_head_wait);
            state.violations.insert(text);
        }
        state.head = Some((id, since, is_reported || waited > self.max_head_wait));
    }

    /// A launcher was killed: waits are measured from now on.
    pub fn restart_clock(&self) {
        let mut state = self.state();
        (state.head, state.restarted) = (None, Some(Instant::now()));
    }

    /// The wait that counts against the guarantee: since `began`, or since a launcher was last killed. A launcher that
    /// is killed before it declines blocks the request as long as its session lasts.
    pub fn waited_since(&self, began: Instant) -> Duration {
        self.state().restarted.map_or(began, |restarted| restarted.max(began)).elapsed()
    }

    /// The open request of the highest rank.
    pub fn head_of_queue(&self) -> Option<RequestId> {
        self.state().open.first_key_value().map(|(id, _)| id.clone())
    }

    pub fn is_open(&self, id: &RequestId) -> bool {
        self.state().open.contains_key(id)
    }

    fn state(&self) -> MutexGuard<'_, CheckerState> {
        self.state.lock().expect("no panic while the state is locked")
    }
}

impl CheckerState {
    fn release_slots(&mut self, id: &RequestId) {
        for (slot, _) in self.assigned.remove(id).unwrap_or_default() {
            if self.busy.get(&slot) == Some(id) {
                self.busy.remove(&slot);
            }
        }
    }
}
