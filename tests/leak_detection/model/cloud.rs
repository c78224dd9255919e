//! Cloud model: the servers of one project, their owners, and listings with faults.

use std::collections::VecDeque;
use std::sync::Arc;

use nodepool_driver::instance::{Instance, InstanceState, Inventory};
use nodepool_model::records::ids::ExternalId;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

pub const PROVIDER: &str = "lab";
/// Number of earlier states that a stale list may show.
const LAG: usize = 5;

/// The real owner of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerOwner {
    /// A node, by the index of its lifetime.
    Node(usize),
    /// Another user of the project.
    Foreign,
    /// No owner: the node was deleted without its server.
    Leaked,
}

#[derive(Clone, Debug)]
pub struct Server {
    pub id: String,
    pub provider: Option<&'static str>,
    pub node: Option<String>,
    pub owner: ServerOwner,
    /// Whether the server was created after the state to which ZooKeeper was restored, which lacks its node.
    pub is_lost: bool,
    /// Whether this session reported its node id as unissued.
    pub is_reported_unissued: bool,
    pub is_stopping: bool,
}

impl Server {
    fn instance(&self) -> Instance {
        let mut instance = Instance::new(ExternalId::text(&self.id));
        let metadata = [("nodepool_provider_name", self.provider), ("nodepool_node_id", self.node.as_deref())];
        let metadata = metadata.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())));
        instance.metadata = metadata.collect();
        if self.is_stopping {
            instance.state = InstanceState::Stopping;
        }
        instance
    }
}

/// Fault of a list of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListFault {
    Stale,
    Partial,
    Empty,
    Doubled,
}

#[derive(Default)]
pub struct CloudModel {
    pub servers: Vec<Server>,
    history: VecDeque<Vec<Server>>,
    created_count: u64,
}

impl CloudModel {
    /// A new server id.
    pub fn next_id(&mut self) -> String {
        self.created_count += 1;
        format!("server-{}", self.created_count)
    }

    pub fn position(&self, id: &str) -> Option<usize> {
        self.servers.iter().position(|server| server.id == id)
    }

    pub fn save_state(&mut self) {
        self.history.push_front(self.servers.clone());
        self.history.truncate(LAG);
    }

    /// All servers, possibly with a fault.
    pub fn list(&self, fault: Option<ListFault>, rng: &mut StdRng) -> Vec<Instance> {
        let servers = match fault {
            Some(ListFault::Empty) => &[],
            Some(ListFault::Stale) if !self.history.is_empty() => {
                self.history[rng.gen_range(0..self.history.len())].as_slice()
            }
            _ => self.servers.as_slice(),
        };
        let mut instances: Vec<Instance> = servers.iter().map(Server::instance).collect();
        match fault {
            Some(ListFault::Partial) => instances.retain(|_| rng.gen_bool(0.6)),
            Some(ListFault::Doubled) => instances.extend(instances.clone()),
            _ => {}
        }
        instances.shuffle(rng);
        instances
    }

    pub fn inventory(&self, fault: Option<ListFault>, rng: &mut StdRng) -> Arc<Inventory> {
        Arc::new(Inventory::new(self.list(fault, rng)))
    }
}
