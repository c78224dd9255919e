//! Assembly: a request that was accepted with nodes of which some are built, from its claim to its end.

use std::sync::Arc;

use serde::Serialize;

use super::handler::{allocate, decline};
use super::launch::{Launch, LaunchEffect, LaunchEvent, LaunchOutcome};
use super::node_updates::{
    LaunchedInstance, deallocate, id_value, new_node, own_node, ready_change, request_properties, resources,
    state_change,
};
use super::requested_node::{PriorInstance, RequestedNode, RequestedNodeState, UploadRef, WriteState, is_usable};
use super::resumable::ResumableRequest;
use crate::inputs::Inputs;
use crate::scheduler::pool_context::{Placement, PoolContext};
use crate::scheduler::reason::Reason;
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::{LabelImage, LaunchConfig};
use nodepool_driver::job::{Job, LaunchOrder};
use nodepool_model::records::ids::{ExternalId, LauncherId, NodeId, PoolId, RequestId};
use nodepool_model::records::node::{Node, NodeState, Writer};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::time::{MonotonicTime, Timestamp};
use nodepool_model::snapshot::{NodeChange, RequestChange, Versioned};

/// The transaction that takes a request up.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    pub request: RequestChange,
    /// Ready nodes for it.
    pub reuse: Vec<NodeChange>,
    /// New ones, in the order of the wishes.
    pub create: Vec<Node>,
}

/// The transaction that takes a request over that somebody left: it and its nodes that are not ready are locked and written.
#[derive(Clone, Debug, PartialEq)]
pub struct Adoption {
    pub request: RequestChange,
    pub nodes: Vec<NodeChange>,
}

