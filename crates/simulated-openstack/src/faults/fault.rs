//! A fault of calls: its kind, and the calls that it hits.

use std::str::FromStr;

use regex_lite::Regex;
use serde::{Deserialize, Serialize};
use simulated_service::faults::{Limits, words};

use crate::call::{Call, Service};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// An error of this status in the service's own form; the call has no effect.
    Status(u16),
    /// 502 with an HTML page, as a proxy in front of the cloud responds; the call has no effect.
    Html,
    /// 200 with an HTML page, as a login page of a proxy; the call has no effect.
    Page,
    /// 200 without content; the call has no effect.
    Empty,
    /// This status and another address of the same cloud, which accepts the call.
    Redirect(u16),
    /// The connection is closed without a response; the call has no effect.
    Closed,
    /// No response for `hang_s`, then the connection is closed; the call has no effect.
    Hang,
    /// The call is executed, and the connection is closed without a response.
    LostAnswer,
    /// The response ends in the middle of its JSON.
    Truncated,
    /// The response lacks the fields of `fields=` at every level.
    MissingFields,
    /// Every status is replaced by an unknown one.
    UnknownState,
    /// A list ends early, without a link to the next page.
    PartialList,
    /// The link to the next page of a list leads to the same page again.
    RepeatedMarker,
}

/// One line of the knob `faults`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fault {
    text: String,
    pub kind: FaultKind,
    pub limits: Limits,
    service: Option<Service>,
    method: Option<String>,
    path: Option<Regex>,
    pub fields: Vec<String>,
}

/// Default fields of `MissingFields`: those that a driver needs.
const FIELDS: &str = "status,addresses,metadata,flavor,floating_ip_address,fixed_ips,limits,links";

impl Fault {
    /// Whether the fault applies to this kind of call.
    pub fn matches(&self, call: &Call) -> bool {
        self.service.is_none_or(|service| call.service == Some(service))
            && self.method.as_ref().is_none_or(|method| *method == call.method)
            && self.path.as_ref().is_none_or(|path| path.is_match(&call.path))
    }
}

impl FromStr for FaultKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "html" => Self::Html,
            "page" => Self::Page,
            "empty" => Self::Empty,
            "redirect" => Self::Redirect(307),
            "closed" => Self::Closed,
            "hang" => Self::Hang,
            "lost-answer" => Self::LostAnswer,
            "truncated" => Self::Truncated,
            "missing-fields" => Self::MissingFields,
            "unknown-state" => Self::UnknownState,
            "partial-list" => Self::PartialList,
            "repeated-marker" => Self::RepeatedMarker,
            other => match other.parse() {
                Ok(status @ (301 | 302 | 303 | 308)) => Self::Redirect(status),
                Ok(status @ 400..=599) => Self::Status(status),
                _ => {
                    let expected = "301, 302, 303, 308, 400 to 599, or a name in the documentation";
                    return Err(format!("unknown fault {other}: expected {expected}"));
                }
            },
        })
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, pairs) = words(text)?;
        let mut fault = Self {
            text: text.to_owned(),
            kind: kind.parse()?,
            limits: Limits::default(),
            service: None,
            method: None,
            path: None,
            fields: FIELDS.split(',').map(str::to_owned).collect(),
        };
        for (key, value) in pairs {
            match key {
                _ if fault.limits.set(key, value)? => {}
                "service" => fault.service = Some(value.parse()?),
                "method" => fault.method = Some(value.to_owned()),
                "path" => fault.path = Some(Regex::new(value).map_err(|error| format!("path={value}: {error}"))?),
                "fields" => fault.fields = value.split(',').map(str::to_owned).collect(),
                _ => {
                    return Err(format!(
                        "unknown key {key}: expected every, after, times, service, method, path or fields"
                    ));
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
