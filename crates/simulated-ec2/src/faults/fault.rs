//! A fault of calls: its effect, and the calls that it hits.

use simulated_service::effects::{Effect, ErrorWords};
use simulated_service::faults::{Fault, FaultRule, Selection};

use crate::faults::codes;
use crate::server::call::{Call, Service};
use crate::server::response::ApiError;

/// One line of the knob `faults`.
pub type CallFault = Fault<CallRule>;

#[derive(Clone, Debug)]
pub struct CallRule {
    pub effect: Effect,
    calls: Selection,
}

impl FaultRule for CallRule {
    type Subject<'a> = Call;
    const KEYS: &'static str = "action, service, region, method, path, type or s (of a delay)";

    fn of_kind(kind: &str) -> Result<Self, String> {
        let is_code = |text: &str| text.starts_with(|first: char| first.is_ascii_uppercase());
        Ok(Self { effect: Effect::parse(kind, is_code)?, calls: Selection::default() })
    }

    fn set(&mut self, key: &str, value: &str) -> Result<bool, String> {
        let keys = &["action", "service", "region", "method", "path", "type"];
        Ok(self.effect.set(key, value)? || self.calls.set(keys, key, value)?)
    }

    fn concerns(&self, call: &Call) -> bool {
        self.calls.matches(&call.path, |key, wanted| {
            let value = match key {
                "action" => Some(call.action.as_str()),
                "service" => Some(call.service.name()),
                "region" => Some(call.region.as_str()),
                "type" => call.form.get("InstanceType"),
                _ => Some(call.method.as_str()),
            };
            value == Some(wanted)
        })
    }
}

/// The error of a fault in a service.
pub fn error(words: &ErrorWords, service: Service) -> ApiError {
    let usual = || codes::code(words.status.unwrap_or(500), service).to_owned();
    let code = words.code.clone().unwrap_or_else(usual);
    let message = codes::message(&code);
    ApiError { status: words.status.unwrap_or_else(|| codes::status(&code)), code, message }
}
