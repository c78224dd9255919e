//! Immutable view of ZooKeeper's state with the indexes that decisions need, so that none of them scans all nodes.

mod differences;
pub mod ended_request;
pub mod images;
pub mod pool_registry;
pub mod transition;
pub mod usage_totals;
pub mod versioned;

use std::ops::Bound;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use crate::records::component::{Component, ComponentKind, PoolComponent};
use crate::records::ids::{LabelName, NodeId, PoolId, ProviderName, RequestId};
use crate::records::node::{Node, NodeState};
use crate::records::request::{NodeRequest, Rank, RequestState};
use crate::snapshot::images::Images;
use crate::snapshot::pool_registry::PoolRegistry;
use crate::snapshot::transition::Transition;
use crate::snapshot::usage_totals::UsageTotals;
pub use crate::snapshot::versioned::{
    Change, LockState, LockedChange, NodeChange, RequestChange, Versioned, WriteError,
};

pub use differences::LockChange;

#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Newest transaction that this snapshot contains.
    pub zxid: i64,
    /// Counts published snapshots; a change of locks alone publishes one, too.
    pub revision: u64,
    /// False while no server answers: the snapshot may be stale, and no new work starts from it.
    pub connected: bool,
    pub installation: Arc<str>,
    nodes: OrdMap<NodeId, Versioned<Node>>,
    node_locks: OrdMap<NodeId, Arc<LockState>>,
    requests: OrdMap<RequestId, Versioned<NodeRequest>>,
    request_locks: OrdMap<RequestId, Arc<LockState>>,
    pub pools: PoolRegistry,
    components: OrdMap<(ComponentKind, String), Versioned<Component>>,
    pub images: Images,
    /// Node znodes without data: created by a lock attempt on a record that was just deleted.
    empty_nodes: OrdSet<NodeId>,
    /// Records that do not parse, with the reason; they are reported, skipped and never written.
    unreadable: OrdMap<String, String>,
    /// Requests among the unreadable records: they exist, but their labels are unknown.
    unreadable_requests: OrdSet<RequestId>,
    idle: OrdMap<PoolId, OrdMap<LabelName, OrdSet<NodeId>>>,
    by_provider: OrdMap<ProviderName, OrdSet<NodeId>>,
    finished: OrdMap<ProviderName, OrdSet<NodeId>>,
    on_hold: OrdMap<ProviderName, OrdSet<NodeId>>,
    allocated: OrdMap<RequestId, Vec<NodeId>>,
    /// Unlocked nodes in a state before use, allocated to requests that do not exist.
    orphaned: OrdSet<NodeId>,
    /// Nodes that are being launched for requests that do not exist.
    orphaned_launches: OrdSet<NodeId>,
    requested: OrdMap<Rank, Versioned<NodeRequest>>,
    pending: usize,
    /// Pending requests without a lock holder.
    pending_unlocked: OrdSet<RequestId>,
    pub usage_totals: UsageTotals,
    /// Transitions since they were taken last, in order; `None` if they are not collected.
    pub transitions: Option<Vec<Transition>>,
}

// Reading.
impl Snapshot {
    pub fn node(&self, id: &NodeId) -> Option<&Versioned<Node>> {
        self.nodes.get(id)
    }

    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = (&NodeId, &Versioned<Node>)> {
        self.nodes.iter()
    }

    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    pub fn node_count_of(&self, provider: &ProviderName) -> usize {
        self.by_provider.get(provider).map_or(0, OrdSet::len)
    }

