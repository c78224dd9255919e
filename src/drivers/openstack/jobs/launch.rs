//! Launch of a server: creates it exactly once, waits for it, and creates a floating address if it needs one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::openstack::api_types::{self, FloatingIp, Port, Server};
use crate::openstack::calls::{self, Call, FloatingIpFilter, Reply};
use crate::openstack::catalog::catalog::{CloudCatalog, FloatingIpSource};
use crate::openstack::catalog::shared::ProviderContext;
use crate::openstack::config::ServerSpec;
use crate::openstack::errors::failed;
use crate::openstack::request_body;
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::facts::Unavailable;
use nodepool_driver::instance::{Instance, InstanceState, Inventory};
use nodepool_driver::job::{LaunchOrder, Outcome};
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::records::ids::ExternalId;
use openstack_clouds::FloatingIps;

/// Number of listings, one second apart, that are searched for a server whose creation may have worked. A slow cloud
/// may create it late.
const MAX_SEARCH_LISTINGS: u32 = 10;
/// The same if a previous process requested the server. Fewer listings suffice, because the session of that process has
/// ended since its request. Leak detection finds a server that appears even later.
const MAX_SEARCH_LISTINGS_AFTER_RESTART: u32 = 4;
/// After this many consecutive listings without the server, the server itself is queried.
const MAX_MISSED_LISTINGS: u32 = 3;
/// A rejected server is requested again after the next refresh, or after this many listings without a refresh.
const MAX_REFRESH_WAIT_LISTINGS: u32 = 30;
/// The launch fails if a floating address is not active after this many polls.
const MAX_FLOATING_IP_CHECKS: u32 = 60;

pub struct LaunchServer {
    context: Arc<ProviderContext>,
    catalog: Arc<CloudCatalog>,
    order: Arc<LaunchOrder>,
    spec: Option<Arc<ServerSpec>>,
    id: Option<ExternalId>,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Begin,
    /// Waits for another refresh, for at most this many listings.
    AwaitingRefresh(u32),
    /// An earlier attempt may have created the server.
    FindingExisting,
    /// A previous process may have requested the server a moment ago; the number of remaining listings.
    AwaitingLateCreation(u32),
    Creating,
    /// The response to the creation was lost; the error and the number of remaining listings.
    SearchingAfterLostResponse(CloudError, u32),
    /// The number of consecutive listings that lacked the server.
    Booting(u32),
    /// Listings lack the server, so it is queried itself.
    CheckingServer,
    /// A listing shows that the server failed, but not why; the server itself may tell.
    FetchingFault,
    ListingPorts(Box<Instance>),
    CreatingFloatingIp(Box<Instance>, Port),
    /// The floating address may exist although the response to its creation was lost.
    FindingFloatingIp(Box<Instance>, FloatingIpFilter, CloudError),
    AwaitingFloatingIp(Box<Instance>, FloatingIp, u32),
    CheckingFloatingIp(Box<Instance>, FloatingIp, u32),
    Finished,
}

