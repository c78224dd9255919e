//! Listing of unused resources without metadata: ports that are down, and floating addresses without a port.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::Value;
use tracing::warn;

use crate::common::server_section::PORTS;
use crate::openstack::api_types::{FloatingIp, Port};
use crate::openstack::calls::{self, Call, ListKind, Reply};
use crate::openstack::catalog::shared::ProviderContext;
use crate::openstack::config::FLOATING_IPS;
use crate::openstack::errors::failed;
use crate::openstack::pagination::{self, Pages, typed};
use nodepool_driver::cloud_resource::{CloudResource, UnusedResources};
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, OneCall, StateMachine};

pub struct ListUnused {
    context: Arc<ProviderContext>,
    pending_lists: VecDeque<ListKind>,
    /// Ports that are down now and were down in the previous listing, each with its server.
    doubtful_ports: Vec<(String, String)>,
    step: Step,
    unused: UnusedResources,
}

enum Step {
    Idle,
    Listing(ListKind, Pages<Value>),
    /// Checks whether the server of this port still exists.
    CheckingServer(String),
}

impl StateMachine for ListUnused {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        let (kind, result) = match (std::mem::replace(&mut self.step, Step::Idle), input) {
            (Step::Idle, Input::Start) => ("start", Ok(None)),
            (Step::Listing(listing, pages), Input::Reply(Ok(Reply::Json(answer)))) => {
                (listing.list, self.on_page(listing, pages, &answer))
            }
            (Step::Listing(listing, _), Input::Reply(Err(error))) => (listing.list, Err(error)),
            // The port of a server that is being built or is stopped is down as well.
            (Step::CheckingServer(_), Input::Reply(Ok(Reply::Server(_)))) => (PORTS, Ok(None)),
            (Step::CheckingServer(port), Input::Reply(Err(CloudError::NotFound(_)))) => {
                self.unused.found.push(CloudResource::new(PORTS, port));
                (PORTS, Ok(None))
            }
            (Step::CheckingServer(port), Input::Reply(Err(error))) => {
                warn!(provider = %self.context.provider, port, %error, "it is unknown whether the server of an unused port exists");
                (PORTS, Ok(None))
            }
            (_, input) => {
                return Next::Failed(failed(format!("unexpected {input:?} while unused resources are listed")));
            }
        };
        match result {
            Ok(Some(call)) => Next::Call(call),
            Ok(None) => self.next_call(),
            // A failure does not hide resources of other kinds.
            Err(error) => {
                self.unused.failed.entry(kind).or_insert_with(|| error.to_string());
                self.next_call()
            }
        }
    }

    fn label(&self) -> &'static str {
        "listing unused resources"
    }
}

impl ListUnused {
    pub fn new(context: Arc<ProviderContext>, kinds: &[&'static str]) -> Self {
        // Floating addresses last: they may be attached while servers are checked.
        let lists = [(PORTS, calls::PORTS), (FLOATING_IPS, calls::FLOATING_IPS)];
        let wanted = lists.into_iter().filter(|(kind, _)| kinds.contains(kind)).map(|(_, list)| list);
        let pending_lists = wanted.filter(|_| context.catalog().services.network).collect();
        Self {
            context,
            pending_lists,
            doubtful_ports: Vec::new(),
            step: Step::Idle,
            unused: UnusedResources::default(),
        }
    }

    fn on_page(&mut self, listing: ListKind, pages: Pages<Value>, answer: &Value) -> Result<Option<Call>, CloudError> {
        match pages.add_json_page(answer)? {
            pagination::PageResult::Next(pages, call) => {
                self.step = Step::Listing(listing, pages);
                return Ok(Some(call));
            }
            pagination::PageResult::Complete(entries) if listing.list == calls::PORTS.list => {
                let ports: Vec<Port> = typed(entries, PORTS)?;
                let is_of_server = |port: &Port| {
                    let owner = port.device_owner.as_deref().unwrap_or_default();
                    owner.is_empty() || owner.starts_with("compute:")
                };
                let ports: Vec<Port> = ports.into_iter().filter(is_of_server).collect();
                let before = self.context.remember_ports_down(ports.iter().map(|port| port.id.clone()).collect());
                for port in ports {
                    match port.device_id.filter(|server| !server.is_empty()) {
                        Some(server) if before.contains(&port.id) => self.doubtful_ports.push((port.id, server)),
                        // Nothing is deleted after one listing, so the server is checked at the next one.
                        _ => self.unused.found.push(CloudResource::new(PORTS, port.id)),
                    }
                }
            }
            pagination::PageResult::Complete(entries) => {
                let floating: Vec<FloatingIp> = typed(entries, FLOATING_IPS)?;
                let unused =
                    floating.into_iter().filter(|floating| floating.port_id.as_deref().unwrap_or_default().is_empty());
                self.unused.found.extend(unused.map(|floating| CloudResource::new(FLOATING_IPS, floating.id)));
            }
        }
        Ok(None)
    }

    fn next_call(&mut self) -> Next<Call> {
        if let Some((port, server)) = self.doubtful_ports.pop() {
            self.step = Step::CheckingServer(port);
            return Next::Call(calls::server_exists(&server));
        }
        if let Some(listing) = self.pending_lists.pop_front() {
            let filters: &'static [_] = if listing.list == calls::PORTS.list { &[("status", "DOWN")] } else { &[] };
            let (pages, call) = Pages::filtered(listing, filters);
            self.step = Step::Listing(listing, pages);
            return Next::Call(call);
        }
        Next::Done(Outcome::Unused(std::mem::take(&mut self.unused)))
    }
}

/// Deletion of an unused resource.
pub fn delete(resource: &CloudResource) -> OneCall<Call, Reply> {
    let id = resource.id.to_string();
    let call = if resource.kind == PORTS { calls::delete_port(&id) } else { calls::delete_floating_ip(&id) };
    OneCall::new("deleting an unused resource", call, |_| Ok(Outcome::Deleted))
}
