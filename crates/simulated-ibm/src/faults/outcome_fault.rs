//! A fault of accepted creations: an instance that does not start, or an image whose import fails.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use simulated_service::faults::{Limits, words};

use crate::faults::codes;

/// One line of the knobs `launch_faults` and `image_faults`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OutcomeFault {
    text: String,
    pub code: String,
    pub limits: Limits,
    /// The status in which the instance ends: `failed` or `stopped`.
    pub is_stopped: bool,
    zone: Option<String>,
    profile: Option<String>,
}

impl OutcomeFault {
    /// Whether the fault applies to an instance of this profile in this zone; an image has neither.
    pub fn matches(&self, zone: &str, profile: &str) -> bool {
        self.zone.as_ref().is_none_or(|wanted| wanted == zone)
            && self.profile.as_ref().is_none_or(|wanted| wanted == profile)
    }
}

impl FromStr for OutcomeFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (code, pairs) = words(text)?;
        if !codes::INSTANCE_REASONS.iter().chain(&codes::IMAGE_REASONS).any(|known| *known == code) {
            return Err(format!("unknown reason {code}: expected one such as cannot_start_capacity"));
        }
        let (zone, profile) = (None, None);
        let mut fault = Self {
            text: text.to_owned(),
            code: code.to_owned(),
            limits: Limits::default(),
            is_stopped: false,
            zone,
            profile,
        };
        for (key, value) in pairs {
            match (key, value) {
                _ if fault.limits.set(key, value)? => {}
                ("zone", _) => fault.zone = Some(value.to_owned()),
                ("profile", _) => fault.profile = Some(value.to_owned()),
                ("status", "failed") => fault.is_stopped = false,
                ("status", "stopped") => fault.is_stopped = true,
                _ => {
                    let expected = "every, after, times, zone, profile, or status (failed or stopped)";
                    return Err(format!("unknown key {key}={value}: expected {expected}"));
                }
            }
        }
        Ok(fault)
    }
}

impl TryFrom<String> for OutcomeFault {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<OutcomeFault> for String {
    fn from(fault: OutcomeFault) -> Self {
        fault.text
    }
}
