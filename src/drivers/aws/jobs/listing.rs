//! Listing of all instances of a region, page by page.

use std::sync::Arc;

use crate::aws::api::api_types::Ec2Instance;
use crate::aws::api::calls::{self, Call, Reply};
use crate::aws::api::errors::failed;
use crate::aws::context::ProviderContext;
use crate::aws::instances;
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::records::time::Seconds;

/// An inconsistent listing is begun anew at most so often, after this pause.
const MAX_RESTARTS: u32 = 5;
const RESTART_PAUSE: Seconds = Seconds(1.0);

/// Pages of a listing.
#[derive(Debug, Default)]
pub struct InstancePages {
    instances: Vec<Ec2Instance>,
    restarts: u32,
}

impl InstancePages {
    /// Adds a page. Returns the call for the next one, or all instances after the last one.
    pub fn add(&mut self, reply: Reply) -> Result<Result<Call, Vec<Ec2Instance>>, CloudError> {
        let page = match reply {
            Reply::Instances(page) => page,
            // An instance has ended between two steps of the service.
            Reply::Refused(error) if error.code == "InvalidInstanceID.NotFound" && self.restarts < MAX_RESTARTS => {
                self.restarts += 1;
                self.instances.clear();
                return Ok(Ok(calls::instances(None).after(RESTART_PAUSE)));
            }
            Reply::Refused(error) => return Err(error.into_error()),
            reply => return Err(failed(format!("unexpected reply {reply:?}"))),
        };
        let reservations = page.reservation_set.item.into_iter();
        self.instances.extend(reservations.flat_map(|reservation| reservation.instances_set.item));
        match page.next_token.filter(|token| !token.is_empty()) {
            Some(token) => Ok(Ok(calls::instances(Some(&token)))),
            None => Ok(Err(std::mem::take(&mut self.instances))),
        }
    }
}

pub struct ListInstances {
    context: Arc<ProviderContext>,
    pages: InstancePages,
}

impl StateMachine for ListInstances {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match input {
            Input::Start => Next::Call(calls::instances(None)),
            Input::Reply(Ok(reply)) => match self.pages.add(reply) {
                Ok(Ok(call)) => Next::Call(call),
                Ok(Err(instances)) => {
                    Next::Done(Outcome::Listed(Arc::new(instances::inventory(&self.context, &instances))))
                }
                Err(error) => Next::Failed(error),
            },
            Input::Reply(Err(error)) => Next::Failed(error),
            input @ Input::Observed(_) => Next::Failed(failed(format!("unexpected {input:?}"))),
        }
    }

    fn label(&self) -> &'static str {
        "listing instances"
    }
}

impl ListInstances {
    pub fn new(context: Arc<ProviderContext>) -> Self {
        Self { context, pages: InstancePages::default() }
    }
}
