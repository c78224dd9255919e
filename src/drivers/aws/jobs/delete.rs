//! Deletion of a node's instance and then of its host. An instance is gone when a listing that began after its
//! termination does not show it.

use std::sync::Arc;

use crate::aws::api::api_types::{Host, Unreleased};
use crate::aws::api::calls::{self, Call, Reply};
use crate::aws::api::errors::failed;
use crate::aws::context::ProviderContext;
use crate::aws::instances::{AwsId, instance_key};
use nodepool_driver::instance::Inventory;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;

/// An instance that AWS does not know is gone if so many listings lack it.
const UNKNOWN_LISTINGS: u32 = 3;
/// An instance that so many listings show is terminated again.
const LISTINGS_PER_TERMINATION: u32 = 30;
/// Interval between looks at a host that is being released.
const HOST_POLL_INTERVAL: Seconds = Seconds(2.0);
/// A call without a response is repeated after this time.
const REPEAT_PAUSE: Seconds = Seconds(1.0);
/// An occupied host is released again after this time.
const OCCUPIED_PAUSE: Seconds = Seconds(10.0);
/// A host that must not be released yet is released again after this time.
const EARLY_PAUSE: Seconds = Seconds(600.0);

pub struct DeleteInstance {
    context: Arc<ProviderContext>,
    id: AwsId,
    obstacle: Option<String>,
    /// Pause before the next attempt to release a host.
    release_pause: Seconds,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Begin,
    Terminating,
    /// The number of listings since the termination, and how many more must lack the instance. AWS may not know a
    /// new instance yet.
    AwaitingEnd(u32, u32),
    Releasing,
    AwaitingRelease,
    Finished,
}

impl StateMachine for DeleteInstance {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) => match self.id.instance {
                Some(_) => self.terminate(Seconds::ZERO),
                None => self.release(Seconds::ZERO),
            },
            (Step::Terminating, Input::Reply(Ok(reply))) => self.on_terminated(&reply),
            (Step::AwaitingEnd(listings, needed), Input::Observed(inventory)) => {
                self.await_end(listings, needed, inventory)
            }
            (Step::Releasing, Input::Reply(Ok(Reply::Released(hosts)))) => {
                self.on_released(hosts.unsuccessful.item.first())
            }
            (Step::Releasing, Input::Reply(Ok(Reply::Lost(_)))) => self.poll_host(),
            (Step::AwaitingRelease, Input::Reply(Ok(Reply::Hosts(page)))) => {
                self.await_release(page.host_set.item.first())
            }
            (Step::Releasing | Step::AwaitingRelease, Input::Reply(Ok(Reply::Refused(error))))
                if error.code == "InvalidHostID.NotFound" =>
            {
                Next::Done(Outcome::Deleted)
            }
            (_, Input::Reply(Ok(Reply::Refused(error)))) => Next::Failed(error.into_error()),
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (step, input) => Next::Failed(failed(format!("unexpected {input:?} in step {step:?}"))),
        }
    }

    fn label(&self) -> &'static str {
        match self.step {
            Step::Begin => "start",
            Step::Terminating => "start deleting instance",
            Step::AwaitingEnd(..) => "deleting instance",
            Step::Releasing => "start releasing host",
            Step::AwaitingRelease => "releasing host",
            Step::Finished => "complete",
        }
    }

    fn obstacle(&self) -> Option<String> {
        self.obstacle.clone()
    }
}

impl DeleteInstance {
    pub fn new(context: Arc<ProviderContext>, id: &ExternalId) -> Self {
        Self { context, id: AwsId::of(id), obstacle: None, release_pause: OCCUPIED_PAUSE, step: Step::Begin }
    }

    fn terminate(&mut self, delay: Seconds) -> Next<Call> {
        let call = calls::terminate(self.id.instance.as_deref().unwrap_or_default()).after(delay);
        self.call(Step::Terminating, call)
    }

    fn on_terminated(&mut self, reply: &Reply) -> Next<Call> {
        let id = self.id.instance.clone().unwrap_or_default();
        match reply {
            Reply::Terminated(result) => match result.refused.get(&id) {
                Some(error) => Next::Failed(error.clone().into_error()),
                None if result.gone.contains(&id) => self.observe(0, UNKNOWN_LISTINGS),
                None => self.observe(0, 1),
            },
            Reply::Lost(_) => self.terminate(REPEAT_PAUSE),
            reply => Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    fn await_end(&mut self, listings: u32, needed: u32, inventory: &Inventory) -> Next<Call> {
        let id = self.id.instance.clone().unwrap_or_default();
        let ended = self.context.ended(&id);
        let is_terminated = ended.as_ref().is_some_and(|ended| ended.state == "terminated");
        let is_listed = inventory.find(&instance_key(&id)).is_some();
        match ended {
            _ if is_terminated => self.instance_gone(),
            _ if !is_listed && needed <= 1 => self.instance_gone(),
            _ if !is_listed => self.observe(listings + 1, needed - 1),
            // AWS did not know it, and shows it now; or the termination had no effect.
            None if needed > 1 || listings >= LISTINGS_PER_TERMINATION => self.terminate(Seconds::ZERO),
            _ => self.observe(listings + 1, needed),
        }
    }

    fn instance_gone(&mut self) -> Next<Call> {
        match self.id.host {
            Some(_) => self.release(Seconds::ZERO),
            None => Next::Done(Outcome::Deleted),
        }
    }

    fn release(&mut self, delay: Seconds) -> Next<Call> {
        match &self.id.host {
            Some(host) => {
                let call = calls::release_host(host).after(delay);
                self.call(Step::Releasing, call)
            }
            // An id without parts names nothing.
            None => Next::Done(Outcome::Deleted),
        }
    }

    /// A host that was not released is reported in a successful response.
    fn on_released(&mut self, unreleased: Option<&Unreleased>) -> Next<Call> {
        let Some(error) = unreleased.map(|unreleased| &unreleased.error) else {
            self.obstacle = None;
            return self.poll_host();
        };
        if error.code.contains("NotFound") {
            return Next::Done(Outcome::Deleted);
        }
        self.obstacle = Some(format!("the host cannot be released: {}: {}", error.code, error.message));
        let is_occupied = error.code.contains("Occupied") || error.message.contains("occupied");
        if is_occupied {
            return self.release(OCCUPIED_PAUSE);
        }
        // A Mac host may not be released for a day; other refusals end earlier.
        let pause = self.release_pause;
        self.release_pause = Seconds((pause.0 * 2.0).min(EARLY_PAUSE.0));
        self.release(pause)
    }

    fn poll_host(&mut self) -> Next<Call> {
        let call = calls::host(self.id.host.as_deref().unwrap_or_default()).after(HOST_POLL_INTERVAL);
        self.call(Step::AwaitingRelease, call)
    }

    fn await_release(&mut self, host: Option<&Host>) -> Next<Call> {
        match host.map(|host| host.state.as_str()) {
            None | Some("released" | "released-permanent-failure") => Next::Done(Outcome::Deleted),
            // The release was lost, or not accepted.
            Some("available" | "under-assessment" | "permanent-failure") => self.release(REPEAT_PAUSE),
            Some(_) => self.poll_host(),
        }
    }

    fn observe(&mut self, listings: u32, needed: u32) -> Next<Call> {
        self.step = Step::AwaitingEnd(listings, needed);
        Next::Observe
    }

    fn call(&mut self, step: Step, call: Call) -> Next<Call> {
        self.step = step;
        Next::Call(call)
    }
}
