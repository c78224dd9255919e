//! A fault of calls: its kind, and the calls that it hits.

use std::str::FromStr;

use regex_lite::Regex;
use serde::{Deserialize, Serialize};
use simulated_service::faults::{Limits, words};

use crate::faults::codes;
use crate::server::call::{Call, Service};
use crate::server::response::ApiError;

#[derive(Clone, Debug, PartialEq)]
pub enum FaultKind {
    /// An error of this status, reason or both; the call has no effect.
    Error { status: Option<u16>, reason: Option<String> },
    /// 502 with an HTML page, as a proxy responds; the call has no effect.
    Html,
    /// The connection is closed without a response; the call has no effect.
    Closed,
    /// No response for `hang_s`, then the connection is closed; the call has no effect.
    Hang,
    /// The call is executed after so many more seconds.
    Delay(f64),
    /// The call is executed, and the connection is closed without a response.
    LostAnswer,
    /// The call is executed, and the second half of the response is missing.
    Truncated,
}

/// One line of the knob `faults`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fault {
    text: String,
    pub kind: FaultKind,
    pub limits: Limits,
    action: Option<String>,
    project: Option<String>,
    zone: Option<String>,
    method: Option<String>,
    path: Option<Regex>,
}

impl Fault {
    /// Whether the fault applies to this kind of call.
    pub fn matches(&self, call: &Call) -> bool {
        let is = |wanted: &Option<String>, value: &str| wanted.as_ref().is_none_or(|wanted| wanted == value);
        is(&self.action, call.action)
            && is(&self.project, &call.project)
            && is(&self.zone, &call.location)
            && is(&self.method, &call.method)
            && self.path.as_ref().is_none_or(|path| path.is_match(&call.path))
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match (key, &mut self.kind) {
            _ if self.limits.set(key, value)? => {}
            ("action", _) => self.action = Some(value.to_owned()),
            ("project", _) => self.project = Some(value.to_owned()),
            ("zone", _) => self.zone = Some(value.to_owned()),
            ("method", _) => self.method = Some(value.to_owned()),
            ("path", _) => self.path = Some(Regex::new(value).map_err(|error| format!("path={value}: {error}"))?),
            ("reason", FaultKind::Error { reason, .. }) => *reason = Some(value.to_owned()),
            ("s", FaultKind::Delay(delay)) => {
                let time = value.parse().ok().filter(|time| (0.0..1e9).contains(time));
                *delay = time.ok_or_else(|| format!("s={value}: expected seconds"))?;
            }
            _ => {
                let expected = "every, after, times, action, project, zone, method, path, reason (of an error) or s \
                                (of a delay)";
                return Err(format!("unknown key {key}: expected {expected}"));
            }
        }
        Ok(())
    }
}

impl FaultKind {
    /// The error of this fault in a service.
    pub fn error(&self, service: Service) -> Option<ApiError> {
        let Self::Error { status, reason } = self else { return None };
        let reason = match (status, reason) {
            (_, Some(reason)) => reason.clone(),
            (Some(400), None) if service == Service::Token => "invalid_grant".to_owned(),
            (status, None) => codes::reason(status.unwrap_or(500)).to_owned(),
        };
        let message = codes::message(&reason);
        Some(ApiError { status: status.unwrap_or_else(|| codes::status(&reason)), reason, message })
    }
}

impl FromStr for FaultKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("unknown fault {text}: expected 400 to 599, a reason such as quotaExceeded, or a name");
        let is_reason = |text: &str| {
            text.starts_with(|first: char| first.is_ascii_lowercase()) && text.contains(|one: char| one.is_uppercase())
        };
        Ok(match text {
            "html" => Self::Html,
            "closed" => Self::Closed,
            "hang" => Self::Hang,
            "delay" => Self::Delay(1.0),
            "lost-answer" => Self::LostAnswer,
            "truncated" => Self::Truncated,
            reason if is_reason(reason) || ["invalid", "forbidden"].contains(&reason) => {
                Self::Error { status: None, reason: Some(reason.to_owned()) }
            }
            status => {
                let status = status.parse().ok().filter(|status| (400..=599).contains(status)).ok_or_else(error)?;
                Self::Error { status: Some(status), reason: None }
            }
        })
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, pairs) = words(text)?;
        let (kind, limits) = (kind.parse()?, Limits::default());
        let (action, project, zone, method, path) = (None, None, None, None, None);
        let mut fault = Self { text: text.to_owned(), kind, limits, action, project, zone, method, path };
        for (key, value) in pairs {
            fault.set(key, value)?;
        }
        Ok(fault)
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
