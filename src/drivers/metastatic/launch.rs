//! Launch of a metastatic node: it waits until the launcher has put the node into a slot.

use std::sync::Arc;

use super::{Call, SlotState, Slots};
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::job::{LaunchOrder, Outcome};
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::records::ids::{ExternalId, NodeId};

pub struct AwaitSlot<S: Slots> {
    slots: Arc<S>,
    node: NodeId,
    external_id: Option<ExternalId>,
    obstacle: Option<String>,
}

impl<S: Slots> AwaitSlot<S> {
    pub fn new(slots: Arc<S>, order: &LaunchOrder) -> Self {
        let node = order.metadata.get("nodepool_node_id").map(String::as_str).unwrap_or_default();
        Self { slots, node: node.into(), external_id: order.prior_instance.clone(), obstacle: None }
    }
}

impl<S: Slots> StateMachine for AwaitSlot<S> {
    type Call = Call;
    type Reply = ();

    fn step(&mut self, input: Input<'_, ()>) -> Next<Call> {
        if matches!(input, Input::Start) {
            self.slots.request(&self.node);
        }
        match self.slots.state_of(&self.node) {
            SlotState::Waiting(reason) => {
                self.obstacle = Some(reason);
                Next::Observe
            }
            SlotState::Taken(instance) => {
                self.external_id = Some(instance.external_id.clone());
                Next::Done(Outcome::Launched(instance))
            }
            SlotState::Failed(detail) => Next::Failed(CloudError::Failed { kind: FailureKind::Unknown, detail }),
        }
    }

    fn external_id(&self) -> Option<&ExternalId> {
        self.external_id.as_ref()
    }

    fn label(&self) -> &'static str {
        "waiting for a slot"
    }

    fn obstacle(&self) -> Option<String> {
        self.obstacle.clone()
    }
}

/// Also the machine of an abandoned launch withdraws its request.
impl<S: Slots> Drop for AwaitSlot<S> {
    fn drop(&mut self) {
        self.slots.withdraw(&self.node);
    }
}
