//! Quotas of regions and projects: limits, usage, and what an instance is charged for.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::faults::knobs::Knobs;

/// Metrics of each region with their default limits.
const REGIONAL: [(&str, f64); 12] = [
    ("CPUS", 24000.0),
    ("DISKS_TOTAL_GB", 4_096_000.0),
    ("STATIC_ADDRESSES", 8.0),
    ("IN_USE_ADDRESSES", 24000.0),
    ("SSD_TOTAL_GB", 4_096_000.0),
    ("INSTANCES", 24000.0),
    ("PREEMPTIBLE_CPUS", 0.0),
    ("C2_CPUS", 24000.0),
    ("N2_CPUS", 24000.0),
    ("N2D_CPUS", 24000.0),
    ("T2A_CPUS", 24000.0),
    ("T2D_CPUS", 24000.0),
];
/// Metrics of the project.
const GLOBAL: [(&str, f64); 3] = [("CPUS_ALL_REGIONS", 48000.0), ("NETWORKS", 50.0), ("IMAGES", 2000.0)];

/// The place of the project's own metrics.
pub const ALL_REGIONS: &str = "";

/// Amounts by place and metric that one instance uses.
pub type Charges = Vec<(&'static str, f64)>;

/// A quota without enough capacity for an instance.
#[derive(Clone, Debug, PartialEq)]
pub struct ExceededQuota {
    metric: &'static str,
    limit: f64,
    region: String,
}

#[derive(Default)]
pub struct Usage {
    /// By region, or `ALL_REGIONS`, and metric.
    amounts: BTreeMap<String, BTreeMap<&'static str, f64>>,
}

impl Usage {
    pub fn get(&self, region: &str, metric: &str) -> f64 {
        self.amounts.get(region).and_then(|metrics| metrics.get(metric)).copied().unwrap_or_default()
    }

    pub fn add(&mut self, region: &str, charges: &Charges) {
        self.change(region, charges, 1.0);
    }

    pub fn remove(&mut self, region: &str, charges: &Charges) {
        self.change(region, charges, -1.0);
    }

    fn change(&mut self, region: &str, charges: &Charges, sign: f64) {
        for (metric, amount) in charges {
            let place = if is_global(metric) { ALL_REGIONS } else { region };
            let metrics = self.amounts.entry(place.to_owned()).or_default();
            let used = metrics.entry(metric).or_default();
            *used += sign * amount;
            assert!(*used >= 0.0, "{metric} is returned more often than it was charged");
        }
    }

    /// The first quota that these charges would exceed.
    pub fn exceeded(&self, knobs: &Knobs, region: &str, charges: &Charges) -> Option<ExceededQuota> {
        let exceeds = |(metric, amount): &(&'static str, f64)| {
            let place = if is_global(metric) { ALL_REGIONS } else { region };
            let limit = limit(knobs, place, metric)?;
            let is_exceeded = self.get(place, metric) + amount > limit;
            is_exceeded.then(|| ExceededQuota { metric, limit, region: place.to_owned() })
        };
        charges.iter().find_map(exceeds)
    }

    /// The quotas of a region or of the project.
    pub fn json(&self, knobs: &Knobs, region: &str) -> Value {
        let table = if region == ALL_REGIONS { &GLOBAL[..] } else { &REGIONAL[..] };
        let quota = |(metric, _): &(&'static str, f64)| {
            let limit = limit(knobs, region, metric)?;
            Some(json!({"metric": metric, "limit": limit, "usage": self.get(region, metric)}))
        };
        table.iter().filter_map(quota).collect()
    }

    /// Usage by region and metric.
    pub fn amounts(&self) -> &BTreeMap<String, BTreeMap<&'static str, f64>> {
        &self.amounts
    }
}

impl ExceededQuota {
    pub fn message(&self) -> String {
        let place = match self.region.as_str() {
            ALL_REGIONS => "globally".to_owned(),
            region => format!("in region {region}"),
        };
        format!("Quota '{}' exceeded.  Limit: {:.1} {place}.", self.metric, self.limit)
    }

    /// The details that an operation's error has.
    pub fn details(&self) -> Value {
        let name = self.metric.to_ascii_lowercase();
        let info = json!({
            "metricName": format!("compute.googleapis.com/{name}"), "limit": self.limit,
            "limitName": format!("{}-per-project-region", self.metric.replace('_', "-")),
            "dimensions": {"region": self.region},
        });
        json!([{"quotaInfo": info}])
    }
}

fn is_global(metric: &str) -> bool {
    GLOBAL.iter().any(|(global, _)| *global == metric)
}

/// The limit of a metric; `None` means no limit.
pub fn limit(knobs: &Knobs, region: &str, metric: &str) -> Option<f64> {
    if knobs.hidden_quotas.iter().any(|hidden| hidden == metric) {
        return None;
    }
    let default = REGIONAL.iter().chain(&GLOBAL).find(|(known, _)| *known == metric).map(|(_, limit)| *limit);
    knobs.quotas.get(region, metric).or(default)
}

/// The metric of a spot instance's vCPUs: that of preemptible ones, if the region has a limit of them.
pub fn cpu_metric(knobs: &Knobs, region: &str, own: &'static str, is_spot: bool) -> &'static str {
    let has_preemptible = limit(knobs, region, "PREEMPTIBLE_CPUS").is_some_and(|limit| limit > 0.0);
    if is_spot && has_preemptible { "PREEMPTIBLE_CPUS" } else { own }
}

/// The metric of a disk of this type.
pub fn disk_metric(disk_type: &str) -> &'static str {
    if disk_type == "pd-standard" { "DISKS_TOTAL_GB" } else { "SSD_TOTAL_GB" }
}
