//! A fault of calls or operations: its kind, and the calls that it hits.

use std::str::FromStr;

use regex_lite::Regex;
use serde::{Deserialize, Serialize};
use simulated_service::faults::{Limits, words};

use crate::faults::codes;
use crate::server::call::Call;
use crate::server::response::ApiError;
use crate::server::target::Target;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// An error of this status, code or both; the call has no effect.
    Error { status: Option<u16>, code: Option<String>, message: Option<String> },
    /// 502 with an HTML page, as a proxy responds; the call has no effect.
    Html,
    /// 200 with a text that is not JSON; the call is executed.
    Text,
    /// The connection is closed without a response; the call has no effect.
    Closed,
    /// No response for `hang_s`, then the connection is closed; the call has no effect.
    Hang,
    /// The response comes after `delay_s`.
    Delay,
    /// The call is executed, and the connection is closed without a response.
    LostAnswer,
    /// The call is executed, and the second half of the response is missing.
    Truncated,
}

/// Moment at which a fault takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Call,
    /// The call is accepted, and the operation that it starts fails.
    Operation,
}

/// One line of the knob `faults`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fault {
    text: String,
    pub kind: FaultKind,
    pub limits: Limits,
    pub phase: Phase,
    action: Option<String>,
    method: Option<String>,
    path: Option<Regex>,
    size: Option<String>,
    location: Option<String>,
    zone: Option<String>,
}

impl Fault {
    /// Whether the fault applies to this kind of call.
    pub fn matches(&self, call: &Call) -> bool {
        let is = |wanted: &Option<String>, value: Option<&str>| {
            wanted.as_ref().is_none_or(|wanted| value.is_some_and(|value| wanted.eq_ignore_ascii_case(value)))
        };
        let text =
            |pointer: &str| call.json.as_ref().and_then(|json| json.pointer(pointer)).and_then(|one| one.as_str());
        (self.phase == Phase::Call || starts_operation(call))
            && self.matches_action(&call.action)
            && is(&self.method, Some(&call.method))
            && self.path.as_ref().is_none_or(|path| path.is_match(&call.path))
            && is(&self.size, text("/properties/hardwareProfile/vmSize"))
            && is(&self.location, text("/location"))
            && is(&self.zone, text("/zones/0"))
    }

    /// `vm` stands for all actions on virtual machines, `vm.create` for one.
    fn matches_action(&self, action: &str) -> bool {
        let Some(wanted) = &self.action else { return true };
        action.strip_prefix(wanted.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// Whether a call starts an operation if it is accepted.
fn starts_operation(call: &Call) -> bool {
    matches!(call.target, Target::Item { .. }) && matches!(call.method.as_str(), "PUT" | "POST" | "DELETE")
}

impl FaultKind {
    /// The error of this fault.
    pub fn error(&self) -> Option<ApiError> {
        let Self::Error { status, code, message } = self else { return None };
        let code = match (status, code) {
            (_, Some(code)) => code.clone(),
            (status, None) => codes::code(status.unwrap_or(500)).to_owned(),
        };
        let message = message.clone().unwrap_or_else(|| codes::message(&code));
        Some(ApiError { status: status.unwrap_or_else(|| codes::status(&code)), ..ApiError::new(&code, message) })
    }
}

impl FromStr for FaultKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("unknown fault {text}: expected 400 to 599, a code, 503:CODE, or a name");
        let status = |text: &str| text.parse().ok().filter(|status| (400..=599).contains(status)).ok_or_else(error);
        let is_code = |text: &str| text.starts_with(|first: char| first.is_ascii_uppercase());
        let message = None;
        Ok(match text {
            "html" => Self::Html,
            "text" => Self::Text,
            "closed" => Self::Closed,
            "hang" => Self::Hang,
            "delay" => Self::Delay,
            "lost-answer" => Self::LostAnswer,
            "truncated" => Self::Truncated,
            code if is_code(code) => Self::Error { status: None, code: Some(code.to_owned()), message },
            other => match other.split_once(':') {
                Some((number, code)) => {
                    Self::Error { status: Some(status(number)?), code: Some(code.to_owned()), message }
                }
                None => Self::Error { status: Some(status(other)?), code: None, message },
            },
        })
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, pairs) = words(text)?;
        let (kind, limits, phase) = (kind.parse()?, Limits::default(), Phase::Call);
        let (action, method, path, size, location, zone) = (None, None, None, None, None, None);
        let text = text.to_owned();
        let mut fault = Self { text, kind, limits, phase, action, method, path, size, location, zone };
        for (key, value) in pairs {
            match key {
                _ if fault.limits.set(key, value)? => {}
                "in" if value == "call" => fault.phase = Phase::Call,
                "in" if value == "operation" => fault.phase = Phase::Operation,
                "action" => fault.action = Some(value.to_owned()),
                "method" => fault.method = Some(value.to_owned()),
                "size" => fault.size = Some(value.to_owned()),
                "location" => fault.location = Some(value.to_owned()),
                "zone" => fault.zone = Some(value.to_owned()),
                "path" => fault.path = Some(Regex::new(value).map_err(|error| format!("path={value}: {error}"))?),
                "message" => match &mut fault.kind {
                    FaultKind::Error { message, .. } => *message = Some(value.replace('_', " ")),
                    _ => return Err("only errors have a message".to_owned()),
                },
                _ => {
                    let keys = "every, after, times, in, action, method, path, size, location, zone or message";
                    return Err(format!("unknown key or value {key}={value}: expected {keys}"));
                }
            }
        }
        match fault.phase == Phase::Operation && !matches!(fault.kind, FaultKind::Error { .. }) {
            true => Err("only an error can be in=operation".to_owned()),
            false => Ok(fault),
        }
    }
}

impl TryFrom<String> for Fault {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Fault> for String {
    fn from(fault: Fault) -> Self {
        fault.text
    }
}
