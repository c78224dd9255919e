//! Listing of all instances and floating IPs of a region, page by page.

use std::sync::Arc;

use crate::ibmvpc::api::api_types::{FloatingIp, VpcInstance};
use crate::ibmvpc::api::calls::{self, Call, Reply};
use crate::ibmvpc::api::errors::failed;
use crate::ibmvpc::context::ProviderContext;
use crate::ibmvpc::instances;
use nodepool_driver::error::CloudError;
use nodepool_driver::instance::Inventory;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};

/// Pages of a listing. Instances come first: an address that is attached meanwhile has its instance.
#[derive(Debug, Default)]
pub struct InventoryPages {
    instances: Vec<VpcInstance>,
    floating_ips: Vec<FloatingIp>,
}

impl InventoryPages {
    pub fn first() -> Call {
        calls::instances(None)
    }

    /// Adds a page. Returns the call for the next one; `None` after the last one.
    pub fn add(&mut self, reply: Reply) -> Result<Option<Call>, CloudError> {
        match reply {
            Reply::Instances(page) => {
                self.instances.extend(page.items);
                Ok(Some(match page.next {
                    Some(next) => calls::instances(Some(&next)),
                    None => calls::floating_ips(None),
                }))
            }
            Reply::FloatingIps(page) => {
                self.floating_ips.extend(page.items);
                Ok(page.next.map(|next| calls::floating_ips(Some(&next))))
            }
            Reply::Refused(error) => Err(error.into_error()),
            reply => Err(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    pub fn inventory(&self, context: &ProviderContext) -> Inventory {
        instances::inventory(context, &self.instances, &self.floating_ips)
    }
}

pub struct ListInstances {
    context: Arc<ProviderContext>,
    pages: InventoryPages,
}

impl StateMachine for ListInstances {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match input {
            Input::Start => Next::Call(InventoryPages::first()),
            Input::Reply(Ok(reply)) => match self.pages.add(reply) {
                Ok(Some(call)) => Next::Call(call),
                Ok(None) => Next::Done(Outcome::Listed(Arc::new(self.pages.inventory(&self.context)))),
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
        Self { context, pages: InventoryPages::default() }
    }
}
