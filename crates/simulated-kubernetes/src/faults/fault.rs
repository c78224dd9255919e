//! A fault of calls: its kind, and the calls that it hits.

use std::str::FromStr;

use regex_lite::Regex;
use serde::{Deserialize, Serialize};
use simulated_service::faults::{Limits, words};

use crate::server::call::Call;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A Status object of this code; the call has no effect.
    Status(u16),
    /// 500 `ServerTimeout`: the token of the account `default` does not exist yet; the call has no effect.
    NoToken,
    /// 403 `Forbidden` with the text of an exceeded ResourceQuota; the call has no effect.
    Quota,
    /// 502 with an HTML page, as a proxy in front of the cluster responds; the call has no effect.
    Html,
    /// The connection is closed without a response; the call has no effect.
    Closed,
    /// No response for `hang_s`, then the connection is closed; the call has no effect.
    Hang,
    /// The call is executed, and the connection is closed without a response.
    LostAnswer,
    /// The response, or the first event of a watch, ends in the middle of its JSON.
    Truncated,
    /// A list lacks its second half, and has no `continue`.
    PartialList,
}

/// One line of the knob `faults`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fault {
    text: String,
    pub kind: FaultKind,
    pub limits: Limits,
    verb: Option<String>,
    resource: Option<String>,
    method: Option<String>,
    path: Option<Regex>,
}

impl Fault {
    /// Whether the fault applies to this kind of call.
    pub fn matches(&self, call: &Call) -> bool {
        let (verb, resource) = call.route.as_ref().map_or(("", ""), |route| (route.verb, route.resource.as_str()));
        self.verb.as_ref().is_none_or(|wanted| wanted == verb)
            && self.resource.as_ref().is_none_or(|wanted| wanted == resource)
            && self.method.as_ref().is_none_or(|method| *method == call.method)
            && self.path.as_ref().is_none_or(|path| path.is_match(&call.path))
    }
}

impl FromStr for FaultKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "no-token" => Self::NoToken,
            "quota" => Self::Quota,
            "html" => Self::Html,
            "closed" => Self::Closed,
            "hang" => Self::Hang,
            "lost-answer" => Self::LostAnswer,
            "truncated" => Self::Truncated,
            "partial-list" => Self::PartialList,
            other => match other.parse() {
                Ok(status @ 400..=599) => Self::Status(status),
                _ => return Err(format!("unknown fault {other}: expected 400 to 599, or a name in the documentation")),
            },
        })
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, pairs) = words(text)?;
        let (kind, limits) = (kind.parse()?, Limits::default());
        let (verb, resource, method, path) = (None, None, None, None);
        let mut fault = Self { text: text.to_owned(), kind, limits, verb, resource, method, path };
        for (key, value) in pairs {
            match key {
                _ if fault.limits.set(key, value)? => {}
                "verb" => fault.verb = Some(value.to_owned()),
                "resource" => fault.resource = Some(value.to_owned()),
                "method" => fault.method = Some(value.to_owned()),
                "path" => fault.path = Some(Regex::new(value).map_err(|error| format!("path={value}: {error}"))?),
                _ => {
                    let expected = "every, after, times, verb, resource, method or path";
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
