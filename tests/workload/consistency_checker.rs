//! What is known about every request and node of a run, and every promise that was broken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use nodepool_model::records::ids::{LabelName, NodeId, RequestId};
use nodepool_model::records::node::Node;
use tokio::time::Instant;

/// One slot of one host: two jobs on it at once would be on the same machine.
pub type SlotKey = (String, i64);

/// Kept by consumers as they go; what the watcher finds in ZooKeeper is added.
pub struct ConsistencyChecker {
    /// How long the request of the highest rank may wait although there are free slots enough for it.
    pub max_head_wait: Duration,
    slots: BTreeMap<LabelName, usize>,
    launchers: LauncherSetup,
    state: Mutex<CheckerState>,
}

#[derive(Clone, Copy, PartialEq)]
pub enum LauncherSetup {
    OnePerProvider,
    /// Both may register the same slot, until they notice, and one may try a node's lock while the other hands it out,
    /// as launchers of any kind do that share nodes; what is true of nodes is true all the same.
    TwoPerProvider,
}

#[derive(Default)]
struct CheckerState {
    open: BTreeMap<RequestId, Vec<LabelName>>,
    assigned: BTreeMap<RequestId, Vec<(SlotKey, LabelName)>>,
    busy: BTreeMap<SlotKey, RequestId>,
    /// Nodes that were in use: no other request may ever see them.
    used: BTreeMap<NodeId, RequestId>,
    /// The request whose turn it is, since when there is room for it, and whether it was complained about.
    head: Option<(RequestId, Instant, bool)>,
    /// When a launcher began anew.
    restarted: Option<Instant>,
    longest_head_wait: Duration,
    served: usize,
    by_provider: BTreeMap<String, usize>,
    cancelled: usize,
    violations: BTreeSet<String>,
}

/// The figures of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunSummary {
    pub served: usize,
    pub cancelled: usize,
    pub longest_head_wait: Duration,
}

impl ConsistencyChecker {
    /// `slots`: how many there are per label; every host has one label.
    pub fn new(max_head_wait: Duration, slots: &[(&str, usize)], launchers: LauncherSetup) -> ConsistencyChecker {
        let slots = slots.iter().map(|(label, count)| (LabelName::from(*label), *count)).collect();
        ConsistencyChecker { max_head_wait, slots, launchers, state: Mutex::default() }
    }

    pub fn report_violation(&self, text: String) {
        self.state().violations.insert(text);
    }

    /// A launcher has a node locked that was handed out to this request.
    pub fn locked_by_launcher(&self, id: &RequestId, node: &NodeId, contender: &str) {
        if self.launchers == LauncherSetup::OnePerProvider {
            self.report_violation(format!("node {node} of fulfilled request {id} is locked by {contender}"));
        }
    }

    pub fn violations(&self) -> Vec<String> {
        self.state().violations.iter().cloned().collect()
    }

    pub fn summary(&self) -> RunSummary {
        let pages = self.state();
        RunSummary { served: pages.served, cancelled: pages.cancelled, longest_head_wait: pages.longest_head_wait }
    }

    /// How many nodes of a provider were handed out.
    pub fn served_by(&self, provider: &str) -> usize {
        self.state().by_provider.get(provider).copied().unwrap_or(0)
    }

    pub fn submitted(&self, id: &RequestId, labels: &[LabelName]) {
        self.state().open.insert(id.clone(), labels.to_vec());
    }

    /// Somebody no longer wants what was asked for; to be said before ZooKeeper knows.
    pub fn cancelled(&self, id: &RequestId) {
        let mut pages = self.state();
        pages.cancelled += 1;
        pages.open.remove(id);
        pages.release_slots(id);
    }

    pub fn fulfilled(&self, id: &RequestId, nodes: &[(NodeId, Node)]) {
        let mut pages = self.state();
        pages.served += 1;
        pages.open.remove(id);
        for (node, record) in nodes {
            if let Some(earlier) = pages.used.get(node) {
                let text = format!("node {node} was used for {earlier} and is handed out again to {id}");
                pages.violations.insert(text);
            }
            let provider = record.provider.as_ref().map(ToString::to_string).unwrap_or_default();
            *pages.by_provider.entry(provider).or_insert(0) += 1;
            // Nodes of clouds are places of their own.
            let host = record.hostname.clone().unwrap_or_else(|| node.to_string());
            let slot = (host, record.slot.unwrap_or(-1));
            if let Some(other) = pages.busy.insert(slot.clone(), id.clone())
                && self.launchers == LauncherSetup::OnePerProvider
            {
                let text = format!("slot {} of {} belongs to {other} and was handed out to {id}", slot.1, slot.0);
                pages.violations.insert(text);
            }
            let label = record.labels.first().cloned().unwrap_or_else(|| LabelName::from(""));
            pages.assigned.entry(id.clone()).or_default().push((slot, label));
        }
    }

    pub fn in_use(&self, id: &RequestId, node: &NodeId) {
        self.state().used.insert(node.clone(), id.clone());
    }

    /// To be said before ZooKeeper knows.
    pub fn released(&self, id: &RequestId) {
        self.state().release_slots(id);
    }

    /// Looks at the clock of the request whose turn it is.
    pub fn check_head_of_queue(&self) {
        let mut pages = self.state();
        let Some((id, labels)) = pages.open.first_key_value() else {
            pages.head = None;
            return;
        };
        let (id, labels) = (id.clone(), labels.clone());
        let has_capacity = labels.iter().all(|label| {
            let requested = labels.iter().filter(|other| *other == label).count();
            let busy = pages.assigned.values().flatten().filter(|(_, assigned)| assigned == label).count();
            self.slots.get(label).copied().unwrap_or(0) >= busy + requested
        });
        if !has_capacity {
            pages.head = None;
            return;
        }
        let now = Instant::now();
        let (since, is_reported) = match &pages.head {
            Some((head, since, is_reported)) if *head == id => (*since, *is_reported),
            _ => (now, false),
        };
        let waited = now - since;
        pages.longest_head_wait = pages.longest_head_wait.max(waited);
        if waited > self.max_head_wait && !is_reported {
            let text =
                format!("request {id} for {labels:?} waits {:?} although there is room for it", self.max_head_wait);
            pages.violations.insert(text);
        }
        pages.head = Some((id, since, is_reported || waited > self.max_head_wait));
    }

    /// The launcher is gone: what is promised is promised from here on.
    pub fn restart_clock(&self) {
        let mut pages = self.state();
        (pages.head, pages.restarted) = (None, Some(Instant::now()));
    }

    /// How long somebody has waited as far as anything was promised: from when he began to, or from when a launcher last died. A
    /// launcher that dies before it has declined is waited for as long as its session lasts.
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
        self.state.lock().expect("nothing panics while it holds the book")
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
