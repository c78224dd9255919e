//! Requested node: one node of a request with launched nodes, its state, its pending writes and the image that it boots
//! from.

use std::sync::Arc;

use serde::Serialize;

use super::launch::{Launch, RecordedId};
use super::node_updates::{LaunchedInstance, id_value, ready_change};
use crate::inputs::Inputs;
use nodepool_driver::job::LaunchOrder;
use nodepool_model::records::ids::{ExternalId, ImageName, LabelName, NodeId, ProviderName};
use nodepool_model::snapshot::NodeChange;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct RequestedNode {
    /// Set once the claim has been written.
    pub(crate) node: Option<NodeId>,
    pub(crate) label: LabelName,
    pub(crate) state: RequestedNodeState,
    pub(crate) write: WriteState,
    /// Set if the builder builds the node's image.
    #[serde(skip)]
    pub(crate) image: Option<UploadRef>,
    /// The node's instance from a previous process.
    pub(crate) prior_instance: Option<PriorInstance>,
}

/// An image of the builder, and the upload that a node boots from.
#[derive(Clone, Debug)]
pub(crate) struct UploadRef {
    pub(crate) provider: ProviderName,
    pub(crate) image: ImageName,
    /// `None` if the provider has no upload of it.
    pub(crate) upload: Option<(ExternalId, String)>,
}

impl UploadRef {
    pub(crate) fn newest(provider: &ProviderName, image: &ImageName, inputs: &Inputs<'_>) -> Self {
        let newest = inputs.snapshot.images.newest_upload(provider, image);
        let upload = newest.and_then(|(key, stored)| Some((stored.record.external_id.clone()?, key.image_id())));
        Self { provider: provider.clone(), image: image.clone(), upload }
    }

    pub(crate) fn external_id(&self) -> Option<&ExternalId> {
        self.upload.as_ref().map(|(id, _)| id)
    }

    pub(crate) fn image_id(&self) -> Option<&String> {
        self.upload.as_ref().map(|(_, image_id)| image_id)
    }
}

/// A node's instance from a previous process.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PriorInstance {
    pub(crate) external_id: Option<ExternalId>,
    /// The node's launch started, so an instance without a known id may exist.
    pub(crate) launch_started: bool,
}

/// Stage of a node's write. At most one is in flight: the first of two would change the node's version, so ZooKeeper
/// would reject the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WriteState {
    Idle,
    InFlight,
    /// In flight, and its content is already outdated.
    Dirty,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RequestedNodeState {
    /// No node is assigned to it, because capacity is insufficient.
    Unassigned,
    Reused,
    New,
    Launching(Box<Launch>),
    /// The launch succeeded; the result is written, or will be written when the request is finished.
    Ready {
        #[serde(skip)]
        launched: Box<LaunchedInstance>,
        is_saved: bool,
    },
    /// The launch failed; the id is that of an instance that may still exist.
    Failed(#[serde(skip)] RecordedId),
    Aborted,
}

impl RequestedNode {
    /// The order of one more attempt. Each attempt boots from the upload that is the newest at its start.
    pub(crate) fn prepare_order(&mut self, mut order: Arc<LaunchOrder>, inputs: &Inputs<'_>) -> Arc<LaunchOrder> {
        if let Some(image) = &mut self.image {
            *image = UploadRef::newest(&image.provider, &image.image, inputs);
            if order.image.as_ref() != image.external_id() {
                Arc::make_mut(&mut order).image = image.external_id().cloned();
            }
        }
        order
    }

    /// Whether the node was aborted, and nothing about it is being written.
    pub(crate) fn is_releasable(&self) -> bool {
        matches!(self.state, RequestedNodeState::Aborted) && self.write == WriteState::Idle
    }

    pub(crate) fn with_image(&self, mut change: NodeChange) -> NodeChange {
        if let Some(image_id) = self.image.as_ref().and_then(UploadRef::image_id) {
            change.record.image_id = Some(image_id.clone());
        }
        change
    }

    /// Returns the change that writes what is known about the node. If a write is in flight, the change follows when
    /// that write completes.
    pub(crate) fn write_now(&mut self, node: &NodeId, inputs: &Inputs<'_>) -> Option<NodeChange> {
        if self.write != WriteState::Idle {
            self.write = WriteState::Dirty;
            return None;
        }
        let change = match &mut self.state {
            RequestedNodeState::Launching(launch) => {
                let (id, stored) = (id_value(&launch.recorded_id())?, inputs.snapshot.node(node)?);
                if stored.record.external_id == id {
                    return None;
                }
                stored.change(node.clone(), |record| record.external_id = id)
            }
            RequestedNodeState::Ready { launched, is_saved } => {
                // While the snapshot lacks the node, nothing is written; finishing the request writes the node.
                let change = ready_change(node, launched, inputs)?;
                *is_saved = true;
                change
            }
            RequestedNodeState::Unassigned
            | RequestedNodeState::Reused
            | RequestedNodeState::New
            | RequestedNodeState::Failed(_)
            | RequestedNodeState::Aborted => {
                return None;
            }
        };
        self.write = WriteState::InFlight;
        Some(self.with_image(change))
    }
}

pub(crate) fn is_usable(requested: &RequestedNode) -> bool {
    matches!(requested.state, RequestedNodeState::Reused | RequestedNodeState::Ready { .. })
}
