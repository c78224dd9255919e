//! Latency of calls: a fixed time or a range, for all services or per service.

use std::time::Duration;

use simulated_service::latency::Latency as LatencyRange;

use crate::call::Service;
use crate::faults::per_service::PerService;

pub type Latency = PerService<LatencyRange>;

impl Latency {
    /// The latency of one call: equal seeds and numbers give equal times.
    pub fn of(&self, service: Service, seed: u64, number: u64) -> Duration {
        self.get(service).map_or(Duration::ZERO, |range| range.at(splitmix64(seed, number)))
    }
}

/// A uniformly distributed number for each pair (SplitMix64).
fn splitmix64(seed: u64, number: u64) -> u64 {
    let mut value = seed.wrapping_mul(0xA24B_AED4_963E_E407).wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}