    /// Nodes of one provider, in any state.
    pub fn nodes_of<'a>(
        &'a self,
        provider: &ProviderName,
    ) -> impl Iterator<Item = (&'a NodeId, &'a Versioned<Node>)> + use<'a> {
        let ids = self.by_provider.get(provider).into_iter().flat_map(|ids| ids.iter());
        ids.map(|id| (id, self.nodes.get(id).expect("an index contains only existing nodes")))
    }

    /// Unlocked nodes in a state in which they have no user any more.
    pub fn finished_nodes<'a>(
        &'a self,
        provider: &ProviderName,
    ) -> impl Iterator<Item = (&'a NodeId, &'a Versioned<Node>)> + use<'a> {
        let ids = self.finished.get(provider).into_iter().flat_map(|ids| ids.iter());
        ids.map(|id| (id, self.nodes.get(id).expect("an index contains only existing nodes")))
    }

    /// Nodes in state `hold`.
    pub fn nodes_on_hold<'a>(
        &'a self,
        provider: &ProviderName,
    ) -> impl Iterator<Item = (&'a NodeId, &'a Versioned<Node>)> + use<'a> {
        let ids = self.on_hold.get(provider).into_iter().flat_map(|ids| ids.iter());
        ids.map(|id| (id, self.nodes.get(id).expect("an index contains only existing nodes")))
    }

    /// Ready, unallocated, unlocked nodes of a pool that carry a label, by id.
    pub fn idle_nodes<'a>(&'a self, pool: &PoolId, label: &LabelName) -> impl Iterator<Item = &'a NodeId> + use<'a> {
        self.idle.get(pool).and_then(|labels| labels.get(label)).into_iter().flat_map(|ids| ids.iter())
    }

    /// Idle nodes of a pool that carry a label, in rotated order, starting after one of them.
    pub fn idle_nodes_after<'a>(
        &'a self,
        pool: &PoolId,
        label: &LabelName,
        after: Option<&NodeId>,
    ) -> impl Iterator<Item = &'a NodeId> + use<'a> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let ids = self.idle.get(pool).and_then(|labels| labels.get(label));
        let (behind, before) = match after {
            Some(id) => ((Excluded(id.clone()), Unbounded), Some((Unbounded, Included(id.clone())))),
            None => ((Unbounded, Unbounded), None),
        };
        let behind = ids.into_iter().flat_map(move |ids| ids.range(behind.clone()));
        let before = ids.zip(before).into_iter().flat_map(|(ids, range)| ids.range(range));
        behind.chain(before)
    }

    /// Labels of a pool's idle nodes, regardless of the current configuration.
    pub fn idle_labels<'a>(&'a self, pool: &PoolId) -> impl Iterator<Item = &'a LabelName> + use<'a> {
        self.idle.get(pool).into_iter().flat_map(|labels| labels.keys())
    }

    pub fn idle_count(&self, pool: &PoolId, label: &LabelName) -> usize {
        self.idle.get(pool).and_then(|labels| labels.get(label)).map_or(0, OrdSet::len)
    }

    /// Number of idle nodes with a label in all pools.
    pub fn idle_count_of_all_pools(&self, label: &LabelName) -> usize {
        self.idle.values().filter_map(|labels| labels.get(label)).map(OrdSet::len).sum()
    }

    pub fn nodes_allocated_to<'a>(&'a self, request: &RequestId) -> impl Iterator<Item = &'a NodeId> + use<'a> {
        self.allocated.get(request).into_iter().flat_map(|ids| ids.iter())
    }

    /// Nodes allocated to `request` that are not in a final state.
    pub fn live_nodes_of<'a>(&'a self, request: &RequestId) -> impl Iterator<Item = &'a NodeId> + use<'a> {
        let is_live = |id: &&NodeId| self.node(id).is_some_and(|node| !node.record.state.is_final());
        self.nodes_allocated_to(request).filter(is_live)
    }

    /// Unlocked nodes in a state before use whose request does not exist.
    pub fn orphaned_nodes(&self) -> impl Iterator<Item = (&NodeId, &Versioned<Node>)> {
        let stored = |id| self.nodes.get(id).expect("an index contains only existing nodes");
        self.orphaned.iter().map(move |id| (id, stored(id)))
    }

    /// Nodes in launch whose request does not exist, locked or not.
    pub fn orphaned_launches(&self) -> impl Iterator<Item = &NodeId> {
        self.orphaned_launches.iter()
    }

    /// Whether anything of this node exists: a record, a lock, or a znode without data.
    pub fn has_node(&self, id: &NodeId) -> bool {
        self.nodes.contains_key(id) || self.node_locks.contains_key(id) || self.empty_nodes.contains(id)
    }

    pub fn node_lock(&self, id: &NodeId) -> &LockState {
        self.node_locks.get(id).map_or(LockState::absent(), |lock| lock)
    }

    pub fn node_locks(&self) -> impl Iterator<Item = (&NodeId, &LockState)> {
        self.node_locks.iter().map(|(id, lock)| (id, &**lock))
    }

    pub fn is_node_locked(&self, id: &NodeId) -> bool {
        self.node_locks.get(id).is_some_and(|lock| lock.is_held())
    }

    pub fn request(&self, id: &RequestId) -> Option<&Versioned<NodeRequest>> {
        self.requests.get(id)
    }

    /// Whether a request exists, readable or not.
    pub fn has_request(&self, id: &RequestId) -> bool {
        self.requests.contains_key(id) || self.unreadable_requests.contains(id)
    }

    pub fn requests(&self) -> impl Iterator<Item = (&RequestId, &Versioned<NodeRequest>)> {
        self.requests.iter()
    }

    /// Requests that no launcher has accepted yet, in the order in which they are served.
    pub fn waiting_requests(&self) -> impl Iterator<Item = (&Rank, &Versioned<NodeRequest>)> {
        self.requested.iter()
    }

    /// Accepted requests without a lock holder: their launcher has exited, or is about to write them.
    pub fn pending_unlocked_requests(&self) -> impl Iterator<Item = (&RequestId, &Versioned<NodeRequest>)> {
        let stored = |id| self.requests.get(id).expect("an index contains only existing requests");
        self.pending_unlocked.iter().map(move |id| (id, stored(id)))
    }

    pub fn is_waiting(&self, rank: &Rank) -> bool {
        self.requested.contains_key(rank)
    }

    /// Requests that are requested or pending.
    pub fn open_count(&self) -> usize {
        self.requested.len() + self.pending
    }

    pub fn request_lock(&self, id: &RequestId) -> &LockState {
        self.request_locks.get(id).map_or(LockState::absent(), |lock| lock)
    }

    pub fn is_request_locked(&self, id: &RequestId) -> bool {
        self.request_locks.get(id).is_some_and(|lock| lock.is_held())
    }

    pub fn has_request_lock(&self, id: &RequestId) -> bool {
        self.request_locks.contains_key(id)
    }

    pub fn request_locks(&self) -> impl Iterator<Item = (&RequestId, &LockState)> {
        self.request_locks.iter().map(|(id, lock)| (id, &**lock))
    }

    /// Registered pools of all launchers, by component name.
    pub fn pools(&self) -> impl Iterator<Item = (&String, &Versioned<PoolComponent>)> {
        self.pools.pools()
    }

    pub fn components(&self) -> impl Iterator<Item = (&(ComponentKind, String), &Versioned<Component>)> {
        self.components.iter()
    }

    pub fn empty_nodes(&self) -> impl Iterator<Item = &NodeId> {
        self.empty_nodes.iter()
    }

    pub fn is_unreadable(&self, path: &str) -> bool {
        self.unreadable.contains_key(path)
    }

    pub fn unreadable(&self) -> impl Iterator<Item = (&String, &String)> {
        self.unreadable.iter()
    }
}

