//! Invariants of nodes and requests, checked on observations from outside: records in ZooKeeper and servers in clouds.
//!
//! The observer reports each change in order and receives the violations at once. Nothing here makes a decision.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub use super::records::{
    KEYS_OF_BUILDS, KEYS_OF_COMPONENTS, KEYS_OF_NODES, KEYS_OF_REQUESTS, KEYS_OF_UPLOADS, check_readable,
};
use super::slots::SlotChecker;
use nodepool_model::records::ids::{NodeId, PoolId, ProviderName, RequestId, TenantName};
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::{MIN_READY_PRIORITY, NodeRequest, Rank, RequestState};
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::Snapshot;
use nodepool_model::snapshot::usage_totals::{self, UsageTotals};

/// An observed change.
#[derive(Clone, Debug)]
pub enum Observation<'a> {
    /// A record as it is now; `None` if it was deleted.
    Node(&'a NodeId, Option<&'a Node>),
    /// An operator is about to delete this record (`erase`), although its server remains.
    Erased(&'a NodeId),
    /// The record remains: another writer was faster.
    EraseCancelled(&'a NodeId),
    Request(&'a RequestId, Option<&'a NodeRequest>),
    /// A contender for the lock of a node appeared (true) or disappeared.
    NodeContender(&'a NodeId, &'a str, bool),
    /// A contender for the lock of a request appeared (true) or disappeared.
    RequestContender(&'a RequestId, bool),
    /// A call of ours created a server whose metadata names this node.
    Created(&'a CloudObjectKey, &'a NodeId),
    /// The cloud created this server in addition to the one that a call of ours requested.
    Duplicated(&'a CloudObjectKey, &'a NodeId),
    /// The cloud reports the server as running from now on.
    Running(&'a CloudObjectKey),
    /// A call of ours requests the deletion of the server.
    Deleting(&'a CloudObjectKey),
    /// The cloud accepted the deletion and will perform it.
    Ending(&'a CloudObjectKey),
    /// The server no longer exists, for whatever reason.
    Removed(&'a CloudObjectKey),
    /// Maximum number of servers for nodes of a pool when one is created. A node that existed before the limit fell may
    /// be retried. If the limit falls, it is reported late, because earlier decisions are still being performed.
    PoolLimit(&'a PoolId, usize),
    /// Number of jobs that a host of a provider runs at a time.
    HostSlots(&'a ProviderName, &'a str, usize),
    /// Maximum number of nodes of a tenant that only one launcher serves.
    TenantLimit(&'a TenantName, usize),
}

/// A server or image of a provider, by its id as text.
pub type CloudObjectKey = (ProviderName, String);

/// Description of a violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Violations of a request that is fulfilled, or is about to be: in its list of nodes, or in the nodes themselves.
pub fn check_fulfilled<'a>(
    id: &RequestId,
    request: &NodeRequest,
    node: impl Fn(&NodeId) -> Option<&'a Node>,
) -> Vec<Violation> {
    let mut found = Vec::new();
    if request.nodes.len() != request.node_types.len() {
        let (has, requested) = (request.nodes.len(), request.node_types.len());
        found.push(format!("request {id} is fulfilled with {has} nodes for {requested} labels"));
    }
    if request.nodes.iter().collect::<BTreeSet<_>>().len() != request.nodes.len() {
        found.push(format!("request {id} has a node twice"));
    }
    for (node_id, label) in request.nodes.iter().zip(&request.node_types) {
        let Some(node) = node(node_id) else {
            found.push(format!("request {id} is fulfilled with node {node_id}, which does not exist"));
            continue;
        };
        if node.state != NodeState::Ready {
            found.push(format!("request {id} is fulfilled with node {node_id}, which is {}", node.state));
        }
        if node.allocated_to.as_ref() != Some(id) {
            found.push(format!("request {id} is fulfilled with node {node_id}, which is not allocated to it"));
        }
        if !node.labels.contains(label) {
            found.push(format!("request {id} requests {label} but has node {node_id} without that label"));
        }
    }
    found.into_iter().map(Violation).collect()
}

/// Violation of deleting a node: a node of a fulfilled request belongs to its consumer.
pub fn check_node_deletion(id: &NodeId, snapshot: &Snapshot) -> Option<Violation> {
    let node = &snapshot.node(id)?.record;
    let request = node.allocated_to.as_ref()?;
    let is_fulfilled_with =
        |request: &NodeRequest| request.state == RequestState::Fulfilled && request.nodes.contains(id);
    let is_assigned = node.state == NodeState::Ready && is_fulfilled_with(&snapshot.request(request)?.record);
    is_assigned.then(|| Violation(format!("node {id} is deleted while {request} is fulfilled with it")))
}

/// Violation of deleting this server, whose metadata names this node.
pub fn check_server_deletion(server: &str, id: &NodeId, node: Option<&Node>) -> Option<Violation> {
    let node = node.filter(|node| node.external_id.as_str() == Some(server))?;
    let is_wanted = matches!(node.state, NodeState::Ready | NodeState::InUse | NodeState::Hold);
    is_wanted.then(|| Violation(format!("server {server} of node {id} is deleted while it is {}", node.state)))
}

/// Violation of a mutating call after its session expired `over_for` ago. The call may have been in transit for
/// `transit_time` at most.
pub fn check_call(what: impl fmt::Display, over_for: Option<Seconds>, transit_time: Seconds) -> Option<Violation> {
    let since = over_for.filter(|over| *over > transit_time)?;
    Some(Violation(format!("{what} although its session expired {:.1} s before", since.0)))
}

/// Violation if the running totals differ from a recount.
pub fn check_usage_totals(snapshot: &Snapshot) -> Option<Violation> {
    let mut recount = UsageTotals::default();
    snapshot.nodes().for_each(|(_, node)| recount.add(&node.record));
    let counted = &snapshot.usage_totals;
    (*counted != recount)
        .then(|| Violation(format!("the usage totals are {counted:?}, but a recount gives {recount:?}")))
}

/// Checker of the invariants; it keeps the observed state.
#[derive(Debug, Default)]
pub struct InvariantChecker {
    nodes: BTreeMap<NodeId, Node>,
    erased: BTreeSet<NodeId>,
    requests: BTreeMap<RequestId, NodeRequest>,
    /// Number of contenders for the lock of each request that has any.
    request_contenders: BTreeMap<RequestId, usize>,
    /// Contenders for the lock of each node, the holder first.
    contenders: BTreeMap<NodeId, Vec<String>>,
    /// The contender that locked a node before it was ready: its launcher.
    launchers: BTreeMap<NodeId, String>,
    /// The contender that held the lock when the node's use began.
    users: BTreeMap<NodeId, String>,
    /// Nodes that were in use once.
    used: BTreeSet<NodeId>,
    servers: BTreeMap<CloudObjectKey, Server>,
    /// Servers that ran once and no longer exist.
    ended_servers: BTreeSet<CloudObjectKey>,
    limits: BTreeMap<PoolId, Limit>,
    /// Jobs that each host runs at a time.
    hosts: BTreeMap<(ProviderName, String), usize>,
    /// Maximum number of nodes of each tenant.
    tenant_limits: BTreeMap<TenantName, usize>,
    slots: SlotChecker,
}

#[derive(Debug)]
struct Limit {
    number: usize,
    /// Nodes that existed when the limit fell.
    decided: BTreeSet<NodeId>,
}

#[derive(Debug)]
struct Server {
    node: NodeId,
    runs: bool,
    is_ending: bool,
    /// Created by a call of ours.
    is_ours: bool,
}

impl InvariantChecker {
    /// Applies an observation; returns the violations.
    pub fn observe(&mut self, observation: Observation<'_>) -> Vec<Violation> {
        let found = match observation {
            Observation::Node(id, record) => self.node(id, record),
            Observation::Erased(id) => {
                self.erased.insert(id.clone());
                Vec::new()
            }
            Observation::EraseCancelled(id) => {
                self.erased.remove(id);
                Vec::new()
            }
            Observation::Request(id, record) => self.request(id, record),
            Observation::NodeContender(id, name, is_present) => {
                self.node_contender(id, name, is_present);
                self.slots.set_locked(id, self.nodes.get(id), self.contenders.contains_key(id));
                Vec::new()
            }
            Observation::RequestContender(id, is_present) => {
                self.request_contender(id, is_present);
                Vec::new()
            }
            Observation::Created(server_key, node) => self.created(server_key, node),
            Observation::Duplicated(server_key, node) => {
                let server = Server { node: node.clone(), runs: false, is_ending: false, is_ours: false };
                self.servers.insert(server_key.clone(), server);
                Vec::new()
            }
            Observation::Running(server_key) => {
                if let Some(server) = self.servers.get_mut(server_key) {
                    server.runs = true;
                }
                Vec::new()
            }
            Observation::Deleting(server_key) => self.deleting(server_key),
            Observation::Ending(server_key) => {
                if let Some(server) = self.servers.get_mut(server_key) {
                    server.is_ending = true;
                }
                Vec::new()
            }
            Observation::Removed(server_key) => {
                if self.servers.remove(server_key).is_some_and(|server| server.runs) {
                    self.ended_servers.insert(server_key.clone());
                }
                Vec::new()
            }
            Observation::PoolLimit(pool, limit) => {
                self.limit(pool, limit);
                Vec::new()
            }
            Observation::HostSlots(provider, host, jobs) => {
                self.hosts.insert((provider.clone(), host.to_owned()), jobs);
                Vec::new()
            }
            Observation::TenantLimit(tenant, nodes) => {
                self.tenant_limits.insert(tenant.clone(), nodes);
                Vec::new()
            }
        };
        found.into_iter().map(Violation).collect()
    }

    /// The observed nodes.
    pub fn nodes(&self) -> &BTreeMap<NodeId, Node> {
        &self.nodes
    }

    /// The observed requests.
    pub fn requests(&self) -> &BTreeMap<RequestId, NodeRequest> {
        &self.requests
    }

    /// Whether the lock of this request has a contender.
    pub fn is_request_locked(&self, id: &RequestId) -> bool {
        self.request_contenders.contains_key(id)
    }

    /// Violations once faults have ended and all consumers have released their nodes.
    pub fn at_quiescence(&self) -> Vec<Violation> {
        let open = self
            .requests
            .iter()
            .filter(|(_, request)| matches!(request.state, RequestState::Requested | RequestState::Pending));
        let mut found: Vec<String> = open.map(|(id, _)| format!("request {id} has not ended")).collect();
        for ((provider, server), Server { node, .. }) in &self.servers {
            match self.nodes.get(node).map(|record| record.external_id.as_str().unwrap_or("none")) {
                Some(own) if own == server.as_str() => {}
                Some(own) => found.push(format!("server {server} of {provider} is leaked, node {node} has {own}")),
                None => found.push(format!("server {server} of {provider} is leaked, node {node} does not exist")),
            }
        }
        // A backing node is kept while it has idle nodes.
        let is_finished = |id: &NodeId, node: &Node| match node.state {
            NodeState::Ready | NodeState::Hold => true,
            _ => self.slots.occupants(id).next().is_some(),
        };
        let unfinished = self.nodes.iter().filter(|(id, node)| !is_finished(id, node));
        found.extend(unfinished.map(|(id, node)| format!("node {id} is still {}", node.state)));
        let idle = self.nodes.iter().filter(|(_, node)| node.state == NodeState::Ready);
        let allocated = idle.filter_map(|(id, node)| Some((id, node.allocated_to.as_ref()?)));
        let orphaned = allocated.filter(|(_, request)| !self.requests.contains_key(*request));
        found
            .extend(orphaned.map(|(id, request)| format!("node {id} is allocated to {request}, which does not exist")));
        for ((provider, host), jobs) in &self.hosts {
            let nodes = self.nodes_on(provider, host).count();
            if nodes != *jobs {
                found.push(format!("{host} of {provider} has {nodes} nodes for {jobs} jobs"));
            }
        }
        found.extend(self.slots.unowned(None));
        found.into_iter().map(Violation).collect()
    }

    fn node(&mut self, id: &NodeId, record: Option<&Node>) -> Vec<String> {
        let is_locked = |id: &NodeId| self.contenders.contains_key(id);
        let mut found = self.slots.observe(id, record, |id| self.nodes.get(id), is_locked);
        let Some(now) = record else {
            let was = self.nodes.remove(id);
            self.launchers.remove(id);
            self.used.remove(id);
            if self.users.remove(id).is_some() {
                found.push(format!("node {id} is deleted while it is used"));
            }
            if let Some(was) = was.filter(|_| !self.erased.remove(id)) {
                found.extend(self.deletion_violations(id, &was));
            }
            return found;
        };
        if now.state == NodeState::Ready && self.nodes.get(id).is_none_or(|was| was.state != NodeState::Ready) {
            found.extend(self.ready_without_server(id, now));
        }
        if let Some(was) = self.nodes.get(id) {
            found.extend(self.reassigned(id, was, now));
            if self.users.contains_key(id) && is_ending(now.state) {
                found.push(format!("node {id} is {} while it is used", now.state));
            }
        }
        match has_been_used(now.state) {
            true => drop(self.used.insert(id.clone())),
            false if self.used.contains(id) && !is_ending(now.state) => {
                found.push(format!("node {id} was used and is {} again", now.state));
            }
            false => {}
        }
        match self.contenders.get(id).and_then(|contenders| contenders.first()) {
            Some(user) if now.state == NodeState::InUse => drop(self.users.insert(id.clone(), user.clone())),
            _ => drop(self.users.remove(id)),
        }
        let was = self.nodes.insert(id.clone(), now.clone());
        if now.state == NodeState::InUse && was.as_ref().is_none_or(|was| was.state != NodeState::InUse) {
            found.extend(self.host_over_capacity(now));
        }
        if was.as_ref().and_then(usage_totals::using_tenant) != usage_totals::using_tenant(now) {
            found.extend(self.tenant_over_limit(now));
        }
        found
    }

    /// A tenant does not exceed its limit when it receives a node. The resources of a node are written when its launch
    /// starts; before that, only the launcher that created the node knows them.
    fn tenant_over_limit(&self, changed: &Node) -> Option<String> {
        let tenant = usage_totals::using_tenant(changed)?;
        let limit = *self.tenant_limits.get(tenant)?;
        let is_new =
            |node: &Node| (changed.state_time - node.state_time) < Seconds(1.0) && node.launcher == changed.launcher;
        let is_known = |node: &Node| node.state != NodeState::Init || is_new(node);
        let counts = |node: &&Node| usage_totals::using_tenant(node) == Some(tenant) && is_known(node);
        let number = self.nodes.values().filter(counts).count();
        (number > limit).then(|| format!("tenant {tenant} has {number} nodes, its limit is {limit}"))
    }

    fn nodes_on(&self, provider: &ProviderName, host: &str) -> impl Iterator<Item = &Node> {
        let is_on =
            move |node: &&Node| node.provider.as_ref() == Some(provider) && node.hostname.as_deref() == Some(host);
        self.nodes.values().filter(is_on)
    }

    /// A host has at most as many users as jobs. It may have more idle nodes for a moment, if two launchers wrote at
    /// the same time.
    fn host_over_capacity(&self, node: &Node) -> Option<String> {
        let (provider, host) = (node.provider.as_ref()?, node.hostname.as_ref()?);
        let jobs = *self.hosts.get(&(provider.clone(), host.clone()))?;
        let is_taken = |node: &&Node| matches!(node.state, NodeState::InUse | NodeState::Hold);
        let users = self.nodes_on(provider, host).filter(is_taken).count();
        (users > jobs).then(|| format!("{host} of {provider} has {users} users for {jobs} jobs"))
    }

    /// A ready node has its own server. The server runs, or ran once: it may stop at any time. Providers without an
    /// observed server are not checked.
    fn ready_without_server(&self, id: &NodeId, now: &Node) -> Option<String> {
        let provider = now.provider.as_ref()?;
        let server_key = (provider.clone(), now.external_id.as_str().unwrap_or_default().to_owned());
        let is_wrong = match self.servers.get(&server_key) {
            Some(server) if server.node != *id => "belongs to another node",
            Some(server) if !server.runs => "is not running",
            None if !self.ended_servers.contains(&server_key) && self.servers.keys().any(|(of, _)| of == provider) => {
                "does not exist"
            }
            _ => return None,
        };
        Some(format!("node {id} is ready, but its server {} of {provider} {is_wrong}", server_key.1))
    }

    /// Servers that no node names, with the node in their metadata. Servers of a node that is being launched are
    /// excluded.
    pub fn stray_servers(&self) -> impl Iterator<Item = (&CloudObjectKey, &NodeId)> {
        let is_stray = |server_key: &CloudObjectKey, server: &Server| {
            let Some(node) = self.nodes.get(&server.node) else { return true };
            match node.external_id.as_str() {
                Some(own) => own != server_key.1,
                None => !matches!(node.state, NodeState::Init | NodeState::Building),
            }
        };
        let strays =
            self.servers.iter().filter(move |(server_key, server)| !server.is_ending && is_stray(server_key, server));
        strays.map(|(server_key, server)| (server_key, &server.node))
    }

    /// Requests that no launcher handles although one should: accepted requests without a lock, and the first waiting
    /// request, with an idle node that it could use.
    pub fn neglected_requests(&self) -> impl Iterator<Item = (&RequestId, Option<&Node>)> {
        let waits = |state| matches!(state, RequestState::Requested | RequestState::Pending);
        let is_unlocked = |id: &RequestId| !self.request_contenders.contains_key(id);
        let unlocked = self.requests.iter().filter(move |(id, request)| waits(request.state) && is_unlocked(id));
        let abandoned = unlocked.clone().filter(|(_, request)| request.state == RequestState::Pending);
        let first = unlocked.min_by_key(|(id, request)| Rank::of(id, request));
        // A request with allocated nodes is left to the launcher that allocated them.
        let first = first.filter(|(id, _)| self.nodes.values().all(|node| node.allocated_to.as_ref() != Some(*id)));
        let servable = first.and_then(|(id, request)| Some((id, Some(self.idle_node_for(request)?))));
        abandoned.map(|(id, _)| (id, None)).chain(servable)
    }

    /// An idle node for a request of one node. Requests with a tenant may have to wait anyway, and a launcher that
    /// declined does not accept the request later.
    fn idle_node_for(&self, request: &NodeRequest) -> Option<&Node> {
        let [label] = &request.node_types[..] else { return None };
        if !request.reuse || request.tenant_name.is_some() || !request.declined_by.is_empty() {
            return None;
        }
        let is_free = |id: &NodeId| !self.contenders.contains_key(id);
        let fits = |node: &Node| node.is_idle() && node.labels.contains(label);
        self.nodes.iter().find(|(id, node)| fits(node) && is_free(id)).map(|(_, node)| node)
    }

    /// A node stays allocated to its request while the request is open, unless the request is restarted. It stays
    /// unchanged once the request is fulfilled.
    fn reassigned(&self, id: &NodeId, was: &Node, now: &Node) -> Option<String> {
        let owner = was.allocated_to.as_ref()?;
        let request = self.requests.get(owner)?;
        let is_same_request = was.allocated_to == now.allocated_to;
        match (request.state, &now.allocated_to) {
            (RequestState::Fulfilled, _) if is_same_request && was.state == now.state => None,
            // Together with its request, which is deleted.
            (RequestState::Fulfilled, None) if owner.priority() == MIN_READY_PRIORITY => None,
            (RequestState::Fulfilled, after) if request.nodes.contains(id) => {
                let (state, after) = (now.state, after.as_ref().map_or("no request", RequestId::as_str));
                Some(format!("node {id} of {owner}, which is fulfilled, is {state} and allocated to {after}"))
            }
            (RequestState::Requested | RequestState::Pending, Some(after)) if !is_same_request => {
                Some(format!("node {id} is deallocated from {owner}, which is open, and allocated to {after}"))
            }
            _ => None,
        }
    }

    /// A node is deleted after its server, so that every server has a record. A server whose creation answer was lost
    /// is found by leak detection.
    fn deletion_violations(&self, id: &NodeId, was: &Node) -> Vec<String> {
        let recorded = was.external_id.as_str().unwrap_or_default();
        let leaked = self.servers.iter().filter(|((_, own), server)| server.node == *id && own == recorded);
        let leaked = leaked.filter(|(_, server)| !server.is_ending);
        let mut found: Vec<String> = leaked
            .map(|((provider, server), _)| {
                format!("node {id} was deleted, but its server {server} of {provider} still exists")
            })
            .collect();
        for (request, record) in &self.requests {
            if record.state == RequestState::Fulfilled && record.nodes.contains(id) {
                found.push(format!(
                    "node {id}, which was {}, was deleted while {request} is fulfilled with it",
                    was.state
                ));
            }
        }
        found
    }

    fn node_contender(&mut self, id: &NodeId, name: &str, is_present: bool) {
        let is_made = |node: &Node| matches!(node.state, NodeState::Init | NodeState::Building);
        let contenders = self.contenders.entry(id.clone()).or_default();
        if !is_present {
            contenders.retain(|contender| contender != name);
            if contenders.is_empty() {
                self.contenders.remove(id);
            }
            for held in [&mut self.launchers, &mut self.users] {
                if held.get(id).is_some_and(|holder| holder == name) {
                    held.remove(id);
                }
            }
            return;
        }
        contenders.push(name.to_owned());
        if self.nodes.get(id).is_some_and(is_made) {
            // Later contenders wait or leave.
            self.launchers.entry(id.clone()).or_insert_with(|| name.to_owned());
        }
    }

    fn request_contender(&mut self, id: &RequestId, is_present: bool) {
        let number = self.request_contenders.get(id).copied().unwrap_or_default();
        match if is_present { number + 1 } else { number.saturating_sub(1) } {
            0 => drop(self.request_contenders.remove(id)),
            number => drop(self.request_contenders.insert(id.clone(), number)),
        }
    }

    fn request(&mut self, id: &RequestId, record: Option<&NodeRequest>) -> Vec<String> {
        let Some(now) = record else {
            self.requests.remove(id);
            return Vec::new();
        };
        let was = self.requests.insert(id.clone(), now.clone());
        let fulfilled = was.filter(|was| was.state == RequestState::Fulfilled);
        let was_fulfilled = fulfilled.is_some();
        if now.state == RequestState::Fulfilled && fulfilled.is_some_and(|was| was.nodes != now.nodes) {
            return vec![format!("the nodes of request {id} changed after it was fulfilled")];
        }
        if now.state != RequestState::Fulfilled {
            let is_undone = was_fulfilled.then(|| format!("request {id} was fulfilled and is {}", now.state.as_str()));
            return is_undone.into_iter().collect();
        }
        if was_fulfilled { Vec::new() } else { self.fulfilled(id, now) }
    }

    fn fulfilled(&self, id: &RequestId, request: &NodeRequest) -> Vec<String> {
        let found = check_fulfilled(id, request, |node| self.nodes.get(node));
        let mut found: Vec<String> = found.into_iter().map(|violation| violation.0).collect();
        for node in &request.nodes {
            if self.launchers.contains_key(node) {
                found
                    .push(format!("request {id} is fulfilled with node {node}, which is still locked by its launcher"));
            }
            for (other, record) in &self.requests {
                if other != id && record.state == RequestState::Fulfilled && record.nodes.contains(node) {
                    found.push(format!("node {node} is in {id} and in {other}"));
                }
            }
        }
        found
    }

    fn created(&mut self, server_key: &CloudObjectKey, node: &NodeId) -> Vec<String> {
        let others =
            self.servers.iter().filter(|(_, server)| server.node == *node && server.is_ours && !server.is_ending);
        let found = others.map(|((provider, other), _)| {
            format!(
                "server {} of {} is created for node {node}, which has {other} of {provider}",
                server_key.1, server_key.0
            )
        });
        let mut found: Vec<String> = found.collect();
        if !self.nodes.contains_key(node) {
            found.push(format!(
                "server {} of {} is created for node {node}, which does not exist",
                server_key.1, server_key.0
            ));
        }
        self.servers
            .insert(server_key.clone(), Server { node: node.clone(), runs: false, is_ending: false, is_ours: true });
        found.extend(self.pool_over_limit(node));
        found
    }

    fn pool_over_limit(&self, node: &NodeId) -> Option<String> {
        let pool = self.nodes.get(node)?.pool_id()?;
        let limit = self.limits.get(&pool).filter(|limit| !limit.decided.contains(node))?;
        let is_in_pool = |server: &&Server| self.nodes.get(&server.node).is_some_and(|node| node.belongs_to(&pool));
        let own = self.servers.values().filter(|server| server.is_ours && !server.is_ending);
        let number = own.filter(is_in_pool).count();
        (number > limit.number).then(|| format!("{pool} has {number} servers, its limit is {}", limit.number))
    }

    fn limit(&mut self, pool: &PoolId, number: usize) {
        let limit = self.limits.entry(pool.clone()).or_insert(Limit { number, decided: BTreeSet::new() });
        if number < limit.number {
            let pool_nodes = self.nodes.iter().filter(|(_, node)| node.belongs_to(pool));
            limit.decided.extend(pool_nodes.map(|(id, _)| id.clone()));
        }
        limit.number = number;
    }

    fn deleting(&self, server_key: &CloudObjectKey) -> Vec<String> {
        let Some(server) = self.servers.get(server_key) else { return Vec::new() };
        let violation = check_server_deletion(&server_key.1, &server.node, self.nodes.get(&server.node));
        violation.into_iter().map(|violation| violation.0).collect()
    }
}

fn has_been_used(state: NodeState) -> bool {
    matches!(state, NodeState::InUse | NodeState::Used | NodeState::Hold)
}

fn is_ending(state: NodeState) -> bool {
    matches!(state, NodeState::Deleting | NodeState::Deleted | NodeState::Failed | NodeState::Aborted)
}

#[cfg(test)]
mod tests;
