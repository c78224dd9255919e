//! A fault of calls: its kind, and the calls that it hits.

use std::str::FromStr;

use regex_lite::Regex;
use serde::{Deserialize, Serialize};
use simulated_service::faults::{Limits, words};

use crate::faults::codes;
use crate::server::call::{Call, Service};
use crate::server::response::ApiError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// An error of this status, code or both; the call has no effect.
    Error { status: Option<u16>, code: Option<String> },
    /// 502 with an HTML page, as a proxy responds; the call has no effect.
    Html,
    /// The connection is closed without a response; the call has no effect.
    Closed,
    /// No response for `hang_s`, then the connection is closed; the call has no effect.
    Hang,
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
    service: Option<String>,
    region: Option<String>,
    method: Option<String>,
    path: Option<Regex>,
    instance_type: Option<String>,
}

impl Fault {
    /// Whether the fault applies to this kind of call.
    pub fn matches(&self, call: &Call) -> bool {
        let is = |wanted: &Option<String>, value: &str| wanted.as_ref().is_none_or(|wanted| wanted == value);
        is(&self.action, &call.action)
            && is(&self.service, call.service.name())
            && is(&self.region, &call.region)
            && is(&self.method, &call.method)
            && self.path.as_ref().is_none_or(|path| path.is_match(&call.path))
            && self.instance_type.as_ref().is_none_or(|wanted| call.form.get("InstanceType") == Some(wanted))
    }
}

impl FaultKind {
    /// The error of this fault in a service.
    pub fn error(&self, service: Service) -> Option<ApiError> {
        let Self::Error { status, code } = self else { return None };
        let code = match (status, code) {
            (_, Some(code)) => code.clone(),
            (status, None) => codes::code(status.unwrap_or(500), service).to_owned(),
        };
        let message = codes::message(&code);
        Some(ApiError { status: status.unwrap_or_else(|| codes::status(&code)), code, message })
    }
}

impl FromStr for FaultKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("unknown fault {text}: expected 400 to 599, a code, 503:CODE, or a name");
        let status = |text: &str| text.parse().ok().filter(|status| (400..=599).contains(status)).ok_or_else(error);
        let is_code = |text: &str| text.starts_with(|first: char| first.is_ascii_uppercase());
        Ok(match text {
            "html" => Self::Html,
            "closed" => Self::Closed,
            "hang" => Self::Hang,
            "lost-answer" => Self::LostAnswer,
            "truncated" => Self::Truncated,
            code if is_code(code) => Self::Error { status: None, code: Some(code.to_owned()) },
            other => match other.split_once(':') {
                Some((number, code)) => Self::Error { status: Some(status(number)?), code: Some(code.to_owned()) },
                None => Self::Error { status: Some(status(other)?), code: None },
            },
        })
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, pairs) = words(text)?;
        let (kind, limits) = (kind.parse()?, Limits::default());
        let (action, service, region, method, path, instance_type) = (None, None, None, None, None, None);
        let text = text.to_owned();
        let mut fault = Self { text, kind, limits, action, service, region, method, path, instance_type };
        for (key, value) in pairs {
            match key {
                _ if fault.limits.set(key, value)? => {}
                "action" => fault.action = Some(value.to_owned()),
                "service" => fault.service = Some(value.to_owned()),
                "region" => fault.region = Some(value.to_owned()),
                "method" => fault.method = Some(value.to_owned()),
                "type" => fault.instance_type = Some(value.to_owned()),
                "path" => fault.path = Some(Regex::new(value).map_err(|error| format!("path={value}: {error}"))?),
                _ => {
                    let expected = "every, after, times, action, service, region, method, path or type";
                    return Err(format!("unknown key {key}: expected {expected}"));
                }
            }
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