// Changes; only the mirror and tests make them.
impl Snapshot {
    /// Stores a record unless the present one is at least as new; returns whether the snapshot changed.
    pub fn put_node(&mut self, id: NodeId, mut stored: Versioned<Node>) -> bool {
        let old = self.nodes.get(&id);
        if old.is_some_and(|old| old.mzxid >= stored.mzxid) {
            return false;
        }
        if let Some(record) = Arc::get_mut(&mut stored.record) {
            let before = self.nodes.range::<_, NodeId>((Bound::Unbounded, Bound::Excluded(&id))).next_back();
            let candidates = before.map(|(_, neighbour)| neighbour).into_iter().chain(old);
            candidates.for_each(|other| record.share_with(&other.record));
        }
        if let Some(transitions) = &mut self.transitions {
            transitions.extend(Transition::of_node(&id, old.map(|old| &*old.record), Some(&stored.record)));
        }
        let old = old.map(|old| old.record.clone());
        let same_entries = old.as_ref().is_some_and(|old| self.has_same_index_entries(&id, old, &stored.record));
        if !same_entries {
            self.deindex_state(&id);
        }
        if self.empty_nodes.contains(&id) {
            self.empty_nodes.remove(&id);
        }
        self.zxid = self.zxid.max(stored.mzxid);
        let new = stored.record.clone();
        self.nodes.insert(id.clone(), stored);
        match old {
            // Most changes of a node do not change its usage.
            Some(old) if usage_totals::has_same_usage(&old, &new) => {}
            Some(old) => {
                self.deindex_usage(&id, &old);
                self.index_usage(&id, &new);
            }
            None => self.index_usage(&id, &new),
        }
        if !same_entries {
            self.index_state(&id);
        }
        true
    }

