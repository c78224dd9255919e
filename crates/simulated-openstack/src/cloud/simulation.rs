//! The cloud with its knobs: throttling and faults that apply before, instead of and after the execution of a call.

use std::time::Duration;

use serde_json::{Value, json};
use simulated_service::throttle::Throttle;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::call::{Call, REDIRECT_PREFIX, Service};
use crate::cloud::cloud::Cloud;
use crate::faults::corrupt::apply_response_fault;
use crate::faults::fault::{CallRule, FaultKind};
use crate::options::Options;
use crate::response::Response;
use crate::services::image::ImageContent;

pub struct Simulation {
    cloud: Cloud,
    start: Instant,
    throttle: Throttle,
    /// The knob `refuse_connections`, for the port of the services.
    refusing: watch::Sender<bool>,
}

/// Outcome of a received call.
pub enum CallOutcome {
    /// The call is executed, and these faults are applied to its response.
    Execute(Vec<CallRule>),
    Respond(Response),
    /// The connection is closed after this time.
    Disconnect(Duration),
}

impl Simulation {
    pub fn new(options: Options, base: String, control_base: String) -> Self {
        let refusing = watch::Sender::new(options.knobs.refuse_connections);
        let cloud = Cloud::new(options, base, control_base);
        Self { cloud, start: Instant::now(), throttle: Throttle::default(), refusing }
    }

    /// Whether the services refuse connections, now and after each change.
    pub fn refusing_connections(&self) -> watch::Receiver<bool> {
        self.refusing.subscribe()
    }

    fn advance(&mut self) {
        self.cloud.advance(self.start.elapsed());
    }

    /// Counts a call, and returns its latency and outcome.
    pub fn receive(&mut self, call: &Call) -> (Duration, CallOutcome) {
        self.advance();
        let Some(service) = call.service else { return (Duration::ZERO, CallOutcome::Execute(Vec::new())) };
        self.cloud.stats.count_call(service, call);
        self.cloud.note_change(service, call);
        let (knobs, number) = (&self.cloud.knobs, self.cloud.stats.calls);
        let delay = knobs.latency_ms.of(service, knobs.seed, number);
        let hang = Duration::from_secs_f64(knobs.hang_s);
        if service != Service::Identity && self.is_throttled() {
            self.cloud.stats.throttled += 1;
            return (delay, CallOutcome::Respond(self.throttled_response(service)));
        }
        let mut response_faults = Vec::new();
        let rules: Vec<CallRule> =
            self.cloud.stats.faults_struck.strike(&self.cloud.knobs.faults, call).into_iter().cloned().collect();
        for fault in rules {
            let outcome = match fault.kind {
                FaultKind::Status(status) => {
                    let answer = Response::error(service, status, "Injected fault.");
                    CallOutcome::Respond(match status {
                        429 => answer.with("Retry-After", self.cloud.knobs.retry_after_s.to_string()),
                        _ => answer,
                    })
                }
                FaultKind::Html => CallOutcome::Respond(Response::html(502, "The proxy could not reach the service.")),
                FaultKind::Page => CallOutcome::Respond(Response::html(200, "Please log in.")),
                FaultKind::Empty => CallOutcome::Respond(Response::empty(200)),
                FaultKind::Redirect(status) => CallOutcome::Respond(self.redirect_response(status, call)),
                FaultKind::Closed => CallOutcome::Disconnect(Duration::ZERO),
                FaultKind::Hang => CallOutcome::Disconnect(hang),
                FaultKind::LostAnswer
                | FaultKind::Truncated
                | FaultKind::MissingFields
                | FaultKind::UnknownState
                | FaultKind::PartialList
                | FaultKind::RepeatedMarker => {
                    response_faults.push(fault);
                    continue;
                }
            };
            return (delay, outcome);
        }
        (delay, CallOutcome::Execute(response_faults))
    }

    fn is_throttled(&mut self) -> bool {
        let (cloud, knobs) = (&self.cloud, &self.cloud.knobs);
        self.throttle.rejects(cloud.now, cloud.stats.calls, knobs.throttle_every, knobs.throttle_above_per_s)
    }

    fn throttled_response(&self, service: Service) -> Response {
        let knobs = &self.cloud.knobs;
        let wait = knobs.retry_after_s.to_string();
        let message = "This request was rate-limited.";
        let answer = match knobs.throttle_status {
            413 => {
                let body = json!({"overLimit": {"code": 413, "message": message, "retryAfter": wait}});
                Response::json(413, &body)
            }
            status => Response::error(service, status, message),
        };
        answer.with("Retry-After", wait)
    }

    fn redirect_response(&self, status: u16, call: &Call) -> Response {
        let query = if call.query_string.is_empty() { String::new() } else { format!("?{}", call.query_string) };
        Response::empty(status).with("Location", format!("{}{REDIRECT_PREFIX}{}{query}", self.cloud.base, call.path))
    }

