//! What a pool receives and what it asks for: its events and its effects.

use crate::request::fulfillment::{Adoption, Claim, Finish};
use crate::request::handler::ImmediateFulfillment;
use crate::request::launch::ScanTarget;
use nodepool_driver::job::{Job, JobEvent};
use nodepool_model::records::ids::{ExternalId, NodeId, RequestId};
use nodepool_model::records::node::Node;
use nodepool_model::records::static_host::HostIdentity;
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::{NodeChange, RequestChange, WriteError};

/// What a PoolWorker feeds its mind.
#[derive(Clone, Debug)]
pub enum Event {
    /// Look again; carries nothing, on purpose.
    Wake,
    /// The safety net: look again, also at what failed on this very picture.
    Tick,
    Fulfilled(RequestId, Result<(), WriteError>),
    /// A request was taken up, with these new nodes.
    Claimed(RequestId, Result<Vec<NodeId>, WriteError>),
    /// A request that somebody left was taken over.
    Adopted(RequestId, Result<(), WriteError>),
    /// Its new nodes are building.
    Begun(RequestId, Result<(), WriteError>),
    Saved(NodeId, Result<(), WriteError>),
    Finished(RequestId, Result<(), WriteError>),
    /// Of the job of a node that is being launched.
    JobUpdate(NodeId, JobEvent),
    /// A scan of this attempt of a node's launch.
    Scanned(NodeId, u32, Result<Vec<String>, String>),
    /// What `due` named has come.
    Clock,
    Declined(RequestId, Result<(), WriteError>),
    /// A host answered its liveness check, or did not.
    Probed(RequestId, NodeId, LivenessResult),
    Retired(NodeId, Result<(), WriteError>),
    Evicted(Result<(), WriteError>),
    /// Take up nothing new.
    Draining,
}

/// What a liveness check found.
#[derive(Clone, Debug, PartialEq)]
pub enum LivenessResult {
    Alive,
    Dead(String),
    /// It was not made: the provider is being replaced, say. That speaks neither for nor against the host.
    NotChecked(String),
}

/// What it asks for; each comes back as the event of the same name.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Fulfill(Box<ImmediateFulfillment>),
    Claim(Box<Claim>),
    Adopt(Box<Adoption>),
    /// More nodes for a request whose lock is held; answered as a claim.
    Extend {
        request: RequestId,
        reuse: Vec<NodeChange>,
        create: Vec<Node>,
    },
    /// The last changes of nodes whose locks are held, and the locks given back. Nothing is answered.
    Release(Vec<(NodeId, Option<NodeChange>)>),
    Begin {
        request: RequestId,
        nodes: Vec<NodeChange>,
    },
    /// A node whose lock is held.
    Save(Box<NodeChange>),
    Finish {
        request: RequestId,
        finish: Box<Finish>,
    },
    Submit {
        node: NodeId,
        job: Job,
    },
    /// The job that was submitted last for this node.
    Abandon {
        node: NodeId,
    },
    Scan {
        node: NodeId,
        target: ScanTarget,
    },
    /// For the log.
    ShowConsole {
        node: NodeId,
        external_id: ExternalId,
        text: String,
    },
    /// What is known of the provider is outdated.
    Refresh,
    /// How an attempt ended, for the statistics.
    Report {
        node: NodeId,
        result: &'static str,
        took: Seconds,
        zone: Option<String>,
    },
    Decline {
        request: Box<RequestChange>,
        reasons: Vec<String>,
    },
    Probe {
        request: RequestId,
        node: NodeId,
        host: HostIdentity,
    },
    /// A dead host's node leaves; it is registered again when the host answers.
    Retire {
        node: NodeId,
        version: i32,
    },
    /// An idle node goes to make room.
    Evict(Box<NodeChange>),
}
