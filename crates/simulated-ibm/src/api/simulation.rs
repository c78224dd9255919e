//! The simulation with its knobs: tokens, throttling, and faults before, instead of and after the execution.

use std::time::Duration;

use simulated_service::effects::{CallOutcome, Execution, Interruption};
use simulated_service::server;
use tokio::time::Instant;

use crate::faults::fault;
use crate::options::Options;
use crate::server::call::{Call, Service};
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::history::CallRecord;
use crate::state::world::World;

pub struct Simulation {
    pub world: World,
    start: Instant,
    /// The URL of the control port.
    pub control: String,
}

impl Simulation {
    pub fn new(options: Options, base: String, control: String) -> Self {
        Self { world: World::new(options, &base), start: Instant::now(), control }
    }

    /// A file of credentials, as IBM's clients read it.
    pub fn credentials(&self) -> String {
        let (base, apikey) = (&self.world.base, &self.world.options.apikey);
        format!("VPC_AUTH_TYPE=iam\nVPC_AUTH_URL={base}\nVPC_APIKEY={apikey}\nVPC_URL={base}/v1\n")
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
        let is_api = call.service != Service::Iam;
        if is_api && throttle.rejects(*now, stats.calls, knobs.throttle_every, knobs.throttle_above_per_s) {
            stats.throttled += 1;
            let retry_after = Some(knobs.retry_after_s).filter(|seconds| *seconds > 0);
            let error = ApiError { retry_after, ..ApiError::new("too_many_requests") };
            return (delay, CallOutcome::Respond(self.refusal(call, &error, at)));
        }
        let rules = stats.faults_struck.strike(&knobs.faults, call);
        let (added, interruption) = execution.apply(rules.iter().map(|rule| &rule.effect), hang);
        let outcome = match interruption {
            None => CallOutcome::Execute(execution),
            Some(Interruption::Error(words)) => CallOutcome::Respond(self.refusal(call, &fault::error(words), at)),
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
        let trace = self.world.trace();
        let response = Response::error(call, error, &trace);
        self.record(call, at, Some(&response));
        response
    }

    /// Records a call; without a response its connection is closed.
    fn record(&mut self, call: &Call, at: Duration, response: Option<&Response>) {
        let code = response.and_then(|response| response.code.clone());
        if let Some(code) = &code {
            *self.world.stats.errors_by_code.entry(code.clone()).or_default() += 1;
        }
        let is_creation = call.method == "POST" && call.service != Service::Iam;
        let record = CallRecord {
            at,
            method: call.method.clone(),
            path: call.path.clone(),
            query: call.raw_query.clone(),
            action: call.action,
            status: response.map_or(0, |response| response.status),
            code,
            body: is_creation.then(|| serde_json::from_slice(&call.body).unwrap_or_default()),
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
            Service::Vpc => {
                if !call.action.is_empty() {
                    self.world.check_version(call)?;
                }
                self.world.dispatch_vpc(call)
            }
            Service::Iam if call.action.is_empty() => Err(ApiError::new("not_found")),
            Service::Iam => self.world.token(call),
            Service::Resources | Service::Control => self.world.dispatch_resources(call),
        });
        let mut response = match result {
            Ok(response) => response,
            Err(error) => {
                let trace = self.world.trace();
                Response::error(call, &error, &trace)
            }
        };
        let is_lost = execution.is_lost;
        self.record(call, execution.at, (!is_lost).then_some(&response));
        execution.change(&mut response.status, &mut response.body);
        (!is_lost).then_some(response)
    }

    /// Checks the token of a call to the VPC API or to the resource manager.
    fn authenticate(&mut self, call: &Call) -> ApiResult<()> {
        if call.service == Service::Iam || self.world.options.anonymous {
            return Ok(());
        }
        // IBM accepts the scheme in any case.
        let token = call.header("authorization").and_then(|value| value.split_once(' '));
        let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
        if token.is_some_and(|token| self.world.tokens.is_valid(token, self.world.now)) {
            return Ok(());
        }
        self.world.stats.unauthorized += 1;
        Err(ApiError::new("not_authorized"))
    }
}

impl server::Simulation for Simulation {
    fn advance(&mut self) {
        let now = self.start.elapsed();
        while let Some((due, step)) = self.world.timers.pop_due(now) {
            self.world.now = self.world.now.max(due);
            self.world.run(step);
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
