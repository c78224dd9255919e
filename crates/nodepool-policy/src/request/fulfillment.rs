//! Fulfillment: state machine of an accepted request with launched nodes, from its claim to its end.

mod finish;
mod progress;

use std::sync::Arc;

use serde::Serialize;

pub use self::finish::Finish;
use super::handler::allocate;
use super::launch::{Launch, LaunchEffect, LaunchEvent, LaunchOutcome, OnRefusal, RecordedId};
use super::node_updates::{LaunchedInstance, identity, new_node, request_properties, resources, state_change};
use super::requested_node::{PriorInstance, RequestedNode, RequestedNodeState, UploadRef, WriteState};
use super::resumable::ResumableRequest;
use crate::inputs::Inputs;
use crate::scheduler::pool_context::{Placement, PoolContext};
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::{LabelImage, LaunchConfig};
use nodepool_driver::job::{Job, LaunchOrder};
use nodepool_model::records::ids::{ExternalId, NodeId, PoolId, RequestId};
use nodepool_model::records::node::{Node, NodeState, Writer};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::time::Timestamp;
use nodepool_model::snapshot::{NodeChange, RequestChange, Versioned};

/// The transaction that accepts a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    pub request: RequestChange,
    /// Ready nodes to allocate to it.
    pub reuse: Vec<NodeChange>,
    /// Records of new nodes, in the order of the requested labels.
    pub create: Vec<Node>,
}

