//! One node of a request that is being assembled: what becomes of it, what is written of it, and what it boots from.

use std::sync::Arc;

use serde::Serialize;

use super::launch::Launch;
use super::node_updates::{LaunchedInstance, id_value, ready_change};
use crate::inputs::Inputs;
use nodepool_driver::job::LaunchOrder;
use nodepool_model::records::ids::{ExternalId, ImageName, LabelName, NodeId, ProviderName};
use nodepool_model::snapshot::NodeChange;

/// One node of the request.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RequestedNode {
    /// Known from the claim on.
    pub(crate) node: Option<NodeId>,
    pub(crate) label: LabelName,
    pub(crate) state: RequestedNodeState,
    pub(crate) write: WriteState,
    /// Where its image is the builder's.
    #[serde(skip)]
    pub(crate) image: Option<UploadRef>,
    /// What an earlier life left of it.
    pub(crate) prior_instance: Option<PriorInstance>,
}

/// An image of the builder, and the upload of it that a node boots from.
#[derive(Clone, Debug)]
pub(crate) struct UploadRef {
    pub(crate) provider: ProviderName,
    pub(crate) image: ImageName,
    /// `None` where it has not been uploaded, or no more.
    pub(crate) upload: Option<(ExternalId, String)>,
}

impl UploadRef {
    pub(crate) fn newest(provider: &ProviderName, image: &ImageName, world: &Inputs<'_>) -> Self {
        let newest = world.snapshot.images.newest_upload(provider, image);
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

/// What there is of a node that somebody began.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PriorInstance {
    pub(crate) external_id: Option<ExternalId>,
    /// Its launch was begun, so there may be an instance without a known id.
    pub(crate) launch_started: bool,
}

/// One write of a node at a time, or the later would be refused for the version that the earlier made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WriteState {
    Idle,
    InFlight,
    /// Under way, and what it wrote is old already.
    Dirty,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RequestedNodeState {
    /// There is no node for it, because there is no room.
    Unassigned,
    Reused,
    New,
    Launching(Box<Launch>),
    /// What it is to become; written, or to be written with the end of the request.
    Ready {
        #[serde(skip)]
        launched: Box<LaunchedInstance>,
        is_saved: bool,
    },
    /// With what may still be there of it.
    Failed(#[serde(skip)] Option<ExternalId>),
    Aborted,
}

impl RequestedNode {
    /// The order for one more attempt: each boots from what is the newest upload by then.
    pub(crate) fn prepare_order(&mut self, mut order: Arc<LaunchOrder>, world: &Inputs<'_>) -> Arc<LaunchOrder> {
        if let Some(image) = &mut self.image {
            *image = UploadRef::newest(&image.provider, &image.image, world);
            if order.image.as_ref() != image.external_id() {
                Arc::make_mut(&mut order).image = image.external_id().cloned();
            }
        }
        order
    }

    pub(crate) fn with_image(&self, mut change: NodeChange) -> NodeChange {
        if let Some(image_id) = self.image.as_ref().and_then(UploadRef::image_id) {
            change.record.image_id = Some(image_id.clone());
        }
        change
    }

    /// Writes what is known of the node now, or after the write that is under way.
    pub(crate) fn write_now(&mut self, node: &NodeId, world: &Inputs<'_>) -> Option<NodeChange> {
        if self.write != WriteState::Idle {
            self.write = WriteState::Dirty;
            return None;
        }
        let change = match &mut self.state {
            RequestedNodeState::Launching(launch) => {
                let id = launch.external_id()?;
                world.snapshot.node(node)?.change(node.clone(), |record| record.external_id = id_value(id))
            }
            RequestedNodeState::Ready { launched: found, is_saved } => {
                // While the picture does not show the node nothing is said yet, and the end of the request says it.
                let change = ready_change(node, found, world)?;
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
