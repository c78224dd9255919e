//! A fault of calls: its kind, and the calls that it hits.

use std::str::FromStr;

use regex_lite::Regex;
use serde::{Deserialize, Serialize};
use simulated_service::faults::{Limits, words};

use crate::faults::codes;
use crate::server::call::Call;
use crate::server::response::ApiError;

#[derive(Clone, Debug, PartialEq)]
pub enum FaultKind {
    /// An error of this status, code or both, with this header `Retry-After`; the call has no effect.
    Error { status: Option<u16>, code: Option<String>, retry_after: Option<u64> },
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
    method: Option<String>,
    path: Option<Regex>,
}

impl Fault {
    /// Whether the fault applies to this kind of call.
    pub fn matches(&self, call: &Call) -> bool {
        let is = |wanted: &Option<String>, value: &str| wanted.as_ref().is_none_or(|wanted| wanted == value);
        is(&self.action, call.action)
            && is(&self.method, &call.method)
            && self.path.as_ref().is_none_or(|path| path.is_match(&call.path))
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match (key, &mut self.kind) {
            _ if self.limits.set(key, value)? => {}
            ("action", _) => self.action = Some(value.to_owned()),
            ("method", _) => self.method = Some(value.to_owned()),
            ("path", _) => self.path = Some(Regex::new(value).map_err(|error| format!("path={value}: {error}"))?),
            ("code", FaultKind::Error { code, .. }) => *code = Some(value.to_owned()),
            ("retry-after", FaultKind::Error { retry_after, .. }) => {
                *retry_after = Some(value.parse().map_err(|_| format!("retry-after={value}: expected seconds"))?);
            }
            ("s", FaultKind::Delay(delay)) => {
                let time = value.parse().ok().filter(|time| (0.0..1e9).contains(time));
                *delay = time.ok_or_else(|| format!("s={value}: expected seconds"))?;
            }
            _ => {
                let expected = "every, after, times, action, method, path, code and retry-after (of an error) or s (of \
                                a delay)";
                return Err(format!("unknown key {key}: expected {expected}"));
            }
        }
        Ok(())
    }
}

impl FaultKind {
    /// The error of this fault.
    pub fn error(&self) -> Option<ApiError> {
        let Self::Error { status, code, retry_after } = self else { return None };
        let code = code.clone().unwrap_or_else(|| codes::code(status.unwrap_or(500)).to_owned());
        let mut error = ApiError::new(&code);
        error.status = status.unwrap_or(error.status);
        error.retry_after = *retry_after;
        Some(error)
    }
}

impl FromStr for FaultKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("unknown fault {text}: expected 400 to 599, a code such as over_quota, or a name");
        let is_code = |text: &str| {
            text.contains('_') && text.chars().all(|one| one.is_ascii_lowercase() || one.is_ascii_digit() || one == '_')
        };
        Ok(match text {
            "html" => Self::Html,
            "closed" => Self::Closed,
            "hang" => Self::Hang,
            "delay" => Self::Delay(1.0),
            "lost-answer" => Self::LostAnswer,
            "truncated" => Self::Truncated,
            code if is_code(code) => Self::Error { status: None, code: Some(code.to_owned()), retry_after: None },
            status => {
                let status = status.parse().ok().filter(|status| (400..=599).contains(status)).ok_or_else(error)?;
                Self::Error { status: Some(status), code: None, retry_after: None }
            }
        })
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, pairs) = words(text)?;
        let (kind, limits) = (kind.parse()?, Limits::default());
        let mut fault = Self { text: text.to_owned(), kind, limits, action: None, method: None, path: None };
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
