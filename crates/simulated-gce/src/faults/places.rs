//! Zones without capacity, and the limits of quotas, as knobs.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A zone that has no capacity for a machine type, and for `spot` or `standard` instances; `*` stands for all.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FullZone {
    zone: String,
    machine_type: String,
    model: String,
}

impl FullZone {
    pub fn contains(&self, zone: &str, machine_type: &str, model: &str) -> bool {
        let matches = |pattern: &str, value: &str| pattern == "*" || pattern == value;
        matches(&self.zone, zone) && matches(&self.machine_type, machine_type) && matches(&self.model, model)
    }
}

impl FromStr for FullZone {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (zone, machine_type, model) = match words[..] {
            [zone] => (zone, "*", "*"),
            [zone, machine_type] => (zone, machine_type, "*"),
            [zone, machine_type, model @ ("spot" | "standard" | "*")] => (zone, machine_type, model),
            _ => return Err(format!("{text} is not ZONE [TYPE [spot|standard]]")),
        };
        let [zone, machine_type, model] = [zone, machine_type, model].map(str::to_owned);
        Ok(Self { zone, machine_type, model })
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
        format!("{} {} {}", full.zone, full.machine_type, full.model)
    }
}

/// Limits by metric, or by region and metric: `CPUS=24,europe-west1/CPUS=8` on the command line, an object in JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct QuotaLimits(BTreeMap<String, f64>);

impl QuotaLimits {
    pub fn get(&self, region: &str, metric: &str) -> Option<f64> {
        self.0.get(&format!("{region}/{metric}")).or_else(|| self.0.get(metric)).copied()
    }
}

impl FromStr for QuotaLimits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pair = |pair: &str| {
            let (metric, limit) = pair.split_once('=').ok_or_else(|| format!("{pair} is not METRIC=LIMIT"))?;
            Ok((metric.to_owned(), limit.parse().map_err(|_| format!("{pair}: expected a number"))?))
        };
        text.split(',').filter(|part| !part.is_empty()).map(pair).collect::<Result<_, String>>().map(Self)
    }
}