/// The transaction that ends it: nodes with their last change, where there is one, and the request.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    pub request: Option<RequestChange>,
    pub nodes: Vec<(NodeId, Option<NodeChange>)>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Fulfillment {
    pub since: Timestamp,
    pub stage: FulfillmentStage,
    requested_nodes: Vec<RequestedNode>,
    #[serde(skip)]
    zone: Option<String>,
    /// Zones that the cloud had when they were chosen, and not when servers were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing_zones: Vec<String>,
    /// Why the last node that failed did so.
    failure: Option<String>,
    /// An extension has failed, of which only the answer may have been lost.
    #[serde(skip)]
    is_extension_unconfirmed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FulfillmentStage {
    Claiming,
    /// There is no room for all nodes; what it has is kept.
    Waiting,
    /// There is room now: what it lacks is being claimed.
    Extending,
    Beginning,
    Building,
    Finishing,
}

/// What an assembly asks for about one of its nodes.
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
        world: &Inputs<'_>,
    ) -> (Self, Claim) {
        let (mut fulfillment, claim) = Self::claim_without_capacity(id, request, world);
        let (reuse, build) = fulfillment.extend(id, &request.record, placements, zone, ctx, world);
        fulfillment.stage = FulfillmentStage::Claiming;
        (fulfillment, Claim { reuse, create: build, ..claim })
    }

    /// Takes a request up for which there is no room yet.
    pub fn claim_without_capacity(
        id: &RequestId,
        request: &Versioned<NodeRequest>,
        world: &Inputs<'_>,
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
            since: world.now,
            stage: FulfillmentStage::Claiming,
            requested_nodes: requested_nodes.collect(),
            zone: None,
            missing_zones: Vec::new(),
            failure: None,
            is_extension_unconfirmed: false,
        };
        let request = request.change(id.clone(), |record| record.set_state(RequestState::Pending, world.now));
        (fulfillment, Claim { request, reuse: Vec::new(), create: Vec::new() })
    }

    /// Goes on with what somebody left. The changes are those of the nodes that are still to be built.
    pub fn adopt(
        request: &NodeRequest,
        resumable: &ResumableRequest,
        zone: Option<String>,
        rules: &LaunchConfig,
        world: &Inputs<'_>,
    ) -> (Self, Vec<NodeChange>) {
        let requested_nodes = resumable.nodes.iter().zip(&request.node_types).map(|(node, label)| {
            let record = world.snapshot.node(node).map(|stored| &stored.record);
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
            since: world.now,
            stage: FulfillmentStage::Beginning,
            requested_nodes: requested_nodes.collect(),
            zone,
            missing_zones: Vec::new(),
            failure: None,
            is_extension_unconfirmed: false,
        };
        let changes = fulfillment.building_changes(Some(rules), &resumable.pool, world);
        (fulfillment, changes)
    }

    pub fn nodes(&self) -> Vec<NodeId> {
        self.requested_nodes.iter().filter_map(|part| part.node.clone()).collect()
    }

    /// Takes these for what it lacks: nodes to reuse, and records of new ones.
    pub fn extend(
        &mut self,
        id: &RequestId,
        request: &NodeRequest,
        placements: Vec<Placement>,
        zone: Option<String>,
        ctx: &PoolContext<'_>,
        world: &Inputs<'_>,
    ) -> (Vec<NodeChange>, Vec<Node>) {
        let (mut reuse, mut create) = (Vec::new(), Vec::new());
        let unassigned =
            self.requested_nodes.iter_mut().filter(|part| matches!(part.state, RequestedNodeState::Unassigned));
        for (part, placement) in unassigned.zip(placements) {
            match placement {
                Placement::ReuseIdle(node) => {
                    let stored = world.snapshot.node(&node).expect("a verdict names only nodes of its snapshot");
                    reuse.push(stored.change(node.clone(), |record| allocate(record, id, request)));
                    (part.node, part.state) = (Some(node), RequestedNodeState::Reused);
                }
                Placement::LaunchNew(label) => {
                    create.push(new_node(id, request, &label, ctx, world.now));
                    part.state = RequestedNodeState::New;
                }
            }
        }
        (self.stage, self.zone) = (FulfillmentStage::Extending, zone);
        (reuse, create)
    }

    /// It could not have what it was to be extended by: `reused` were not taken, and new ones were not made.
    pub fn extension_failed(&mut self, reused: impl Fn(&NodeId) -> bool) {
        for part in &mut self.requested_nodes {
            let is_back = match &part.state {
                RequestedNodeState::Reused => part.node.as_ref().is_some_and(&reused),
                RequestedNodeState::New => part.node.is_none(),
                _ => false,
            };
            if is_back {
                (part.node, part.state) = (None, RequestedNodeState::Unassigned);
            }
        }
        (self.stage, self.is_extension_unconfirmed) = (FulfillmentStage::Waiting, true);
    }

    /// Nodes that were given to it, or made for it, by an extension that counted as failed because its answer was lost. Whether each is
    /// new. Without such a one they are of an earlier life of the request, and about to be let go.
    pub fn recover_lost_answer(&mut self, id: &RequestId, pool: &PoolId, world: &Inputs<'_>) -> Vec<(NodeId, bool)> {
        let (known, mut recovered) = (self.nodes(), Vec::new());
        if !self.is_extension_unconfirmed {
            return recovered;
        }
        for node in world.snapshot.nodes_allocated_to(id).filter(|node| !known.contains(node)) {
            let Some(stored) = world.snapshot.node(node).filter(|_| !world.snapshot.is_node_locked(node)) else {
                continue;
            };
            let record = &stored.record;
            let state = match record.state {
                NodeState::Init => RequestedNodeState::New,
                NodeState::Ready => RequestedNodeState::Reused,
                _ => continue,
            };
            let mut unassigned =
                self.requested_nodes.iter_mut().filter(|part| matches!(part.state, RequestedNodeState::Unassigned));
            if let Some(part) = unassigned.find(|part| record.belongs_to(pool) && record.labels.contains(&part.label)) {
                recovered.push((node.clone(), matches!(state, RequestedNodeState::New)));
                (part.node, part.state) = (Some(node.clone()), state);
            }
        }
        recovered
    }

    /// The nodes that the cloud had no quota for, with their last change. It waits for others in their place.
    pub fn release_aborted_nodes(&mut self, world: &Inputs<'_>) -> Vec<(NodeId, Option<NodeChange>)> {
        let mut released = Vec::new();
        for part in self.requested_nodes.iter_mut().filter(|part| matches!(part.state, RequestedNodeState::Aborted)) {
            part.state = RequestedNodeState::Unassigned;
            let node = part.node.take();
            released.extend(node.map(|node| (node.clone(), state_change(&node, NodeState::Aborted, world))));
        }
        self.stage = FulfillmentStage::Waiting;
        released
    }

    /// It will never have what it lacks.
    pub fn fail(&mut self, why: String) {
        for part in self.requested_nodes.iter_mut().filter(|part| matches!(part.state, RequestedNodeState::Unassigned))
        {
            part.state = RequestedNodeState::Failed(None);
        }
        self.failure = Some(why);
    }

    /// The request as if it wanted no more than it lacks.
    pub fn remaining_request(&self, request: &NodeRequest) -> NodeRequest {
        let unassigned =
            self.requested_nodes.iter().filter(|part| matches!(part.state, RequestedNodeState::Unassigned));
        NodeRequest { node_types: unassigned.map(|part| part.label.clone()).collect(), ..request.clone() }
    }

    /// There is no room for all its nodes, as far as is known.
    pub fn lacks_capacity(&self) -> bool {
        self.requested_nodes.iter().any(|part| matches!(part.state, RequestedNodeState::Unassigned))
    }

    /// It can go on as soon as there is room.
    pub fn is_waiting(&self) -> bool {
        self.stage == FulfillmentStage::Waiting
    }

    pub fn zone(&self) -> Option<&str> {
        self.zone.as_deref()
    }

    /// The new nodes are there: they become building, with what is known about their image.
    pub fn claimed(
        &mut self,
        nodes: Vec<NodeId>,
        rules: Option<&LaunchConfig>,
        pool: &PoolId,
        world: &Inputs<'_>,
    ) -> Vec<NodeChange> {
        if self.lacks_capacity() {
            self.stage = FulfillmentStage::Waiting;
            return Vec::new();
        }
        self.stage = FulfillmentStage::Beginning;
        let unnamed = self
            .requested_nodes
            .iter_mut()
            .filter(|part| matches!(part.state, RequestedNodeState::New) && part.node.is_none());
        for (part, node) in unnamed.zip(nodes) {
            part.node = Some(node);
        }
        self.building_changes(rules, pool, world)
    }

    /// Somebody removed a node that was made for it a moment ago.
    pub fn is_node_missing(&self, world: &Inputs<'_>) -> bool {
        let is_missing = |node: &NodeId| world.snapshot.node(node).is_none();
        self.requested_nodes
            .iter()
            .any(|part| matches!(part.state, RequestedNodeState::New) && part.node.as_ref().is_some_and(is_missing))
    }

    /// The changes with which its new nodes become building.
    fn building_changes(&mut self, rules: Option<&LaunchConfig>, pool: &PoolId, world: &Inputs<'_>) -> Vec<NodeChange> {
        let new = self.requested_nodes.iter_mut().filter(|part| matches!(part.state, RequestedNodeState::New));
        let changes = new.filter_map(|part| {
            let id = part.node.clone()?;
            let label = rules?.labels.get(&pool.pool)?.get(&part.label)?;
            let image_id = match &label.image {
                LabelImage::Cloud(name) => Some(name.clone()),
                LabelImage::Disk(name) => {
                    part.image = Some(UploadRef::newest(&pool.provider, name, world));
                    part.image.as_ref().and_then(UploadRef::image_id).cloned()
                }
            };
            Some(world.snapshot.node(&id)?.change(id, |record| {
                // One that an earlier life began is building already.
                if record.state.may_become(NodeState::Building, Writer::Launcher) {
                    record.set_state(NodeState::Building, Writer::Launcher, world.now);
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

    /// The nodes are building: their launches begin.
    pub fn begin_launches(
        &mut self,
        request: &NodeRequest,
        id: &RequestId,
        rules: &LaunchConfig,
        pool: &PoolId,
        world: &Inputs<'_>,
    ) -> Vec<(NodeId, LaunchEffect)> {
        self.stage = FulfillmentStage::Building;
        let request_properties = Arc::new(request_properties(id, request));
        let mut effects = Vec::new();
        for part in &mut self.requested_nodes {
            let (RequestedNodeState::New, Some(node)) = (&part.state, part.node.clone()) else { continue };
            let Some(label) = rules.labels.get(&pool.pool).and_then(|labels| labels.get(&part.label)) else {
                // The configuration lost it in this very moment.
                part.state = RequestedNodeState::Failed(None);
                continue;
            };
            let order = LaunchOrder {
                pool: pool.pool.clone(),
                label: part.label.clone(),
                hostname: format!("np{node}"),
                zone: self.zone.clone(),
                image: part.image.as_ref().and_then(UploadRef::external_id).cloned(),
                request: request_properties.clone(),
                metadata: [
                    ("nodepool_node_id", node.to_string()),
                    ("nodepool_pool_name", pool.pool.to_string()),
                    ("nodepool_provider_name", pool.provider.to_string()),
                ]
                .map(|(key, value)| (key.to_owned(), value))
                .into(),
                prior_instance: part.prior_instance.as_ref().and_then(|left| left.external_id.clone()),
                may_exist: part.prior_instance.as_ref().is_some_and(|left| left.launch_started),
                may_appear: part
                    .prior_instance
                    .as_ref()
                    .is_some_and(|left| left.launch_started && left.external_id.is_none()),
            };
            let (launch, first) = Launch::begin(order, label, rules, world.monotonic_now);
            part.state = RequestedNodeState::Launching(Box::new(launch));
            effects.extend(first.into_iter().map(|ask| (node.clone(), ask)));
        }
        effects
    }

    /// Something happened to one of its launches.
    pub fn step(&mut self, node: &NodeId, event: LaunchEvent, world: &Inputs<'_>) -> Vec<FulfillmentEffect> {
        let many =
            self.requested_nodes.iter().filter(|part| !matches!(part.state, RequestedNodeState::Reused)).count() > 1;
        let Some(part) = self.requested_nodes.iter_mut().find(|part| part.node.as_ref() == Some(node)) else {
            return Vec::new();
        };
        let RequestedNodeState::Launching(launch) = &mut part.state else { return Vec::new() };
        let (mut effects, mut needs_write) = (Vec::new(), false);
        let launch_effects = launch.step(event, world.monotonic_now);
        let made = launch.external_id().cloned();
        for effect in launch_effects {
            match effect {
                LaunchEffect::SaveId(_) => needs_write = true,
                LaunchEffect::Finished(LaunchOutcome::Ready { instance, host_keys }) => {
                    let launched = Box::new(LaunchedInstance { instance: *instance, host_keys });
                    part.state = RequestedNodeState::Ready { launched, is_saved: false };
                    // Others of this request are not there yet: what is there is not to be lost with them.
                    needs_write = many;
                    break;
                }
                LaunchEffect::Finished(LaunchOutcome::Failed(error)) => {
                    self.failure = Some(error.to_string());
                    part.state = RequestedNodeState::Failed(made);
                    break;
                }
                LaunchEffect::Finished(LaunchOutcome::Abandoned) => {
                    part.state = RequestedNodeState::Failed(made);
                    break;
                }
                LaunchEffect::Finished(LaunchOutcome::Aborted(_)) => {
                    part.state = RequestedNodeState::Aborted;
                    break;
                }
                // All nodes of a round have one zone, and the first of them says that it has gone.
                LaunchEffect::Finished(LaunchOutcome::NoZone(zone))
                    if self.zone.is_some() && self.missing_zones.contains(&zone) =>
                {
                    self.failure = Some(CloudError::NoZone(zone).to_string());
                    part.state = RequestedNodeState::Failed(made);
                    break;
                }
                LaunchEffect::Finished(LaunchOutcome::NoZone(zone)) => {
                    self.missing_zones.extend(self.zone.take().map(|_| zone));
                    part.state = RequestedNodeState::Aborted;
                    break;
                }
                LaunchEffect::Submit(Job::Launch(order)) => {
                    effects.push(FulfillmentEffect::Launch(LaunchEffect::Submit(Job::Launch(
                        part.prepare_order(order, world),
                    ))));
                }
                effect => effects.push(FulfillmentEffect::Launch(effect)),
            }
        }
        if needs_write {
            effects.extend(part.write_now(node, world).map(|change| FulfillmentEffect::Save(Box::new(change))));
        }
        effects
    }

    /// A write of one of its nodes has ended. What it was to say is said at the end of the request at the latest.
    pub fn saved(&mut self, node: &NodeId, is_written: bool, world: &Inputs<'_>) -> Option<NodeChange> {
        let part = self.requested_nodes.iter_mut().find(|part| part.node.as_ref() == Some(node))?;
        if let RequestedNodeState::Ready { is_saved, .. } = &mut part.state {
            *is_saved &= is_written;
        }
        let again = std::mem::replace(&mut part.write, WriteState::Idle) == WriteState::Dirty;
        if again { part.write_now(node, world) } else { None }
    }

    /// Why the last node that failed did so.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Why a node was aborted.
    pub fn abort_reason(&self) -> Reason {
        match self.missing_zones.last().filter(|_| self.zone.is_none()) {
            Some(zone) => Reason::NoZone(zone.clone()),
            None => Reason::OverQuota,
        }
    }

    /// The cloud refused a node for want of quota, or of its zone.
    pub fn was_aborted(&self) -> bool {
        self.requested_nodes.iter().any(|part| matches!(part.state, RequestedNodeState::Aborted))
    }

    pub fn has_failed(&self) -> bool {
        self.requested_nodes.iter().any(|part| matches!(part.state, RequestedNodeState::Failed(_)))
    }

    /// Some of its nodes are there, and would be lost with it.
    pub fn has_usable_nodes(&self) -> bool {
        self.requested_nodes.iter().any(is_usable)
    }

    /// All launches have ended, well or badly.
    pub fn launches_complete(&self) -> bool {
        let is_open = |part: &RequestedNode| {
            matches!(part.state, RequestedNodeState::Launching(_) | RequestedNodeState::New)
                || part.write != WriteState::Idle
        };
        self.stage == FulfillmentStage::Building && !self.requested_nodes.iter().any(is_open)
    }

    pub fn due(&self) -> Option<MonotonicTime> {
        let launches = self.requested_nodes.iter().filter_map(|part| match &part.state {
            RequestedNodeState::Launching(launch) => launch.due(),
            _ => None,
        });
        launches.min()
    }

    /// Nodes whose launches are under way.
    pub fn launching(&self) -> Vec<NodeId> {
        self.launches().map(|(node, _)| node.clone()).collect()
    }

    pub fn launches(&self) -> impl Iterator<Item = (&NodeId, &Launch)> {
        self.requested_nodes.iter().filter_map(|part| match &part.state {
            RequestedNodeState::Launching(launch) => Some((part.node.as_ref()?, &**launch)),
            _ => None,
        })
    }

    /// The end: fulfilled where every node is ready, declined where one failed, given back where one was aborted.
    pub fn finish(&mut self, id: &RequestId, launcher: &LauncherId, world: &Inputs<'_>) -> Finish {
        self.stage = FulfillmentStage::Finishing;
        let has_failed = self.has_failed();
        // One that somebody else has ended is as good as gone.
        let is_open = |stored: &&Versioned<NodeRequest>| stored.record.state.may_become(RequestState::Requested);
        let request = world.snapshot.request(id).filter(is_open);
        // What is not written any more has to be there as it was written.
        let is_still_valid = |part: &RequestedNode, record: &Node| match part.state {
            RequestedNodeState::Reused => record.state == NodeState::Ready && record.allocated_to.as_ref() == Some(id),
            _ => true,
        };
        let is_there = |part: &RequestedNode| {
            let stored = part.node.as_ref().and_then(|node| own_node(node, world));
            stored.is_some_and(|stored| is_still_valid(part, &stored.record))
        };
        let is_shown_ready =
            |node: &NodeId| world.snapshot.node(node).is_some_and(|stored| stored.record.state == NodeState::Ready);
        let fulfils = request.is_some() && self.requested_nodes.iter().all(|part| is_usable(part) && is_there(part));
        let mut nodes = Vec::new();
        for part in &self.requested_nodes {
            let Some(node) = &part.node else { continue };
            let change = match &part.state {
                RequestedNodeState::Ready { launched: found, is_saved } if !is_saved || !is_shown_ready(node) => {
                    ready_change(node, found, world).map(|change| part.with_image(change))
                }
                RequestedNodeState::Failed(made) => state_change(node, NodeState::Failed, world).map(|mut change| {
                    // The write that was to say so may have failed.
                    if let Some(id) = made {
                        change.record.external_id = id_value(id);
                    }
                    change
                }),
                RequestedNodeState::Aborted => state_change(node, NodeState::Aborted, world),
                // It was not begun, so nothing is behind it.
                RequestedNodeState::New => state_change(node, NodeState::Deleting, world),
                RequestedNodeState::Unassigned
                | RequestedNodeState::Reused
                | RequestedNodeState::Ready { .. }
                | RequestedNodeState::Launching(_) => None,
            };
            let freed = !fulfils && is_usable(part) && is_there(part);
            let change = match (change, freed) {
                (change, false) => change,
                (None, true) => world.snapshot.node(node).map(|stored| stored.change(node.clone(), deallocate)),
                (Some(mut change), true) => {
                    deallocate(&mut change.record);
                    Some(change)
                }
            };
            nodes.push((node.clone(), change));
        }
        let request = request.map(|stored| match (fulfils, has_failed) {
            (true, _) => stored.change(id.clone(), |record| {
                record.set_state(RequestState::Fulfilled, world.now);
                record.nodes = self.nodes();
            }),
            (false, true) => decline(id, stored, launcher, world),
            (false, false) => stored.change(id.clone(), |record| record.set_state(RequestState::Requested, world.now)),
        });
        Finish { request, nodes }
    }
}