impl StateMachine for LaunchServer {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) if self.id.is_some() => self.observe(Step::Booting(0)),
            (Step::Begin, Input::Start) if self.order.may_appear => {
                self.find(Step::AwaitingLateCreation(MAX_SEARCH_LISTINGS_AFTER_RESTART))
            }
            (Step::Begin, Input::Start) if self.order.may_exist => self.find(Step::FindingExisting),
            (Step::AwaitingLateCreation(left), Input::Reply(reply)) => {
                let found = reply.is_ok_and(|reply| self.adopt_from_reply(&reply));
                self.observe(if found { Step::Booting(0) } else { Step::AwaitingLateCreation(left) })
            }
            (Step::AwaitingLateCreation(left), Input::Observed(inventory)) => self.await_late_creation(left, inventory),
            (Step::Begin, Input::Start) => self.begin(),
            (Step::AwaitingRefresh(0), Input::Observed(_)) => self.create(),
            (Step::AwaitingRefresh(left), Input::Observed(_)) => self.await_refresh(left - 1),
            (Step::FindingExisting, Input::Reply(Ok(reply))) => match self.adopt_from_reply(&reply) {
                true => self.observe(Step::Booting(0)),
                false => self.begin(),
            },
            (Step::Creating, Input::Reply(Ok(Reply::Json(answer)))) => self.on_created(&answer),
            (Step::Creating, Input::Reply(Ok(Reply::ResponseLost(error)) | Err(error @ CloudError::Deadline))) => {
                self.find(Step::SearchingAfterLostResponse(error, MAX_SEARCH_LISTINGS))
            }
            (Step::Creating, Input::Reply(Err(error))) => Next::Failed(self.creation_error(error)),
            (Step::SearchingAfterLostResponse(error, left), Input::Reply(reply)) => self.on_found(error, left, reply),
            (Step::SearchingAfterLostResponse(error, left), Input::Observed(inventory)) => {
                self.search(error, left, inventory)
            }
            (Step::Booting(missed), Input::Observed(inventory)) => self.check_boot(missed, inventory),
            (Step::CheckingServer, Input::Reply(reply)) => self.on_checked(reply),
            (Step::FetchingFault, Input::Reply(reply)) => self.on_fault(reply),
            (Step::ListingPorts(instance), Input::Reply(Ok(Reply::Json(answer)))) => {
                self.choose_port(instance, &answer)
            }
            (Step::CreatingFloatingIp(instance, _), Input::Reply(Ok(Reply::Json(answer)))) => {
                self.on_floating_ip_created(instance, &answer)
            }
            // The response was lost, or Neutron rejects a second address because a previous process has just created
            // one.
            (
                Step::CreatingFloatingIp(instance, port),
                Input::Reply(
                    Ok(Reply::ResponseLost(error)) | Err(error @ (CloudError::Failed { .. } | CloudError::Deadline)),
                ),
            ) => {
                let filter = FloatingIpFilter::Port(port.id);
                let call = calls::floating_ips(&filter);
                self.call(Step::FindingFloatingIp(instance, filter, error), call)
            }
            (Step::FindingFloatingIp(instance, filter, error), Input::Reply(Ok(Reply::Json(answer)))) => {
                let all: Vec<FloatingIp> = api_types::list(&answer, "floatingips").unwrap_or_default();
                match all.into_iter().find(|floating_ip| filter.matches(floating_ip)) {
                    Some(found) => self.await_floating_ip(instance, found, MAX_FLOATING_IP_CHECKS),
                    None => Next::Failed(error),
                }
            }
            (Step::AwaitingFloatingIp(instance, floating_ip, remaining), Input::Observed(_)) => {
                let call = calls::floating_ip(&floating_ip.id);
                self.call(Step::CheckingFloatingIp(instance, floating_ip, remaining), call)
            }
            (Step::CheckingFloatingIp(instance, floating_ip, remaining), Input::Reply(Ok(Reply::Json(answer)))) => {
                let current = floating_ip_of(&answer).unwrap_or(floating_ip);
                self.await_floating_ip(instance, current, remaining)
            }
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (step, input) => Next::Failed(failed(format!("unexpected {input:?} in step {step:?}"))),
        }
    }

    fn external_id(&self) -> Option<&ExternalId> {
        self.id.as_ref()
    }

    fn label(&self) -> &'static str {
        match self.step {
            Step::Begin | Step::AwaitingRefresh(_) | Step::FindingExisting | Step::Creating => "submit creating server",
            Step::AwaitingLateCreation(_)
            | Step::SearchingAfterLostResponse(..)
            | Step::Booting(_)
            | Step::CheckingServer
            | Step::FetchingFault => "creating server",
            Step::ListingPorts(_) | Step::CreatingFloatingIp(..) | Step::FindingFloatingIp(..) => {
                "creating floating ip"
            }
            Step::AwaitingFloatingIp(..) | Step::CheckingFloatingIp(..) => "attaching floating ip",
            Step::Finished => "complete",
        }
    }
}

impl LaunchServer {
    pub fn new(context: Arc<ProviderContext>, order: Arc<LaunchOrder>) -> Self {
        let (catalog, spec) = (context.catalog(), context.server_spec(&order));
        let id = order.prior_instance.clone();
        Self { context, catalog, order, spec, id, step: Step::Begin }
    }

    fn begin(&mut self) -> Next<Call> {
        self.await_refresh(MAX_REFRESH_WAIT_LISTINGS)
    }

    /// A rejected order waits for a new catalog: an image that was replaced under its name has its new id after the
    /// next refresh.
    fn await_refresh(&mut self, left: u32) -> Next<Call> {
        if self.context.was_refused(&self.order) {
            return self.observe(Step::AwaitingRefresh(left));
        }
        self.catalog = self.context.catalog();
        self.create()
    }

