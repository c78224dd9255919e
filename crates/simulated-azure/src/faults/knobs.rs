//! Knobs, adjustable while the simulation runs: times, limits, styles of answers, throttling and faults.

use clap::{ArgAction, Args};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use simulated_service::knobs;
use simulated_service::latency::Latency;
use simulated_service::seconds::SecondsRange;

use crate::faults::fault::CallFault;
use crate::faults::values::{Amounts, FailedCreation, NestedPublicIp, OperationStyle, Part};

/// Every knob is a flag of the command line (`--boot-s 2`) and a key of `PUT /sim/knobs` (`{"boot_s": 2}`). Knobs that
/// say "every" are exact: 5 is the fifth, the tenth and so on; 0 is never.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knobs {
    /// Seconds from the creation of a virtual machine until it has succeeded or failed: `5`, `5-20`.
    #[arg(long, default_value = "1", value_name = "S")]
    pub boot_s: SecondsRange,
    /// Seconds from the deletion of a virtual machine until it no longer exists.
    #[arg(long, default_value = "1", value_name = "S")]
    pub delete_s: SecondsRange,
    /// Seconds of all other long operations.
    #[arg(long, default_value = "0.2", value_name = "S")]
    pub operation_s: SecondsRange,
    /// Seconds from the creation of a virtual machine until its interfaces, public IPs and disk exist.
    #[arg(long, default_value_t = 0.0, value_name = "S")]
    pub parts_s: f64,
    /// Seconds from the end of a virtual machine until its parts are deleted.
    #[arg(long, default_value_t = 0.0, value_name = "S")]
    pub parts_delete_s: f64,
    /// Seconds until a new interface has its private addresses.
    #[arg(long, default_value_t = 0.0, value_name = "S")]
    pub address_s: f64,
    /// Seconds until a new public IP has its address.
    #[arg(long, default_value_t = 0.0, value_name = "S")]
    pub public_address_s: f64,
    /// Seconds for which an interface is reserved for its virtual machine that failed or ended on its own.
    #[arg(long, default_value_t = 180.0, value_name = "S")]
    pub nic_reserved_s: f64,
    /// Seconds for which tokens are valid that are issued from now on.
    #[arg(long, default_value_t = 3600, value_name = "S")]
    pub token_s: u64,
    /// `Retry-After` of long operations; 0: no header.
    #[arg(long, default_value_t = 1, value_name = "S")]
    pub poll_after_s: u64,
    /// `Retry-After` of 429 and 503; 0: no header.
    #[arg(long, default_value_t = 1, value_name = "S")]
    pub retry_after_s: u64,
    /// Milliseconds until a call is answered: `20`, `20-50`.
    #[arg(long, default_value = "0", value_name = "MS")]
    pub latency_ms: Latency,
    /// Seed of ids, times and latencies.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// The headers of long operations.
    #[arg(long, value_enum, default_value = "both")]
    pub operation_style: OperationStyle,
    /// The statuses of an operation in the course of its time, until it has ended.
    #[arg(long, default_value = "InProgress", value_name = "STATUS", value_delimiter = ',')]
    pub operation_statuses: Vec<String>,
    /// Resources that exist after the failure of an accepted creation.
    #[arg(long, value_enum, default_value = "vm")]
    pub failed_creation: FailedCreation,
    /// Parts that remain after the deletion of their virtual machine.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    pub leave_parts: Vec<Part>,
    /// The parts remain after every n-th deletion.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub leave_parts_every: u64,
    /// The public IP within an interface: all its properties, or only its id.
    #[arg(long, value_enum, default_value = "full")]
    pub nested_public_ip: NestedPublicIp,
    /// Lists show the names of resource groups within ids in capital letters.
    #[arg(long)]
    pub upper_case_groups: bool,
    /// Maximum number of items on a page of a list; 0: no maximum.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub page: usize,

    /// Limits of usages: `cores=100,standardDSv3Family=10`; others are 100,000.
    #[arg(long, default_value = "", value_name = "NAME=N,…")]
    pub limits: Amounts,
    /// Usage by others in each location, which counts against the limits.
    #[arg(long, default_value = "", value_name = "NAME=N,…")]
    pub foreign_usage: Amounts,
    /// A creation above a limit is accepted, and its operation fails; otherwise it is refused.
    #[arg(long)]
    pub quota_in_operation: bool,
    /// A size that the subscription may not use: `Standard_D2s_v3`, `Standard_D2s_v3@eastus`.
    #[arg(long = "blocked-sku", value_name = "SIZE")]
    pub blocked_skus: Vec<String>,
    /// Minimum number of bytes of an uploaded disk; 20 MiB and a footer in Azure.
    #[arg(long, default_value_t = 20_972_032, value_name = "BYTES")]
    pub upload_minimum: u64,
    /// An uploaded disk is a number of MiB with a VHD footer; otherwise only a multiple of 512 bytes.
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    pub check_footer: bool,

    /// The URL of a page blob of another server, which all uploads write; empty: each disk has its own here.
    #[arg(long, default_value = "", value_name = "URL")]
    pub page_blob_url: String,

    /// Refuse every n-th call with 429.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub throttle_every: u64,
    /// Refuse calls above this many per second with 429; 0 refuses none.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub throttle_above_per_s: u64,
    /// The code of 429.
    #[arg(long, default_value = "TooManyRequests", value_name = "CODE")]
    pub throttle_code: String,
    /// Duration of the fault `hang`.
    #[arg(long, default_value_t = 600.0, value_name = "S")]
    pub hang_s: f64,
    /// Close the port of the API and all its connections until the knob is false again.
    #[arg(long)]
    pub refuse_connections: bool,
    /// Number of calls that `/sim/history` remembers.
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    pub history_calls: usize,
    /// A fault: its kind and its limits, as in `AllocationFailed in=operation times=3`; may be given several times.
    #[arg(long = "fault", value_name = "FAULT")]
    pub faults: Vec<CallFault>,
}

impl Knobs {
    /// These knobs with some of them changed.
    pub fn updated(&self, change: Value) -> Result<Self, String> {
        let knobs: Self = knobs::updated(self, change)?;
        knobs::check_times(&[
            knobs.parts_s,
            knobs.parts_delete_s,
            knobs.address_s,
            knobs.public_address_s,
            knobs.nic_reserved_s,
            knobs.hang_s,
        ])?;
        let is_end = |status: &String| matches!(status.as_str(), "" | "Succeeded" | "Failed" | "Canceled");
        match knobs.operation_statuses.is_empty() || knobs.operation_statuses.iter().any(is_end) {
            true => Err("operation_statuses must be statuses of an operation that has not ended".to_owned()),
            false => Ok(knobs),
        }
    }
}
