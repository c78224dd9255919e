//! Deletion of a node's floating IP and instance. They are gone when listings that began after their deletion do not
//! show them.

use std::sync::Arc;

use crate::ibmvpc::api::calls::{self, Call, Reply};
use crate::ibmvpc::api::errors::failed;
use crate::ibmvpc::context::ProviderContext;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;
use tracing::warn;

/// So many listings must lack a node's resources, unless an earlier one has shown them: a new one may be missing in the
/// first.
const LISTINGS_WITHOUT: u32 = 3;
/// A resource that so many listings show unchanged is deleted again.
const LISTINGS_PER_DELETION: u32 = 30;
/// Calls for a floating IP without a response, until the instance is deleted before it.
const MAX_LOST: u32 = 10;
/// A call without a response is repeated after this time.
const REPEAT_PAUSE: Seconds = Seconds(1.0);

pub struct DeleteInstance {
    context: Arc<ProviderContext>,
    name: String,
    /// The floating IP and the instance whose deletion was accepted.
    address: Sent,
    instance: Sent,
    /// The interface of the instance, once it was seen.
    interface: Option<String>,
    /// Calls in a row for the address that had no effect.
    lost: u32,
    /// Listings in a row without either.
    without: u32,
    obstacle: Option<String>,
    step: Step,
}

/// The last deletion of one resource.
#[derive(Debug, Default)]
struct Sent {
    /// The id of the resource, and its status when the deletion was sent.
    last: Option<(String, String)>,
    /// Listings since then.
    listings: u32,
}

impl Sent {
    /// Whether the deletion is to be sent now. One that was refused is repeated when the status has changed.
    fn is_due(&mut self, id: &str, status: &str) -> bool {
        self.listings += 1;
        let is_repeated = self.last.as_ref().is_some_and(|(sent, at)| sent == id && at == status);
        status != "deleting" && (!is_repeated || self.listings >= LISTINGS_PER_DELETION)
    }

    fn record(&mut self, id: &str, status: &str) {
        self.last = Some((id.to_owned(), status.to_owned()));
        self.listings = 0;
    }
}

#[derive(Debug)]
enum Step {
    Begin,
    Looking,
    DeletingAddress(String),
    DeletingInstance(String),
    Finished,
}

impl StateMachine for DeleteInstance {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) => match self.context.created(&self.name) {
                // No listing has shown it yet, so it has no floating IP.
                Some(id) => self.delete_instance(id, "created", Seconds::ZERO),
                // The last listing may lack a new floating IP, which is to be deleted first.
                None if self.context.settings.has_public_ipv4() => self.observe(),
                None if self.context.seen(&self.name).is_none() => self.observe(),
                None => self.look(),
            },
            (Step::Looking, Input::Observed(_)) => self.look(),
            (Step::DeletingAddress(id), Input::Reply(Ok(Reply::Lost(error)))) if self.lost < MAX_LOST => {
                self.lost += 1;
                self.obstacle = Some(error);
                let call = calls::delete_floating_ip(&id).after(REPEAT_PAUSE);
                self.call(Step::DeletingAddress(id), call)
            }
            // The instance costs more, and does not wait any longer.
            (Step::DeletingAddress(_), Input::Reply(Ok(Reply::Lost(error)))) => self.keep_address(error),
            (Step::DeletingAddress(_), Input::Reply(Ok(Reply::Refused(error)))) if error.is_denied() => {
                self.keep_address(error.text())
            }
            (Step::DeletingInstance(id), Input::Reply(Ok(Reply::Lost(error)))) => {
                self.obstacle = Some(error);
                self.delete_instance(id, "unknown", REPEAT_PAUSE)
            }
            (Step::DeletingAddress(_), Input::Reply(Ok(reply))) => match self.on_reply(reply) {
                // The instance need not wait for the next listing.
                Next::Observe => self.look(),
                next => next,
            },
            (Step::DeletingInstance(_), Input::Reply(Ok(reply))) => self.on_reply(reply),
            (_, Input::Reply(Ok(Reply::Refused(error)))) => Next::Failed(error.into_error()),
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (step, input) => Next::Failed(failed(format!("unexpected {input:?} in step {step:?}"))),
        }
    }

    fn label(&self) -> &'static str {
        match self.step {
            Step::Begin => "start",
            Step::Looking if self.instance.last.is_some() => "deleting vm",
            Step::Looking => "looking for the instance",
            Step::DeletingAddress(_) => "deleting fip",
            Step::DeletingInstance(_) => "deleting vm",
            Step::Finished => "complete",
        }
    }

    fn obstacle(&self) -> Option<String> {
        self.obstacle.clone()
    }
}

