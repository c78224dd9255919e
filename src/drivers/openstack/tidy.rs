//! Deletes what bears no mark and nobody uses: ports that carry nothing, floating addresses that lead nowhere.
//!
//! Each must have been so at the look before as well. More of a kind than the budget allows are left alone: they are shared
//! with everybody in the project.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::Value;

use super::calls::{self, Call, Listing, Reply};
use super::http::failed;
use super::pages::{Pages, Step, typed};
use super::shared::Shared;
use super::wire::{FloatingIp, Port};
use crate::model::cloud::{CloudError, Outcome};
use crate::policy::machine::{Input, Next};

pub struct TidyUp {
    shared: Arc<Shared>,
    budget: usize,
    todo: VecDeque<Listing>,
    listing: Option<(Listing, Pages<Value>)>,
    deletions: VecDeque<(&'static str, String)>,
    deleting: Option<&'static str>,
    deleted: BTreeMap<&'static str, usize>,
    exceeded: BTreeMap<&'static str, usize>,
}

impl TidyUp {
    pub fn new(shared: Arc<Shared>, ports: bool, budget: usize) -> Self {
        let stock = shared.stock();
        let mut todo = VecDeque::new();
        if stock.services.network {
            todo.extend(shared.settings.clean_floating_ips.then_some(calls::FLOATING_IPS));
            todo.extend(ports.then_some(calls::PORTS));
        }
        Self {
            shared,
            budget,
            todo,
            listing: None,
            deletions: VecDeque::new(),
            deleting: None,
            deleted: BTreeMap::new(),
            exceeded: BTreeMap::new(),
        }
    }

    pub fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        let result = match (input, self.deleting.take(), self.listing.take()) {
            (Input::Start, ..) => Ok(None),
            (Input::Reply(Ok(_)), Some(what), _) => {
                *self.deleted.entry(what).or_default() += 1;
                Ok(None)
            }
            // Somebody was faster, or uses it after all: either way it is not ours to worry about.
            (Input::Reply(Err(CloudError::NotFound | CloudError::Failed { .. })), Some(_), _) => Ok(None),
            (Input::Reply(Ok(Reply::Json(answer))), None, Some((listing, pages))) => self.take(listing, pages, &answer),
            (Input::Reply(Err(error)), ..) => Err(error),
            (input, ..) => Err(failed(format!("{input:?} does not answer a look for what nobody uses"))),
        };
        match result {
            Ok(Some(call)) => Next::Call(call),
            Ok(None) => self.go_on(),
            Err(error) => Next::Failed(error),
        }
    }

    fn take(&mut self, listing: Listing, pages: Pages<Value>, answer: &Value) -> Result<Option<Call>, CloudError> {
        match pages.take_json(answer)? {
            Step::Next(pages, call) => {
                self.listing = Some((listing, pages));
                return Ok(Some(call));
            }
            Step::Complete(entries) if listing.list == calls::PORTS.list => {
                let ports: Vec<Port> = typed(entries, "ports")?;
                let is_of_server = |port: &&Port| {
                    let owner = port.device_owner.as_deref().unwrap_or_default();
                    owner.is_empty() || owner.starts_with("compute:")
                };
                let unused = ports.iter().filter(is_of_server).map(|port| port.id.clone()).collect();
                self.plan("ports", unused);
            }
            Step::Complete(entries) => {
                let floating: Vec<FloatingIp> = typed(entries, "floatingips")?;
                let unused = floating.into_iter().filter(|floating| floating.port_id.is_none());
                self.plan("floatingips", unused.map(|floating| floating.id).collect());
            }
        }
        Ok(None)
    }

    fn plan(&mut self, what: &'static str, unused: Vec<String>) {
        let unused = self.shared.unused_twice(what, unused);
        if unused.len() > self.budget {
            self.exceeded.insert(what, unused.len());
        } else {
            self.deletions.extend(unused.into_iter().map(|id| (what, id)));
        }
    }

    fn go_on(&mut self) -> Next<Call> {
        if let Some((what, id)) = self.deletions.pop_front() {
            self.deleting = Some(what);
            return Next::Call(match what {
                "ports" => calls::delete_port(&id),
                _ => calls::delete_floating_ip(&id),
            });
        }
        if let Some(listing) = self.todo.pop_front() {
            let filters: &'static [_] = if listing.list == calls::PORTS.list { &[("status", "DOWN")] } else { &[] };
            let (pages, call) = Pages::filtered(listing, filters);
            self.listing = Some((listing, pages));
            return Next::Call(call);
        }
        let (deleted, exceeded) = (std::mem::take(&mut self.deleted), std::mem::take(&mut self.exceeded));
        Next::Done(Outcome::Tidied { deleted, exceeded })
    }
}
