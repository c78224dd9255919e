//! Calls to `/sim/…`: knobs, state, history, the clock, tokens and throttling.

use std::time::Duration;

use serde_json::{Value, json};
use simulated_service::server::Simulation as _;

use crate::api::simulation::Simulation;
use crate::cloud::cloud::ForcedThrottle;
use crate::server::call::Call;
use crate::server::response::Response;

/// Result of a control call: its JSON, or the status and text of an error.
pub type Controlled = Result<Value, (u16, String)>;

impl Simulation {
    pub fn control(&mut self, call: &Call) -> Response {
        let parts = call.parts();
        let result = match (call.method.as_str(), &parts[1..]) {
            ("GET", ["knobs"]) => Ok(json!(self.cloud.knobs)),
            ("PUT" | "POST", ["knobs"]) => self.set_knobs(&call.body),
            ("GET", ["state"]) => Ok(self.state_json()),
            ("GET", ["history"]) => {
                let cloud = &self.cloud;
                let action = call.parameter("action");
                Ok(cloud.history.json(action, |moment| cloud.epoch_ms(moment), cloud.now))
            }
            ("GET", ["auth"]) => Ok(self.auth_json()),
            ("GET", ["blob"]) => self.blob_json(call),
            ("POST", ["reset"]) => {
                self.cloud.reset();
                Ok(json!({}))
            }
            ("POST", ["advance"]) => self.move_clock(call),
            ("POST", ["revoke-tokens"]) => {
                let now = self.cloud.now;
                self.cloud.tokens.revoke(now);
                Ok(json!({}))
            }
            ("POST", ["throttle"]) => self.force_throttling(call),
            ("POST", ["remove-vm"]) => self.cloud.remove_vm_by_hand(call),
            ("POST", ["vm"]) => self.cloud.set_vm_state(call),
            ("POST", ["create"]) => self.cloud.create_foreign(call),
            _ => Err((404, "no such endpoint".to_owned())),
        };
        match result {
            Ok(json) => Response::json(200, &json),
            Err((status, text)) => Response::json(status, &json!({"error": text})),
        }
    }

    fn set_knobs(&mut self, body: &[u8]) -> Controlled {
        let change: Value = serde_json::from_slice(body).map_err(|error| (400, error.to_string()))?;
        let has_faults = change.get("faults").is_some();
        self.cloud.knobs = self.cloud.knobs.updated(change).map_err(|text| (400, text))?;
        if has_faults {
            self.cloud.stats.faults_struck.clear();
        }
        Ok(json!(self.cloud.knobs))
    }

    /// Moves the clock of the simulation, and runs the timers that are due then.
    fn move_clock(&mut self, call: &Call) -> Controlled {
        let seconds = number(call, "seconds")?.unwrap_or_default();
        self.skew += Duration::from_secs_f64(seconds);
        self.advance();
        Ok(json!({"seconds": self.skew.as_secs_f64()}))
    }

    fn force_throttling(&mut self, call: &Call) -> Controlled {
        let (calls, seconds) = (number(call, "calls")?, number(call, "seconds")?);
        if calls.is_none() && seconds.is_none() {
            return Err((400, "calls= or seconds= is required".to_owned()));
        }
        self.cloud.forced_throttle = ForcedThrottle {
            calls: calls.unwrap_or_default() as u64,
            until: self.cloud.now + Duration::from_secs_f64(seconds.unwrap_or_default()),
            retry_after_s: number(call, "retry_after_s")?.map(|seconds| seconds as u64),
        };
        Ok(json!({}))
    }

    /// Sizes and checksum of the content of a disk or image.
    fn blob_json(&self, call: &Call) -> Controlled {
        let cloud = &self.cloud;
        let key = |name: &str| cloud.key_of_parameter(call, name);
        let blob = if let Some(key) = key("disk") {
            cloud.disks.get(&key).and_then(|disk| disk.upload.as_ref()).map(|upload| &upload.blob)
        } else if let Some(key) = key("image") {
            cloud.images.get(&key).and_then(|image| image.blob.as_ref())
        } else {
            return Err((400, "disk= or image= is required".to_owned()));
        };
        let blob = blob.ok_or_else(|| (404, "no such content".to_owned()))?;
        blob.borrow().json().map_err(|error| (500, error.to_string()))
    }
}

/// A parameter that is a number, if it is there.
pub fn number(call: &Call, name: &str) -> Result<Option<f64>, (u16, String)> {
    let Some(text) = call.parameter(name) else { return Ok(None) };
    match text.parse::<f64>().ok().filter(|number| (0.0..1e9).contains(number)) {
        Some(number) => Ok(Some(number)),
        None => Err((400, format!("{name}={text}: expected a number"))),
    }
}
