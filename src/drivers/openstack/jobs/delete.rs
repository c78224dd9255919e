//! Deletion of a server: first its floating addresses, then the server itself. The job ends when the server no longer
//! exists.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::openstack::api_types::{self, FloatingIp};
use crate::openstack::calls::{self, Call, FloatingIpFilter, Reply};
use crate::openstack::catalog::shared::ProviderContext;
use crate::openstack::errors::failed;
use crate::openstack::instances::floating_addresses;
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::instance::{InstanceState, Inventory};
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::records::ids::ExternalId;

/// The deletion has failed if this many consecutive listings show the server in state ERROR.
const MAX_ERROR_LISTINGS: u32 = 3;
/// A deletion that the cloud accepted and did not begin is requested again after this many listings, about a second
/// apart, and then after ever more: each time twice as many.
const FIRST_REPEAT_LISTINGS: u32 = 60;

pub struct DeleteServer {
    context: Arc<ProviderContext>,
    id: ExternalId,
    /// Floating addresses that are still to be looked up; the next field has the ids of those found.
    addresses: VecDeque<String>,
    floating_ips: VecDeque<String>,
    /// Number of listings since the last request that showed the server unchanged, and how many lead to the next one.
    unchanged: u32,
    repeat_after: u32,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Begin,
    FetchingServer,
    FindingFloatingIps(FloatingIpFilter),
    DeletingFloatingIp,
    Deleting,
    /// The number of consecutive listings that showed the server in state ERROR.
    AwaitingDeletion(u32),
    Finished,
}

impl StateMachine for DeleteServer {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) => self.begin(),
            (Step::FetchingServer, Input::Reply(Ok(Reply::Server(server)))) => {
                self.addresses = floating_addresses(&server).into();
                self.find_floating_ips()
            }
            // Only listings show whether the server is gone, so its deletion is requested nevertheless.
            (Step::FetchingServer, Input::Reply(Err(CloudError::NotFound(_)))) => self.find_floating_ips(),
            (Step::FindingFloatingIps(filter), Input::Reply(Ok(Reply::Json(answer)))) => {
                let found: Vec<FloatingIp> = match api_types::list(&answer, "floatingips") {
                    Ok(found) => found,
                    Err(error) => return Next::Failed(failed(error)),
                };
                if found.iter().any(|floating_ip| floating_ip.floating_ip_address.is_empty()) {
                    return Next::Failed(failed("a floating address without its address is listed".to_owned()));
                }
                let found = found.into_iter().filter(|floating_ip| filter.matches(floating_ip));
                self.floating_ips.extend(found.map(|floating_ip| floating_ip.id));
                self.next_call()
            }
            // `NotFound` would mean that the server is deleted, but here only the list is missing.
            (Step::FindingFloatingIps(_), Input::Reply(Err(CloudError::NotFound(_)))) => {
                Next::Failed(failed("the list of floating addresses was not found".to_owned()))
            }
            (Step::DeletingFloatingIp, Input::Reply(Ok(_) | Err(CloudError::NotFound(_)))) => self.next_call(),
            // A cloud may not find a server that its listings show. Only the listings tell when it is gone.
            (Step::Deleting, Input::Reply(Ok(_) | Err(CloudError::NotFound(_)))) => {
                self.observe(Step::AwaitingDeletion(0))
            }
            (Step::AwaitingDeletion(seen), Input::Observed(inventory)) => self.check_deleted(seen, inventory),
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (step, input) => Next::Failed(failed(format!("unexpected {input:?} in step {step:?}"))),
        }
    }

    fn label(&self) -> &'static str {
        match self.step {
            Step::Begin | Step::FetchingServer | Step::FindingFloatingIps(_) | Step::DeletingFloatingIp => {
                "deleting floating ip"
            }
            Step::Deleting => "delete server",
            Step::AwaitingDeletion(_) => "deleting server",
            Step::Finished => "complete",
        }
    }
}

impl DeleteServer {
    pub fn new(context: Arc<ProviderContext>, id: ExternalId) -> Self {
        Self {
            context,
            id,
            addresses: VecDeque::new(),
            floating_ips: VecDeque::new(),
            unchanged: 0,
            repeat_after: FIRST_REPEAT_LISTINGS,
            step: Step::Begin,
        }
    }

    fn begin(&mut self) -> Next<Call> {
        let id = self.id.to_string();
        match self.context.floating_addresses_of(&id) {
            Some(addresses) => self.addresses = addresses.into(),
            None if self.context.uses_floating_ips() => return self.call(Step::FetchingServer, calls::server(&id)),
            None => {}
        }
        self.find_floating_ips()
    }

    fn find_floating_ips(&mut self) -> Next<Call> {
        match self.context.port_with_unconfirmed_floating_ip(&self.id.to_string()) {
            Some(port) => self.find_floating_ips_by(FloatingIpFilter::Port(port)),
            None => self.next_call(),
        }
    }

    fn find_floating_ips_by(&mut self, filter: FloatingIpFilter) -> Next<Call> {
        let call = calls::floating_ips(&filter);
        self.call(Step::FindingFloatingIps(filter), call)
    }

    fn next_call(&mut self) -> Next<Call> {
        if let Some(floating) = self.floating_ips.pop_front() {
            return self.call(Step::DeletingFloatingIp, calls::delete_floating_ip(&floating));
        }
        if let Some(address) = self.addresses.pop_front() {
            return self.find_floating_ips_by(FloatingIpFilter::Address(address));
        }
        let call = calls::delete_server(&self.id.to_string());
        self.call(Step::Deleting, call)
    }

