//! Deletion of unused resources without metadata: ports that are down, and floating addresses without a port.
//!
//! A resource must have been unused in the previous listing as well, and the server of a port must no longer exist. If
//! more of a kind are unused than the budget allows, none is deleted: other users of the project may own them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use serde_json::Value;

use crate::openstack::api_types::{FloatingIp, Port};
use crate::openstack::calls::{self, Call, ListKind, Reply};
use crate::openstack::catalog::shared::ProviderContext;
use crate::openstack::errors::failed;
use crate::openstack::pagination::{self, Pages, typed};
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next};
use nodepool_model::config::unused_resources::{CleanMode, CleanReport};

pub struct CleanUnusedResources {
    context: Arc<ProviderContext>,
    mode: CleanMode,
    pending_lists: VecDeque<ListKind>,
    unused: VecDeque<Unused>,
    step: Step,
    done: CleanReport,
}

enum Unused {
    FloatingIp(String),
    /// The port's id, and its server if it has one.
    Port(String, Option<String>),
}

enum Step {
    Idle,
    Listing(ListKind, Pages<Value>),
    /// Checks whether the server of this port still exists.
    CheckingServer(String),
    Deleting(&'static str),
}

impl CleanUnusedResources {
    pub fn new(context: Arc<ProviderContext>, ports: bool, mode: CleanMode) -> Self {
        let catalog = context.catalog();
        let mut pending_lists = VecDeque::new();
        if catalog.services.network {
            pending_lists.extend(context.settings.clean_floating_ips.then_some(calls::FLOATING_IPS));
            pending_lists.extend(ports.then_some(calls::PORTS));
        }
        Self { context, mode, pending_lists, unused: VecDeque::new(), step: Step::Idle, done: CleanReport::default() }
    }

    pub fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        let (kind, result) = match (std::mem::replace(&mut self.step, Step::Idle), input) {
            (Step::Idle, Input::Start) => ("start", Ok(None)),
            (Step::Listing(listing, pages), Input::Reply(Ok(Reply::Json(answer)))) => {
                (listing.list, self.on_page(listing, pages, &answer))
            }
            (Step::Listing(listing, _), Input::Reply(Err(error))) => (listing.list, Err(error)),
            // The port of a server that is being built or is stopped is down as well.
            (Step::CheckingServer(_), Input::Reply(Ok(Reply::Server(_)))) => ("ports", Ok(None)),
            (Step::CheckingServer(port), Input::Reply(Err(CloudError::NotFound(_)))) => {
                ("ports", Ok(self.delete("ports", port)))
            }
            (Step::CheckingServer(_), Input::Reply(Err(error))) => ("ports", Err(error)),
            (Step::Deleting(what), Input::Reply(Ok(_))) => {
                *self.done.deleted.entry(what).or_default() += 1;
                (what, Ok(None))
            }
            // The resource was deleted by another client, or is in use again. Neither is an error.
            (Step::Deleting(what), Input::Reply(Err(CloudError::NotFound(_) | CloudError::Failed { .. }))) => {
                (what, Ok(None))
            }
            (Step::Deleting(what), Input::Reply(Err(error))) => (what, Err(error)),
            (_, input) => {
                return Next::Failed(failed(format!("unexpected {input:?} while cleaning unused resources")));
            }
        };
        match result {
            Ok(Some(call)) => Next::Call(call),
            Ok(None) => self.next_call(),
            // A failure does not stop the clean-up of other resources; the first error of each kind is reported at the
            // end.
            Err(error) => {
                self.done.failed.entry(kind).or_insert_with(|| error.to_string());
                self.next_call()
            }
        }
    }

    fn on_page(&mut self, listing: ListKind, pages: Pages<Value>, answer: &Value) -> Result<Option<Call>, CloudError> {
        match pages.add_json_page(answer)? {
            pagination::PageResult::Next(pages, call) => {
                self.step = Step::Listing(listing, pages);
                return Ok(Some(call));
            }
            pagination::PageResult::Complete(entries) if listing.list == calls::PORTS.list => {
                let ports: Vec<Port> = typed(entries, "ports")?;
                let is_of_server = |port: &Port| {
                    let owner = port.device_owner.as_deref().unwrap_or_default();
                    owner.is_empty() || owner.starts_with("compute:")
                };
                let mut servers: HashMap<String, Option<String>> =
                    ports.into_iter().filter(is_of_server).map(|port| (port.id, port.device_id)).collect();
                for id in self.select_for_deletion("ports", servers.keys().cloned().collect()) {
                    let server = servers.remove(&id).flatten().filter(|server| !server.is_empty());
                    self.unused.push_back(Unused::Port(id, server));
                }
            }
            pagination::PageResult::Complete(entries) => {
                let floating: Vec<FloatingIp> = typed(entries, "floatingips")?;
                let unused =
                    floating.into_iter().filter(|floating| floating.port_id.as_deref().unwrap_or_default().is_empty());
                let unused = self.select_for_deletion("floatingips", unused.map(|floating| floating.id).collect());
                self.unused.extend(unused.into_iter().map(Unused::FloatingIp));
            }
        }
        Ok(None)
    }

    /// Resources that were unused in the previous listing as well; none if they exceed the budget.
    fn select_for_deletion(&mut self, kind: &'static str, unused: Vec<String>) -> Vec<String> {
        let unused = self.context.unused_since_previous_listing(kind, unused);
        match self.mode {
            CleanMode::Delete { budget } if unused.len() > budget => {
                self.done.exceeded.insert(kind, unused.len());
                Vec::new()
            }
            CleanMode::Delete { .. } | CleanMode::DryRun => unused,
        }
    }

    fn next_call(&mut self) -> Next<Call> {
        while let Some(unused) = self.unused.pop_front() {
            let call = match unused {
                Unused::FloatingIp(id) => self.delete("floatingips", id),
                Unused::Port(id, None) => self.delete("ports", id),
                Unused::Port(id, Some(server)) => {
                    self.step = Step::CheckingServer(id);
                    Some(calls::server_exists(&server))
                }
            };
            if let Some(call) = call {
                return Next::Call(call);
            }
        }
        if let Some(listing) = self.pending_lists.pop_front() {
            let filters: &'static [_] = if listing.list == calls::PORTS.list { &[("status", "DOWN")] } else { &[] };
            let (pages, call) = Pages::filtered(listing, filters);
            self.step = Step::Listing(listing, pages);
            return Next::Call(call);
        }
        Next::Done(Outcome::CleanedUnused(std::mem::take(&mut self.done)))
    }

    /// Deletes an unused resource; a dry run only reports it.
    fn delete(&mut self, kind: &'static str, id: String) -> Option<Call> {
        if self.mode == CleanMode::DryRun {
            self.done.unused.entry(kind).or_default().push(id);
            return None;
        }
        self.step = Step::Deleting(kind);
        Some(if kind == "ports" { calls::delete_port(&id) } else { calls::delete_floating_ip(&id) })
    }
}
