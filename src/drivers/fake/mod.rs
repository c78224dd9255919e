//! A cloud in memory, with the configuration of an OpenStack provider: for trying things out, and the driver to copy from.

use std::cell::RefCell;
use std::sync::Arc;

use super::servers::{self, Section};
use super::{ApiCall, Driver};
use crate::model::cloud::{
    CloudError, ExternalId, Facts, FailureKind, Instance, InstanceState, Inventory, Job, LaunchOrder, Outcome, Trouble,
};
use crate::model::config::ProviderConfig;
use crate::model::findings::Findings;
use crate::model::problem::Problem;
use crate::model::quantity::Amounts;
use crate::model::time::Span;
use crate::policy::machine::{InFlight, Input, Lane, Next, Pace, StateMachine};

mod cloud;
pub mod config;

use self::cloud::{Cloud, Order, Seen};

pub struct Fake {
    facts: Facts,
    section: Section,
    provider: String,
    cloud: RefCell<Cloud>,
}

pub fn open(section: &ProviderConfig) -> Result<Fake, Vec<Problem>> {
    let (parts, knobs, mut findings) = read(section);
    findings.problems.retain(Problem::is_error);
    if !findings.problems.is_empty() {
        return Err(findings.problems);
    }
    let mut launching = parts.launching(config::need);
    launching.zones = knobs.zones.clone();
    let facts = Facts { launching: Some(Arc::new(launching)), ..Facts::unseen() };
    let cloud = RefCell::new(Cloud::new(knobs));
    Ok(Fake { facts, section: parts, provider: section.name.to_string(), cloud })
}

/// All that is wrong or odd about a section.
pub fn problems(section: &ProviderConfig) -> Vec<Problem> {
    read(section).2.problems
}

fn read(section: &ProviderConfig) -> (Section, config::Knobs, Findings) {
    let mut findings = Findings::default();
    let parts = servers::section(section, &mut findings);
    let knobs = config::knobs(section, &mut findings);
    for label in parts.labels() {
        if let Err(Trouble::Broken(why) | Trouble::NotReady(why)) = config::need(label) {
            findings.warning(label.at, why, "no node of this label can be launched");
        }
    }
    (parts, knobs, findings)
}

#[derive(Clone, Debug)]
pub enum Call {
    Create(Order),
    Delete(ExternalId),
    List,
}

#[derive(Debug)]
pub enum Reply {
    Created(ExternalId),
    Accepted,
    Listed(Seen),
}

impl ApiCall for Call {
    fn key(&self) -> &'static str {
        match self {
            Call::Create(_) => "compute.POST.servers",
            Call::Delete(_) => "compute.DELETE.servers",
            Call::List => "compute.GET.servers",
        }
    }

    fn lane(&self) -> Lane {
        match self {
            Call::Create(_) | Call::Delete(_) => Lane::Change,
            Call::List => Lane::Look,
        }
    }

    fn deadline(&self) -> Span {
        Span(30.0)
    }
}

impl Driver for Fake {
    type Call = Call;
    type Reply = Reply;
    type Machine = Machine;

    fn facts(&self) -> Facts {
        self.facts.clone()
    }

    fn pace(&self) -> Pace {
        Pace { spacing: self.section.spacing, in_flight: InFlight::Adjustable, observe: Span(0.05) }
    }

    fn begin(&self, job: &Job) -> Machine {
        match job {
            Job::Launch(order) => Machine::launch(order),
            Job::Delete(id) => Machine { step: Step::Delete(id.clone()), external_id: None },
            Job::Survey => {
                Machine { step: Step::Survey(Box::new(self.facts.clone()), self.provider.clone()), external_id: None }
            }
            Job::Inspect(_) | Job::Probe(_) => Machine { step: Step::NoHosts, external_id: None },
        }
    }

    async fn call(&self, call: Call) -> Result<Reply, CloudError> {
        let latency = self.cloud.borrow().latency();
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        let mut cloud = self.cloud.borrow_mut();
        cloud.throttle()?;
        match call {
            Call::Create(order) => {
                let found = cloud.find(&order.name);
                found.map_or_else(|| cloud.create(order), Ok).map(Reply::Created)
            }
            Call::Delete(id) => cloud.delete(&id).map(|()| Reply::Accepted),
            Call::List => Ok(Reply::Listed(cloud.list())),
        }
    }
}

/// One job, written down as its steps.
#[derive(Debug)]
pub struct Machine {
    step: Step,
    external_id: Option<ExternalId>,
}