impl DeleteInstance {
    pub fn new(context: Arc<ProviderContext>, id: &ExternalId) -> Self {
        Self {
            context,
            name: id.to_string(),
            address: Sent::default(),
            instance: Sent::default(),
            interface: None,
            lost: 0,
            without: 0,
            obstacle: None,
            step: Step::Begin,
        }
    }

    /// A resource that is pending or starting cannot be deleted. The listings show when it can.
    fn on_reply(&mut self, reply: Reply) -> Next<Call> {
        match reply {
            Reply::Done => {
                self.obstacle = None;
                self.look_further()
            }
            Reply::Refused(error) if error.status.as_u16() == 404 => self.look_further(),
            Reply::Refused(error) if error.is_wrong_state() => {
                self.obstacle = Some(error.text());
                self.observe()
            }
            Reply::Refused(error) => Next::Failed(error.into_error()),
            reply => Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    /// Goes on with the instance. The address is deleted again later.
    fn keep_address(&mut self, problem: String) -> Next<Call> {
        warn!(provider = %self.context.provider, instance = self.name, problem, "cannot delete a floating IP");
        self.obstacle = Some(problem);
        self.lost = 0;
        self.look()
    }

    fn look_further(&mut self) -> Next<Call> {
        self.context.forget_created(&self.name);
        self.observe()
    }

    /// The address is deleted first: without its instance, it would be found only by its name.
    fn look(&mut self) -> Next<Call> {
        let instance = self.context.seen(&self.name);
        if let Some(instance) = &instance {
            self.interface = Some(instance.interface.clone());
        }
        // One that serves another instance was attached by hand.
        let is_own = |target: Option<&str>| target.is_none() || target == self.interface.as_deref();
        let address = self.context.floating_ip(&self.name);
        let address = address.filter(|ip| is_own(ip.target.as_ref().map(|target| target.id.as_str())));
        if instance.is_none() && address.is_none() {
            self.without += 1;
            if self.without < LISTINGS_WITHOUT && !self.were_shown() {
                return self.observe();
            }
            self.context.forget_created(&self.name);
            return Next::Done(Outcome::Deleted);
        }
        self.without = 0;
        if let Some(ip) = address
            && self.address.is_due(&ip.id, &ip.status)
        {
            self.address.record(&ip.id, &ip.status);
            let call = calls::delete_floating_ip(&ip.id);
            return self.call(Step::DeletingAddress(ip.id), call);
        }
        if let Some(instance) = instance
            && self.instance.is_due(&instance.id, &instance.status)
        {
            return self.delete_instance(instance.id, &instance.status, Seconds::ZERO);
        }
        self.observe()
    }

    /// Whether a listing has shown all resources that the node can have.
    fn were_shown(&self) -> bool {
        let has_address = self.address.last.is_some() || !self.context.settings.has_public_ipv4();
        self.interface.is_some() && has_address
    }

    fn delete_instance(&mut self, id: String, status: &str, delay: Seconds) -> Next<Call> {
        self.instance.record(&id, status);
        let call = calls::delete_instance(&id).after(delay);
        self.call(Step::DeletingInstance(id), call)
    }

    fn observe(&mut self) -> Next<Call> {
        self.step = Step::Looking;
        Next::Observe
    }

    fn call(&mut self, step: Step, call: Call) -> Next<Call> {
        self.step = step;
        Next::Call(call)
    }
}
