//! The cluster with its knobs: throttling and faults that apply before, instead of and after the execution of a call.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use simulated_service::server;
use simulated_service::throttle::Throttle;
use tokio::time::Instant;

use crate::api::watch::Watch;
use crate::cluster::cluster::Cluster;
use crate::faults::fault::FaultKind;
use crate::server::call::Call;
use crate::server::response::Response;

pub struct Simulation {
    pub cluster: Cluster,
    start: Instant,
    throttle: Throttle,
    /// The URL of the control port.
    pub control: String,
    /// The URL of the API.
    pub base: String,
    pub kubeconfig: Option<PathBuf>,
}

/// Outcome of a received call.
pub enum CallOutcome {
    /// The call is executed, and these faults are applied to its response.
    Execute(Vec<FaultKind>),
    Respond(Response),
    /// The connection is closed after this time.
    Disconnect(Duration),
}

/// The answer to a call.
pub enum Reply {
    Response(Response),
    Watch(Watch),
}

impl Simulation {
    pub fn new(cluster: Cluster, base: String, control: String) -> Self {
        let kubeconfig = cluster.options.kubeconfig.clone();
        Self { cluster, start: Instant::now(), throttle: Throttle::default(), control, base, kubeconfig }
    }

    /// Counts a call, and returns its latency and outcome.
    pub fn receive(&mut self, call: &Call) -> (Duration, CallOutcome) {
        if call.path.starts_with("/sim/") {
            return (Duration::ZERO, CallOutcome::Execute(Vec::new()));
        }
        self.cluster.stats.count_call(call.kind());
        let (knobs, number) = (&self.cluster.knobs, self.cluster.stats.calls);
        let delay = knobs.latency_ms.of(knobs.seed, number);
        let (hang, retry_after_s) = (Duration::from_secs_f64(knobs.hang_s), knobs.retry_after_s);
        if self.is_throttled() {
            self.cluster.stats.throttled += 1;
            return (delay, CallOutcome::Respond(Response::too_many_requests(retry_after_s)));
        }
        let mut response_faults = Vec::new();
        let rules = self.cluster.stats.faults_struck.strike(&self.cluster.knobs.faults, call);
        for kind in rules.iter().map(|rule| rule.kind) {
            let outcome = match kind {
                FaultKind::Status(status) => CallOutcome::Respond(status_fault(status, retry_after_s)),
                FaultKind::NoToken => CallOutcome::Respond(Response::no_token("default")),
                FaultKind::Quota => CallOutcome::Respond(Response::exceeded_quota()),
                FaultKind::Html => CallOutcome::Respond(Response::html()),
                FaultKind::Closed => CallOutcome::Disconnect(Duration::ZERO),
                FaultKind::Hang => CallOutcome::Disconnect(hang),
                FaultKind::LostAnswer | FaultKind::Truncated | FaultKind::PartialList => {
                    response_faults.push(kind);
                    continue;
                }
            };
            return (delay, outcome);
        }
        (delay, CallOutcome::Execute(response_faults))
    }

    fn is_throttled(&mut self) -> bool {
        let (cluster, knobs) = (&self.cluster, &self.cluster.knobs);
        self.throttle.rejects(cluster.now, cluster.stats.calls, knobs.throttle_every, knobs.throttle_above_per_s)
    }

    /// Executes a call. `None` means that the response is lost.
    pub fn execute(&mut self, call: &Call, body: &[u8], faults: &[FaultKind]) -> Option<Reply> {
        if call.path.starts_with("/sim/") {
            return Some(Reply::Response(self.control(call, body)));
        }
        let mut reply = self.cluster.dispatch(call, body);
        for fault in faults {
            match (fault, &mut reply) {
                (FaultKind::LostAnswer, _) => return None,
                (FaultKind::Truncated, Reply::Response(answer)) => answer.body.truncate(answer.body.len() / 2),
                (FaultKind::Truncated, Reply::Watch(watch)) => watch.is_truncated = true,
                (FaultKind::PartialList, Reply::Response(answer)) => truncate_list(answer),
                _ => {}
            }
        }
        Some(reply)
    }
}

impl server::Simulation for Simulation {
    fn advance(&mut self) {
        self.cluster.advance(self.start.elapsed());
    }

    fn until_next_timer(&self) -> Option<Duration> {
        self.cluster.timers.next_due().map(|due| due.saturating_sub(self.start.elapsed()))
    }

    fn refuses_connections(&self) -> bool {
        self.cluster.knobs.refuse_connections
    }
}

/// A Status object of this code, with the message that a server sends most often with it.
fn status_fault(status: u16, retry_after_s: u64) -> Response {
    let (reason, message) = match status {
        401 => return Response::unauthorized(),
        403 => ("Forbidden", "injected fault is forbidden"),
        404 => return Response::no_such_resource(),
        409 => (
            "Conflict",
            "Operation cannot be fulfilled on resourcequotas \"quota\": the object has been modified; please apply \
             your changes to the latest version and try again",
        ),
        410 => return Response::gone("The provided resource version is too old."),
        422 => ("Invalid", "injected fault is invalid"),
        429 => return Response::too_many_requests(retry_after_s),
        500 => ("InternalError", "Internal error occurred: etcdserver: request timed out"),
        503 => {
            let text = "the server is currently unable to handle the request";
            return Response::retry_later(503, "ServiceUnavailable", text, retry_after_s);
        }
        504 => ("Timeout", "Timeout: request did not complete within the allotted timeout"),
        400..=499 => ("BadRequest", "injected fault"),
        _ => ("InternalError", "injected fault"),
    };
    Response::failure(status, reason, message, serde_json::json!({}))
}

/// Removes the second half of a list, and its link to the rest.
fn truncate_list(answer: &mut Response) {
    let Ok(mut list) = serde_json::from_slice::<Value>(&answer.body) else { return };
    let Some(items) = list["items"].as_array_mut() else { return };
    items.truncate(items.len() / 2);
    if let Some(metadata) = list["metadata"].as_object_mut() {
        metadata.shift_remove("continue");
        metadata.shift_remove("remainingItemCount");
    }
    answer.body = list.to_string().into();
}
