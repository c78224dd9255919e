//! Deletion of a node's machine and of everything that was created with it. Parts that Azure leaves are deleted by
//! name.

use std::sync::Arc;

use crate::azure::api::api_types::{Machine, Resource};
use crate::azure::api::calls::{Call, Kind, Reply};
use crate::azure::api::errors::{ApiError, failed};
use crate::azure::context::{ProviderContext, WaitKind, Waits};
use crate::azure::leaks;
use crate::azure::request_body::CREATION;
use nodepool_driver::error::CloudError;
use nodepool_driver::instance::{InstanceState, Inventory};
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;
use tracing::warn;

const REPEAT_PAUSE: Seconds = Seconds(2.0);
/// A machine that so many listings show is deleted again.
const LOOKS_PER_DELETION: u32 = 120;
/// Looks in which an accepted deletion may have had no effect.
const LOOKS_UNTIL_STOPPING: u32 = 10;
/// Looks in which Azure may delete the parts of a machine.
const LOOKS_FOR_PARTS: u32 = 3;

pub struct DeleteInstance {
    context: Arc<ProviderContext>,
    name: String,
    waits: Option<Waits>,
    /// The number of the last listing that began before what is waited for.
    since: u64,
    looks: u32,
    obstacle: Option<String>,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Begin,
    /// The machine is not known yet: it may belong to others.
    Reading,
    Deleting,
    AwaitingEnd,
    AwaitingParts,
    DeletingPart,
    Finished,
}

impl StateMachine for DeleteInstance {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) if self.context.has_seen(&self.name) => self.delete(Seconds::ZERO),
            (Step::Begin, Input::Start) => {
                let call = self.context.scope.get(Kind::Machine, &self.name);
                self.call(Step::Reading, call)
            }
            (Step::Reading, Input::Reply(Ok(reply))) => self.on_read(reply),
            (Step::Deleting, Input::Reply(Ok(reply))) => self.on_deleted(reply),
            (Step::Deleting, Input::Reply(Err(CloudError::Deadline))) => self.delete(REPEAT_PAUSE),
            (Step::AwaitingEnd, Input::Observed(inventory)) => self.await_end(inventory),
            (Step::AwaitingParts, Input::Observed(inventory)) => self.await_parts(inventory),
            (Step::DeletingPart, Input::Reply(Ok(reply))) => self.on_part_deleted(reply),
            (Step::DeletingPart, Input::Reply(Err(CloudError::Deadline))) => self.observe_parts(),
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (step, input) => Next::Failed(failed(format!("unexpected {input:?} in step {step:?}"))),
        }
    }

    fn label(&self) -> &'static str {
        match self.step {
            Step::Begin | Step::Reading => "start",
            Step::Deleting | Step::AwaitingEnd => "deleting vm",
            Step::AwaitingParts | Step::DeletingPart => "deleting its parts",
            Step::Finished => "complete",
        }
    }

    fn obstacle(&self) -> Option<String> {
        self.obstacle.clone()
    }
}

impl DeleteInstance {
    pub fn new(context: Arc<ProviderContext>, id: &ExternalId) -> Self {
        let name = id.to_string();
        Self { context, name, waits: None, since: 0, looks: 0, obstacle: None, step: Step::Begin }
    }

    fn on_read(&mut self, reply: Reply) -> Next<Call> {
        let machine: Machine = match reply {
            Reply::Refused(error) if error.is_not_found() => {
                let resource_group = &self.context.settings.group;
                warn!(provider = %self.context.provider, resource_group, machine = self.name, "there is no such machine");
                return self.machine_gone();
            }
            reply => match reply.answer().and_then(|answer| answer.read()) {
                Ok(machine) => machine,
                Err(error) => return Next::Failed(error),
            },
        };
        self.context.record_machines(&[machine]);
        if self.context.is_foreign(&self.name) || !self.context.has_seen(&self.name) {
            let text = format!("no machine {} of provider {}", self.name, self.context.provider);
            return Next::Failed(CloudError::not_found(text));
        }
        self.delete(Seconds::ZERO)
    }

    fn delete(&mut self, delay: Seconds) -> Next<Call> {
        let call = self.context.scope.delete(Kind::Machine, &self.name).after(delay);
        self.call(Step::Deleting, call)
    }