    pub fn remove_node(&mut self, id: &NodeId) {
        self.drop_node_record(id);
        self.node_locks.remove(id);
    }

    /// Registers a node znode without data, and drops the node's earlier record.
    pub fn put_empty_node(&mut self, id: NodeId) {
        self.drop_node_record(&id);
        self.empty_nodes.insert(id);
    }

    /// Drops a node's record, for example because the current one cannot be read. The node's lock stays known.
    pub fn drop_node_record(&mut self, id: &NodeId) {
        self.record_removal(id);
        self.deindex_node(id);
        self.nodes.remove(id);
        self.empty_nodes.remove(id);
    }

    fn record_removal(&mut self, id: &NodeId) {
        if let Some(transitions) = &mut self.transitions {
            transitions.extend(Transition::of_node(id, self.nodes.get(id).map(|old| &*old.record), None));
        }
    }

    pub fn set_node_lock(&mut self, id: NodeId, lock: LockState) {
        let lock_changed = lock.is_held() != self.is_node_locked(&id);
        if lock_changed {
            self.deindex_state(&id);
        }
        self.node_locks.insert(id.clone(), Arc::new(lock));
        if lock_changed {
            self.index_state(&id);
        }
    }

    pub fn put_request(&mut self, id: RequestId, stored: Versioned<NodeRequest>) -> bool {
        let old = self.requests.get(&id);
        if old.is_some_and(|old| old.mzxid >= stored.mzxid) {
            return false;
        }
        self.collect_request_transition(&id, Some(&stored.record));
        self.deindex_request(&id);
        self.zxid = self.zxid.max(stored.mzxid);
        match stored.record.state {
            RequestState::Requested => drop(self.requested.insert(Rank::of(&id, &stored.record), stored.clone())),
            RequestState::Pending => {
                self.pending += 1;
                if !self.is_request_locked(&id) {
                    self.pending_unlocked.insert(id.clone());
                }
            }
            RequestState::Fulfilled | RequestState::Failed => {}
        }
        let was_unreadable = self.unreadable_requests.remove(&id).is_some();
        let is_new = self.requests.insert(id.clone(), stored).is_none();
        if is_new && !was_unreadable {
            self.reindex_orphans_of(&id);
        }
        true
    }

    pub fn remove_request(&mut self, id: &RequestId) {
        let existed = self.has_request(id);
        self.unreadable_requests.remove(id);
        self.drop_request(id);
        if existed {
            self.reindex_orphans_of(id);
        }
    }

    /// Drops a request's record because the current one cannot be read. The request still exists.
    pub fn set_request_unreadable(&mut self, id: &RequestId) {
        let is_new = self.unreadable_requests.insert(id.clone()).is_none();
        self.drop_request(id);
        if is_new {
            self.reindex_orphans_of(id);
        }
    }

    fn drop_request(&mut self, id: &RequestId) {
        self.collect_request_transition(id, None);
        self.deindex_request(id);
        self.requests.remove(id);
    }

