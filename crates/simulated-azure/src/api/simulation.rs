//! The simulation with its knobs: throttling, and faults before, instead of and after the execution.

use std::time::Duration;

use serde_json::{Value, json};
use simulated_service::effects::{CallOutcome, Effect, Execution, Interruption};
use simulated_service::server;
use tokio::time::Instant;

use crate::cloud::cloud::Cloud;
use crate::cloud::history::CallRecord;
use crate::faults::codes;
use crate::faults::fault::{self, CallRule, Phase};
use crate::options::Options;
use crate::server::call::Call;
use crate::server::response::{ApiError, Response};
use crate::server::target::Target;

pub struct Simulation {
    pub cloud: Cloud,
    start: Instant,
    /// Time by which `/sim/advance` has moved the clock.
    pub skew: Duration,
    /// The URL of the control port.
    pub control: String,
}

/// A call to be executed, and the error of the operation that it starts.
pub struct PlannedExecution {
    execution: Execution,
    failure: Option<ApiError>,
}

impl Simulation {
    pub fn new(options: Options, base: String, control: String) -> Self {
        let base = options.base_url.as_deref().map_or(base, |url| url.trim_end_matches('/').to_owned());
        Self { cloud: Cloud::new(options, base), start: Instant::now(), skew: Duration::ZERO, control }
    }

    /// The content of an authentication file.
    pub fn auth_json(&self) -> Value {
        let Cloud { options, base, .. } = &self.cloud;
        json!({
            "clientId": options.client_id, "clientSecret": options.client_secret, "tenantId": options.tenant,
            "subscriptionId": options.subscription, "activeDirectoryEndpointUrl": base,
            "resourceManagerEndpointUrl": format!("{base}/"),
        })
    }

    pub fn write_auth_file(&self) -> anyhow::Result<()> {
        if let Some(path) = &self.cloud.options.auth_file {
            std::fs::write(path, self.auth_json().to_string())?;
        }
        Ok(())
    }

