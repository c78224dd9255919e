//! Listing of resources that may be left behind, and their deletion.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::azure::api::api_types::{Address, Disk, Image, Interface};
use crate::azure::api::calls::{Call, Kind, Reply};
use crate::azure::api::errors::failed;
use crate::azure::context::ProviderContext;
use crate::azure::jobs::delete::may_end;
use crate::azure::jobs::listing::Pages;
use crate::azure::jobs::operation::{Await, Awaited};
use crate::azure::leaks::{self, ADDRESSES, DISKS, IMAGES, INTERFACES, UPLOAD_DISKS};
use crate::common::unused_listing::{ListUnused, UnusedKinds};
use nodepool_driver::cloud_resource::CloudResource;
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;

/// A part that is reserved or still used is deleted again after this time, for longer than the 180 s of a reservation.
const EARLY_PAUSE: Seconds = Seconds(5.0);
const MAX_EARLY: u32 = 60;

/// The listing of these kinds.
pub fn list(context: Arc<ProviderContext>, kinds: &[&'static str]) -> ListUnused<AzureKinds> {
    ListUnused::new(AzureKinds { context, pages: Pages::new(""), free_interfaces: BTreeSet::new() }, kinds)
}

pub struct AzureKinds {
    context: Arc<ProviderContext>,
    pages: Pages,
    /// Ids of interfaces without a machine, in small letters: addresses that only they use are unused, too.
    free_interfaces: BTreeSet<String>,
}

impl UnusedKinds for AzureKinds {
    type Call = Call;
    type Reply = Reply;

    fn begin(&mut self, kind: &'static str) -> Option<Call> {
        let (pages, call) = Pages::begin(&self.context.scope, leaks::kind_of(kind)?);
        self.pages = pages;
        Some(call)
    }

    fn on_page(
        &mut self,
        kind: &'static str,
        reply: Reply,
        found: &mut Vec<CloudResource>,
    ) -> Result<Option<Call>, CloudError> {
        if let Some(call) = self.pages.add(reply)? {
            return Ok(Some(call));
        }
        let mut add = |name: String, metadata| found.push(CloudResource { kind, id: ExternalId::text(name), metadata });
        match kind {
            INTERFACES => {
                let interfaces: Vec<Interface> = self.pages.read();
                let unused = interfaces.into_iter().filter(|interface| interface.properties.virtual_machine.is_none());
                for interface in unused {
                    self.free_interfaces.insert(interface.id.to_lowercase());
                    add(interface.name, interface.tags);
                }
            }
            ADDRESSES => {
                let addresses: Vec<Address> = self.pages.read();
                let free = &self.free_interfaces;
                let unused = addresses.into_iter().filter(|address| is_unused(address, free));
                unused.for_each(|address| add(address.name, address.tags));
            }
            DISKS | UPLOAD_DISKS => {
                let disks: Vec<Disk> = self.pages.read();
                let is_free = |disk: &Disk| disk.managed_by.as_deref().is_none_or(str::is_empty);
                for disk in disks.into_iter().filter(is_free) {
                    // The disks of machines have no tags of their own. One whose machine is unknown stays.
                    let machine = leaks::machine_of_disk(&disk.name).filter(|_| disk.tags.is_empty());
                    let of_machine = machine.and_then(|machine| {
                        let known = self.context.tags_of(machine);
                        if known.is_none() && kind == DISKS && leaks::node_of_machine(machine).is_some() {
                            self.context.report_unknown_disk(&disk.name);
                        }
                        known.filter(|_| self.context.is_disk_of(&disk, machine))
                    });
                    add(disk.name, of_machine.unwrap_or(disk.tags));
                }
            }
            IMAGES => {
                let images: Vec<Image> = self.pages.read();
                images.into_iter().for_each(|image| add(image.name, image.tags));
            }
            _ => {}
        }
        Ok(None)
    }
}

/// An address names the configuration of its interface: `…/networkInterfaces/NAME/ipConfigurations/NAME`.
fn is_unused(address: &Address, free_interfaces: &BTreeSet<String>) -> bool {
    let Some(configuration) = &address.properties.ip_configuration else { return true };
    let id = configuration.id.to_lowercase();
    id.split_once("/ipconfigurations/").is_some_and(|(interface, _)| free_interfaces.contains(interface))
}

/// Deletes an interface, an address or a disk, and waits until it is gone.
pub struct DeleteUnused {
    context: Arc<ProviderContext>,
    kind: Kind,
    name: String,
    early: u32,
    wait: Option<Await>,
    obstacle: Option<String>,
}

impl StateMachine for DeleteUnused {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (self.wait.take(), input) {
            (None, Input::Start) => Next::Call(self.delete()),
            (Some(mut wait), Input::Reply(reply)) => {
                let awaited = wait.step(reply);
                self.go_on(Some(wait), awaited)
            }
            (None, Input::Reply(Ok(Reply::Answer(answer)))) => {
                let (wait, awaited) = Await::begin(answer);
                self.go_on(wait, awaited)
            }
            (None, Input::Reply(Ok(Reply::Refused(error)))) if error.is_not_found() => Next::Done(Outcome::Deleted),
            (None, Input::Reply(Ok(Reply::Refused(error)))) if may_end(&error) && self.early < MAX_EARLY => {
                self.early += 1;
                self.obstacle = Some(error.text());
                Next::Call(self.delete().after(EARLY_PAUSE))
            }
            (None, Input::Reply(reply)) => match reply.and_then(Reply::answer) {
                Ok(answer) => Next::Failed(failed(format!("unexpected answer {answer:?}"))),
                Err(error) => Next::Failed(error),
            },
            (_, input) => Next::Failed(failed(format!("unexpected {input:?}"))),
        }
    }

    fn label(&self) -> &'static str {
        "deleting unused resource"
    }

    fn obstacle(&self) -> Option<String> {
        self.obstacle.clone()
    }
}

impl DeleteUnused {
    pub fn new(context: Arc<ProviderContext>, kind: Kind, resource: &CloudResource) -> Self {
        Self { context, kind, name: resource.id.to_string(), early: 0, wait: None, obstacle: None }
    }

    fn delete(&self) -> Call {
        self.context.scope.delete(self.kind, &self.name)
    }

    fn go_on(&mut self, wait: Option<Await>, awaited: Awaited) -> Next<Call> {
        match awaited {
            Awaited::Poll(call) => {
                self.wait = wait;
                Next::Call(call)
            }
            Awaited::Ended(Ok(_) | Err(CloudError::NotFound(_))) => Next::Done(Outcome::Deleted),
            Awaited::Ended(Err(error)) => Next::Failed(error),
        }
    }
}
