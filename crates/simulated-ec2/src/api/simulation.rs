//! The simulation with its knobs: credentials, throttling, and faults before, instead of and after the execution.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::NaiveDateTime;
use simulated_service::effects::{CallOutcome, Execution, Interruption};
use simulated_service::server;
use tokio::time::Instant;

use crate::faults::codes;
use crate::faults::fault;
use crate::options::Options;
use crate::region::history::CallRecord;
use crate::region::region::{Ec2, Region};
use crate::region::world::World;
use crate::server::call::{Call, Service};
use crate::server::response::{ApiError, ApiResult, Response};
use crate::server::signature::{Signature, has_other_body};

pub struct Simulation {
    pub world: World,
    pub regions: BTreeMap<String, Region>,
    start: Instant,
    /// The URL of the API.
    pub base: String,
    /// The URL of the control port.
    pub control: String,
}

/// Maximum difference between the clocks of client and server.
const MAX_SKEW_S: i64 = 900;

impl Simulation {
    pub fn new(options: Options, base: String, control: String) -> Self {
        let mut simulation =
            Self { world: World::new(options), regions: BTreeMap::new(), start: Instant::now(), base, control };
        let region = simulation.world.options.region.clone();
        simulation.region(&region);
        simulation
    }

    /// A region, which exists from its first call on.
    pub fn region(&mut self, name: &str) -> Ec2<'_> {
        let world = &mut self.world;
        let region = self.regions.entry(name.to_owned()).or_insert_with(|| Region::new(name, &world.options));
        Ec2 { world, region }
    }

    pub fn reset(&mut self) {
        self.world.reset();
        self.regions.clear();
        let region = self.world.options.region.clone();
        self.region(&region);
    }

    /// Counts a call, and returns its latency and outcome.
    pub fn receive(&mut self, call: &Call) -> (Duration, CallOutcome<Response>) {
        let at = self.world.now;
        let mut execution = Execution::new(at);
        if call.service == Service::Control {
            return (Duration::ZERO, CallOutcome::Execute(execution));
        }
        let World { stats, knobs, throttle, now, .. } = &mut self.world;
        stats.count_call(call.service.name(), &call.action);
        let delay = knobs.latency_ms.of(knobs.seed, stats.calls);
        let hang = Duration::from_secs_f64(knobs.hang_s);
        if throttle.rejects(*now, stats.calls, knobs.throttle_every, knobs.throttle_above_per_s) {
            stats.throttled += 1;
            let code = codes::throttled(call.service);
            let response = self.refusal(call, &ApiError::new(code, codes::message(code)), at);
            return (delay, CallOutcome::Respond(response));
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
        let id = self.world.request_id();
        let response = Response::error(call, error, &id);
        self.record(call, at, Some(&response));
        response
    }

    /// Records a call; without a response its connection is closed.
    fn record(&mut self, call: &Call, at: Duration, response: Option<&Response>) {
        let code = response.and_then(|response| response.code.clone());
        if let Some(code) = &code {
            *self.world.stats.errors_by_code.entry(code.clone()).or_default() += 1;
        }
        let record = CallRecord {
            at,
            service: call.service.name(),
            action: call.action.clone(),
            region: call.region.clone(),
            access_key: call.signature.as_ref().map(|signature| signature.access_key.clone()).unwrap_or_default(),
            status: response.map_or(0, |response| response.status),
            code,
        };
        let limit = self.world.knobs.history_calls;
        self.world.history.record_call(record, limit);
    }

    /// Executes a call. `None` means that the response is lost.
    pub fn execute(&mut self, call: &Call, execution: &Execution) -> Option<Response> {
        if call.service == Service::Control {
            return Some(self.control(call));
        }
        let result = self.authenticate(call).and_then(|()| self.run(call));
        let mut response = match result {
            Err(error) => self.refusal(call, &error, execution.at),
            Ok(response) => response,
        };
        let is_lost = execution.is_lost;
        if response.code.is_none() || is_lost {
            self.record(call, execution.at, (!is_lost).then_some(&response));
        }
        execution.change(&mut response.status, &mut response.body);
        (!is_lost).then_some(response)
    }

    fn run(&mut self, call: &Call) -> ApiResult<Response> {
        match call.service {
            Service::Ec2 => self.region(&call.region).execute(call),
            Service::Ebs => self.region(&call.region).ebs(call),
            Service::S3 => self.world.s3(call),
            Service::Quotas => self.world.service_quotas(call),
            Service::Sts => self.world.sts(call),
            Service::Metadata => Ok(self.world.metadata(call)),
            Service::Control => Ok(self.control(call)),
        }
    }

    /// Checks access key, session token, time and signature.
    fn authenticate(&mut self, call: &Call) -> ApiResult<()> {
        if call.service == Service::Metadata || call.action == "AssumeRoleWithWebIdentity" {
            return Ok(());
        }
        let result = match &call.signature {
            Some(signature) => self.check_signature(call, signature),
            None => Err(refused(call.service, "MissingAuthenticationToken", "AccessDenied", "the call is not signed")),
        };
        if result.is_err() {
            self.world.stats.unauthorized += 1;
        }
        result
    }

    fn check_signature(&mut self, call: &Call, signature: &Signature) -> ApiResult<()> {
        let World { options, knobs, credentials, signing_keys, now, started, .. } = &mut self.world;
        let secret = match credentials.session(&signature.access_key) {
            Some(session) if signature.token.as_deref() != Some(&session.token) => {
                return Err(refused(call.service, "AuthFailure", "InvalidToken", "the session token is not valid"));
            }
            Some(session) if session.expires <= *now => {
                return Err(match call.service {
                    Service::Ec2 => ApiError::new("RequestExpired", "Request has expired."),
                    Service::S3 => ApiError::new("ExpiredToken", "The provided token has expired."),
                    Service::Sts => {
                        let text = "The security token included in the request is expired";
                        ApiError { status: 403, ..ApiError::new("ExpiredToken", text) }
                    }
                    _ => {
                        ApiError::new("ExpiredTokenException", "The security token included in the request is expired")
                    }
                });
            }
            Some(session) => &session.secret_key,
            None if signature.access_key == options.access_key => &options.secret_key,
            None => {
                let text = codes::message("AuthFailure");
                return Err(refused(call.service, "AuthFailure", "InvalidAccessKeyId", &text));
            }
        };
        if !knobs.check_signatures {
            return Ok(());
        }
        let time = NaiveDateTime::parse_from_str(&signature.time, "%Y%m%dT%H%M%SZ").ok();
        let age_s = time.map(|time| (*started + *now).signed_duration_since(time.and_utc()).num_seconds());
        let oldest = signature.expires_s.unwrap_or(MAX_SKEW_S);
        if age_s.is_none_or(|age| age > oldest || age < -MAX_SKEW_S) {
            let text = "The difference between the request time and the current time is too large.";
            return Err(refused(call.service, "RequestExpired", "RequestTimeTooSkewed", text));
        }
        if has_other_body(call) {
            let text = "The provided 'x-amz-content-sha256' header does not match what was computed.";
            return Err(refused(call.service, "SignatureDoesNotMatch", "XAmzContentSHA256Mismatch", text));
        }
        match signing_keys.verify(call, signature, secret) {
            true => Ok(()),
            false => {
                let text = "The request signature we calculated does not match the signature you provided. Check your \
                            AWS secret access key and signing method.";
                let ec2 = if call.service == Service::Ec2 { "AuthFailure" } else { "SignatureDoesNotMatch" };
                Err(refused(call.service, ec2, "SignatureDoesNotMatch", text))
            }
        }
    }
}

/// The error of a refused call: EC2 and STS have one code, S3 another, and the JSON services their own.
fn refused(service: Service, ec2: &str, s3: &str, text: &str) -> ApiError {
    match service {
        Service::S3 => ApiError::new(s3, text),
        Service::Sts if ec2 == "AuthFailure" => ApiError::new("InvalidClientTokenId", text),
        Service::Quotas | Service::Ebs if ec2 == "SignatureDoesNotMatch" => {
            ApiError { status: 403, ..ApiError::new("InvalidSignatureException", text) }
        }
        Service::Quotas | Service::Ebs => ApiError::new("UnrecognizedClientException", text),
        _ => ApiError::new(ec2, text),
    }
}

impl server::Simulation for Simulation {
    fn advance(&mut self) {
        let now = self.start.elapsed();
        while let Some((due, (region, step))) = self.world.timers.pop_due(now) {
            self.world.now = self.world.now.max(due);
            self.region(&region).run(step);
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
