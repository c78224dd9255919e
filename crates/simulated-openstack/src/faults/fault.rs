//! A fault of calls: its kind, and the calls that it hits.

use std::str::FromStr;

use simulated_service::faults::{Fault, FaultRule, Selection};

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
pub type CallFault = Fault<CallRule>;

#[derive(Clone, Debug)]
pub struct CallRule {
    pub kind: FaultKind,
    service: Option<Service>,
    calls: Selection,
    pub fields: Vec<String>,
}

/// Default fields of `MissingFields`: those that a driver needs.
const FIELDS: &str = "status,addresses,metadata,flavor,floating_ip_address,fixed_ips,limits,links";

impl FaultRule for CallRule {
    type Subject<'a> = Call;
    const KEYS: &'static str = "service, method, path or fields";

    fn of_kind(kind: &str) -> Result<Self, String> {
        let fields = FIELDS.split(',').map(str::to_owned).collect();
        Ok(Self { kind: kind.parse()?, service: None, calls: Selection::default(), fields })
    }

    fn set(&mut self, key: &str, value: &str) -> Result<bool, String> {
        match key {
            "service" => self.service = Some(value.parse()?),
            "fields" => self.fields = value.split(',').map(str::to_owned).collect(),
            _ => return self.calls.set(&["method", "path"], key, value),
        }
        Ok(true)
    }

    fn concerns(&self, call: &Call) -> bool {
        self.service.is_none_or(|service| call.service == Some(service))
            && self.calls.matches(&call.path, |_, method| call.method == method)
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
