//! The simulation with its knobs: throttling, and faults before, instead of and after the execution.

use std::time::Duration;

use serde_json::{Value, json};
use simulated_service::server;
use tokio::time::Instant;

use crate::cloud::cloud::Cloud;
use crate::cloud::history::CallRecord;
use crate::faults::codes;
use crate::faults::fault::{FaultKind, Phase};
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

/// Outcome of a received call.
pub enum CallOutcome {
    Execute(Execution),
    Respond(Response),
    /// The connection is closed after this time.
    Disconnect(Duration),
}

/// A call to be executed.
pub struct Execution {
    /// Faults that are applied to its response.
    faults: Vec<FaultKind>,
    /// Error of the operation that it starts.
    failure: Option<ApiError>,
    /// Time at which it was received.
    at: Duration,
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
    pub fn receive(&mut self, call: &Call) -> (Duration, CallOutcome) {
        let at = self.cloud.now;
        let failure = None;
        if call.target == Target::Control {
            return (Duration::ZERO, CallOutcome::Execute(Execution { faults: Vec::new(), failure, at }));
        }
        let Cloud { stats, knobs, .. } = &mut self.cloud;
        stats.count_call(&call.action);
        let mut delay = knobs.latency_ms.of(knobs.seed, stats.calls);
        let (hang, delay_s) = (Duration::from_secs_f64(knobs.hang_s), Duration::from_secs_f64(knobs.delay_s));
        if let Some(response) = self.throttled(call, at) {
            return (delay, CallOutcome::Respond(response));
        }
        let mut execution = Execution { faults: Vec::new(), failure, at };
        for (kind, phase) in self.matching_faults(call) {
            let outcome = match &kind {
                FaultKind::Error { .. } => {
                    let error = kind.error().expect("this kind has an error");
                    if phase == Phase::Operation {
                        execution.failure = Some(error);
                        continue;
                    }
                    CallOutcome::Respond(self.refusal(call, &error, at))
                }
                FaultKind::Html => {
                    let response = Response::html();
                    self.record(call, at, Some(&response));
                    CallOutcome::Respond(response)
                }
                FaultKind::Closed | FaultKind::Hang => {
                    self.record(call, at, None);
                    CallOutcome::Disconnect(if kind == FaultKind::Hang { hang } else { Duration::ZERO })
                }
                FaultKind::Delay => {
                    delay += delay_s;
                    continue;
                }
                FaultKind::LostAnswer | FaultKind::Truncated | FaultKind::Text => {
                    execution.faults.push(kind);
                    continue;
                }
            };
            return (delay, outcome);
        }
        (delay, CallOutcome::Execute(execution))
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

    /// The faults that hit this call.
    fn matching_faults(&mut self, call: &Call) -> Vec<(FaultKind, Phase)> {
        let (faults, hits) = (&self.cloud.knobs.faults, &mut self.cloud.stats.faults_struck);
        hits.resize(faults.len());
        let mut matching = Vec::new();
        for (index, fault) in faults.iter().enumerate().filter(|(_, fault)| fault.matches(call)) {
            if hits.count(index, fault.limits) {
                matching.push((fault.kind.clone(), fault.phase));
            }
        }
        matching
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
    pub fn execute(&mut self, call: &Call, execution: &Execution) -> Option<Response> {
        if call.target == Target::Control {
            return Some(self.control(call));
        }
        self.cloud.planned_failure.clone_from(&execution.failure);
        let result = self.cloud.dispatch(call);
        self.cloud.planned_failure = None;
        let mut response = match result {
            Err(error) => {
                self.cloud.stats.unauthorized += u64::from(error.status == 401);
                self.refusal(call, &error, execution.at)
            }
            Ok(response) => response,
        };
        let is_lost = execution.faults.contains(&FaultKind::LostAnswer);
        if response.code.is_none() || is_lost {
            self.record(call, execution.at, (!is_lost).then_some(&response));
        }
        if execution.faults.contains(&FaultKind::Text) {
            response = Response { status: 200, ..Response::text(200, "this is not JSON\n") };
        }
        if execution.faults.contains(&FaultKind::Truncated) {
            response.body.truncate(response.body.len() / 2);
        }
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
