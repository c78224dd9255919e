//! Knobs, adjustable while the simulation runs: times, limits, capacity, throttling and faults.

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use simulated_service::knobs;
use simulated_service::latency::Latency;
use simulated_service::seconds::SecondsRange;

use crate::faults::fault::CallFault;
use crate::faults::operation_fault::OperationFault;
use crate::faults::places::{FullZone, QuotaLimits};

/// Every knob is a flag of the command line (`--boot-s 2`) and a key of `PUT /sim/knobs` (`{"boot_s": 2}`). Knobs that
/// say "every" are exact: 5 is the fifth, the tenth and so on; 0 is never.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knobs {
    /// Seconds from an insert until the instance is RUNNING and the operation DONE: `2`, `2-5`. In the middle of this
    /// time the instance becomes STAGING.
    #[arg(long, default_value = "1", value_name = "S")]
    pub boot_s: SecondsRange,
    /// Seconds an instance is STOPPING before a deletion removes it.
    #[arg(long, default_value = "1", value_name = "S")]
    pub delete_s: SecondsRange,
    /// Seconds an instance is STOPPING before it is TERMINATED.
    #[arg(long, default_value = "1", value_name = "S")]
    pub stop_s: SecondsRange,
    /// Seconds an operation is PENDING before it is RUNNING.
    #[arg(long, default_value = "0.2", value_name = "S")]
    pub operation_s: SecondsRange,
    /// Seconds until an operation that fails is DONE.
    #[arg(long, default_value = "0.5", value_name = "S")]
    pub fail_s: SecondsRange,
    /// Longest time for which a call to wait for an operation is held.
    #[arg(long, default_value_t = 120.0, value_name = "S")]
    pub wait_s: f64,
    /// Seconds for which a finished operation is known.
    #[arg(long, default_value_t = 3600.0, value_name = "S")]
    pub operations_kept_s: f64,
    /// Seconds for which the id of a request is remembered.
    #[arg(long, default_value_t = 3600.0, value_name = "S")]
    pub requests_kept_s: f64,
    /// Seconds after its insert at which a spot instance is preempted; 0: never.
    #[arg(long, default_value_t = 0.0, value_name = "S")]
    pub preempt_after_s: f64,
    /// Seconds for which tokens are valid that are issued from now on; 0: expired at once.
    #[arg(long, default_value_t = 3600.0, value_name = "S")]
    pub token_s: f64,
    /// Milliseconds until a call is answered: `20`, `20-50`.
    #[arg(long, default_value = "0", value_name = "MS")]
    pub latency_ms: Latency,
    /// Seed of ids, times in ranges and latencies.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// A zone without capacity: `us-central1-a n2-standard-4 spot`; `*` stands for all; may be given several times.
    #[arg(long = "full-zone", value_name = "ZONE")]
    pub full_zones: Vec<FullZone>,
    /// The code of operations in full zones.
    #[arg(long, default_value = "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", value_name = "CODE")]
    pub full_code: String,
    /// Limits of quotas: `CPUS=24,europe-west1/CPUS=8`; others have their default value.
    #[arg(long, default_value = "", value_name = "METRIC=N,…")]
    pub quotas: QuotaLimits,
    /// A metric that regions and projects do not list, and that has no limit; may be given several times.
    #[arg(long = "hidden-quota", value_name = "METRIC")]
    pub hidden_quotas: Vec<String>,
    /// Refuse an insert above a quota with 403 quotaExceeded; otherwise its operation ends with QUOTA_EXCEEDED.
    #[arg(long)]
    pub refuse_above_quota: bool,
    /// Maximum number of items on a page, also if the client asked for more; 0: no maximum.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub page: usize,

    /// Refuse every n-th call because of its rate.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub throttle_every: u64,
    /// Refuse calls above this many per second; 0 refuses none.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub throttle_above_per_s: u64,
    /// The status of calls that are refused because of their rate.
    #[arg(long, default_value_t = 403, value_name = "STATUS", value_parser = clap::value_parser!(u16).range(400..500))]
    pub throttle_status: u16,
    /// Duration of the fault `hang`.
    #[arg(long, default_value_t = 600.0, value_name = "S")]
    pub hang_s: f64,
    /// Close the port of the API and all its connections until the knob is false again.
    #[arg(long)]
    pub refuse_connections: bool,
    /// Number of calls that `/sim/history` remembers.
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    pub history_calls: usize,
    /// A fault of calls: its kind and its limits, as in `503 every=5 action=instances.insert`; may be given several
    /// times.
    #[arg(long = "fault", value_name = "FAULT")]
    pub faults: Vec<CallFault>,
    /// A fault of operations: a code and its limits, as in `QUOTA_EXCEEDED times=2`; may be given several times.
    #[arg(long = "operation-fault", value_name = "FAULT")]
    pub operation_faults: Vec<OperationFault>,
}

impl Knobs {
    /// These knobs with some of them changed.
    pub fn updated(&self, change: Value) -> Result<Self, String> {
        let knobs: Self = knobs::updated(self, change)?;
        knobs::check_times(&[
            knobs.wait_s,
            knobs.operations_kept_s,
            knobs.requests_kept_s,
            knobs.preempt_after_s,
            knobs.token_s,
            knobs.hang_s,
        ])?;
        match (400..500).contains(&knobs.throttle_status) {
            true => Ok(knobs),
            false => Err("throttle_status must be 400 to 499".to_owned()),
        }
    }
}
