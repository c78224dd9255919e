//! Latency of calls: a fixed time or a range.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Shortest and longest latency in milliseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(try_from = "LatencyText", into = "String")]
pub struct Latency {
    low: u64,
    high: u64,
}

/// A knob's value in JSON: a number, or text as on the command line.
#[derive(Deserialize)]
#[serde(untagged)]
enum LatencyText {
    Number(u64),
    Text(String),
}

impl Latency {
    /// The latency of one call: equal seeds and numbers give equal times.
    pub fn of(self, seed: u64, number: u64) -> Duration {
        self.at(mixed(seed ^ mixed(number)))
    }

    /// The latency for a number, of which those of a uniform distribution give uniformly distributed times.
    pub fn at(self, random: u64) -> Duration {
        let range = (self.high - self.low) * 1000 + 1;
        Duration::from_micros(self.low * 1000 + random % range)
    }
}

/// The finalizer of MurmurHash3, which distributes consecutive numbers uniformly.
fn mixed(mut value: u64) -> u64 {
    value = (value ^ (value >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    value = (value ^ (value >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    value ^ (value >> 33)
}

impl FromStr for Latency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (low, high) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.trim().parse::<u64>().ok().filter(|number| *number < 1_000_000_000);
        match (number(low), number(high)) {
            (Some(low), Some(high)) if low <= high => Ok(Self { low, high }),
            _ => Err(format!("{text} is not a latency: expected milliseconds (20) or a range (20-50)")),
        }
    }
}

impl TryFrom<LatencyText> for Latency {
    type Error = String;

    fn try_from(value: LatencyText) -> Result<Self, String> {
        match value {
            LatencyText::Number(number) => number.to_string().parse(),
            LatencyText::Text(text) => text.parse(),
        }
    }
}

impl From<Latency> for String {
    fn from(latency: Latency) -> Self {
        latency.to_string()
    }
}

impl Display for Latency {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-{}", self.low, self.high)
    }
}