#[derive(Debug)]
enum Step {
    Create(Order),
    Creating,
    Booting,
    Delete(ExternalId),
    Deleting(ExternalId),
    Going(ExternalId),
    Survey(Box<Facts>, String),
    Surveying(Box<Facts>, String),
    NoHosts,
    Over,
}

impl Machine {
    fn launch(order: &LaunchOrder) -> Self {
        if let Some(id) = &order.found {
            return Self { step: Step::Booting, external_id: Some(id.clone()) };
        }
        let order = Order {
            name: order.hostname.clone(),
            zone: order.zone.clone(),
            metadata: order.metadata.clone(),
            amounts: config::server_needs(),
        };
        Self { step: Step::Create(order), external_id: None }
    }
}

impl StateMachine for Machine {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        let step = std::mem::replace(&mut self.step, Step::Over);
        match (step, input) {
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (Step::Create(order), Input::Start) => {
                self.step = Step::Creating;
                Next::Call(Call::Create(order))
            }
            (Step::Creating, Input::Reply(Ok(Reply::Created(id)))) => {
                self.external_id = Some(id);
                self.step = Step::Booting;
                Next::Observe
            }
            (Step::Booting, Input::Start) => {
                self.step = Step::Booting;
                Next::Observe
            }
            (Step::Booting, Input::Seen(inventory)) => self.booted(inventory),
            (Step::Delete(id), Input::Start) => {
                self.step = Step::Deleting(id.clone());
                Next::Call(Call::Delete(id))
            }
            (Step::Deleting(id), Input::Reply(Ok(Reply::Accepted))) => {
                self.step = Step::Going(id);
                Next::Observe
            }
            (Step::Going(id), Input::Seen(inventory)) => match instance(inventory, &id) {
                Some(_) => {
                    self.step = Step::Going(id);
                    Next::Observe
                }
                None => Next::Done(Outcome::Deleted),
            },
            (Step::Survey(facts, provider), Input::Start) => {
                self.step = Step::Surveying(facts, provider);
                Next::Call(Call::List)
            }
            (Step::Surveying(facts, provider), Input::Reply(Ok(Reply::Listed(seen)))) => {
                let unmanaged = unmanaged(&seen.inventory, &provider);
                let facts = Facts { inventory: seen.inventory, limits: seen.limits, unmanaged, ..*facts };
                Next::Done(Outcome::Surveyed(Arc::new(facts)))
            }
            (Step::NoHosts, Input::Start) => Next::Failed(CloudError::NotFound),
            (step, input) => unreachable!("{input:?} is no answer to {step:?}"),
        }
    }

    fn external_id(&self) -> Option<&ExternalId> {
        self.external_id.as_ref()
    }

    fn label(&self) -> &'static str {
        match self.step {
            Step::Create(_) | Step::Creating => "creating server",
            Step::Booting => "booting",
            Step::Delete(_) | Step::Deleting(_) => "deleting server",
            Step::Going(_) => "waiting until it is gone",
            Step::Survey(..) | Step::Surveying(..) => "listing servers",
            Step::NoHosts | Step::Over => "ended",
        }
    }
}

impl Machine {
    fn booted(&mut self, inventory: &Inventory) -> Next<Call> {
        let found = self.external_id.as_ref().and_then(|id| instance(inventory, id));
        match found.map(|instance| (&instance.state, instance)) {
            Some((InstanceState::Running, instance)) => Next::Done(Outcome::Launched(Box::new(instance.clone()))),
            Some((InstanceState::Failed(fault), _)) => failed(format!("Server in error state: {fault}")),
            Some((InstanceState::Stopping, _)) | None => failed("the server has gone".to_owned()),
            Some((InstanceState::Starting, _)) => {
                self.step = Step::Booting;
                Next::Observe
            }
        }
    }
}

fn failed(detail: String) -> Next<Call> {
    Next::Failed(CloudError::Failed { kind: FailureKind::Status, detail })
}

fn instance<'a>(inventory: &'a Inventory, id: &ExternalId) -> Option<&'a Instance> {
    inventory.instances.iter().find(|instance| instance.external_id == *id)
}

/// What instances of others use.
fn unmanaged(inventory: &Inventory, provider: &str) -> Amounts {
    let is_ours =
        |instance: &&Instance| instance.metadata.get("nodepool_provider_name").is_some_and(|name| name == provider);
    let mut total = Amounts::none();
    inventory.instances.iter().filter(|instance| !is_ours(instance)).for_each(|other| total.add(&other.amounts));
    total
}
