//! Events and effects of a pool.

use crate::request::fulfillment::{Adoption, Claim, Finish};
use crate::request::handler::ImmediateFulfillment;
use crate::request::launch::ScanTarget;
use nodepool_driver::job::{Job, JobEvent};
use nodepool_model::records::ids::{ExternalId, NodeId, RequestId};
use nodepool_model::records::node::Node;
use nodepool_model::records::static_host::HostIdentity;
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::{NodeChange, RequestChange, WriteError};

/// Event of a pool, sent by its PoolWorker.
#[derive(Clone, Debug)]
pub enum Event {
    /// Run a scheduling pass. Deliberately carries no data.
    Wake,
    /// Periodic safety net: run a pass, including requests whose write failed on this snapshot.
    Tick,
    Fulfilled(RequestId, Result<(), WriteError>),
    /// A request was accepted, with these new nodes.
    Claimed(RequestId, Result<Vec<NodeId>, WriteError>),
    /// An abandoned request was adopted.
    Adopted(RequestId, Result<(), WriteError>),
    /// The new nodes of a request are `building`.
    Begun(RequestId, Result<(), WriteError>),
    Saved(NodeId, Result<(), WriteError>),
    Finished(RequestId, Result<(), WriteError>),
    /// Progress of the job of a node that is being launched.
    JobUpdate(NodeId, JobEvent),
    /// Result of the host key scan of this launch attempt.
    Scanned(NodeId, u32, Result<Vec<String>, String>),
    /// The time that `due` returned has passed.
    Clock,
    Declined(RequestId, Result<(), WriteError>),
    /// Result of a host's liveness check.
    Probed(RequestId, NodeId, LivenessResult),
    Retired(NodeId, Result<(), WriteError>),
    Evicted(Result<(), WriteError>),
    /// Accept no new requests.
    Draining,
}

/// Result of a liveness check.
#[derive(Clone, Debug, PartialEq)]
pub enum LivenessResult {
    Alive,
    Dead(String),
    /// The check was not made, for example because the provider is being replaced. That says nothing about the host.
    NotChecked(String),
}

/// Effect of a pool; answered by the event of the same name, unless stated otherwise at the effect.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Fulfill(Box<ImmediateFulfillment>),
    Claim(Box<Claim>),
    Adopt(Box<Adoption>),
    /// Claim more nodes for a request whose lock is held; answered by `Claimed`.
    Extend {
        request: RequestId,
        reuse: Vec<NodeChange>,
        create: Vec<Node>,
    },
    /// Write the last changes of nodes whose locks are held, and release the locks. Not answered.
    Release(Vec<(NodeId, Option<NodeChange>)>),
    Begin {
        request: RequestId,
        nodes: Vec<NodeChange>,
    },
    /// Write a node whose lock is held.
    Save(Box<NodeChange>),
    Finish {
        request: RequestId,
        finish: Box<Finish>,
    },
    /// Submit a job of a node that is being launched; answered by any number of `JobUpdate`.
    Submit {
        node: NodeId,
        job: Job,
    },
    /// Cancel the job that was submitted last for this node. Not answered.
    Abandon {
        node: NodeId,
    },
    Scan {
        node: NodeId,
        target: ScanTarget,
    },
    /// Log the console text of an instance whose launch failed. Not answered.
    ShowConsole {
        node: NodeId,
        external_id: ExternalId,
        text: String,
    },
    /// Refresh the provider facts, because they are outdated. Not answered.
    Refresh,
    /// Result of an attempt, for the metrics. Not answered.
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
    /// Delete the node of a dead host; it is registered again when the host answers.
    Retire {
        node: NodeId,
        version: i32,
    },
    /// Delete an idle node to release capacity.
    Evict(Box<NodeChange>),
}
