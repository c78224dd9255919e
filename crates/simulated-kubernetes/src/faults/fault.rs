//! A fault of calls: its kind, and the calls that it hits.

use std::str::FromStr;

use simulated_service::faults::{Fault, FaultRule, Selection};

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
pub type CallFault = Fault<CallRule>;

#[derive(Clone, Debug)]
pub struct CallRule {
    pub kind: FaultKind,
    calls: Selection,
}

impl FaultRule for CallRule {
    type Subject<'a> = Call;
    const KEYS: &'static str = "verb, resource, method or path";

    fn of_kind(kind: &str) -> Result<Self, String> {
        Ok(Self { kind: kind.parse()?, calls: Selection::default() })
    }

    fn set(&mut self, key: &str, value: &str) -> Result<bool, String> {
        self.calls.set(&["verb", "resource", "method", "path"], key, value)
    }

    fn concerns(&self, call: &Call) -> bool {
        let (verb, resource) = call.route.as_ref().map_or(("", ""), |route| (route.verb, route.resource.as_str()));
        self.calls.matches(&call.path, |key, wanted| {
            let value = match key {
                "verb" => verb,
                "resource" => resource,
                _ => &call.method,
            };
            value == wanted
        })
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
