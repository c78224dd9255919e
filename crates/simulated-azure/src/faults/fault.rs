//! A fault of calls or operations: its effect, and the calls that it hits.

use simulated_service::effects::{Effect, ErrorWords};
use simulated_service::faults::{Fault, FaultRule, Selection};

use crate::faults::codes;
use crate::server::call::Call;
use crate::server::response::ApiError;
use crate::server::target::Target;

/// One line of the knob `faults`.
pub type CallFault = Fault<CallRule>;

#[derive(Clone, Debug)]
pub struct CallRule {
    pub effect: Effect,
    pub phase: Phase,
    calls: Selection,
}

/// Moment at which a fault takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Call,
    /// The call is accepted, and the operation that it starts fails.
    Operation,
}

impl FaultRule for CallRule {
    type Subject<'a> = Call;
    const KEYS: &'static str =
        "in (call or operation), action, method, path, size, location, zone, message (of an error) or s (of a delay)";

    fn of_kind(kind: &str) -> Result<Self, String> {
        let is_code = |text: &str| text.starts_with(|first: char| first.is_ascii_uppercase());
        Ok(Self { effect: Effect::parse(kind, is_code)?, phase: Phase::Call, calls: Selection::default() })
    }

    fn set(&mut self, key: &str, value: &str) -> Result<bool, String> {
        match (key, value, &mut self.effect) {
            ("in", "call", _) => self.phase = Phase::Call,
            ("in", "operation", _) => self.phase = Phase::Operation,
            ("message", _, Effect::Error(words)) => words.message = Some(value.to_owned()),
            (_, _, effect) => {
                let keys = &["action", "method", "path", "size", "location", "zone"];
                return Ok(effect.set(key, value)? || self.calls.set(keys, key, value)?);
            }
        }
        Ok(true)
    }

    fn check(&self) -> Result<(), String> {
        match self.phase == Phase::Operation && !matches!(self.effect, Effect::Error(_)) {
            true => Err("only an error can be in=operation".to_owned()),
            false => Ok(()),
        }
    }

    fn concerns(&self, call: &Call) -> bool {
        let text =
            |pointer: &str| call.json.as_ref().and_then(|json| json.pointer(pointer)).and_then(|one| one.as_str());
        let is = |key: &str, wanted: &str| {
            let value = match key {
                "action" => return is_action(wanted, &call.action),
                "size" => text("/properties/hardwareProfile/vmSize"),
                "location" => text("/location"),
                "zone" => text("/zones/0"),
                _ => Some(call.method.as_str()),
            };
            value.is_some_and(|value| wanted.eq_ignore_ascii_case(value))
        };
        (self.phase == Phase::Call || starts_operation(call)) && self.calls.matches(&call.path, is)
    }
}

/// `vm` stands for all actions on virtual machines, `vm.create` for one.
fn is_action(wanted: &str, action: &str) -> bool {
    action.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Whether a call starts an operation if it is accepted.
fn starts_operation(call: &Call) -> bool {
    matches!(call.target, Target::Item { .. }) && matches!(call.method.as_str(), "PUT" | "POST" | "DELETE")
}

/// The error of a fault.
pub fn error(words: &ErrorWords) -> ApiError {
    let usual = || codes::code(words.status.unwrap_or(500)).to_owned();
    let code = words.code.clone().unwrap_or_else(usual);
    let message = words.message.clone().unwrap_or_else(|| codes::message(&code));
    ApiError { status: words.status.unwrap_or_else(|| codes::status(&code)), ..ApiError::new(&code, message) }
}
