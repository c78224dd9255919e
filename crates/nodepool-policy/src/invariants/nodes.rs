//! What holds whatever fails, checked on what can be seen from outside: records in ZooKeeper and servers in clouds.
//!
//! Whoever watches tells each change in its order, and hears at once which promise it broke. Nothing in here decides anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub use super::records::{
    KEYS_OF_BUILDS, KEYS_OF_COMPONENTS, KEYS_OF_NODES, KEYS_OF_REQUESTS, KEYS_OF_UPLOADS, check_readable,
};
use nodepool_model::records::ids::{NodeId, PoolId, ProviderName, RequestId, TenantName};
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::{MIN_READY_PRIORITY, NodeRequest, Rank, RequestState};
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::Snapshot;
use nodepool_model::snapshot::usage_totals::{self, UsageTotals};

/// A change that somebody saw.
#[derive(Clone, Debug)]
pub enum Observation<'a> {
    /// A record as it is now; none where it has gone.
    Node(&'a NodeId, Option<&'a Node>),
    /// Somebody is about to remove this record by hand, though its server stays.
    Erased(&'a NodeId),
    /// It stays after all: somebody was faster.
    EraseCancelled(&'a NodeId),
    Request(&'a RequestId, Option<&'a NodeRequest>),
    /// Who contends for the lock of a node has come, or gone.
    NodeContender(&'a NodeId, &'a str, bool),
    /// The same of a request.
    RequestContender(&'a RequestId, bool),
    /// A call of ours made a server that bears the number of this node.
    Created(&'a CloudObjectKey, &'a NodeId),
    /// The cloud has made this one beside another that a call of ours asked for.
    Duplicated(&'a CloudObjectKey, &'a NodeId),
    /// The cloud says from now on that it runs.
    Running(&'a CloudObjectKey),
    /// A call of ours asks for its end.
    Deleting(&'a CloudObjectKey),
    /// The cloud has said that it will end, and means it.
    Ending(&'a CloudObjectKey),
    /// It exists no more, whoever ended it.
    Removed(&'a CloudObjectKey),
    /// No more than so many servers may there be of nodes of a pool when one is made. A node that was there before the limit fell
    /// may be tried again. Told late where it falls: what was decided before is on its way.
    PoolLimit(&'a PoolId, usize),
    /// A host of a provider takes so many jobs at a time.
    HostSlots(&'a ProviderName, &'a str, usize),
    /// A tenant that one launcher alone serves has no more nodes than that.
    TenantLimit(&'a TenantName, usize),
}

/// A server of a provider, by its id as text.
pub type CloudObjectKey = (ProviderName, String);

/// A promise that was broken, and by what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is wrong with a request that is fulfilled, or is about to be: its list, and its nodes.
pub fn check_fulfilled<'a>(
    id: &RequestId,
    request: &NodeRequest,
    node: impl Fn(&NodeId) -> Option<&'a Node>,
) -> Vec<Violation> {
    let mut found = Vec::new();
    if request.nodes.len() != request.node_types.len() {
        let (has, asked) = (request.nodes.len(), request.node_types.len());
        found.push(format!("request {id} is fulfilled with {has} nodes for {asked} labels"));
    }
    if request.nodes.iter().collect::<BTreeSet<_>>().len() != request.nodes.len() {
        found.push(format!("request {id} has a node twice"));
    }
    for (node_id, label) in request.nodes.iter().zip(&request.node_types) {
        let Some(node) = node(node_id) else {
            found.push(format!("request {id} is fulfilled with node {node_id}, which is not there"));
            continue;
        };
        if node.state != NodeState::Ready {
            found.push(format!("request {id} is fulfilled with node {node_id}, which is {}", node.state));
        }
        if node.allocated_to.as_ref() != Some(id) {
            found.push(format!("request {id} is fulfilled with node {node_id}, which is not given to it"));
        }
        if !node.labels.contains(label) {
            found.push(format!("request {id} wants {label} and gets node {node_id}, which is none"));
        }
    }
    found.into_iter().map(Violation).collect()
}

/// What is wrong with beginning to end a node: one of a fulfilled request is not ours any more.
pub fn check_node_deletion(id: &NodeId, snapshot: &Snapshot) -> Option<Violation> {
    let node = &snapshot.node(id)?.record;
    let request = node.allocated_to.as_ref()?;
    let is_given = |given: &NodeRequest| given.state == RequestState::Fulfilled && given.nodes.contains(id);
    let is_kept = node.state == NodeState::Ready && is_given(&snapshot.request(request)?.record);
    is_kept.then(|| Violation(format!("node {id} is deleted while {request} is fulfilled with it")))
}

/// What is wrong with ending this server, which bears the number of this node.
pub fn check_server_deletion(server: &str, id: &NodeId, node: Option<&Node>) -> Option<Violation> {
    let node = node.filter(|node| node.external_id.as_str() == Some(server))?;
    let is_wanted = matches!(node.state, NodeState::Ready | NodeState::InUse | NodeState::Hold);
    is_wanted.then(|| Violation(format!("server {server} of node {id} is deleted while it is {}", node.state)))
}

/// What is wrong with a call that makes or deletes something, by whose session has been over for so long: it may have been on its way
/// since before, for that time at most.
pub fn check_call(what: impl fmt::Display, over_for: Option<Seconds>, on_its_way: Seconds) -> Option<Violation> {
    let since = over_for.filter(|over| *over > on_its_way)?;
    Some(Violation(format!("{what} by whose session has been over for {:.1} s", since.0)))
}

/// Whether running totals are what there is.
pub fn check_usage_totals(snapshot: &Snapshot) -> Option<Violation> {
    let mut recount = UsageTotals::default();
    snapshot.nodes().for_each(|(_, node)| recount.add(&node.record));
    let counted = &snapshot.usage_totals;
    (*counted != recount).then(|| Violation(format!("the totals are {counted:?}, and a recount says {recount:?}")))
}

/// The picture of who watches.
#[derive(Debug, Default)]
pub struct InvariantChecker {
    nodes: BTreeMap<NodeId, Node>,
    erased: BTreeSet<NodeId>,
    requests: BTreeMap<RequestId, NodeRequest>,
    /// How many contend for the lock of a request, if anybody does.
    request_contenders: BTreeMap<RequestId, usize>,
    /// Who contends for the lock of a node, the first one first.
    contenders: BTreeMap<NodeId, Vec<String>>,
    /// By which contender a node was locked before it was ready: that of who makes it.
    makers: BTreeMap<NodeId, String>,
    /// By which contender it was locked when its use began.
    users: BTreeMap<NodeId, String>,
    /// What was in use once.
    used: BTreeSet<NodeId>,
    servers: BTreeMap<CloudObjectKey, Server>,
    /// What ran once and exists no more.
    ended_servers: BTreeSet<CloudObjectKey>,
    limits: BTreeMap<PoolId, Limit>,
    /// Hosts, and how many jobs each takes.
    hosts: BTreeMap<(ProviderName, String), usize>,
    /// Tenants, and how many nodes each may have.
    tenant_limits: BTreeMap<TenantName, usize>,
}

#[derive(Debug)]
struct Limit {
    number: usize,
    /// The nodes that were there when it fell.
    decided: BTreeSet<NodeId>,
}

#[derive(Debug)]
struct Server {
    node: NodeId,
    runs: bool,
    is_ending: bool,
    /// A call of ours made it.
    is_ours: bool,
}

impl InvariantChecker {
    /// Takes the change into the picture.
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
            Observation::NodeContender(id, name, has_come) => {
                self.node_contender(id, name, has_come);
                Vec::new()
            }
            Observation::RequestContender(id, has_come) => {
                self.request_contender(id, has_come);
                Vec::new()
            }
            Observation::Created(place, node) => self.created(place, node),
            Observation::Duplicated(place, node) => {
                let server = Server { node: node.clone(), runs: false, is_ending: false, is_ours: false };
                self.servers.insert(place.clone(), server);
                Vec::new()
            }
            Observation::Running(place) => {
                if let Some(server) = self.servers.get_mut(place) {
                    server.runs = true;
                }
                Vec::new()
            }
            Observation::Deleting(place) => self.deleting(place),
            Observation::Ending(place) => {
                if let Some(server) = self.servers.get_mut(place) {
                    server.is_ending = true;
                }
                Vec::new()
            }
            Observation::Removed(place) => {
                if self.servers.remove(place).is_some_and(|server| server.runs) {
                    self.ended_servers.insert(place.clone());
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

    /// The nodes of the picture.
    pub fn nodes(&self) -> &BTreeMap<NodeId, Node> {
        &self.nodes
    }

    /// The requests of the picture.
    pub fn requests(&self) -> &BTreeMap<RequestId, NodeRequest> {
        &self.requests
    }

    /// What is left when nothing fails any more and everybody has given back what they had.
    pub fn at_quiescence(&self) -> Vec<Violation> {
        let open = self
            .requests
            .iter()
            .filter(|(_, request)| matches!(request.state, RequestState::Requested | RequestState::Pending));
        let mut found: Vec<String> = open.map(|(id, _)| format!("request {id} has not ended")).collect();
        for ((provider, server), Server { node, .. }) in &self.servers {
            match self.nodes.get(node).map(|record| record.external_id.as_str().unwrap_or("none")) {
                Some(own) if own == server.as_str() => {}
                Some(own) => found.push(format!("server {server} of {provider} is left over, node {node} has {own}")),
                None => found.push(format!("server {server} of {provider} is left over, node {node} has gone")),
            }
        }
        let unfinished =
            self.nodes.iter().filter(|(_, node)| !matches!(node.state, NodeState::Ready | NodeState::Hold));
        found.extend(unfinished.map(|(id, node)| format!("node {id} is still {}", node.state)));
        let idle = self.nodes.iter().filter(|(_, node)| node.state == NodeState::Ready);
        let kept = idle.filter_map(|(id, node)| Some((id, node.allocated_to.as_ref()?)));
        let forgotten = kept.filter(|(_, request)| !self.requests.contains_key(*request));
        found.extend(forgotten.map(|(id, request)| format!("node {id} is kept for {request}, which has gone")));
        for ((provider, host), jobs) in &self.hosts {
            let nodes = self.nodes_on(provider, host).count();
            if nodes != *jobs {
                found.push(format!("{host} of {provider} has {nodes} nodes for {jobs} jobs"));
            }
        }
        found.into_iter().map(Violation).collect()
    }

    fn node(&mut self, id: &NodeId, record: Option<&Node>) -> Vec<String> {
        let mut found = Vec::new();
        let Some(now) = record else {
            let was = self.nodes.remove(id);
            self.makers.remove(id);
            self.used.remove(id);
            if self.users.remove(id).is_some() {
                found.push(format!("node {id} goes while it is used"));
            }
            if let Some(was) = was.filter(|_| !self.erased.remove(id)) {
                found.extend(self.left_behind(id, &was));
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

    /// A tenant has no more nodes than it may have when it gets one. What a node takes is written when it is begun, and only who has just
    /// made it knows that before.
    fn tenant_over_limit(&self, given: &Node) -> Option<String> {
        let tenant = usage_totals::using_tenant(given)?;
        let most = *self.tenant_limits.get(tenant)?;
        let is_new =
            |node: &Node| (given.state_time - node.state_time) < Seconds(1.0) && node.launcher == given.launcher;
        let is_known = |node: &Node| node.state != NodeState::Init || is_new(node);
        let counts = |node: &&Node| usage_totals::using_tenant(node) == Some(tenant) && is_known(node);
        let number = self.nodes.values().filter(counts).count();
        (number > most).then(|| format!("tenant {tenant} has {number} nodes where it may have {most}"))
    }

    fn nodes_on(&self, provider: &ProviderName, host: &str) -> impl Iterator<Item = &Node> {
        let is_on =
            move |node: &&Node| node.provider.as_ref() == Some(provider) && node.hostname.as_deref() == Some(host);
        self.nodes.values().filter(is_on)
    }

    /// A host has no more users than jobs. Of idle nodes it may have more for a moment, where two wrote at the same time.
    fn host_over_capacity(&self, node: &Node) -> Option<String> {
        let (provider, host) = (node.provider.as_ref()?, node.hostname.as_ref()?);
        let jobs = *self.hosts.get(&(provider.clone(), host.clone()))?;
        let is_taken = |node: &&Node| matches!(node.state, NodeState::InUse | NodeState::Hold);
        let users = self.nodes_on(provider, host).filter(is_taken).count();
        (users > jobs).then(|| format!("{host} of {provider} has {users} users where it takes {jobs}"))
    }

    /// What is ready has a server of its own that runs, or that did when somebody looked: it may end at any time. Of a provider that
    /// nobody saw make any there is nothing to say.
    fn ready_without_server(&self, id: &NodeId, now: &Node) -> Option<String> {
        let provider = now.provider.as_ref()?;
        let place = (provider.clone(), now.external_id.as_str().unwrap_or_default().to_owned());
        let is_wrong = match self.servers.get(&place) {
            Some(server) if server.node != *id => "is another node's",
            Some(server) if !server.runs => "does not run",
            None if !self.ended_servers.contains(&place) && self.servers.keys().any(|(of, _)| of == provider) => {
                "is not there"
            }
            _ => return None,
        };
        Some(format!("node {id} is ready, and its server {} of {provider} {is_wrong}", place.1))
    }

    /// Servers that no node names, of which none that is being made may be: each with the node whose number it bears.
    pub fn stray_servers(&self) -> impl Iterator<Item = (&CloudObjectKey, &NodeId)> {
        let is_stray = |place: &CloudObjectKey, server: &Server| {
            let Some(node) = self.nodes.get(&server.node) else { return true };
            match node.external_id.as_str() {
                Some(own) => own != place.1,
                None => !matches!(node.state, NodeState::Init | NodeState::Building),
            }
        };
        let strays = self.servers.iter().filter(move |(place, server)| !server.is_ending && is_stray(place, server));
        strays.map(|(place, server)| (place, &server.node))
    }

    /// Requests that nobody looks after although somebody should: those that were taken up and are let down, and, with an idle node that
    /// it could have, the one that is the first in line.
    pub fn neglected_requests(&self) -> impl Iterator<Item = (&RequestId, Option<&Node>)> {
        let waits = |state| matches!(state, RequestState::Requested | RequestState::Pending);
        let is_unlocked = |id: &RequestId| !self.request_contenders.contains_key(id);
        let unlocked = self.requests.iter().filter(move |(id, request)| waits(request.state) && is_unlocked(id));
        let abandoned = unlocked.clone().filter(|(_, request)| request.state == RequestState::Pending);
        let first = unlocked.min_by_key(|(id, request)| Rank::of(id, request));
        // With nodes of its own it is left to who made them.
        let first = first.filter(|(id, _)| self.nodes.values().all(|node| node.allocated_to.as_ref() != Some(*id)));
        let could_have = first.and_then(|(id, request)| Some((id, Some(self.idle_node_for(request)?))));
        abandoned.map(|(id, _)| (id, None)).chain(could_have)
    }

    /// One that a request for a single node may have. Who is limited may have to wait all the same, and who has declined does not come
    /// back to it.
    fn idle_node_for(&self, request: &NodeRequest) -> Option<&Node> {
        let [label] = &request.node_types[..] else { return None };
        if !request.reuse || request.tenant_name.is_some() || !request.declined_by.is_empty() {
            return None;
        }
        let is_free = |id: &NodeId| !self.contenders.contains_key(id);
        let fits = |node: &Node| node.is_idle() && node.labels.contains(label);
        self.nodes.iter().find(|(id, node)| fits(node) && is_free(id)).map(|(_, node)| node)
    }

    /// A node is its request's as long as that is open, unless the request is begun anew, and stays as it is once that is fulfilled.
    fn reassigned(&self, id: &NodeId, was: &Node, now: &Node) -> Option<String> {
        let owner = was.allocated_to.as_ref()?;
        let request = self.requests.get(owner)?;
        let stays = was.allocated_to == now.allocated_to;
        match (request.state, &now.allocated_to) {
            (RequestState::Fulfilled, _) if stays && was.state == now.state => None,
            // Together with the request, which goes.
            (RequestState::Fulfilled, None) if owner.priority() == MIN_READY_PRIORITY => None,
            (RequestState::Fulfilled, after) if request.nodes.contains(id) => {
                let (state, after) = (now.state, after.as_ref().map_or("nobody", RequestId::as_str));
                Some(format!("node {id} of {owner}, which is fulfilled, is {state} and given to {after}"))
            }
            (RequestState::Requested | RequestState::Pending, Some(after)) if !stays => {
                Some(format!("node {id} is taken from {owner}, which is open, and given to {after}"))
            }
            _ => None,
        }
    }

    /// A node goes after its server, so that none is ever without somebody who knows of it. One of which nobody ever heard, because
    /// the answer was lost, is found by who looks for what is left over.
    fn left_behind(&self, id: &NodeId, was: &Node) -> Vec<String> {
        let recorded = was.external_id.as_str().unwrap_or_default();
        let left = self.servers.iter().filter(|((_, own), server)| server.node == *id && own == recorded);
        let left = left.filter(|(_, server)| !server.is_ending);
        let mut found: Vec<String> = left
            .map(|((provider, server), _)| format!("node {id} went, and its server {server} of {provider} stays"))
            .collect();
        for (request, record) in &self.requests {
            if record.state == RequestState::Fulfilled && record.nodes.contains(id) {
                found.push(format!("node {id}, which was {}, went while {request} is fulfilled with it", was.state));
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
            for held in [&mut self.makers, &mut self.users] {
                if held.get(id).is_some_and(|holder| holder == name) {
                    held.remove(id);
                }
            }
            return;
        }
        contenders.push(name.to_owned());
        if self.nodes.get(id).is_some_and(is_made) {
            // Others who come meanwhile wait, or go again.
            self.makers.entry(id.clone()).or_insert_with(|| name.to_owned());
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
            return vec![format!("request {id} is fulfilled and gets other nodes")];
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
            if self.makers.contains_key(node) {
                found.push(format!("request {id} is fulfilled with node {node}, which is still locked by who made it"));
            }
            for (other, record) in &self.requests {
                if other != id && record.state == RequestState::Fulfilled && record.nodes.contains(node) {
                    found.push(format!("node {node} is in {id} and in {other}"));
                }
            }
        }
        found
    }

    fn created(&mut self, place: &CloudObjectKey, node: &NodeId) -> Vec<String> {
        let others =
            self.servers.iter().filter(|(_, server)| server.node == *node && server.is_ours && !server.is_ending);
        let found = others.map(|((provider, other), _)| {
            format!("server {} of {} is made for node {node}, which has {other} of {provider}", place.1, place.0)
        });
        let mut found: Vec<String> = found.collect();
        if !self.nodes.contains_key(node) {
            found.push(format!("server {} of {} is made for node {node}, which is not there", place.1, place.0));
        }
        self.servers.insert(place.clone(), Server { node: node.clone(), runs: false, is_ending: false, is_ours: true });
        found.extend(self.pool_over_limit(node));
        found
    }

    fn pool_over_limit(&self, node: &NodeId) -> Option<String> {
        let pool = self.nodes.get(node)?.pool_id()?;
        let limit = self.limits.get(&pool).filter(|limit| !limit.decided.contains(node))?;
        let is_in_it = |server: &&Server| self.nodes.get(&server.node).is_some_and(|node| node.belongs_to(&pool));
        let own = self.servers.values().filter(|server| server.is_ours && !server.is_ending);
        let number = own.filter(is_in_it).count();
        (number > limit.number).then(|| format!("{pool} has {number} servers where {} are allowed", limit.number))
    }

    fn limit(&mut self, pool: &PoolId, number: usize) {
        let limit = self.limits.entry(pool.clone()).or_insert(Limit { number, decided: BTreeSet::new() });
        if number < limit.number {
            let in_it = self.nodes.iter().filter(|(_, node)| node.belongs_to(pool));
            limit.decided.extend(in_it.map(|(id, _)| id.clone()));
        }
        limit.number = number;
    }

    fn deleting(&self, place: &CloudObjectKey) -> Vec<String> {
        let Some(server) = self.servers.get(place) else { return Vec::new() };
        let wrong = check_server_deletion(&place.1, &server.node, self.nodes.get(&server.node));
        wrong.into_iter().map(|violation| violation.0).collect()
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