/// The transaction that adopts an abandoned request: locks and writes the request and those of its nodes that are not
/// ready.
#[derive(Clone, Debug, PartialEq)]
pub struct Adoption {
    pub request: RequestChange,
    pub nodes: Vec<NodeChange>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Fulfillment {
    pub since: Timestamp,
    pub stage: FulfillmentStage,
    requested_nodes: Vec<RequestedNode>,
    #[serde(skip)]
    zone: Option<String>,
    /// Zones that existed when they were chosen, but no longer existed at the launch.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing_zones: Vec<String>,
    /// Error of the last node that failed.
    failure: Option<String>,
    /// An extension failed, but perhaps only its answer was lost.
    #[serde(skip)]
    is_extension_unconfirmed: bool,
    /// For the launches of the last claim or extension.
    #[serde(skip)]
    on_refusal: OnRefusal,
    /// The request ends as soon as its launches have ended.
    is_closing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FulfillmentStage {
    Claiming,
    /// Capacity is insufficient for some nodes; the request keeps the nodes that it has, and their launches continue.
    Waiting,
    /// Capacity is available now: missing nodes are being claimed.
    Extending,
    Beginning,
    /// All nodes are assigned.
    Building,
    Finishing,
}

/// Effect of a fulfillment on one of its nodes.
#[derive(Clone, Debug, PartialEq)]
pub enum FulfillmentEffect {
    Launch(LaunchEffect),
    Save(Box<NodeChange>),
}

impl Fulfillment {
    pub fn claim(
        id: &RequestId,
        request: &Versioned<NodeRequest>,
        placements: Vec<Placement>,
        zone: Option<String>,
        ctx: &PoolContext<'_>,
        inputs: &Inputs<'_>,
    ) -> (Self, Claim) {
        let (mut fulfillment, claim) = Self::claim_without_capacity(id, request, inputs);
        let (reuse, build) = fulfillment.extend(id, &request.record, placements, zone, ctx, inputs);
        fulfillment.stage = FulfillmentStage::Claiming;
        (fulfillment, Claim { reuse, create: build, ..claim })
    }

    /// Accepts a request for which capacity is still insufficient.
    pub fn claim_without_capacity(
        id: &RequestId,
        request: &Versioned<NodeRequest>,
        inputs: &Inputs<'_>,
    ) -> (Self, Claim) {
        let requested_nodes = request.record.node_types.iter().map(|label| RequestedNode {
            node: None,
            label: label.clone(),
            state: RequestedNodeState::Unassigned,
            write: WriteState::Idle,
            image: None,
            prior_instance: None,
        });
        let fulfillment = Self {
            since: inputs.now,
            stage: FulfillmentStage::Claiming,
            requested_nodes: requested_nodes.collect(),
            zone: None,
            missing_zones: Vec::new(),
            failure: None,
            is_extension_unconfirmed: false,
            on_refusal: OnRefusal::Abort,
            is_closing: false,
        };
        let request = request.change(id.clone(), |record| record.set_state(RequestState::Pending, inputs.now));
        (fulfillment, Claim { request, reuse: Vec::new(), create: Vec::new() })
    }

    /// Resumes an abandoned request. The changes are those of the nodes that are still to be launched.
    pub fn adopt(
        request: &NodeRequest,
        resumable: &ResumableRequest,
        zone: Option<String>,
        rules: &LaunchConfig,
        inputs: &Inputs<'_>,
    ) -> (Self, Vec<NodeChange>) {
        let requested_nodes = resumable.nodes.iter().zip(&request.node_types).map(|(node, label)| {
            let record = inputs.snapshot.node(node).map(|stored| &stored.record);
            let is_ready = record.is_some_and(|record| record.state == NodeState::Ready);
            let prior_instance = record.map(|record| PriorInstance {
                external_id: ExternalId::of(&record.external_id),
                launch_started: record.state == NodeState::Building,
            });
            let state = if is_ready { RequestedNodeState::Reused } else { RequestedNodeState::New };
            RequestedNode {
                node: Some(node.clone()),
                label: label.clone(),
                state,
                write: WriteState::Idle,
                image: None,
                prior_instance,
            }
        });
        let mut fulfillment = Self {
            since: inputs.now,
            stage: FulfillmentStage::Beginning,
            requested_nodes: requested_nodes.collect(),
            zone,
            missing_zones: Vec::new(),
            failure: None,
            is_extension_unconfirmed: false,
            on_refusal: OnRefusal::Abort,
            is_closing: false,
        };
        let changes = fulfillment.building_changes(Some(rules), &resumable.pool, inputs);
        (fulfillment, changes)
    }

    pub fn nodes(&self) -> Vec<NodeId> {
        self.requested_nodes.iter().filter_map(|entry| entry.node.clone()).collect()
    }

    /// Fills the first unassigned nodes with these placements: returns nodes to reuse, and records of new ones.
    pub fn extend(
        &mut self,
        id: &RequestId,
        request: &NodeRequest,
        placements: Vec<Placement>,
        zone: Option<String>,
        ctx: &PoolContext<'_>,
        inputs: &Inputs<'_>,
    ) -> (Vec<NodeChange>, Vec<Node>) {
        let (mut reuse, mut create) = (Vec::new(), Vec::new());
        let is_probe = |placement: &Placement| match placement {
            Placement::ReuseIdle(_) => false,
            Placement::LaunchNew(label) => ctx.hosts.facts.health.refusals(label).next().is_some(),
        };
        self.on_refusal = if placements.iter().any(is_probe) { OnRefusal::Suspend } else { OnRefusal::Abort };
        let unassigned =
            self.requested_nodes.iter_mut().filter(|entry| matches!(entry.state, RequestedNodeState::Unassigned));
        for (entry, placement) in unassigned.zip(placements) {
            match placement {
                Placement::ReuseIdle(node) => {
                    let stored = inputs.snapshot.node(&node).expect("a verdict names only nodes of its snapshot");
                    reuse.push(stored.change(node.clone(), |record| allocate(record, id, request)));
                    (entry.node, entry.state) = (Some(node), RequestedNodeState::Reused);
                }
                Placement::LaunchNew(label) => {
                    create.push(new_node(id, request, &label, ctx, inputs.now));
                    entry.state = RequestedNodeState::New;
                }
            }
        }
        (self.stage, self.zone) = (FulfillmentStage::Extending, zone);
        (reuse, create)
    }

    /// The extension failed: new nodes, and reused nodes for which `is_unallocated` holds, become unassigned again.
    pub fn extension_failed(&mut self, is_unallocated: impl Fn(&NodeId) -> bool) {
        for entry in &mut self.requested_nodes {
            let is_reverted = match &entry.state {
                RequestedNodeState::Reused => entry.node.as_ref().is_some_and(&is_unallocated),
                RequestedNodeState::New => entry.node.is_none(),
                _ => false,
            };
            if is_reverted {
                (entry.node, entry.state) = (None, RequestedNodeState::Unassigned);
            }
        }
        (self.stage, self.is_extension_unconfirmed) = (FulfillmentStage::Waiting, true);
    }

    /// Recovers the nodes of an extension whose answer was lost, and returns whether each is new. Without such an
    /// extension, further nodes of the request belong to its previous attempt and are about to be released.
    pub fn recover_lost_answer(&mut self, id: &RequestId, pool: &PoolId, inputs: &Inputs<'_>) -> Vec<(NodeId, bool)> {
        let (known, mut recovered) = (self.nodes(), Vec::new());
        if !self.is_extension_unconfirmed {
            return recovered;
        }
        for node in inputs.snapshot.nodes_allocated_to(id).filter(|node| !known.contains(node)) {
            let Some(stored) = inputs.snapshot.node(node).filter(|_| !inputs.snapshot.is_node_locked(node)) else {
                continue;
            };
            let record = &stored.record;
            let state = match record.state {
                NodeState::Init => RequestedNodeState::New,
                NodeState::Ready => RequestedNodeState::Reused,
                _ => continue,
            };
            let mut unassigned =
                self.requested_nodes.iter_mut().filter(|entry| matches!(entry.state, RequestedNodeState::Unassigned));
            if let Some(entry) =
                unassigned.find(|entry| record.belongs_to(pool) && record.labels.contains(&entry.label))
            {
                recovered.push((node.clone(), matches!(state, RequestedNodeState::New)));
                (entry.node, entry.state) = (Some(node.clone()), state);
            }
        }
        recovered
    }

    /// Releases the aborted nodes, each with its last change: the cloud had no quota or no such zone for them. The
    /// request waits for other nodes instead. A node whose write is in flight is released after it.
    pub fn release_aborted_nodes(&mut self, inputs: &Inputs<'_>) -> Vec<(NodeId, Option<NodeChange>)> {
        let mut released = Vec::new();
        for entry in self.requested_nodes.iter_mut().filter(|entry| entry.is_releasable()) {
            entry.state = RequestedNodeState::Unassigned;
            let node = entry.node.take();
            released.extend(node.map(|node| (node.clone(), state_change(&node, NodeState::Aborted, inputs))));
        }
        self.stage = FulfillmentStage::Waiting;
        released
    }

    /// Fails the request: the unassigned nodes can never be provided.
    pub fn fail(&mut self, reason: String) {
        for entry in
            self.requested_nodes.iter_mut().filter(|entry| matches!(entry.state, RequestedNodeState::Unassigned))
        {
            entry.state = RequestedNodeState::Failed(RecordedId::Unchanged);
        }
        self.failure = Some(reason);
    }

    /// The request, reduced to the labels of its unassigned nodes.
    pub fn remaining_request(&self, request: &NodeRequest) -> NodeRequest {
        let unassigned =
            self.requested_nodes.iter().filter(|entry| matches!(entry.state, RequestedNodeState::Unassigned));
        NodeRequest { node_types: unassigned.map(|entry| entry.label.clone()).collect(), ..request.clone() }
    }

    /// Whether capacity is insufficient for some of its nodes, as far as is known.
    pub fn lacks_capacity(&self) -> bool {
        self.requested_nodes.iter().any(|entry| matches!(entry.state, RequestedNodeState::Unassigned))
    }

    /// Whether the request continues as soon as capacity is available.
    pub fn is_waiting(&self) -> bool {
        self.stage == FulfillmentStage::Waiting
    }

    pub fn zone(&self) -> Option<&str> {
        self.zone.as_deref()
    }

    /// The new nodes exist: they become `building`, with what is known about their image.
    pub fn claimed(
        &mut self,
        nodes: Vec<NodeId>,
        rules: Option<&LaunchConfig>,
        pool: &PoolId,
        inputs: &Inputs<'_>,
    ) -> Vec<NodeChange> {
        let is_new = |entry: &RequestedNode| matches!(entry.state, RequestedNodeState::New);
        if self.lacks_capacity() && !self.requested_nodes.iter().any(is_new) {
            self.stage = FulfillmentStage::Waiting;
            return Vec::new();
        }
        self.stage = FulfillmentStage::Beginning;
        let unnamed = self
            .requested_nodes
            .iter_mut()
            .filter(|entry| matches!(entry.state, RequestedNodeState::New) && entry.node.is_none());
        for (entry, node) in unnamed.zip(nodes) {
            entry.node = Some(node);
        }
        self.building_changes(rules, pool, inputs)
    }

    /// Whether another process has deleted a node that was just created for the request.
    pub fn is_node_missing(&self, inputs: &Inputs<'_>) -> bool {
        let is_missing = |node: &NodeId| inputs.snapshot.node(node).is_none();
        self.requested_nodes
            .iter()
            .any(|entry| matches!(entry.state, RequestedNodeState::New) && entry.node.as_ref().is_some_and(is_missing))
    }

    /// The changes that set the request's new nodes to `building`.
    fn building_changes(
        &mut self,
        rules: Option<&LaunchConfig>,
        pool: &PoolId,
        inputs: &Inputs<'_>,
    ) -> Vec<NodeChange> {
        let new = self.requested_nodes.iter_mut().filter(|entry| matches!(entry.state, RequestedNodeState::New));
        let changes = new.filter_map(|entry| {
            let id = entry.node.clone()?;
            let label = rules?.labels.get(&pool.pool)?.get(&entry.label)?;
            let image_id = match &label.image {
                None => None,
                Some(LabelImage::Cloud(name)) => Some(name.clone()),
                Some(LabelImage::Disk(name)) => {
                    entry.image = Some(UploadRef::newest(&pool.provider, name, inputs));
                    entry.image.as_ref().and_then(UploadRef::image_id).cloned()
                }
            };
            Some(inputs.snapshot.node(&id)?.change(id, |record| {
                // A node of a previous process may be `building` already.
                if record.state.may_become(NodeState::Building, Writer::Launcher) {
                    record.set_state(NodeState::Building, Writer::Launcher, inputs.now);
                }
                record.image_id = image_id;
                record.username = label.login.username.clone();
                record.python_path = label.login.python_path.clone();
                record.shell_type = label.login.shell_type.clone();
                record.connection_type = label.login.connection_type.clone();
                record.connection_port = serde_json::Value::from(label.login.connection_port).into();
                record.resources = label.need.as_ref().map(resources);
            }))
        });
        changes.collect()
    }

    /// The nodes are `building`: starts their launches.
    pub fn begin_launches(
        &mut self,
        request: &NodeRequest,
        id: &RequestId,
        rules: &LaunchConfig,
        pool: &PoolId,
        inputs: &Inputs<'_>,
    ) -> Vec<(NodeId, LaunchEffect)> {
        self.stage = if self.lacks_capacity() { FulfillmentStage::Waiting } else { FulfillmentStage::Building };
        let request_properties = Arc::new(request_properties(id, request));
        let mut effects = Vec::new();
        for entry in &mut self.requested_nodes {
            let (RequestedNodeState::New, Some(node)) = (&entry.state, entry.node.clone()) else { continue };
            let Some(label) = rules.labels.get(&pool.pool).and_then(|labels| labels.get(&entry.label)) else {
                // A reload has just removed the label.
                entry.state = RequestedNodeState::Failed(RecordedId::Unchanged);
                continue;
            };
            let order = LaunchOrder {
                pool: pool.pool.clone(),
                label: entry.label.clone(),
                hostname: format!("np{node}"),
                identity: identity(&pool.provider, &node, inputs),
                attempt: 1,
                zone: self.zone.clone(),
                image: entry.image.as_ref().and_then(UploadRef::external_id).cloned(),
                request: request_properties.clone(),
                metadata: [
                    ("nodepool_node_id", node.to_string()),
                    ("nodepool_pool_name", pool.pool.to_string()),
                    ("nodepool_provider_name", pool.provider.to_string()),
                ]
                .map(|(key, value)| (key.to_owned(), value))
                .into(),
                prior_instance: entry.prior_instance.as_ref().and_then(|prior| prior.external_id.clone()),
                may_exist: entry.prior_instance.as_ref().is_some_and(|prior| prior.launch_started),
                may_appear: entry
                    .prior_instance
                    .as_ref()
                    .is_some_and(|prior| prior.launch_started && prior.external_id.is_none()),
            };
            let (launch, first) = Launch::begin(order, label, rules, self.on_refusal, inputs.monotonic_now);
            entry.state = RequestedNodeState::Launching(Box::new(launch));
            effects.extend(first.into_iter().map(|effect| (node.clone(), effect)));
        }
        effects
    }

    /// Handles an event of one of the request's launches.
    pub fn step(&mut self, node: &NodeId, event: LaunchEvent, inputs: &Inputs<'_>) -> Vec<FulfillmentEffect> {
        let many =
            self.requested_nodes.iter().filter(|entry| !matches!(entry.state, RequestedNodeState::Reused)).count() > 1;
        let Some(entry) = self.requested_nodes.iter_mut().find(|entry| entry.node.as_ref() == Some(node)) else {
            return Vec::new();
        };
        let RequestedNodeState::Launching(launch) = &mut entry.state else { return Vec::new() };
        let (mut effects, mut needs_write) = (Vec::new(), false);
        let launch_effects = launch.step(event, inputs.monotonic_now);
        let recorded_id = launch.recorded_id();
        for effect in launch_effects {
            match effect {
                LaunchEffect::SaveId(_) | LaunchEffect::ForgetId => needs_write = true,
                LaunchEffect::Finished(LaunchOutcome::Ready { instance, host_keys }) => {
                    let launched = Box::new(LaunchedInstance { instance: *instance, host_keys });
                    entry.state = RequestedNodeState::Ready { launched, is_saved: false };
                    // Other nodes of this request are not ready yet: write this one now, so that it is not lost if they
                    // fail.
                    needs_write = many;
                    break;
                }
                LaunchEffect::Finished(LaunchOutcome::Failed(error)) => {
                    self.failure = Some(error.to_string());
                    entry.state = RequestedNodeState::Failed(recorded_id);
                    break;
                }
                LaunchEffect::Finished(LaunchOutcome::Abandoned) => {
                    entry.state = RequestedNodeState::Failed(recorded_id);
                    break;
                }
                LaunchEffect::Finished(LaunchOutcome::Aborted(_)) => {
                    entry.state = RequestedNodeState::Aborted;
                    break;
                }
                // All nodes of a round share one zone, and the first `NoZone` clears it. A zone that is set and known
                // as missing was chosen again in a later round.
                LaunchEffect::Finished(LaunchOutcome::NoZone(zone))
                    if self.zone.is_some() && self.missing_zones.contains(&zone) =>
                {
                    self.failure = Some(CloudError::NoZone(zone).to_string());
                    entry.state = RequestedNodeState::Failed(recorded_id);
                    break;
                }
                LaunchEffect::Finished(LaunchOutcome::NoZone(zone)) => {
                    self.missing_zones.extend(self.zone.take().map(|_| zone));
                    entry.state = RequestedNodeState::Aborted;
                    break;
                }
                LaunchEffect::Submit(Job::Launch(order)) => {
                    effects.push(FulfillmentEffect::Launch(LaunchEffect::Submit(Job::Launch(
                        entry.prepare_order(order, inputs),
                    ))));
                }
                effect => effects.push(FulfillmentEffect::Launch(effect)),
            }
        }
        if needs_write {
            effects.extend(entry.write_now(node, inputs).map(|change| FulfillmentEffect::Save(Box::new(change))));
        }
        effects
    }

    /// A node write completed. A failed one is not retried: finishing the request writes the same fields.
    pub fn saved(&mut self, node: &NodeId, is_written: bool, inputs: &Inputs<'_>) -> Option<NodeChange> {
        let entry = self.requested_nodes.iter_mut().find(|entry| entry.node.as_ref() == Some(node))?;
        if let RequestedNodeState::Ready { is_saved, .. } = &mut entry.state {
            *is_saved &= is_written;
        }
        let again = std::mem::replace(&mut entry.write, WriteState::Idle) == WriteState::Dirty;
        if again { entry.write_now(node, inputs) } else { None }
    }
}