    fn create(&mut self) -> Next<Call> {
        let Some(spec) = &self.spec else {
            return Next::Failed(CloudError::Denied(format!("label {} is not configured", self.order.label)));
        };
        match request_body::server(&self.order, spec, &self.catalog, &self.context.provider) {
            Ok(server) => {
                let microversion = self.catalog.services.microversion;
                self.call(Step::Creating, calls::create_server(server, microversion))
            }
            Err(Unavailable::Permanent(reason) | Unavailable::Temporary(reason)) => {
                Next::Failed(CloudError::Failed { kind: FailureKind::Nodepool, detail: reason })
            }
        }
    }

    fn creation_error(&self, error: CloudError) -> CloudError {
        if let Some(lost) = self.zone_error(&error) {
            return lost;
        }
        let is_wrong = |detail: &str| detail.starts_with("400");
        if matches!(&error, CloudError::Failed { detail, .. } if is_wrong(detail)) {
            self.context.record_refused_server(&self.order);
        }
        error
    }

    /// The error of a zone that is rejected although the last refresh listed it. If it is the only zone, the error is
    /// an ordinary failure.
    fn zone_error(&self, error: &CloudError) -> Option<CloudError> {
        let CloudError::Failed { detail, .. } = error else { return None };
        let zone = self.order.zone.as_ref().filter(|zone| self.catalog.zones.contains(*zone))?;
        let is_zone_error = self.catalog.zones.len() > 1 && detail.to_lowercase().contains("availability zone");
        is_zone_error.then(|| CloudError::NoZone(zone.clone()))
    }

    fn on_created(&mut self, answer: &Value) -> Next<Call> {
        match answer.pointer("/server/id").and_then(Value::as_str) {
            Some(id) => {
                self.set_id(id.to_owned());
                self.observe(Step::Booting(0))
            }
            // A server was created, but the response has no id.
            None => self.find(Step::SearchingAfterLostResponse(
                failed("the response to the server creation has no id".to_owned()),
                MAX_SEARCH_LISTINGS,
            )),
        }
    }

    fn find(&mut self, step: Step) -> Next<Call> {
        let call = calls::servers_named(&self.order.hostname);
        self.call(step, call)
    }

    /// Adopts a server of this node from a reply, if there is one.
    fn adopt_from_reply(&mut self, reply: &Reply) -> bool {
        let Reply::Servers(page) = reply else { return false };
        let found =
            page.servers.iter().find(|server| self.matches_order(&server.metadata)).map(|server| server.id.clone());
        found.map(|id| self.set_id(id)).is_some()
    }

    /// Whether the metadata contains all entries of the order. They name the node, so no other server matches.
    fn matches_order(&self, metadata: &BTreeMap<String, String>) -> bool {
        self.order.metadata.iter().all(|(key, value)| metadata.get(key) == Some(value))
    }

    fn set_id(&mut self, id: String) {
        self.context.record_created_server(&id);
        self.id = Some(ExternalId::Text(id));
    }

    /// Adopts a server of this node from an inventory, if there is one.
    fn adopt_from_inventory(&mut self, inventory: &Inventory) -> bool {
        let found = inventory.instances().iter().find(|instance| self.matches_order(&instance.metadata));
        found.map(|found| self.set_id(found.external_id.to_string())).is_some()
    }

    /// Handles the answer to the search for a server whose creation may have worked.
    fn on_found(&mut self, error: CloudError, left: u32, reply: Result<Reply, CloudError>) -> Next<Call> {
        match reply {
            // The cloud does not respond. After the outage, another job searches for the server.
            Err(CloudError::Outage { detail, .. }) => {
                Next::Failed(CloudError::Outage { detail, may_have_worked: true })
            }
            Ok(reply) if self.adopt_from_reply(&reply) => self.observe(Step::Booting(0)),
            Ok(_) | Err(_) => self.observe(Step::SearchingAfterLostResponse(error, left)),
        }
    }

    fn await_late_creation(&mut self, left: u32, inventory: &Inventory) -> Next<Call> {
        match left {
            _ if self.adopt_from_inventory(inventory) => self.check_boot(0, inventory),
            0 | 1 => self.begin(),
            _ => self.observe(Step::AwaitingLateCreation(left - 1)),
        }
    }

    fn search(&mut self, error: CloudError, left: u32, inventory: &Inventory) -> Next<Call> {
        match left {
            _ if self.adopt_from_inventory(inventory) => self.check_boot(0, inventory),
            0 | 1 => Next::Failed(error),
            _ => self.observe(Step::SearchingAfterLostResponse(error, left - 1)),
        }
    }

