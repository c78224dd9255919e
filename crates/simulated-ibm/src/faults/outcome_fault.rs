//! A fault of accepted creations: an instance that does not start, or an image whose import fails.

use simulated_service::faults::{Fault, FaultRule, Selection};

use crate::faults::codes;

/// One line of the knobs `launch_faults` and `image_faults`.
pub type OutcomeFault = Fault<OutcomeRule>;

#[derive(Clone, Debug)]
pub struct OutcomeRule {
    pub code: String,
    /// The status in which the instance ends: `failed` or `stopped`.
    pub is_stopped: bool,
    instances: Selection,
}

/// An accepted creation.
pub enum Creation<'a> {
    Image,
    Instance { zone: &'a str, profile: &'a str },
}

impl FaultRule for OutcomeRule {
    type Subject<'a> = Creation<'a>;
    const KEYS: &'static str = "zone, profile, or status (failed or stopped)";

    fn of_kind(code: &str) -> Result<Self, String> {
        if !codes::INSTANCE_REASONS.iter().chain(&codes::IMAGE_REASONS).any(|known| *known == code) {
            return Err(format!("unknown reason {code}: expected one such as cannot_start_capacity"));
        }
        Ok(Self { code: code.to_owned(), is_stopped: false, instances: Selection::default() })
    }

    fn set(&mut self, key: &str, value: &str) -> Result<bool, String> {
        match (key, value) {
            ("status", "failed" | "stopped") => self.is_stopped = value == "stopped",
            _ => return self.instances.set(&["zone", "profile"], key, value),
        }
        Ok(true)
    }

    fn concerns(&self, creation: &Creation<'_>) -> bool {
        self.instances.matches("", |key, wanted| match creation {
            // It has neither.
            Creation::Image => true,
            Creation::Instance { zone, profile } => wanted == if key == "zone" { *zone } else { *profile },
        })
    }
}
