//! In-memory cloud with its driver, for the tests of the TaskManager.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::driver::{ApiCall, Driver, JobMachine};
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::instance::{Instance, Inventory};
use nodepool_driver::job::{Job, Outcome};
use nodepool_driver::state_machine::{Input, Lane, Next, RateLimits, StateMachine};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;
use tokio::time::Instant;

/// An in-memory cloud. The host name determines the behaviour of a call: `hang`, `slow`, `busy-3`, `always-busy`,
/// `broken` or `panic`.
pub struct Cloud {
    pub state: Arc<Mutex<CloudState>>,
    pub pace: RateLimits,
    pub started_at: Instant,
}

#[derive(Default)]
pub struct CloudState {
    /// Start time in seconds and name of each call.
    pub starts: Vec<(f64, String)>,
    pub running: usize,
    pub max_running: usize,
    /// Instances by name, with the number of listings until each is active.
    pub instances: BTreeMap<String, u32>,
    pub listing_fails: bool,
    pub refusals: u32,
    /// The cloud does not respond.
    pub is_absent: bool,
    /// The cloud refuses creations.
    pub is_full: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    Create(String),
    List,
    Delete(String),
}

pub enum Reply {
    Created(String),
    Listed(Inventory),
    Deleted,
}

impl ApiCall for Call {
    fn key(&self) -> &'static str {
        match self {
            Call::Create(_) => "compute.POST.servers",
            Call::List => "compute.GET.servers",
            Call::Delete(_) => "compute.DELETE.servers",
        }
    }
    fn lane(&self) -> Lane {
        if *self == Call::List { Lane::Read } else { Lane::Change }
    }
    fn deadline(&self) -> Seconds {
        Seconds(30.0)
    }
}

pub fn instance(name: &str) -> Instance {
    Instance::new(ExternalId::text(name))
}

impl Driver for Cloud {
    type Call = Call;
    type Reply = Reply;

    fn facts(&self) -> ProviderFacts {
        ProviderFacts::initial()
    }

    fn rate_limits(&self) -> RateLimits {
        self.pace
    }

    fn begin(&self, job: &Job) -> JobMachine<Self> {
        Box::new(Machine { job: job.clone(), id: None })
    }

    async fn prepare(&self, call: &Call) -> Result<(), CloudError> {
        self.state.lock().unwrap().starts.push((self.started_at.elapsed().as_secs_f64(), format!("before {call:?}")));
        Ok(())
    }

    async fn call(&self, call: Call, _: &CallGuard) -> Result<Reply, CloudError> {
        let name = match &call {
            Call::Create(name) | Call::Delete(name) => name.clone(),
            Call::List => String::from("list"),
        };
        {
            let mut state = self.state.lock().unwrap();
            state.starts.push((self.started_at.elapsed().as_secs_f64(), name.clone()));
            state.running += 1;
            state.max_running = state.max_running.max(state.running);
        }
        match name.as_str() {
            "hang" => std::future::pending().await,
            "slow" => tokio::time::sleep(Duration::from_secs(20)).await,
            "panic" => panic!("a driver with a bug"),
            _ => tokio::time::sleep(Duration::from_secs(1)).await,
        }
        let mut state = self.state.lock().unwrap();
        state.running -= 1;
        if state.is_absent || name == "broken" {
            return Err(CloudError::Outage { detail: "503".to_owned(), may_have_worked: true });
        }
        if state.is_full && matches!(call, Call::Create(_)) {
            return Err(CloudError::Quota("ports".to_owned()));
        }
        let refused = name.strip_prefix("busy-").and_then(|times| times.parse::<u32>().ok()).unwrap_or(0);
        if name == "always-busy" || state.refusals < refused {
            state.refusals += 1;
            return Err(CloudError::Throttled { retry_after: Seconds(5.0) });
        }
        match call {
            Call::Create(name) => {
                state.instances.insert(name.clone(), 3);
                Ok(Reply::Created(name))
            }
            Call::Delete(name) => match state.instances.remove(&name) {
                Some(_) => Ok(Reply::Deleted),
                None => Err(CloudError::not_found("gone")),
            },
            Call::List if state.listing_fails => {
                Err(CloudError::Failed { kind: FailureKind::Unknown, detail: String::from("500") })
            }
            Call::List => {
                state.instances.values_mut().for_each(|listings| *listings = listings.saturating_sub(1));
                let active = state.instances.iter().filter(|(_, listings)| **listings == 0);
                Ok(Reply::Listed(Inventory::new(active.map(|(name, _)| instance(name)).collect())))
            }
        }
    }
}

pub struct Machine {
    job: Job,
    id: Option<ExternalId>,
}

impl StateMachine for Machine {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (input, &self.job) {
            (Input::Reply(Err(error)), _) => Next::Failed(error),
            (Input::Start, Job::Launch(order)) => Next::Call(Call::Create(order.hostname.clone())),
            (Input::Start, Job::Delete(id)) => Next::Call(Call::Delete(id.to_string())),
            (Input::Start, _) => Next::Call(Call::List),
            (Input::Reply(Ok(Reply::Created(name))), _) => {
                self.id = Some(ExternalId::text(name));
                Next::Observe
            }
            (Input::Reply(Ok(Reply::Listed(inventory))), Job::List) => Next::Done(Outcome::Listed(Arc::new(inventory))),
            (Input::Reply(Ok(Reply::Listed(inventory))), _) => {
                let inventory = Arc::new(inventory);
                Next::Done(Outcome::Refreshed(Arc::new(ProviderFacts::initial()), inventory))
            }
            (Input::Reply(Ok(Reply::Deleted)), _) => Next::Done(Outcome::Deleted),
            (Input::Observed(inventory), _) => {
                let active =
                    inventory.instances().iter().find(|instance| Some(&instance.external_id) == self.id.as_ref());
                active.map_or(Next::Observe, |instance| Next::Done(Outcome::Launched(Box::new(instance.clone()))))
            }
        }
    }

    fn external_id(&self) -> Option<&ExternalId> {
        self.id.as_ref()
    }

    fn label(&self) -> &'static str {
        if self.id.is_some() { "booting" } else { "asking" }
    }
}
