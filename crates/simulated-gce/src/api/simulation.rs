//! The simulation with its knobs: tokens, throttling, and faults before, instead of and after the execution.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use simulated_service::effects::{CallOutcome, Execution, Interruption};
use simulated_service::server;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::faults::codes;
use crate::faults::fault;
use crate::identity::service_account::ServiceAccount;
use crate::options::Options;
use crate::server::call::{Call, Service};
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::history::CallRecord;
use crate::state::project::{Compute, Project};
use crate::state::world::World;

pub struct Simulation {
    pub world: World,
    pub projects: BTreeMap<String, Project>,
    pub account: ServiceAccount,
    start: Instant,
    /// The URL of the API.
    pub base: String,
    /// The URL of the control port.
    pub control: String,
}

/// Number of the first project.
const FIRST_NUMBER: u64 = 1_000_000_000_001;

impl Simulation {
    pub fn new(options: Options, base: String, control: String) -> Self {
        let account = ServiceAccount::new(options.projects.first().map_or("", String::as_str), &base);
        let (world, projects) = (World::new(options), BTreeMap::new());
        let mut simulation = Self { world, projects, account, start: Instant::now(), base, control };
        simulation.add_projects();
        simulation
    }

    fn add_projects(&mut self) {
        for (name, number) in self.world.options.projects.iter().zip(FIRST_NUMBER..) {
            self.projects.insert(name.clone(), Project::new(name, number));
        }
    }

    pub fn reset(&mut self) {
        self.world.reset();
        self.projects.clear();
        self.add_projects();
    }

    pub fn service_account_key(&self) -> Value {
        self.account.key_file()
    }

    /// A project with instances.
    pub fn project(&mut self, name: &str) -> Option<Compute<'_>> {
        let project = self.projects.get_mut(name)?;
        Some(Compute { world: &mut self.world, project })
    }

    /// Counts a call, and returns its latency and outcome.
    pub fn receive(&mut self, call: &Call) -> (Duration, CallOutcome<Response>) {
        let at = self.world.now;
        let mut execution = Execution::new(at);
        if call.service == Service::Control {
            return (Duration::ZERO, CallOutcome::Execute(execution));
        }
        let World { stats, knobs, throttle, now, .. } = &mut self.world;
        stats.count_call(call.action);
        let delay = knobs.latency_ms.of(knobs.seed, stats.calls);
        let hang = Duration::from_secs_f64(knobs.hang_s);
        let is_api = call.service == Service::Compute;
        if is_api && throttle.rejects(*now, stats.calls, knobs.throttle_every, knobs.throttle_above_per_s) {
            stats.throttled += 1;
            let error = throttled(call, knobs.throttle_status);
            return (delay, CallOutcome::Respond(self.refusal(call, &error, at)));
        }
        let rules = stats.faults_struck.strike(&knobs.faults, call);
        let (added, interruption) = execution.apply(rules.iter().map(|rule| &rule.effect), hang);
        let outcome = match interruption {
            None => CallOutcome::Execute(execution),
            Some(Interruption::Error(words)) => {
                CallOutcome::Respond(self.refusal(call, &fault::error(&words, call.service), at))
            }
            Some(Interruption::Html) => {
                let response = Response::html();
                self.record(call, at, Some(&response));
                CallOutcome::Respond(response)
            }
            Some(Interruption::Close(after)) => {
                self.record(call, at, None);
                CallOutcome::Disconnect(after)
            }
        };
        (delay + added, outcome)
    }

    /// The response for an error, which is recorded.
    fn refusal(&mut self, call: &Call, error: &ApiError, at: Duration) -> Response {
        let response = Response::error(call, error);
        self.record(call, at, Some(&response));
        response
    }

    /// Records a call; without a response its connection is closed.
    fn record(&mut self, call: &Call, at: Duration, response: Option<&Response>) {
        let reason = response.and_then(|response| response.reason.clone());
        if let Some(reason) = &reason {
            *self.world.stats.errors_by_reason.entry(reason.clone()).or_default() += 1;
        }
        let is_insert = call.action == "instances.insert";
        let record = CallRecord {
            at,
            method: call.method.clone(),
            path: call.path.clone(),
            query: call.raw_query.clone(),
            action: call.action,
            status: response.map_or(0, |response| response.status),
            reason,
            body: is_insert.then(|| serde_json::from_slice(&call.body).unwrap_or_default()),
        };
        let limit = self.world.knobs.history_calls;
        self.world.history.record_call(record, limit);
    }

    /// Executes a call. `None` means that the response is lost.
    pub fn execute(&mut self, call: &Call, execution: &Execution) -> Option<Response> {
        if call.service == Service::Control {
            return Some(self.control(call));
        }
        let result = self.authenticate(call).and_then(|()| match call.service {
            Service::Token => self.token(call),
            Service::Metadata => self.metadata(call),
            Service::Compute | Service::Control => self.dispatch(call),
        });
        let mut response = match result {
            Err(error) => Response::error(call, &error),
            Ok(response) => response,
        };
        let is_lost = execution.is_lost;
        self.record(call, execution.at, (!is_lost).then_some(&response));
        execution.change(&mut response.status, &mut response.body);
        (!is_lost).then_some(response)
    }

    /// The end of the operation that a call waits for, and the longest time to wait; `None` if the call need not wait.
    pub fn pending_operation(&self, call: &Call) -> Option<(Rc<Notify>, Duration)> {
        if call.action != "zoneOperations.wait" || self.check_token(call).is_err() {
            return None;
        }
        let zone = self.projects.get(&call.project)?.zones.get(call.location.as_str())?;
        let operation = zone.operations.get(&call.name).filter(|operation| !operation.is_done())?;
        Some((operation.done.clone(), Duration::from_secs_f64(self.world.knobs.wait_s)))
    }

    /// Checks the token of a call to the API.
    fn authenticate(&mut self, call: &Call) -> ApiResult<()> {
        let result = self.check_token(call);
        self.world.stats.unauthorized += u64::from(result.is_err());
        result
    }

    fn check_token(&self, call: &Call) -> ApiResult<()> {
        if call.service != Service::Compute || self.world.options.anonymous {
            return Ok(());
        }
        let token = call.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        match token {
            None => Err(ApiError::new("required", codes::message("required"))),
            Some(token) if self.world.tokens.is_valid(token.trim(), self.world.now) => Ok(()),
            Some(_) => Err(ApiError::new("authError", codes::message("authError"))),
        }
    }
}

/// The error of a call above the rate. Its message names the kind of calls, as that of Google does.
fn throttled(call: &Call, status: u16) -> ApiError {
    let message = codes::message("rateLimitExceeded");
    let message = if call.method == "GET" { message } else { message.replace("Read requests", "Mutate requests") };
    ApiError { status, reason: "rateLimitExceeded".to_owned(), message }
}

impl server::Simulation for Simulation {
    fn advance(&mut self) {
        let now = self.start.elapsed();
        while let Some((due, (place, step))) = self.world.timers.pop_due(now) {
            self.world.now = self.world.now.max(due);
            if let Some(mut compute) = self.project(&place.project) {
                compute.run(&place, step);
            }
        }
        self.world.now = self.world.now.max(now);
    }

    fn until_next_timer(&self) -> Option<Duration> {
        self.world.timers.next_due().map(|due| due.saturating_sub(self.start.elapsed()))
    }

    fn refuses_connections(&self) -> bool {
        self.world.knobs.refuse_connections
    }
}