    fn on_deleted(&mut self, reply: Reply) -> Next<Call> {
        match reply {
            Reply::Answer(_) => {
                self.obstacle = None;
                self.observe_end()
            }
            Reply::Refused(error) if error.is_not_found() => self.observe_end(),
            Reply::Refused(error) if error.is_conflict() => {
                self.obstacle = Some(error.text());
                self.delete(REPEAT_PAUSE)
            }
            Reply::Lost(error) => {
                self.obstacle = Some(error);
                self.delete(REPEAT_PAUSE)
            }
            Reply::Refused(error) => Next::Failed(error.into_error()),
            reply => Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    fn observe_end(&mut self) -> Next<Call> {
        self.looks = 0;
        // The same look may show that the parts are gone, too.
        self.wait_for_parts();
        self.step = Step::AwaitingEnd;
        Next::Observe
    }

    fn await_end(&mut self, inventory: &Inventory) -> Next<Call> {
        self.looks += 1;
        match inventory.find(&ExternalId::text(&self.name)).map(|instance| &instance.state) {
            None => self.await_parts(inventory),
            // The deletion itself has failed.
            Some(InstanceState::Failed(text)) => {
                self.obstacle = Some(text.clone());
                self.delete(REPEAT_PAUSE)
            }
            Some(InstanceState::Stopping) if self.looks >= LOOKS_PER_DELETION => self.delete(Seconds::ZERO),
            Some(InstanceState::Running | InstanceState::Starting) if self.looks >= LOOKS_UNTIL_STOPPING => {
                self.obstacle = Some("the deletion had no effect yet, and is repeated".to_owned());
                self.delete(Seconds::ZERO)
            }
            Some(_) => {
                self.step = Step::AwaitingEnd;
                Next::Observe
            }
        }
    }

    fn machine_gone(&mut self) -> Next<Call> {
        self.wait_for_parts();
        self.observe_parts()
    }

    fn wait_for_parts(&mut self) {
        if self.waits.is_none() {
            self.waits = Some(Waits::new(&self.context, &self.name, WaitKind::Parts));
        }
        self.since = self.context.listings();
        self.looks = 0;
    }

    fn observe_parts(&mut self) -> Next<Call> {
        self.since = self.context.listings();
        self.step = Step::AwaitingParts;
        Next::Observe
    }

    fn await_parts(&mut self, inventory: &Inventory) -> Next<Call> {
        if inventory.find(&ExternalId::text(&self.name)).is_some() {
            // It was created late.
            return self.delete(Seconds::ZERO);
        }
        // An older listing says nothing about what has been deleted since.
        if self.context.parts().listing <= self.since {
            self.obstacle = self.context.parts_error().or(self.obstacle.take());
            self.step = Step::AwaitingParts;
            return Next::Observe;
        }
        self.looks += 1;
        let Some((kind, part)) = self.remaining_part() else {
            self.waits = None;
            return Next::Done(Outcome::Deleted);
        };
        if self.looks <= LOOKS_FOR_PARTS {
            return self.observe_parts();
        }
        let call = self.context.scope.delete(kind, &part);
        self.call(Step::DeletingPart, call)
    }

    /// The first part that still exists, in the order of deletion.
    fn remaining_part(&self) -> Option<(Kind, String)> {
        let parts = self.context.parts();
        let is_part = |name: &str, rest: &str| {
            let of_machine = name.get(..self.name.len()).filter(|start| start.eq_ignore_ascii_case(&self.name));
            of_machine.is_some() && name[self.name.len()..].starts_with(rest)
        };
        let interface = parts
            .interfaces
            .iter()
            .find(|part| self.is_own(part) && is_part(&part.name, "-nic"))
            .map(|part| (Kind::Interface, part.name.clone()));
        let address = || {
            let is_address = |name: &str| is_part(name, "-v4-ip") || is_part(name, "-v6-ip");
            let found = parts.addresses.iter().find(|part| self.is_own(part) && is_address(&part.name));
            found.map(|part| (Kind::Address, part.name.clone()))
        };
        // Disks have no tags, so only those of a machine with our tags are deleted.
        let disk = || {
            let found = parts.disks.iter().find(|disk| self.context.is_disk_of(disk, &self.name));
            found.map(|disk| (Kind::Disk, disk.name.clone()))
        };
        interface.or_else(address).or_else(disk)
    }

    /// Whether a part has the tags of this machine.
    fn is_own<P: Default>(&self, part: &Resource<P>) -> bool {
        let mark = self.context.tags_of(&self.name).and_then(|mut tags| tags.remove(CREATION));
        let node = part.node(self.context.provider.as_str());
        node.is_some()
            && node == leaks::node_of_machine(&self.name)
            && mark.is_none_or(|mark| part.tags.get(CREATION) == Some(&mark))
    }

    fn on_part_deleted(&mut self, reply: Reply) -> Next<Call> {
        match reply {
            Reply::Refused(error) if may_end(&error) => self.obstacle = Some(error.text()),
            Reply::Refused(error) => return Next::Failed(error.into_error()),
            _ => self.obstacle = None,
        }
        self.looks = 0;
        self.observe_parts()
    }

    fn call(&mut self, step: Step, call: Call) -> Next<Call> {
        self.step = step;
        Next::Call(call)
    }
}

/// Whether a refused deletion of a part is only early: the part is reserved, or another one still uses it.
pub fn may_end(error: &ApiError) -> bool {
    error.is_reserved()
        || error.is_conflict()
        || error.is_not_found()
        || matches!(error.code.as_str(), "NicInUse" | "PublicIPAddressCannotBeDeleted" | "OperationNotAllowed")
}