    fn check_deleted(&mut self, error_listings: u32, inventory: &Inventory) -> Next<Call> {
        match inventory.find(&self.id).map(|instance| &instance.state) {
            None => {
                self.context.record_deleted_server(&self.id.to_string());
                Next::Done(Outcome::Deleted)
            }
            Some(InstanceState::Failed(fault)) if error_listings + 1 >= MAX_ERROR_LISTINGS => {
                let detail = format!("the server could not be deleted: {fault}");
                Next::Failed(CloudError::Failed { kind: FailureKind::Status, detail })
            }
            Some(InstanceState::Failed(_)) => self.observe(Step::AwaitingDeletion(error_listings + 1)),
            Some(InstanceState::Stopping) => self.observe(Step::AwaitingDeletion(0)),
            Some(InstanceState::Starting | InstanceState::Running) => self.repeat_if_due(),
        }
    }

    /// The cloud has not begun to delete the server.
    fn repeat_if_due(&mut self) -> Next<Call> {
        self.unchanged += 1;
        if self.unchanged < self.repeat_after {
            return self.observe(Step::AwaitingDeletion(0));
        }
        (self.unchanged, self.repeat_after) = (0, self.repeat_after.saturating_mul(2));
        let call = calls::delete_server(&self.id.to_string());
        self.call(Step::Deleting, call)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openstack::calls::CallKind;
    use crate::openstack::test_settings::context;
    use nodepool_driver::instance::Instance;
    use serde_json::json;

    fn is_delete(next: &Next<Call>) -> bool {
        let Next::Call(Call { kind: CallKind::Send(request, _), .. }) = next else { return false };
        request.method == reqwest::Method::DELETE && request.path == ["servers", "s"]
    }

    fn listing(state: InstanceState) -> Inventory {
        Inventory::new(vec![Instance { state, ..Instance::new(ExternalId::text("s")) }])
    }

    /// A deletion whose first request the cloud has answered.
    fn requested(answer: Result<Reply, CloudError>) -> DeleteServer {
        let mut machine = DeleteServer::new(context(), ExternalId::text("s"));
        let mut next = machine.step(Input::Start);
        if !is_delete(&next) {
            let server = serde_json::from_value(json!({"id": "s", "status": "ACTIVE"})).unwrap();
            next = machine.step(Input::Reply(Ok(Reply::Server(Box::new(server)))));
        }
        assert!(is_delete(&next), "{next:?}");
        assert_eq!(format!("{:?}", machine.step(Input::Reply(answer))), "Observe");
        machine
    }

    /// Numbers of the listings after which the deletion is requested again.
    fn repeats(machine: &mut DeleteServer, inventory: &Inventory, listings: u32) -> Vec<u32> {
        let mut repeats = Vec::new();
        for number in 1..=listings {
            if is_delete(&machine.step(Input::Observed(inventory))) {
                repeats.push(number);
                machine.step(Input::Reply(Ok(Reply::Nothing)));
            }
        }
        repeats
    }

    #[test]
    fn only_the_floating_address_of_the_server_is_deleted() {
        let listed = |second: serde_json::Value| {
            let own = json!({"id": "f1", "floating_ip_address": "203.0.113.7", "port_id": "p"});
            Input::Reply(Ok(Reply::Json(json!({"floatingips": [second, own]}))))
        };
        let begun = || {
            let context = context();
            context.record_created_floating_ip("s", "203.0.113.7");
            let mut machine = DeleteServer::new(context, ExternalId::text("s"));
            assert!(matches!(machine.step(Input::Start), Next::Call(_)));
            machine
        };
        // A cloud that ignores the filter lists the addresses of others as well.
        let mut machine = begun();
        let next = machine.step(listed(json!({"id": "f2", "floating_ip_address": "203.0.113.8", "port_id": "q"})));
        let Next::Call(Call { kind: CallKind::Send(request, _), .. }) = next else { panic!("{next:?}") };
        assert_eq!(request.path, ["floatingips", "f1"]);
        assert!(is_delete(&machine.step(Input::Reply(Ok(Reply::Nothing)))));
        let failed = begun().step(listed(json!({"id": "f3"})));
        assert!(matches!(failed, Next::Failed(_)), "{failed:?}");
    }

    #[test]
    fn a_deletion_that_was_not_begun_is_repeated_ever_more_seldom() {
        let mut machine = requested(Ok(Reply::Nothing));
        assert_eq!(repeats(&mut machine, &listing(InstanceState::Running), 1000), [60, 180, 420, 900]);
        let mut machine = requested(Ok(Reply::Nothing));
        assert_eq!(repeats(&mut machine, &listing(InstanceState::Stopping), 1000), [] as [u32; 0]);
    }

    #[test]
    fn a_server_that_listings_show_is_not_deleted_whatever_the_answer() {
        let mut machine = requested(Err(CloudError::not_found("gone")));
        let next = machine.step(Input::Observed(&listing(InstanceState::Running)));
        assert_eq!(format!("{next:?}"), "Observe");
        let next = machine.step(Input::Observed(&Inventory::default()));
        assert!(matches!(next, Next::Done(Outcome::Deleted)), "{next:?}");
    }
}
