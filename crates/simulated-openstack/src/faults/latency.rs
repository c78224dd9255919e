//! Latency of calls: a fixed time or a range, for all services or per service.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::Duration;

use crate::call::Service;
use crate::faults::per_service::PerService;

pub type Latency = PerService<LatencyRange>;

/// Shortest and longest latency in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct LatencyRange {
    low: u64,
    high: u64,
}

impl Latency {
    /// The latency of one call: equal seeds and numbers give equal times.
    pub fn of(&self, service: Service, seed: u64, number: u64) -> Duration {
        let Some(LatencyRange { low, high }) = self.get(service) else { return Duration::ZERO };
        let range = (high - low) * 1000 + 1;
        let offset = if range == 1 { 0 } else { splitmix64(seed, number) % range };
        Duration::from_micros(low * 1000 + offset)
    }
}

/// A uniformly distributed number for each pair (SplitMix64).
fn splitmix64(seed: u64, number: u64) -> u64 {
    let mut value = seed.wrapping_mul(0xA24B_AED4_963E_E407).wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

impl FromStr for LatencyRange {
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

impl Display for LatencyRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-{}", self.low, self.high)
    }
}
