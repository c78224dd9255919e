//! Latency of calls: a fixed time or a range, for all services or per service.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::call::Service;

/// Milliseconds per service; `None` is the default of all other services.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Latency(BTreeMap<Option<Service>, (u64, u64)>);

impl Latency {
    /// The latency of one call: equal seeds and numbers give equal times.
    pub fn of(&self, service: Service, seed: u64, number: u64) -> Duration {
        let Some((low, high)) = self.0.get(&Some(service)).or_else(|| self.0.get(&None)) else { return Duration::ZERO };
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

impl FromStr for Latency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut latency = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (service, range) = match part.split_once('=') {
                Some((service, range)) => (Some(service.parse()?), range),
                None => (None, part),
            };
            let (low, high) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.trim().parse::<u64>().ok().filter(|number| *number < 1_000_000_000);
            match (number(low), number(high)) {
                (Some(low), Some(high)) if low <= high => latency.0.insert(service, (low, high)),
                _ => return Err(format!("{range} is not a latency: expected milliseconds (20) or a range (20-50)")),
            };
        }
        Ok(latency)
    }
}

impl TryFrom<String> for Latency {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Latency> for String {
    fn from(latency: Latency) -> Self {
        let part = |(service, (low, high)): (&Option<Service>, &(u64, u64))| match service {
            Some(service) => format!("{}={low}-{high}", service.name()),
            None => format!("{low}-{high}"),
        };
        latency.0.iter().map(part).collect::<Vec<_>>().join(",")
    }
}
