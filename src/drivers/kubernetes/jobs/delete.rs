//! Deletion of a node that is a namespace or a project. The job ends when it no longer exists.

use std::sync::Arc;

use tracing::warn;

use crate::kubernetes::calls::{Call, Reply};
use crate::kubernetes::context::ProviderContext;
use crate::kubernetes::errors::{Rejection, failed};
use crate::kubernetes::inventory::{foreign_owner, is_being_deleted};
use nodepool_driver::error::CloudError;
use nodepool_driver::instance::{InstanceState, Inventory};
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;

/// Time between two looks at a namespace that inventories lack.
const CHECK_DELAY: Seconds = Seconds(1.0);

pub struct DeleteNode {
    context: Arc<ProviderContext>,
    id: ExternalId,
    /// The cluster has accepted the request.
    was_accepted: bool,
    /// The refusal of the request, in the cluster's words.
    refusal: Option<String>,
    /// Whether the last inventory had the namespace, so that one without it will follow.
    is_listed: bool,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Begin,
    /// Reads a namespace that the last inventory lacked, because it may be another owner's.
    Verifying,
    Deleting,
    Awaiting,
    /// Inventories lack the namespace, or its deletion was requested with an unclear result: only the API tells.
    Checking,
    Finished,
}

impl StateMachine for DeleteNode {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) if self.context.is_listed_as_ours(&self.id) => self.delete(),
            (Step::Begin, Input::Start) => {
                let call = self.context.settings.variant.home(&self.id.to_string());
                self.call(Step::Verifying, call)
            }
            (Step::Verifying, Input::Reply(Ok(Reply::Object(namespace)))) => {
                match foreign_owner(&self.context, &namespace) {
                    None => self.delete(),
                    Some(owner) => {
                        warn!(provider = %self.context.provider, external_id = %self.id, owner, "what has the name of this node belongs to others and is not deleted");
                        Next::Done(Outcome::Deleted)
                    }
                }
            }
            (Step::Verifying | Step::Deleting | Step::Checking, Input::Reply(Err(CloudError::NotFound(_)))) => {
                Next::Done(Outcome::Deleted)
            }
            (Step::Deleting, Input::Reply(Ok(Reply::Rejected(Rejection::Hidden(text))))) => {
                self.refusal = Some(text);
                self.check(Seconds::ZERO)
            }
            (Step::Verifying, Input::Reply(Ok(Reply::Rejected(Rejection::Hidden(text))))) => {
                self.refusal = Some(text);
                self.on_hidden()
            }
            (Step::Checking, Input::Reply(Ok(Reply::Rejected(Rejection::Hidden(_))))) => self.on_hidden(),
            // The namespace is being deleted already if the request was rejected.
            (Step::Deleting, Input::Reply(Ok(_))) => {
                self.was_accepted = true;
                self.observe()
            }
            (Step::Awaiting, Input::Observed(inventory)) => self.on_observed(inventory),
            (Step::Checking, Input::Reply(Ok(Reply::Object(namespace)))) => {
                // Otherwise the request was lost.
                if !is_being_deleted(&namespace) {
                    return match self.refusal.take() {
                        Some(text) => Next::Failed(CloudError::Denied(text)),
                        None => self.delete(),
                    };
                }
                if self.is_listed { self.observe() } else { self.check(CHECK_DELAY) }
            }
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (step, input) => Next::Failed(failed(format!("unexpected {input:?} in step {step:?}"))),
        }
    }

    fn label(&self) -> &'static str {
        match self.step {
            Step::Begin | Step::Verifying | Step::Deleting => "deleting the namespace",
            Step::Awaiting | Step::Checking => "waiting for the end of the namespace",
            Step::Finished => "ended",
        }
    }

    /// The obstacle that holds the deletion up.
    fn obstacle(&self) -> Option<String> {
        match self.step {
            Step::Awaiting | Step::Checking => self.context.obstacle(&self.id),
            Step::Begin | Step::Verifying | Step::Deleting | Step::Finished => None,
        }
    }
}

impl DeleteNode {
    pub fn new(context: Arc<ProviderContext>, id: ExternalId) -> Self {
        Self { context, id, was_accepted: false, refusal: None, is_listed: false, step: Step::Begin }
    }

    fn delete(&mut self) -> Next<Call> {
        let call = self.context.settings.variant.delete_home(&self.id.to_string());
        self.call(Step::Deleting, call)
    }

    /// The project does not exist, or OpenShift hides it because it is being deleted.
    fn on_hidden(&self) -> Next<Call> {
        // Without an accepted request before, it may also belong to the account that an earlier kubeconfig had.
        if let Some(error) = self.refusal.as_ref().filter(|_| !self.was_accepted) {
            warn!(provider = %self.context.provider, external_id = %self.id, error, "the project is not visible to this account, so it counts as deleted");
        }
        Next::Done(Outcome::Deleted)
    }

    fn on_observed(&mut self, inventory: &Inventory) -> Next<Call> {
        let instance = inventory.find(&self.id);
        self.is_listed = instance.is_some();
        match instance.map(|instance| &instance.state) {
            Some(InstanceState::Stopping) => self.observe(),
            // An inventory may be older than the deletion, or lack a namespace whose labels were changed.
            _ => self.check(Seconds::ZERO),
        }
    }

    fn check(&mut self, delay: Seconds) -> Next<Call> {
        let call = self.context.settings.variant.home(&self.id.to_string()).after(delay);
        self.call(Step::Checking, call)
    }

    fn call(&mut self, step: Step, call: Call) -> Next<Call> {
        self.step = step;
        Next::Call(call)
    }

    fn observe(&mut self) -> Next<Call> {
        self.step = Step::Awaiting;
        Next::Observe
    }
}
