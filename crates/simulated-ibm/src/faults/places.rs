//! Zones without capacity, and the limits of quotas, as knobs.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A zone that has no capacity for a profile; `*` stands for all.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FullZone {
    zone: String,
    profile: String,
}

impl FullZone {
    pub fn contains(&self, zone: &str, profile: &str) -> bool {
        let matches = |pattern: &str, value: &str| pattern == "*" || pattern == value;
        matches(&self.zone, zone) && matches(&self.profile, profile)
    }
}

impl FromStr for FullZone {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (zone, profile) = match words[..] {
            [zone] => (zone, "*"),
            [zone, profile] => (zone, profile),
            _ => return Err(format!("{text} is not ZONE [PROFILE]")),
        };
        Ok(Self { zone: zone.to_owned(), profile: profile.to_owned() })
    }
}

impl TryFrom<String> for FullZone {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<FullZone> for String {
    fn from(full: FullZone) -> Self {
        format!("{} {}", full.zone, full.profile)
    }
}

/// Resources with a quota.
const QUOTAS: [&str; 6] = ["instances", "vcpus", "memory_gib", "floating_ips", "images", "volumes"];

/// Limits by resource: `instances=24,vcpus=96` on the command line, an object in JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, u64>", into = "BTreeMap<String, u64>")]
pub struct QuotaLimits(BTreeMap<String, u64>);

impl QuotaLimits {
    /// The limit of a resource; `None` means no limit.
    pub fn get(&self, resource: &str) -> Option<u64> {
        self.0.get(resource).copied()
    }
}

impl TryFrom<BTreeMap<String, u64>> for QuotaLimits {
    type Error = String;

    fn try_from(limits: BTreeMap<String, u64>) -> Result<Self, String> {
        match limits.keys().find(|resource| !QUOTAS.contains(&resource.as_str())) {
            Some(resource) => Err(format!("unknown quota {resource}: expected {}", QUOTAS.join(", "))),
            None => Ok(Self(limits)),
        }
    }
}

impl From<QuotaLimits> for BTreeMap<String, u64> {
    fn from(limits: QuotaLimits) -> Self {
        limits.0
    }
}

impl FromStr for QuotaLimits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pair = |pair: &str| {
            let (resource, limit) = pair.split_once('=').ok_or_else(|| format!("{pair} is not RESOURCE=LIMIT"))?;
            Ok((resource.to_owned(), limit.parse().map_err(|_| format!("{pair}: expected a number"))?))
        };
        let limits: BTreeMap<String, u64> =
            text.split(',').filter(|part| !part.is_empty()).map(pair).collect::<Result<_, String>>()?;
        limits.try_into()
    }
}
