//! A minimal driver with its own state machines, kept as documentation of what `SimpleAdapter` hides.
//!
//! `config.rs` reads the section, `cloud.rs` replaces a client of the cloud's API, `create.rs` is the state machine of
//! a launch. This file contains the calls as data, and the `Driver`.

use std::cell::RefCell;
use std::sync::Arc;

use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::driver::{ApiCall, Driver, JobMachine};
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::instance::{Instance, Inventory};
use nodepool_driver::job::{Job, LaunchOrder, Outcome};
use nodepool_driver::state_machine::{InFlightLimit, Lane, OneCall, REFRESH_INTERVAL, RateLimits, Spacing};
use nodepool_model::config::ProviderConfig;
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::records::ids::{ExternalId, ProviderName};
use nodepool_model::records::time::Seconds;
use python_yaml::diagnostics::Diagnostic;

mod cloud;
mod config;
mod create;

use crate::example::cloud::{ExampleCloud, VmOrder};
use crate::example::config::Settings;
use crate::example::create::CreateVm;

pub struct Example {
    provider: ProviderName,
    settings: Settings,
    facts: ProviderFacts,
    cloud: RefCell<ExampleCloud>,
}

pub fn open(section: &ProviderConfig) -> Result<Example, Vec<Diagnostic>> {
    let (settings, mut diagnostics) = read(section);
    diagnostics.items.retain(Diagnostic::is_error);
    if !diagnostics.items.is_empty() {
        return Err(diagnostics.items);
    }
    let facts = ProviderFacts { launch_config: Some(Arc::new(settings.launching.clone())), ..ProviderFacts::initial() };
    Ok(Example { provider: section.name.clone(), settings, facts, cloud: RefCell::default() })
}

/// Errors and warnings of a section.
pub fn diagnostics(section: &ProviderConfig) -> Vec<Diagnostic> {
    read(section).1.items
}

fn read(section: &ProviderConfig) -> (Settings, Diagnostics) {
    let mut diagnostics = Diagnostics::default();
    (config::read(section, &mut diagnostics), diagnostics)
}

/// Every request that this driver makes.
#[derive(Clone, Debug)]
pub enum Call {
    Create(Arc<VmOrder>),
    Delete(ExternalId),
    List,
}

#[derive(Debug)]
pub enum Reply {
    Accepted,
    Listed(Vec<Instance>),
}

impl ApiCall for Call {
    fn key(&self) -> &'static str {
        match self {
            Call::Create(_) => "vm.create",
            Call::Delete(_) => "vm.delete",
            Call::List => "vm.list",
        }
    }

    fn lane(&self) -> Lane {
        match self {
            Call::Create(_) | Call::Delete(_) => Lane::Change,
            Call::List => Lane::Read,
        }
    }

    fn deadline(&self) -> Seconds {
        Seconds(60.0)
    }
}

impl Driver for Example {
    type Call = Call;
    type Reply = Reply;

    fn facts(&self) -> ProviderFacts {
        self.facts.clone()
    }

    fn rate_limits(&self) -> RateLimits {
        RateLimits {
            spacing: Spacing::Shared(self.settings.spacing),
            in_flight: InFlightLimit::Configurable,
            listing_delay: Seconds(1.0),
            refresh: Some(REFRESH_INTERVAL),
        }
    }

    fn begin(&self, job: &Job) -> JobMachine<Self> {
        Box::new(match job {
            Job::Launch(order) => match (self.vm_order(order), &order.prior_instance) {
                (Ok(vm), None) => return Box::new(CreateVm::new(vm)),
                (Ok(vm), Some(found)) => return Box::new(CreateVm::resume(vm, found.clone())),
                (Err(error), _) => OneCall::finished(Err(error)),
            },
            Job::Delete(id) => OneCall::new("deleting vm", Call::Delete(id.clone()), |_| Ok(Outcome::Deleted)),
            Job::List | Job::ListServerIds => {
                OneCall::new("listing vms", Call::List, |reply| Ok(Outcome::Listed(Arc::new(inventory(reply)))))
            }
            Job::Refresh => {
                let (facts, provider) = (self.facts(), self.provider.clone());
                OneCall::new("refreshing", Call::List, move |reply| {
                    let inventory = inventory(reply);
                    let facts = ProviderFacts { unmanaged: inventory.used_by_others(&provider), ..facts };
                    Ok(Outcome::Refreshed(Arc::new(facts), Arc::new(inventory)))
                })
            }
            // All resources of this cloud have metadata; it has no consoles, no images and no static hosts.
            Job::ListUnused(_)
            | Job::DeleteUnused(_)
            | Job::Console(_)
            | Job::Upload(_)
            | Job::DeleteImage(_)
            | Job::ListImages
            | Job::Inspect(_)
            | Job::Probe(_) => OneCall::unsupported(),
        })
    }

    async fn call(&self, call: Call, _: &CallGuard) -> Result<Reply, CloudError> {
        let mut cloud = self.cloud.borrow_mut();
        match call {
            Call::Create(order) => cloud.create(order),
            Call::Delete(id) => cloud.delete(&id)?,
            Call::List => return Ok(Reply::Listed(cloud.list())),
        }
        Ok(Reply::Accepted)
    }
}

impl Example {
    fn vm_order(&self, order: &LaunchOrder) -> Result<VmOrder, CloudError> {
        let kind = self.settings.vms.get(&(order.pool.clone(), order.label.clone()));
        let unknown = || CloudError::Denied(format!("pool {} has no label {}", order.pool, order.label));
        Ok(VmOrder {
            name: order.hostname.clone(),
            project: self.settings.project.clone(),
            region: self.settings.region.clone(),
            kind: kind.ok_or_else(unknown)?.clone(),
            metadata: order.metadata.clone(),
        })
    }
}

fn inventory(reply: Reply) -> Inventory {
    match reply {
        Reply::Listed(vms) => Inventory::new(vms),
        Reply::Accepted => unreachable!("the reply to a list is a list"),
    }
}