    pub fn set_request_lock(&mut self, id: RequestId, lock: LockState) {
        self.request_locks.insert(id.clone(), Arc::new(lock));
        self.index_request_lock(&id);
    }

    pub fn remove_request_lock(&mut self, id: &RequestId) {
        self.request_locks.remove(id);
        self.index_request_lock(id);
    }

    pub fn put_pool(&mut self, name: String, stored: Versioned<PoolComponent>) {
        let mzxid = stored.mzxid;
        if self.pools.put(name, stored) {
            self.zxid = self.zxid.max(mzxid);
        }
    }

    pub fn put_component(&mut self, kind: ComponentKind, name: String, stored: Versioned<Component>) {
        if self.components.get(&(kind, name.clone())).is_some_and(|old| old.mzxid >= stored.mzxid) {
            return;
        }
        self.zxid = self.zxid.max(stored.mzxid);
        self.components.insert((kind, name), stored);
    }

    pub fn remove_component(&mut self, kind: ComponentKind, name: &str) {
        if kind == ComponentKind::Pool {
            self.pools.remove(name);
        }
        self.components.remove(&(kind, name.to_owned()));
    }

    /// Stores the reason why a record does not parse; returns whether it is new.
    pub fn put_unreadable(&mut self, path: &str, reason: String) -> bool {
        if self.unreadable.get(path) == Some(&reason) {
            return false;
        }
        self.unreadable.insert(path.to_owned(), reason);
        true
    }

    pub fn clear_unreadable(&mut self, path: &str) {
        if self.is_unreadable(path) {
            self.unreadable.remove(path);
        }
    }

    /// Removes a node from all indexes; called before its record is removed.
    fn deindex_node(&mut self, id: &NodeId) {
        let Some(record) = self.nodes.get(id).map(|stored| stored.record.clone()) else { return };
        self.deindex_state(id);
        self.deindex_usage(id, &record);
    }

    /// Indexes a node by usage and provider.
    fn index_usage(&mut self, id: &NodeId, node: &Node) {
        self.usage_totals.add(node);
        if let Some(provider) = &node.provider {
            self.by_provider.entry(provider.clone()).or_default().insert(id.clone());
        }
    }

    fn deindex_usage(&mut self, id: &NodeId, node: &Node) {
        self.usage_totals.remove(node);
        if let Some(provider) = &node.provider {
            remove_from(&mut self.by_provider, provider, id);
        }
    }

    /// Whether both records of a node have the same index entries. Most changes during launch or use keep them.
    fn has_same_index_entries(&self, id: &NodeId, one: &Node, other: &Node) -> bool {
        let same_allocation =
            (&one.provider, &one.pool, &one.allocated_to) == (&other.provider, &other.pool, &other.allocated_to);
        let locked = self.is_node_locked(id);
        let kind = |node: &Node| (node.state == NodeState::Hold, node.state.is_finished() && !locked);
        let request_exists = |request: &RequestId| self.has_request(request);
        same_allocation
            && kind(one) == kind(other)
            && !one.is_idle()
            && !other.is_idle()
            && (one.state == other.state || one.allocation().is_none_or(request_exists))
    }

    /// Indexes a node by state, allocation and lock.
    fn index_state(&mut self, id: &NodeId) {
        let Some(record) = self.nodes.get(id).map(|stored| stored.record.clone()) else { return };
        let (node, locked) = (&record, self.is_node_locked(id));
        if let Some(provider) = &node.provider {
            if node.state == NodeState::Hold {
                self.on_hold.entry(provider.clone()).or_default().insert(id.clone());
            }
            if node.state.is_finished() && !locked {
                self.finished.entry(provider.clone()).or_default().insert(id.clone());
            }
        }
        if let Some(request) = node.allocation() {
            let nodes = self.allocated.entry(request.clone()).or_default();
            if let Err(index) = nodes.binary_search(id) {
                nodes.insert(index, id.clone());
            }
            if !self.has_request(request) {
                self.index_orphan(id, node.state, locked);
            }
        }
        if let (true, false, Some(pool)) = (node.is_idle(), locked, node.pool_id()) {
            let labels = self.idle.entry(pool).or_default();
            for label in &node.labels {
                labels.entry(label.clone()).or_default().insert(id.clone());
            }
        }
    }

