//! What holds whatever fails, checked on what can be seen from outside: records in ZooKeeper and servers in clouds.
//!
//! Whoever watches tells each change in its order, and hears at once which promise it broke. Nothing in here decides anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::model::ids::{NodeId, ProviderName, RequestId};
use crate::model::node::{Node, NodeState};
use crate::model::request::{NodeRequest, RequestState};

/// A change that somebody saw.
#[derive(Clone, Debug)]
pub enum Sight<'a> {
    /// A record as it is now; none where it has gone.
    Node(&'a NodeId, Option<&'a Node>),
    Request(&'a RequestId, Option<&'a NodeRequest>),
    /// A call of ours made a server that bears the number of this node.
    Created(&'a Place, &'a NodeId),
    /// A call of ours asks for its end.
    Deleting(&'a Place),
    /// The cloud has said that it will end, and means it.
    Ending(&'a Place),
    /// It exists no more, whoever ended it.
    Gone(&'a Place),
    /// No more than so many servers may there be of nodes of a provider when one is made. Told late where it falls: what was decided
    /// before is on its way.
    Limit(&'a ProviderName, usize),
}

/// A server of a provider, by its id as text.
pub type Place = (ProviderName, String);

/// A promise that was broken, and by what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The picture of who watches.
#[derive(Debug, Default)]
pub struct Watcher {
    nodes: BTreeMap<NodeId, Node>,
    requests: BTreeMap<RequestId, NodeRequest>,
    servers: BTreeMap<Place, Server>,
    limits: BTreeMap<ProviderName, usize>,
}

#[derive(Debug)]
struct Server {
    node: NodeId,
    is_ending: bool,
}

impl Watcher {
    /// Takes the change into the picture.
    pub fn see(&mut self, sight: Sight<'_>) -> Vec<Violation> {
        let found = match sight {
            Sight::Node(id, record) => self.node(id, record),
            Sight::Request(id, record) => self.request(id, record),
            Sight::Created(place, node) => self.created(place, node),
            Sight::Deleting(place) => self.deleting(place),
            Sight::Ending(place) => {
                if let Some(server) = self.servers.get_mut(place) {
                    server.is_ending = true;
                }
                Vec::new()
            }
            Sight::Gone(place) => {
                self.servers.remove(place);
                Vec::new()
            }
            Sight::Limit(provider, limit) => {
                self.limits.insert(provider.clone(), limit);
                Vec::new()
            }
        };
        found.into_iter().map(Violation).collect()
    }

    /// What is left when nothing fails any more and everybody has given back what they had.
    pub fn at_rest(&self) -> Vec<Violation> {
        let open = self
            .requests
            .iter()
            .filter(|(_, request)| matches!(request.state, RequestState::Requested | RequestState::Pending));
        let mut found: Vec<String> = open.map(|(id, _)| format!("request {id} has not ended")).collect();
        for ((provider, server), Server { node, .. }) in &self.servers {
            if !self.nodes.contains_key(node) {
                found.push(format!("server {server} of {provider} is left over, node {node} has gone"));
            }
        }
        let unfinished =
            self.nodes.iter().filter(|(_, node)| !matches!(node.state, NodeState::Ready | NodeState::Hold));
        found.extend(unfinished.map(|(id, node)| format!("node {id} is still {}", node.state)));
        let idle = self.nodes.iter().filter(|(_, node)| node.state == NodeState::Ready);
        let kept = idle.filter_map(|(id, node)| Some((id, node.allocated_to.as_ref()?)));
        let forgotten = kept.filter(|(_, request)| !self.requests.contains_key(*request));
        found.extend(forgotten.map(|(id, request)| format!("node {id} is kept for {request}, which has gone")));
        found.into_iter().map(Violation).collect()
    }

    fn node(&mut self, id: &NodeId, record: Option<&Node>) -> Vec<String> {
        let mut found = Vec::new();
        let Some(now) = record else {
            if let Some(was) = self.nodes.remove(id) {
                found.extend(self.forgotten(id, &was));
            }
            return found;
        };
        if let Some(was) = self.nodes.get(id) {
            if was.allocated_to != now.allocated_to
                && let (Some(before), Some(after)) = (&was.allocated_to, &now.allocated_to)
                && self.requests.get(before).is_some_and(|request| request.state == RequestState::Fulfilled)
            {
                found.push(format!("node {id} is taken from {before}, which is fulfilled, and given to {after}"));
            }
            if has_been_used(was.state) && !has_been_used(now.state) && !is_ending(now.state) {
                found.push(format!("node {id} was {} and is {} again", was.state, now.state));
            }
        }
        self.nodes.insert(id.clone(), now.clone());
        found
    }

    /// A node goes after its server, so that none is ever without somebody who knows of it. One of which nobody ever heard, because
    /// the answer was lost, is found by who looks for what is left over.
    fn forgotten(&self, id: &NodeId, was: &Node) -> Vec<String> {
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
        let mut found = Vec::new();
        if request.nodes.len() != request.node_types.len() {
            let (has, asked) = (request.nodes.len(), request.node_types.len());
            found.push(format!("request {id} is fulfilled with {has} nodes for {asked} labels"));
        }
        if request.nodes.iter().collect::<BTreeSet<_>>().len() != request.nodes.len() {
            found.push(format!("request {id} has a node twice"));
        }
        for (node_id, label) in request.nodes.iter().zip(&request.node_types) {
            let Some(node) = self.nodes.get(node_id) else {
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
            for (other, record) in &self.requests {
                if other != id && record.state == RequestState::Fulfilled && record.nodes.contains(node_id) {
                    found.push(format!("node {node_id} is in {id} and in {other}"));
                }
            }
        }
        found
    }

    fn created(&mut self, place: &Place, node: &NodeId) -> Vec<String> {
        let others = self.servers.iter().filter(|(_, server)| server.node == *node && !server.is_ending);
        let found = others.map(|((provider, other), _)| {
            format!("server {} of {} is made for node {node}, which has {other} of {provider}", place.1, place.0)
        });
        let mut found: Vec<String> = found.collect();
        if !self.nodes.contains_key(node) {
            found.push(format!("server {} of {} is made for node {node}, which is not there", place.1, place.0));
        }
        self.servers.insert(place.clone(), Server { node: node.clone(), is_ending: false });
        let of_nodes = |((provider, _), server): &(&Place, &Server)| {
            *provider == place.0 && !server.is_ending && self.nodes.contains_key(&server.node)
        };
        let number = self.servers.iter().filter(of_nodes).count();
        if let Some(limit) = self.limits.get(&place.0).filter(|limit| number > **limit) {
            found.push(format!("{} has {number} servers where {limit} are allowed", place.0));
        }
        found
    }

    fn deleting(&self, place: &Place) -> Vec<String> {
        let Some(server) = self.servers.get(place) else { return Vec::new() };
        let node = self.nodes.get(&server.node).filter(|node| node.external_id.as_str() == Some(&*place.1));
        let is_wanted = node.filter(|node| matches!(node.state, NodeState::Ready | NodeState::InUse | NodeState::Hold));
        let wrong = is_wanted
            .map(|node| format!("server {} of node {} is deleted while it is {}", place.1, server.node, node.state));
        wrong.into_iter().collect()
    }
}

fn has_been_used(state: NodeState) -> bool {
    matches!(state, NodeState::InUse | NodeState::Used | NodeState::Hold)
}

fn is_ending(state: NodeState) -> bool {
    matches!(state, NodeState::Deleting | NodeState::Deleted | NodeState::Failed | NodeState::Aborted)
}