    fn check_boot(&mut self, missed: u32, inventory: &Inventory) -> Next<Call> {
        let Some(instance) = self.id.as_ref().and_then(|id| inventory.find(id)) else {
            return match &self.id {
                Some(id) if missed + 1 >= MAX_MISSED_LISTINGS => {
                    let call = calls::server(&id.to_string());
                    self.call(Step::CheckingServer, call)
                }
                _ => self.observe(Step::Booting(missed + 1)),
            };
        };
        let instance = instance.clone();
        self.on_observed(instance)
    }

    /// Continues with the server as the cloud shows it.
    fn on_observed(&mut self, instance: Instance) -> Next<Call> {
        match &instance.state {
            InstanceState::Running => self.on_running(Box::new(self.with_volume_size(&instance))),
            InstanceState::Starting => self.observe(Step::Booting(0)),
            InstanceState::Stopping => status_failure("the server is being deleted".to_owned()),
            InstanceState::Failed(fault) if fault.is_empty() => {
                let call = calls::server(&instance.external_id.to_string());
                self.call(Step::FetchingFault, call)
            }
            InstanceState::Failed(fault) => fault_error(fault),
        }
    }

    /// Handles the state of a server that listings lack.
    fn on_checked(&mut self, reply: Result<Reply, CloudError>) -> Next<Call> {
        match reply {
            Ok(Reply::Server(server)) => {
                let instance = self.instance_of(*server);
                match &instance.state {
                    // The server itself has already told why, if it knows.
                    InstanceState::Failed(fault) => fault_error(fault),
                    _ => self.on_observed(instance),
                }
            }
            Ok(_) => self.observe(Step::Booting(0)),
            Err(CloudError::NotFound(_)) => status_failure("the server no longer exists".to_owned()),
            Err(error) => Next::Failed(error),
        }
    }

    /// Handles the fault of a server in state ERROR. It has failed, whatever the response.
    fn on_fault(&mut self, reply: Result<Reply, CloudError>) -> Next<Call> {
        match reply {
            Ok(Reply::Server(server)) => fault_error(&server.fault.unwrap_or_default().message),
            Ok(_) | Err(_) => fault_error(""),
        }
    }

    fn instance_of(&self, server: Server) -> Instance {
        let catalog = self.context.catalog();
        self.context.instance_mapper(&catalog).instance(server, &HashMap::new())
    }

    /// Adds the volume's size, which a listing lacks.
    fn with_volume_size(&self, instance: &Instance) -> Instance {
        let mut instance = instance.clone();
        if let Some(size) = self.spec.as_ref().and_then(|wanted| wanted.volume) {
            instance.resources.set("volumes", 1.0);
            instance.resources.set("volume-gb", size as f64);
        }
        instance
    }

    fn on_running(&mut self, instance: Box<Instance>) -> Next<Call> {
        let cloud = &self.context.cloud;
        let is_wanted = self.spec.as_ref().is_some_and(|wanted| wanted.floating_ip);
        let needs = is_wanted
            && cloud.floating_ips == FloatingIps::Neutron
            && cloud.requires_floating_ip != Some(false)
            && !cloud.private
            && instance.public_ipv4.is_none()
            && instance.private_ipv4.is_some();
        match &self.catalog.networks().floating_ip_source {
            FloatingIpSource::Network(_) if needs => {
                let call = calls::ports_of(&instance.external_id.to_string());
                self.call(Step::ListingPorts(instance), call)
            }
            FloatingIpSource::Unknown if needs => self.recheck_after_refresh(),
            FloatingIpSource::Network(_) | FloatingIpSource::Absent | FloatingIpSource::Unknown => launched(instance),
        }
    }

    /// Waits for the next refresh, which repeats failed queries. Until then it is unknown whether the server is
    /// reachable.
    fn recheck_after_refresh(&mut self) -> Next<Call> {
        self.catalog = self.context.catalog();
        self.observe(Step::Booting(0))
    }

