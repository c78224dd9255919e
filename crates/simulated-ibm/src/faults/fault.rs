//! A fault of calls: its effect, and the calls that it hits.

use simulated_service::effects::{Effect, ErrorWords};
use simulated_service::faults::{Fault, FaultRule, Selection};

use crate::faults::codes;
use crate::server::call::Call;
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
    const KEYS: &'static str = "action, method, path, code and retry-after (of an error) or s (of a delay)";

    fn of_kind(kind: &str) -> Result<Self, String> {
        let is_code = |text: &str| {
            text.contains('_') && text.chars().all(|one| one.is_ascii_lowercase() || one.is_ascii_digit() || one == '_')
        };
        Ok(Self { effect: Effect::parse(kind, is_code)?, calls: Selection::default() })
    }

    fn set(&mut self, key: &str, value: &str) -> Result<bool, String> {
        match (key, &mut self.effect) {
            ("code", Effect::Error(words)) => words.code = Some(value.to_owned()),
            ("retry-after", Effect::Error(words)) => {
                words.retry_after = Some(value.parse().map_err(|_| format!("{key}={value}: expected seconds"))?);
            }
            (_, effect) => {
                return Ok(effect.set(key, value)? || self.calls.set(&["action", "method", "path"], key, value)?);
            }
        }
        Ok(true)
    }

    fn concerns(&self, call: &Call) -> bool {
        self.calls.matches(&call.path, |key, wanted| {
            let value = if key == "action" { call.action } else { &call.method };
            value == wanted
        })
    }
}

/// The error of a fault.
pub fn error(words: ErrorWords) -> ApiError {
    let code = words.code.unwrap_or_else(|| codes::code(words.status.unwrap_or(500)).to_owned());
    let error = ApiError { retry_after: words.retry_after, ..ApiError::new(&code) };
    ApiError { status: words.status.unwrap_or(error.status), ..error }
}
