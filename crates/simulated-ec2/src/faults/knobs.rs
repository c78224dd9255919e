//! Knobs, adjustable while the simulation runs: times, limits, capacity, throttling and faults.

use clap::{ArgAction, Args};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use simulated_service::knobs;
use simulated_service::latency::Latency;

use crate::faults::fault::CallFault;
use crate::faults::places::{FullPlace, QuotaValues};

/// Every knob is a flag of the command line (`--boot-s 2`) and a key of `PUT /sim/knobs` (`{"boot_s": 2}`). Knobs that
/// say "every" are exact: 5 is the fifth, the tenth and so on; 0 is never.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knobs {
    /// Seconds from the launch of an instance until it is running.
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    pub boot_s: f64,
    /// Seconds an instance is shutting-down before it is terminated.
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    pub terminate_s: f64,
    /// Seconds for which terminated instances and released hosts are listed.
    #[arg(long, default_value_t = 60.0, value_name = "S")]
    pub terminated_visible_s: f64,
    /// Seconds for which a new instance is missing in DescribeInstances.
    #[arg(long, default_value_t = 0.0, value_name = "S")]
    pub visibility_delay_s: f64,
    /// Seconds until an allocated host is available.
    #[arg(long, default_value_t = 0.0, value_name = "S")]
    pub host_s: f64,
    /// Seconds for which a Mac host is cleaned after its instance; it is pending and cannot be released.
    #[arg(long, default_value_t = 0.0, value_name = "S")]
    pub host_clean_s: f64,
    /// Seconds after its allocation until a Mac host may be released.
    #[arg(long, default_value_t = 86400.0, value_name = "S")]
    pub host_minimum_s: f64,
    /// Seconds until a complete snapshot is `completed`.
    #[arg(long, default_value_t = 0.5, value_name = "S")]
    pub snapshot_s: f64,
    /// Seconds of an import task.
    #[arg(long, default_value_t = 2.0, value_name = "S")]
    pub import_s: f64,
    /// Seconds for which a finished import task is known.
    #[arg(long, default_value_t = 604800.0, value_name = "S")]
    pub import_kept_s: f64,
    /// Seconds after which a running spot instance is reclaimed; 0: never.
    #[arg(long, default_value_t = 0.0, value_name = "S")]
    pub spot_reclaim_after_s: f64,
    /// Seconds for which credentials of a role are valid that are issued from now on; 0: expired at once.
    #[arg(long, default_value_t = 3600.0, value_name = "S")]
    pub session_s: f64,
    /// Milliseconds until a call is answered: `20`, `20-50`.
    #[arg(long, default_value = "0", value_name = "MS")]
    pub latency_ms: Latency,
    /// Seed of ids and latencies.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Every n-th instance ends by itself with `fail_reason`.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub fail_every: u64,
    /// The code of the state reason of instances that `fail_every` ends.
    #[arg(long, default_value = "Server.InternalError", value_name = "CODE")]
    pub fail_reason: String,
    /// Seconds from the launch until `fail_every` ends an instance; it boots meanwhile.
    #[arg(long, default_value_t = 0.5, value_name = "S")]
    pub fail_after_s: f64,
    /// Every n-th import task fails: its state is `deleted`, and its message `import_fail_message`.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub import_fail_every: u64,
    /// The status message of failed import tasks.
    #[arg(
        long,
        default_value = "ClientError: Disk validation failed [Unsupported disk image format]",
        value_name = "TEXT"
    )]
    pub import_fail_message: String,
    /// Number of import tasks at a time; more are refused with ResourceCountLimitExceeded.
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub import_limit: u64,

    /// A place without capacity: `t3.medium us-west-2a spot`; `*` stands for all; may be given several times.
    #[arg(long = "full-place", value_name = "PLACE")]
    pub full_places: Vec<FullPlace>,
    /// Applied values of quotas: `L-1216C47A=100,L-34B43A08=50`; others have their default value.
    #[arg(long, default_value = "", value_name = "CODE=N,…")]
    pub quotas: QuotaValues,
    /// Refuse the calls of Service Quotas with AccessDeniedException.
    #[arg(long)]
    pub refuse_quotas: bool,
    /// ListServiceQuotas lists only the values of the knob `quotas`.
    #[arg(long)]
    pub list_changed_quotas: bool,
    /// An instance above the limits of volumes is launched, and ends with Client.VolumeLimitExceeded, as in AWS;
    /// otherwise its launch is refused.
    #[arg(long)]
    pub late_volume_limit: bool,
    /// Number of addresses of each subnet; 0: as many as its network has.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub subnet_addresses: u32,
    /// Maximum number of items on a page, also if the client did not set a limit; 0: no maximum.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub page_limit: usize,

    /// Check the signatures of calls; otherwise only their access key.
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    pub check_signatures: bool,
    /// Refuse every n-th call with RequestLimitExceeded, or the like of its service.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub throttle_every: u64,
    /// Refuse calls above this many per second; 0 refuses none.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub throttle_above_per_s: u64,
    /// Duration of the fault `hang`.
    #[arg(long, default_value_t = 600.0, value_name = "S")]
    pub hang_s: f64,
    /// Close the port of the API and all its connections until the knob is false again.
    #[arg(long)]
    pub refuse_connections: bool,
    /// Number of calls that `/sim/history` remembers.
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    pub history_calls: usize,
    /// A fault of calls: its kind and its limits, as in `InsufficientInstanceCapacity every=5 action=RunInstances`; may
    /// be given several times.
    #[arg(long = "fault", value_name = "FAULT")]
    pub faults: Vec<CallFault>,
}

impl Knobs {
    /// These knobs with some of them changed.
    pub fn updated(&self, change: Value) -> Result<Self, String> {
        let knobs: Self = knobs::updated(self, change)?;
        knobs::check_times(&[
            knobs.boot_s,
            knobs.terminate_s,
            knobs.terminated_visible_s,
            knobs.visibility_delay_s,
            knobs.host_s,
            knobs.host_clean_s,
            knobs.host_minimum_s,
            knobs.snapshot_s,
            knobs.import_s,
            knobs.import_kept_s,
            knobs.spot_reclaim_after_s,
            knobs.session_s,
            knobs.fail_after_s,
            knobs.hang_s,
        ])?;
        Ok(knobs)
    }
}
