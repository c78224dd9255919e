//! Invariant of min-ready: a launcher asks for no more nodes of a label than `min-ready` minus those that it has.
//!
//! It is checked at each creation of a min-ready request, on the records in ZooKeeper. Each session is checked on its
//! own. Launchers do not count the open requests of others, as in Nodepool 11, so two may ask at the same time. For the
//! same reason, only nodes count that earlier requests of the session have left idle: other nodes become idle by writes
//! that the launcher need not know yet.

use std::collections::BTreeMap;

use super::process::CONFIG_GRACE_PERIOD;
use nodepool_model::records::ids::{LabelName, NodeId, RequestId};
use nodepool_model::records::node::Node;
use nodepool_model::records::request::{MIN_READY_PRIORITY, NodeRequest};
use nodepool_policy::invariants::nodes::Violation;
use tokio::time::Instant;

#[derive(Default)]
pub struct MinReadyChecker {
    /// The launcher of each session.
    launchers: BTreeMap<i64, &'static str>,
    /// `min-ready` of each launcher's labels, with the time at which each value was configured; the last one is valid.
    limits: BTreeMap<(&'static str, LabelName), Vec<(Instant, usize)>>,
    /// All min-ready requests so far.
    requests: BTreeMap<RequestId, MinReadyRequest>,
    /// Idle nodes, with the request that they were launched for.
    idle: BTreeMap<NodeId, RequestId>,
    /// The last known allocation of nodes to min-ready requests.
    allocated: BTreeMap<NodeId, RequestId>,
}

struct MinReadyRequest {
    session: i64,
    label: LabelName,
    exists: bool,
}

impl MinReadyChecker {
    pub fn session(&mut self, session: i64, launcher: &'static str) {
        self.launchers.insert(session, launcher);
    }

    pub fn configure(&mut self, launcher: &'static str, label: &LabelName, min_ready: usize) {
        self.limits.entry((launcher, label.clone())).or_default().push((Instant::now(), min_ready));
    }

    /// A request as it is now; `owner` is the session that it ends with.
    pub fn request(&mut self, id: &RequestId, owner: i64, record: Option<&NodeRequest>) -> Vec<Violation> {
        if let Some(known) = self.requests.get_mut(id) {
            known.exists = record.is_some();
            return Vec::new();
        }
        // Launchers also request backing nodes.
        let launcher = self.launchers.get(&owner).copied().filter(|_| id.priority() == MIN_READY_PRIORITY);
        let Some(launcher) = launcher else { return Vec::new() };
        let Some(label) = record.and_then(|record| record.node_types.first()).cloned() else { return Vec::new() };
        let is_same = |request: &MinReadyRequest| request.session == owner && request.label == label;
        let open = self.requests.values().filter(|request| request.exists && is_same(request)).count();
        let idle = self.idle.values().filter(|request| is_same(&self.requests[*request])).count();
        let limit = self.highest_limit(launcher, &label);
        self.requests.insert(id.clone(), MinReadyRequest { session: owner, label: label.clone(), exists: true });
        if open + idle < limit {
            return Vec::new();
        }
        vec![Violation(format!(
            "{launcher} requests a node of {label} to keep ready ({id}), but has {open} open requests and {idle} idle \
             nodes for min-ready {limit}"
        ))]
    }

    /// A node as it is now.
    pub fn node(&mut self, id: &NodeId, record: Option<&Node>) {
        self.idle.remove(id);
        let allocation = record.and_then(Node::allocation);
        let before = match allocation.filter(|request| self.requests.contains_key(*request)) {
            Some(request) => self.allocated.insert(id.clone(), request.clone()),
            None => self.allocated.remove(id),
        };
        if let (Some(before), true) = (before, record.is_some_and(Node::is_idle)) {
            self.idle.insert(id.clone(), before);
        }
    }

    /// A locked node is not idle, and the launcher may observe the end of the lock late.
    pub fn node_locked(&mut self, id: &NodeId) {
        self.idle.remove(id);
    }

    /// The highest value that a launcher may still use.
    fn highest_limit(&self, launcher: &'static str, label: &LabelName) -> usize {
        let Some(values) = self.limits.get(&(launcher, label.clone())) else { return 0 };
        let replaced = values.iter().skip(1).map(|(at, _)| Some(*at)).chain([None]);
        let may_be_used = |at: &Option<Instant>| at.is_none_or(|at| at.elapsed() < CONFIG_GRACE_PERIOD);
        let usable = values.iter().zip(replaced).filter(|(_, replaced)| may_be_used(replaced));
        usable.map(|((_, value), _)| *value).max().unwrap_or(0)
    }
}