    /// Counts a call, and returns its latency and outcome.
    pub fn receive(&mut self, call: &Call) -> (Duration, CallOutcome<Response, PlannedExecution>) {
        let at = self.cloud.now;
        let mut execution = Execution::new(at);
        if call.target == Target::Control {
            return (Duration::ZERO, CallOutcome::Execute(PlannedExecution { execution, failure: None }));
        }
        let Cloud { stats, knobs, .. } = &mut self.cloud;
        stats.count_call(&call.action);
        let delay = knobs.latency_ms.of(knobs.seed, stats.calls);
        if let Some(response) = self.throttled(call, at) {
            return (delay, CallOutcome::Respond(response));
        }
        let Cloud { stats, knobs, .. } = &mut self.cloud;
        let rules = stats.faults_struck.strike(&knobs.faults, call);
        let (of_operations, of_calls): (Vec<&CallRule>, Vec<&CallRule>) =
            rules.into_iter().partition(|rule| rule.phase == Phase::Operation);
        let failure = of_operations.last().and_then(|rule| match &rule.effect {
            Effect::Error(words) => Some(fault::error(words)),
            _ => None,
        });
        let hang = Duration::from_secs_f64(knobs.hang_s);
        let (added, interruption) = execution.apply(of_calls.iter().map(|rule| &rule.effect), hang);
        let outcome = match interruption {
            None => CallOutcome::Execute(PlannedExecution { execution, failure }),
            Some(Interruption::Error(words)) => CallOutcome::Respond(self.refusal(call, &fault::error(&words), at)),
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

    /// The 429 of a call that is throttled. Tokens and pages are not those of the Resource Manager.
    fn throttled(&mut self, call: &Call, at: Duration) -> Option<Response> {
        call.subscription.as_ref()?;
        let Cloud { stats, knobs, throttle, forced_throttle, now, .. } = &mut self.cloud;
        let is_forced = forced_throttle.calls > 0 || forced_throttle.until > *now;
        forced_throttle.calls = forced_throttle.calls.saturating_sub(1);
        let seconds = forced_throttle.retry_after_s.filter(|_| is_forced);
        if !is_forced && !throttle.rejects(*now, stats.calls, knobs.throttle_every, knobs.throttle_above_per_s) {
            return None;
        }
        stats.throttled += 1;
        let code = knobs.throttle_code.clone();
        let error = ApiError { status: 429, ..ApiError::new(&code, codes::message(&code)) };
        let mut response = self.refusal(call, &error, at);
        if let Some(seconds) = seconds {
            response.headers.retain(|(name, _)| *name != "Retry-After");
            response = response.with("Retry-After", seconds.to_string());
        }
        Some(response)
    }

    /// The response for an error, which is recorded.
    fn refusal(&mut self, call: &Call, error: &ApiError, at: Duration) -> Response {
        let mut response = Response::error(call, error);
        if error.status == 401 && call.subscription.is_some() {
            let tenant = &self.cloud.options.tenant;
            let challenge = format!(
                "Bearer authorization_uri=\"{}/{tenant}\", error=\"invalid_token\", error_description=\"{}\"",
                self.cloud.base, error.message
            );
            response = response.with("WWW-Authenticate", challenge);
        }
        let seconds = self.cloud.knobs.retry_after_s;
        if matches!(error.status, 429 | 503) && seconds > 0 {
            response = response.with("Retry-After", seconds.to_string());
        }
        self.record(call, at, Some(&response));
        response
    }

    /// Records a call; without a response its connection is closed.
    fn record(&mut self, call: &Call, at: Duration, response: Option<&Response>) {
        let code = response.and_then(|response| response.code.clone());
        if let Some(code) = &code {
            *self.cloud.stats.errors_by_code.entry(code.clone()).or_default() += 1;
        }
        let record = CallRecord {
            at,
            action: call.action.clone(),
            method: call.method.clone(),
            path: call.path.clone(),
            version: call.version().to_owned(),
            body: call.json.clone().map(without_passwords),
            status: response.map_or(0, |response| response.status),
            code,
        };
        let limit = self.cloud.knobs.history_calls;
        self.cloud.history.record_call(record, limit);
    }

    /// Executes a call. `None` means that the response is lost.
    pub fn execute(&mut self, call: &Call, planned: PlannedExecution) -> Option<Response> {
        if call.target == Target::Control {
            return Some(self.control(call));
        }
        let PlannedExecution { execution, failure } = planned;
        self.cloud.planned_failure = failure;
        let result = self.cloud.dispatch(call);
        self.cloud.planned_failure = None;
        let mut response = match result {
            Err(error) => {
                self.cloud.stats.unauthorized += u64::from(error.status == 401);
                self.refusal(call, &error, execution.at)
            }
            Ok(response) => response,
        };
        let is_lost = execution.is_lost;
        if response.code.is_none() || is_lost {
            self.record(call, execution.at, (!is_lost).then_some(&response));
        }
        execution.change(&mut response.status, &mut response.body);
        (!is_lost).then_some(response)
    }

    /// Time since the start, as the simulation sees it.
    fn elapsed(&self) -> Duration {
        self.start.elapsed() + self.skew
    }
}

/// A body for the history.
fn without_passwords(mut body: Value) -> Value {
    if let Some(password) = body.pointer_mut("/properties/osProfile/adminPassword") {
        let length = password.as_str().map_or(0, |text| text.chars().count());
        *password = json!(format!("<{length} characters>"));
    }
    body
}

impl server::Simulation for Simulation {
    fn advance(&mut self) {
        let now = self.elapsed();
        while let Some((due, step)) = self.cloud.timers.pop_due(now) {
            self.cloud.now = self.cloud.now.max(due);
            self.cloud.run(step);
        }
        self.cloud.now = self.cloud.now.max(now);
    }

    fn until_next_timer(&self) -> Option<Duration> {
        self.cloud.timers.next_due().map(|due| due.saturating_sub(self.elapsed()))
    }

    fn refuses_connections(&self) -> bool {
        self.cloud.knobs.refuse_connections
    }
}