    fn choose_port(&mut self, instance: Box<Instance>, answer: &Value) -> Next<Call> {
        let mut ports: Vec<Port> = match api_types::list(answer, "ports") {
            Ok(ports) => ports,
            Err(error) => return Next::Failed(failed(error)),
        };
        // Some clouds ignore the filter and list all ports.
        let server = instance.external_id.to_string();
        ports.retain(|port| port.device_id.as_ref().is_none_or(|owner| *owner == server));
        if ports.len() > 1 {
            let Some(destinations) = &self.catalog.networks().floating_ip_destinations else {
                return self.recheck_after_refresh();
            };
            ports.retain(|port| destinations.contains(&port.network_id));
            ports.sort_by(|one, other| other.created_at.cmp(&one.created_at));
        }
        let has_ipv4 = |port: &Port| {
            let addresses = port.fixed_ips.iter().map(|fixed| fixed.ip_address.clone());
            addresses.into_iter().find(|address| !address.contains(':') && !address.is_empty())
        };
        let found = ports.into_iter().find_map(|port| has_ipv4(&port).map(|address| (port, address)));
        let (Some((port, address)), FloatingIpSource::Network(network)) =
            (found, self.catalog.networks().floating_ip_source.clone())
        else {
            return launched(instance);
        };
        self.context.record_floating_ip_request(&instance.external_id.to_string(), &port.id);
        let request = json!({"floating_network_id": network, "port_id": port.id, "fixed_ip_address": address});
        self.call(Step::CreatingFloatingIp(instance, port), calls::create_floating_ip(request))
    }

    fn on_floating_ip_created(&mut self, instance: Box<Instance>, answer: &Value) -> Next<Call> {
        match floating_ip_of(answer) {
            Some(created) => self.await_floating_ip(instance, created, MAX_FLOATING_IP_CHECKS),
            None => Next::Failed(failed("the response to the floating address creation has no address".to_owned())),
        }
    }

    /// The server is reachable as soon as its address is active; Nova lists the address a little later.
    fn await_floating_ip(&mut self, mut instance: Box<Instance>, floating_ip: FloatingIp, left: u32) -> Next<Call> {
        let address = floating_ip.floating_ip_address.clone();
        if left == MAX_FLOATING_IP_CHECKS {
            self.context.record_created_floating_ip(&instance.external_id.to_string(), &address);
        }
        if is_usable(&floating_ip) {
            if self.catalog.networks().default_interface.is_none() && instance.interface_ip == instance.private_ipv4 {
                instance.interface_ip = Some(address.clone());
            }
            instance.public_ipv4 = Some(address);
            return launched(instance);
        }
        match left {
            0 => {
                let detail = format!("floating address {address} did not become active");
                Next::Failed(CloudError::Failed { kind: FailureKind::Network, detail })
            }
            _ => self.observe(Step::AwaitingFloatingIp(instance, floating_ip, left - 1)),
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

/// Error of a server in state ERROR.
fn fault_error(fault: &str) -> Next<Call> {
    match is_quota(fault) {
        true => Next::Failed(CloudError::Quota(fault.to_owned())),
        false => status_failure(format!("Server in error state: {fault}")),
    }
}

/// Ends the job. A public address that the server lacks is written as `""`, as Nodepool 11 writes it.
fn launched(mut instance: Box<Instance>) -> Next<Call> {
    for address in [&mut instance.public_ipv4, &mut instance.public_ipv6] {
        address.get_or_insert_default();
    }
    Next::Done(Outcome::Launched(instance))
}

/// Whether packets reach the server at the address. Some clouds have states of their own instead of ACTIVE.
fn is_usable(floating_ip: &FloatingIp) -> bool {
    match floating_ip.status.as_deref() {
        Some("ACTIVE") => true,
        None | Some("DOWN" | "ERROR" | "") => false,
        Some(_) => floating_ip.port_id.is_some(),
    }
}

fn floating_ip_of(answer: &Value) -> Option<FloatingIp> {
    serde_json::from_value(answer.get("floatingip")?.clone()).ok()
}

/// Whether a fault means that the project's quota is exceeded. Each OpenStack service words this differently.
fn is_quota(fault: &str) -> bool {
    let fault = fault.to_lowercase();
    ["quota", "number of ports exceeded", "is over a limit for"].iter().any(|words| fault.contains(words))
}

fn status_failure(detail: String) -> Next<Call> {
    Next::Failed(CloudError::Failed { kind: FailureKind::Status, detail })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_that_mention_a_quota_are_quota_errors_in_every_wording() {
        let quota = [
            "Quota exceeded for cores: Requested 4, but already used 398 of 400 cores",
            "VolumeSizeExceedsAvailableQuota: Requested volume exceeds allowed gigabytes quota.",
            "Volume Exceeds Quota",
            "Maximum number of ports exceeded",
            "Project d2b2 is over a limit for [Resource servers is over limit of 2 due to current usage 2 and delta 1]",
        ];
        assert!(quota.into_iter().all(is_quota));
        let others = ["No valid host was found. There are not enough hosts available.", "Timeout exceeded", ""];
        assert!(!others.into_iter().any(is_quota));
    }
}