    /// Called before the record or lock changes. Sets without the node are not touched: persistent sets copy on write.
    fn deindex_state(&mut self, id: &NodeId) {
        let Some(record) = self.nodes.get(id).map(|stored| stored.record.clone()) else { return };
        let (node, locked) = (&record, self.is_node_locked(id));
        if let Some(provider) = &node.provider {
            if node.state == NodeState::Hold {
                remove_from(&mut self.on_hold, provider, id);
            }
            if node.state.is_finished() && !locked {
                remove_from(&mut self.finished, provider, id);
            }
        }
        if let Some(request) = node.allocation() {
            if let Some(nodes) = self.allocated.get_mut(request) {
                nodes.retain(|node| node != id);
                if nodes.is_empty() {
                    self.allocated.remove(request);
                }
            }
            for set in [&mut self.orphaned, &mut self.orphaned_launches] {
                if set.contains(id) {
                    set.remove(id);
                }
            }
        }
        if let (true, false, Some(pool)) = (node.is_idle(), locked, node.pool_id())
            && let Some(labels) = self.idle.get_mut(&pool)
        {
            for label in &node.labels {
                remove_from(labels, label, id);
            }
        }
    }

    /// Indexes a node whose request does not exist.
    fn index_orphan(&mut self, id: &NodeId, state: NodeState, locked: bool) {
        if matches!(state, NodeState::Ready | NodeState::Init) && !locked {
            self.orphaned.insert(id.clone());
        }
        if matches!(state, NodeState::Init | NodeState::Building) {
            self.orphaned_launches.insert(id.clone());
        }
    }

    /// Updates the orphan indexes after a request was created or deleted.
    fn reindex_orphans_of(&mut self, request: &RequestId) {
        let exists = self.has_request(request);
        for id in self.allocated.get(request).cloned().unwrap_or_default() {
            if exists {
                self.orphaned.remove(&id);
                self.orphaned_launches.remove(&id);
            } else if let Some(state) = self.nodes.get(&id).map(|stored| stored.record.state) {
                self.index_orphan(&id, state, self.is_node_locked(&id));
            }
        }
    }

    /// Updates the index of unlocked pending requests after the lock of one changed.
    fn index_request_lock(&mut self, id: &RequestId) {
        let is_pending = |stored: &Versioned<NodeRequest>| stored.record.state == RequestState::Pending;
        if self.requests.get(id).is_some_and(is_pending) && !self.is_request_locked(id) {
            self.pending_unlocked.insert(id.clone());
        } else {
            self.pending_unlocked.remove(id);
        }
    }

    fn deindex_request(&mut self, id: &RequestId) {
        let Some(stored) = self.requests.get(id) else { return };
        match stored.record.state {
            RequestState::Requested => drop(self.requested.remove(&Rank::of(id, &stored.record))),
            RequestState::Pending => {
                self.pending -= 1;
                self.pending_unlocked.remove(id);
            }
            RequestState::Fulfilled | RequestState::Failed => {}
        }
    }
}

fn remove_from<K: Ord + Clone>(index: &mut OrdMap<K, OrdSet<NodeId>>, key: &K, id: &NodeId) {
    if let Some(ids) = index.get_mut(key) {
        ids.remove(id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}

/// Number of nodes in each state, for status and gauges.
pub fn nodes_by_state(snapshot: &Snapshot) -> Vec<(NodeState, usize)> {
    let mut counts = [0; NodeState::ALL.len()];
    for (_, stored) in snapshot.nodes() {
        counts[stored.record.state as usize] += 1;
    }
    NodeState::ALL.into_iter().zip(counts).collect()
}

#[cfg(test)]
mod tests;
