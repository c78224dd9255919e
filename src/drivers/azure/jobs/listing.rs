//! One look at the cloud for all state machines that wait: machines, and their parts if a machine waits for these.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::azure::api::api_types::{self, ListPage, Machine};
use crate::azure::api::calls::{self, Call, Kind, Reply, Scope};
use crate::azure::api::errors::failed;
use crate::azure::context::{Parts, ProviderContext, WaitKind};
use crate::azure::instances::{self, Found};
use crate::common::tolerant_json;
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};

/// Pages of one list.
#[derive(Debug)]
pub struct Pages {
    key: &'static str,
    values: Vec<Box<RawValue>>,
    links: BTreeSet<String>,
}

impl Pages {
    pub fn begin(scope: &Scope, kind: Kind) -> (Self, Call) {
        (Self::new(kind.list_key()), scope.list(kind))
    }

    pub fn new(key: &'static str) -> Self {
        Self { key, values: Vec::new(), links: BTreeSet::new() }
    }

    /// Adds a page. Returns the call for the next one; `None` after the last one.
    pub fn add(&mut self, reply: Reply) -> Result<Option<Call>, CloudError> {
        let page: ListPage = reply.answer()?.read()?;
        self.values.extend(page.value);
        match page.next_link.filter(|link| !link.is_empty()) {
            Some(link) if self.links.contains(&link) => Err(failed("the listing repeats a page")),
            Some(link) => {
                let call = calls::next_page(self.key, &link);
                self.links.insert(link);
                Ok(Some(call))
            }
            None => Ok(None),
        }
    }

    /// The elements of all pages.
    pub fn read<T: DeserializeOwned>(&mut self) -> Vec<T> {
        tolerant_json::read_elements(self.key, &std::mem::take(&mut self.values), api_types::ESSENTIAL)
    }
}

/// A look at machines and, if they are needed, interfaces, addresses and disks.
pub struct Look {
    context: Arc<ProviderContext>,
    number: u64,
    kind: Kind,
    pages: Pages,
    found: Found,
    /// Whether the parts of machines that no longer exist are waited for.
    reads_parts: bool,
}

impl Look {
    pub fn begin(context: Arc<ProviderContext>) -> (Self, Call) {
        let number = context.begin_listing();
        let (pages, call) = Pages::begin(&context.scope, Kind::Machine);
        (Self { context, number, kind: Kind::Machine, pages, found: Found::default(), reads_parts: false }, call)
    }

    /// Adds a page. Returns the next call, or `None` at the end. Only deletions read disks, so a refused list of these
    /// holds up nothing else.
    pub fn add(&mut self, reply: Reply) -> Result<Option<Call>, CloudError> {
        match self.pages.add(reply) {
            Ok(Some(call)) => return Ok(Some(call)),
            Ok(None) => {}
            Err(error) if self.kind == Kind::Disk => {
                self.context.record_parts(Err(error.to_string()));
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        let next = match self.kind {
            Kind::Machine => {
                self.found.machines = self.pages.read();
                self.reads_parts = self.context.are_parts_waited_for();
                let needs = self.reads_parts || self.found.machines.iter().any(|machine| self.needs_addresses(machine));
                needs.then_some(Kind::Interface)
            }
            Kind::Interface => {
                self.found.interfaces = self.pages.read();
                let configurations =
                    self.found.interfaces.iter().flat_map(|interface| &interface.properties.ip_configurations);
                let has_public =
                    configurations.into_iter().any(|configuration| configuration.properties.public_address.is_some());
                (has_public || self.reads_parts).then_some(Kind::Address)
            }
            Kind::Address => {
                self.found.addresses = self.pages.read();
                self.reads_parts.then_some(Kind::Disk)
            }
            Kind::Disk | Kind::Image => {
                let disks = self.pages.read();
                let Found { interfaces, addresses, .. } = &self.found;
                self.context.record_parts(Ok(Parts {
                    listing: self.number,
                    interfaces: Arc::new(interfaces.clone()),
                    addresses: Arc::new(addresses.clone()),
                    disks: Arc::new(disks),
                }));
                None
            }
        };
        Ok(next.map(|kind| {
            self.kind = kind;
            let (pages, call) = Pages::begin(&self.context.scope, kind);
            self.pages = pages;
            call
        }))
    }

    /// A launch waits for the addresses of this machine.
    fn needs_addresses(&self, machine: &Machine) -> bool {
        machine.properties.provisioning_state == "Succeeded"
            && self.context.is_waited_for(&machine.name, WaitKind::Addresses)
    }

    pub fn found(&self) -> &Found {
        &self.found
    }
}

pub struct ListInstances {
    context: Arc<ProviderContext>,
    look: Option<Look>,
}

impl StateMachine for ListInstances {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (input, &mut self.look) {
            (Input::Start, look) => {
                let (begun, call) = Look::begin(self.context.clone());
                *look = Some(begun);
                Next::Call(call)
            }
            (Input::Reply(Ok(reply)), Some(look)) => match look.add(reply) {
                Ok(Some(call)) => Next::Call(call),
                Ok(None) => {
                    let inventory = instances::inventory(&self.context, look.found());
                    Next::Done(Outcome::Listed(Arc::new(inventory)))
                }
                Err(error) => Next::Failed(error),
            },
            (Input::Reply(Err(error)), _) => Next::Failed(error),
            (input, _) => Next::Failed(failed(format!("unexpected {input:?}"))),
        }
    }

    fn label(&self) -> &'static str {
        "listing instances"
    }
}

impl ListInstances {
    pub fn new(context: Arc<ProviderContext>) -> Self {
        Self { context, look: None }
    }
}
