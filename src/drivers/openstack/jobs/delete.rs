//! Deletes a server: its floating addresses first, then itself, and then it is waited until it is gone.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::openstack::api_types::{self, FloatingIp};
use crate::openstack::calls::{self, Call, Reply};
use crate::openstack::catalog::shared::Shared;
use crate::openstack::errors::failed;
use crate::openstack::instances::floating_addresses;
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::instance::{InstanceState, Inventory};
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next};
use nodepool_model::records::ids::ExternalId;

/// A server that is in an error in so many listings after it was to go is not on its way.
const STUCK: u32 = 3;

pub struct DeleteServer {
    shared: Arc<Shared>,
    id: ExternalId,
    /// Floating addresses that are still to be looked up, and those found.
    addresses: VecDeque<String>,
    floating: VecDeque<String>,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Begin,
    Asking,
    LookingUp,
    Freeing,
    Deleting,
    /// With the number of listings that showed it in an error.
    Going(u32),
    Over,
}

impl DeleteServer {
    pub fn new(shared: Arc<Shared>, id: ExternalId) -> Self {
        Self { context, id, addresses: VecDeque::new(), floating: VecDeque::new(), step: Step::Begin }
    }

    pub fn label(&self) -> &'static str {
        match self.step {
            Step::Begin | Step::Asking | Step::LookingUp | Step::Freeing => "deleting floating ip",
            Step::Deleting => "delete server",
            Step::Going(_) => "deleting server",
            Step::Over => "complete",
        }
    }

    pub fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Over), input) {
            (Step::Begin, Input::Start) => self.begin(),
            (Step::Asking, Input::Reply(Ok(Reply::Server(server)))) => {
                self.addresses = floating_addresses(&server).into();
                self.look_up()
            }
            (Step::LookingUp, Input::Reply(Ok(Reply::Json(answer)))) => {
                let found: Vec<FloatingIp> = match api_types::list(&answer, "floatingips") {
                    Ok(found) => found,
                    Err(error) => return Next::Failed(failed(error)),
                };
                self.floating.extend(found.into_iter().map(|floating| floating.id));
                self.go_on()
            }
            // Not about the server: who hears of it would take the server for deleted.
            (Step::LookingUp, Input::Reply(Err(CloudError::NotFound))) => {
                Next::Failed(failed("the list of floating addresses was not found".to_owned()))
            }
            (Step::Freeing, Input::Reply(Ok(_) | Err(CloudError::NotFound))) => self.go_on(),
            (Step::Deleting, Input::Reply(Ok(_))) => self.observe(Step::Going(0)),
            (Step::Going(seen), Input::Seen(inventory)) => self.going(seen, inventory),
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (step, input) => Next::Failed(failed(format!("{input:?} does not answer {step:?}"))),
        }
    }

    fn begin(&mut self) -> Next<Call> {
        let id = self.id.to_string();
        match self.shared.floating_addresses_of(&id) {
            Some(addresses) => self.addresses = addresses.into(),
            None if self.shared.uses_floating_ips() => return self.call(Step::Asking, calls::server(&id)),
            None => {}
        }
        self.look_up()
    }

    fn look_up(&mut self) -> Next<Call> {
        match self.shared.port_in_doubt(&self.id.to_string()) {
            Some(port) => self.call(Step::LookingUp, calls::floating_ips_of(&port)),
            None => self.go_on(),
        }
    }

    fn go_on(&mut self) -> Next<Call> {
        if let Some(floating) = self.floating.pop_front() {
            return self.call(Step::Freeing, calls::delete_floating_ip(&floating));
        }
        if let Some(address) = self.addresses.pop_front() {
            return self.call(Step::LookingUp, calls::floating_ips_at(&address));
        }
        let call = calls::delete_server(&self.id.to_string());
        self.call(Step::Deleting, call)
    }

    fn going(&mut self, seen: u32, inventory: &Inventory) -> Next<Call> {
        match inventory.find(&self.id).map(|instance| &instance.state) {
            None => {
                self.shared.deleted_server(&self.id.to_string());
                Next::Done(Outcome::Deleted)
            }
            Some(InstanceState::Failed(fault)) if seen + 1 >= STUCK => {
                let detail = format!("the server could not be deleted: {fault}");
                Next::Failed(CloudError::Failed { kind: FailureKind::Status, detail })
            }
            Some(InstanceState::Failed(_)) => self.observe(Step::Going(seen + 1)),
            Some(InstanceState::Starting | InstanceState::Running | InstanceState::Stopping) => {
                self.observe(Step::Going(0))
            }
        }
    }

    fn call(&mut self, step: Step, call: Call) -> Next<Call> {
        self.step = step;
        Next::Call(call)
    }

    fn observe(&mut self, step: Step) -> Next<Call> {
        self.step = step;
        Next::Observe
    }
}
