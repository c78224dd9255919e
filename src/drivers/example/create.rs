//! State machine of a launch: creates a VM with one call, then observes each new inventory until the VM runs.

use std::sync::Arc;

use super::cloud::VmOrder;
use super::{Call, Reply};
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::instance::{Instance, InstanceState, Inventory};
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::records::ids::ExternalId;

pub struct CreateVm {
    state: State,
    order: Arc<VmOrder>,
    external_id: ExternalId,
}

enum State {
    Start,
    Creating,
    Booting,
    Complete,
}

impl CreateVm {
    /// The name is the id in this cloud, so the id is known before the first call.
    pub fn new(order: VmOrder) -> Self {
        let external_id = ExternalId::text(order.name.clone());
        Self { state: State::Start, order: Arc::new(order), external_id }
    }

    /// Resumes with a VM that a previous process of the launcher has created.
    pub fn resume(order: VmOrder, found: ExternalId) -> Self {
        Self { state: State::Booting, order: Arc::new(order), external_id: found }
    }

    fn check_boot(&mut self, inventory: &Inventory) -> Next<Call> {
        let Some(vm) = inventory.find(&self.external_id) else { return failed("the vm no longer exists") };
        match &vm.state {
            InstanceState::Starting => self.observe(),
            InstanceState::Running => {
                self.state = State::Complete;
                let interface_ip = if self.order.kind.use_internal_ip { &vm.private_ipv4 } else { &vm.public_ipv4 };
                let instance = Instance { interface_ip: interface_ip.clone(), ..vm.clone() };
                Next::Done(Outcome::Launched(Box::new(instance)))
            }
            InstanceState::Failed(fault) => failed(fault),
            InstanceState::Stopping => failed("the vm is being deleted"),
        }
    }

    fn observe(&mut self) -> Next<Call> {
        self.state = State::Booting;
        Next::Observe
    }
}

impl StateMachine for CreateVm {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (&self.state, input) {
            (State::Start, Input::Start) => {
                self.state = State::Creating;
                Next::Call(Call::Create(self.order.clone()))
            }
            (State::Creating, Input::Reply(Ok(_))) | (State::Booting, Input::Start) => self.observe(),
            (State::Booting, Input::Observed(inventory)) => self.check_boot(inventory),
            // The framework deletes a VM that may exist under the id, and tries again.
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (_, input) => unreachable!("unexpected {input:?} for a vm in state {}", self.label()),
        }
    }

    fn external_id(&self) -> Option<&ExternalId> {
        Some(&self.external_id)
    }

    fn label(&self) -> &'static str {
        match self.state {
            State::Start => "start",
            State::Creating | State::Booting => "creating vm",
            State::Complete => "complete",
        }
    }
}

fn failed(detail: &str) -> Next<Call> {
    Next::Failed(CloudError::Failed { kind: FailureKind::Status, detail: detail.to_owned() })
}
