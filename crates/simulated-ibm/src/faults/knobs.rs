//! Knobs, adjustable while the simulation runs: times, limits, capacity, leftovers, throttling and faults.

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use simulated_service::knobs;
use simulated_service::latency::Latency;
use simulated_service::seconds::SecondsRange;

use crate::faults::fault::CallFault;
use crate::faults::outcome_fault::OutcomeFault;
use crate::faults::places::{FullZone, QuotaLimits};

/// Every knob is a flag of the command line (`--boot-s 2`) and a key of `PUT /sim/knobs` (`{"boot_s": 2}`). Knobs that
/// say "every" are exact: 5 is the fifth, the tenth and so on; 0 is never.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knobs {
    /// Seconds from a creation until the instance is running: `2`, `2-5`. In the middle of this time it is starting.
    #[arg(long, default_value = "1", value_name = "S")]
    pub boot_s: SecondsRange,
    /// Seconds until an instance that does not start has failed or stopped.
    #[arg(long, default_value = "0.5", value_name = "S")]
    pub fail_s: SecondsRange,
    /// Seconds an instance is deleting before it is gone.
    #[arg(long, default_value = "1", value_name = "S")]
    pub delete_s: SecondsRange,
    /// Seconds an instance is stopping before it is stopped.
    #[arg(long, default_value = "1", value_name = "S")]
    pub stop_s: SecondsRange,
    /// Seconds a floating IP is pending before it is available.
    #[arg(long, default_value = "0.3", value_name = "S")]
    pub floating_ip_s: SecondsRange,
    /// Seconds from the call that attaches a floating IP until it has its target.
    #[arg(long, default_value = "0", value_name = "S")]
    pub attach_s: SecondsRange,
    /// Seconds a floating IP is deleting before it is gone.
    #[arg(long, default_value = "0.3", value_name = "S")]
    pub floating_ip_delete_s: SecondsRange,
    /// Seconds an image is pending before it is available or failed.
    #[arg(long, default_value = "1", value_name = "S")]
    pub image_s: SecondsRange,
    /// Seconds an image is deleting before it is gone.
    #[arg(long, default_value = "0.5", value_name = "S")]
    pub image_delete_s: SecondsRange,
    /// The minimum provisioned size of images that are imported.
    #[arg(long, default_value_t = 10, value_name = "GB")]
    pub image_gb: u64,
    /// Seconds for which tokens are valid that are issued from now on; 0: expired at once.
    #[arg(long, default_value_t = 3600.0, value_name = "S")]
    pub token_s: f64,
    /// Milliseconds until a call is answered: `20`, `20-50`.
    #[arg(long, default_value = "0", value_name = "MS")]
    pub latency_ms: Latency,
    /// Seed of ids, times in ranges and latencies.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Accept the deletion of an instance in any status. Otherwise it is 409 while the instance is pending, starting,
    /// stopping or restarting.
    #[arg(long)]
    pub delete_in_any_status: bool,
    /// Every n-th deletion of an instance leaves its boot volume behind.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub volumes_stay_every: u64,
    /// Every n-th deletion of a floating IP is accepted, but has no effect.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub floating_ips_stay_every: u64,
    /// Every n-th floating IP fails instead of becoming available.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub floating_ips_fail_every: u64,
    /// Every n-th deletion of an instance leaves it deleting forever.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub stuck_deleting_every: u64,
    /// Add the fields that Nodepool 11 reads and current versions of the API lack: `primary_ipv4_address` of network
    /// interfaces, and `owner_type` of images.
    #[arg(long)]
    pub legacy_fields: bool,
    /// Leave the name of the resource group out of listed images.
    #[arg(long)]
    pub unnamed_groups: bool,

    /// A zone without capacity: `us-south-1 bx2-2x8`; `*` stands for all; may be given several times.
    #[arg(long = "full-zone", value_name = "ZONE")]
    pub full_zones: Vec<FullZone>,
    /// The reason of instances that do not start in full zones.
    #[arg(long, default_value = "cannot_start_capacity", value_name = "CODE")]
    pub full_code: String,
    /// Refuse a creation in a full zone with 503 insufficient_capacity; otherwise the instance fails.
    #[arg(long)]
    pub refuse_when_full: bool,
    /// Limits of quotas: `instances=24,vcpus=96`, also memory_gib, floating_ips, images and volumes; others have no
    /// limit.
    #[arg(long, default_value = "", value_name = "RESOURCE=N,…")]
    pub quotas: QuotaLimits,
    /// The status of creations above a quota: 400 or 403.
    #[arg(long, default_value_t = 403, value_name = "STATUS", value_parser = clap::value_parser!(u16).range(400..500))]
    pub quota_status: u16,
    /// The code of creations above a quota.
    #[arg(long, default_value = "over_quota", value_name = "CODE")]
    pub quota_code: String,
    /// Maximum number of items on a page, also if the client asked for more; 0: no maximum.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub page: usize,

    /// Refuse every n-th call because of its rate.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub throttle_every: u64,
    /// Refuse calls above this many per second; 0 refuses none.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub throttle_above_per_s: u64,
    /// The header `Retry-After` of calls that are refused because of their rate; 0: no header.
    #[arg(long, default_value_t = 1, value_name = "S")]
    pub retry_after_s: u64,
    /// Duration of the fault `hang`.
    #[arg(long, default_value_t = 600.0, value_name = "S")]
    pub hang_s: f64,
    /// Close the port of the API and all its connections until the knob is false again.
    #[arg(long)]
    pub refuse_connections: bool,
    /// Number of calls that `/sim/history` remembers.
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    pub history_calls: usize,
    /// A fault of calls: its kind and its limits, as in `503 every=5 action=create_instance`; may be given several
    /// times.
    #[arg(long = "fault", value_name = "FAULT")]
    pub faults: Vec<CallFault>,
    /// A fault of launches: a reason and its limits, as in `cannot_start_capacity times=2`; may be given several times.
    #[arg(long = "launch-fault", value_name = "FAULT")]
    pub launch_faults: Vec<OutcomeFault>,
    /// A fault of imports of images: a reason and its limits, as in `image_data_corrupted every=3`; may be given
    /// several times.
    #[arg(long = "image-fault", value_name = "FAULT")]
    pub image_faults: Vec<OutcomeFault>,
}

impl Knobs {
    /// These knobs with some of them changed.
    pub fn updated(&self, change: Value) -> Result<Self, String> {
        let knobs: Self = knobs::updated(self, change)?;
        knobs::check_times(&[knobs.token_s, knobs.hang_s])?;
        if !(400..500).contains(&knobs.quota_status) {
            return Err("quota_status must be 400 to 499".to_owned());
        }
        match (1..=250).contains(&knobs.image_gb) {
            true => Ok(knobs),
            false => Err("image_gb must be 1 to 250".to_owned()),
        }
    }
}
