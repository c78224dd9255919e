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
    const KEYS: &'static str = "action, project, zone, method, path, reason (of an error) or s (of a delay)";

    fn of_kind(kind: &str) -> Result<Self, String> {
        let is_reason = |text: &str| {
            let begins_small = text.starts_with(|first: char| first.is_ascii_lowercase());
            begins_small && text.contains(|one: char| one.is_uppercase()) || ["invalid", "forbidden"].contains(&text)
        };
        Ok(Self { effect: Effect::parse(kind, is_reason)?, calls: Selection::default() })
    }

    fn set(&mut self, key: &str, value: &str) -> Result<bool, String> {
        match (key, &mut self.effect) {
            ("reason", Effect::Error(words)) => words.code = Some(value.to_owned()),
            (_, effect) => {
                let keys = &["action", "project", "zone", "method", "path"];
                return Ok(effect.set(key, value)? || self.calls.set(keys, key, value)?);
            }
        }
        Ok(true)
    }

    fn concerns(&self, call: &Call) -> bool {
        self.calls.matches(&call.path, |key, wanted| {
            let value = match key {
                "action" => call.action,
                "project" => &call.project,
                "zone" => &call.location,
                _ => &call.method,
            };
            value == wanted
        })
    }
}

/// The error of a fault in a service.
pub fn error(words: &ErrorWords, service: Service) -> ApiError {
    let reason = match (words.status, &words.code) {
        (_, Some(reason)) => reason.clone(),
        (Some(400), None) if service == Service::Token => "invalid_grant".to_owned(),
        (status, None) => codes::reason(status.unwrap_or(500)).to_owned(),
    };
    let message = codes::message(&reason);
    ApiError { status: words.status.unwrap_or_else(|| codes::status(&reason)), reason, message }
}