    /// Executes a call. `None` means that the response is lost.
    pub fn execute(&mut self, call: &Call, body: &[u8], faults: &[CallRule]) -> Option<Response> {
        self.advance();
        let answer = match call.service {
            None => {
                let answer = self.control(call, body);
                self.refusing.send_replace(self.cloud.knobs.refuse_connections);
                answer
            }
            Some(service) => self.dispatch(service, call, body),
        };
        self.finish(answer, call, faults)
    }

    /// The number of the image that a call uploads; `None` for other calls and for rejected uploads.
    pub fn uploadable_image(&mut self, call: &Call) -> Option<u64> {
        self.advance();
        let upload = uploaded_image_id(call)?;
        let allowed = self.cloud.authorized(&call.token) && self.cloud.options.has(Service::Image);
        if allowed { self.cloud.check_upload(upload).ok() } else { None }
    }

    pub fn closes_connections(&self) -> bool {
        self.cloud.knobs.close_connections
    }

    pub fn upload_break_at(&self) -> Option<u64> {
        Some(self.cloud.knobs.uploads_break_at).filter(|at| *at > 0)
    }

    pub fn finish_upload(
        &mut self,
        call: &Call,
        image: u64,
        content: ImageContent,
        faults: &[CallRule],
    ) -> Option<Response> {
        self.advance();
        let answer = self.cloud.finish_upload(image, content);
        self.finish(answer, call, faults)
    }

    fn finish(&self, answer: Response, call: &Call, faults: &[CallRule]) -> Option<Response> {
        faults.iter().try_fold(answer, |answer, fault| apply_response_fault(answer, fault, &self.cloud.base, call))
    }

    fn dispatch(&mut self, service: Service, call: &Call, body: &[u8]) -> Response {
        let cloud = &mut self.cloud;
        if !cloud.options.has(service) {
            return Response::html(404, "The requested URL was not found on this server.");
        }
        if let Some(answer) = cloud.version_document(service, call) {
            return answer;
        }
        if service == Service::Identity {
            return cloud.identity(call, body);
        }
        if !cloud.authorized(&call.token) {
            return Response::unauthorized(service, &cloud.auth_url());
        }
        if !cloud.versions(service).contains(&call.version()) {
            return Response::not_found(service);
        }
        match service {
            Service::Identity => unreachable!("the calls of this service need no token"),
            Service::Compute => cloud.compute(call, body),
            Service::Image => match uploaded_image_id(call) {
                // Allowed uploads were received before, so this one is rejected.
                Some(image) => cloud.check_upload(image).err().unwrap_or_else(|| Response::not_found(service)),
                None => cloud.image_service(call, body),
            },
            Service::Network => cloud.network(call, body),
            Service::Volume => cloud.volume(call, body),
        }
    }

    /// Handles a call to `/sim/…`: the knobs and the counters.
    fn control(&mut self, call: &Call, body: &[u8]) -> Response {
        let parts: Vec<&str> = call.path.split('/').filter(|part| !part.is_empty()).collect();
        match (call.method.as_str(), &parts[..]) {
            ("GET", ["sim", "knobs"]) => Response::ok(&json!(self.cloud.knobs)),
            ("PUT", ["sim", "knobs"]) => {
                let change = serde_json::from_slice(body).map_err(|error| error.to_string());
                match change
                    .and_then(|change: Value| Ok((change.get("faults").is_some(), self.cloud.knobs.updated(change)?)))
                {
                    Ok((new_faults, knobs)) => {
                        self.cloud.set_knobs(knobs);
                        if new_faults {
                            self.cloud.stats.faults_struck.clear();
                        }
                        Response::ok(&json!(self.cloud.knobs))
                    }
                    Err(error) => Response::json(400, &json!({"error": error})),
                }
            }
            ("GET", ["sim", "state"]) => Response::ok(&self.cloud.state_json()),
            ("GET", ["sim", "history"]) => Response::ok(&self.cloud.history_json()),
            ("POST", ["sim", "reset"]) => {
                self.cloud.reset();
                Response::empty(204)
            }
            ("POST", ["sim", "revoke-tokens"]) => {
                self.cloud.tokens.clear();
                Response::empty(204)
            }
            ("GET", []) => Response::ok(&json!({"auth_url": self.cloud.auth_url()})),
            _ => Response::json(404, &json!({"error": "no such endpoint"})),
        }
    }
}

/// The id in the path of an upload.
fn uploaded_image_id(call: &Call) -> Option<&str> {
    match (call.method.as_str(), call.service, &call.parts[..]) {
        ("PUT", Some(Service::Image), [_, images, id, file]) if images == "images" && file == "file" => Some(id),
        _ => None,
    }
}
