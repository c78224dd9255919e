//! Knobs, adjustable while the cloud runs: times, limits, throttling and faults.

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use simulated_service::knobs;

use crate::cloud::fixtures::Duplicate;
use crate::faults::api_versions::{ComputeAddress, IdentityVersion, VolumeType};
use crate::faults::document_links::DocumentLinks;
use crate::faults::fault::CallFault;
use crate::faults::latency::Latency;

/// Every knob is a flag of the command line (`--boot-time-s 2`) and a key of `PUT /sim/knobs` (`{"boot_time_s": 2}`).
/// Knobs that say "every" are exact: 5 is the fifth, the tenth and so on; 0 is never. A limit of -1 means no limit.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knobs {
    /// Seconds from the creation of a server until it is ACTIVE.
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    pub boot_time_s: f64,
    /// Seconds from the deletion of a server until it no longer exists.
    #[arg(long, default_value_t = 0.5, value_name = "S")]
    pub delete_time_s: f64,
    /// Seconds for which a token is valid.
    #[arg(long, default_value_t = 86400.0, value_name = "S")]
    pub token_lifetime_s: f64,
    /// Milliseconds until a call is answered: `20`, `20-50`, `compute=20-50,network=5`.
    #[arg(long, default_value = "0", value_name = "MS")]
    pub latency_ms: Latency,
    /// Seed of latencies: the latency of a call within its range depends only on the seed and the number of the call.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// The availability zones.
    #[arg(long, value_delimiter = ',', default_value = "nova")]
    pub zones: Vec<String>,

    /// Refuse every n-th call.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub throttle_every: u64,
    /// Refuse calls above this many per second; 0 refuses none.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub throttle_above_per_s: u64,
    /// Retry-After of a refused call.
    #[arg(long, default_value_t = 1, value_name = "S")]
    pub retry_after_s: u64,
    /// Status of refusals: 429, or 413 with Nova's old `overLimit`.
    #[arg(long, default_value_t = 429, value_name = "STATUS", value_parser = clap::value_parser!(u16).range(400..500))]
    pub throttle_status: u16,

    #[arg(long, default_value_t = 100, value_name = "N", allow_negative_numbers = true)]
    pub quota_servers: i64,
    #[arg(long, default_value_t = 400, value_name = "N", allow_negative_numbers = true)]
    pub quota_cores: i64,
    #[arg(long, default_value_t = 819_200, value_name = "MIB", allow_negative_numbers = true)]
    pub quota_ram_mib: i64,
    #[arg(long, default_value_t = 100, value_name = "N", allow_negative_numbers = true)]
    pub quota_volumes: i64,
    #[arg(long, default_value_t = 10_000, value_name = "GB", allow_negative_numbers = true)]
    pub quota_gigabytes: i64,
    #[arg(long, default_value_t = 100, value_name = "N", allow_negative_numbers = true)]
    pub quota_floating_ips: i64,
    #[arg(long, default_value_t = 500, value_name = "N", allow_negative_numbers = true)]
    pub quota_ports: i64,
    /// Refuse more servers than this with hidden_quota_refusal; the limits that the cloud reports do not show it.
    #[arg(long, default_value_t = -1, value_name = "N", allow_negative_numbers = true)]
    pub hidden_quota_servers: i64,
    /// Message of such a refusal.
    #[arg(
        long,
        default_value = "Quota exceeded for ports: Requested 1, but already used 100 of 100 ports",
        value_name = "TEXT"
    )]
    pub hidden_quota_refusal: String,

    /// Every n-th server ends in ERROR instead of ACTIVE.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub boot_fails_every: u64,
    /// Fault of the servers that fail because of boot_fails_every.
    #[arg(long, default_value = "No valid host was found. There are not enough hosts available.", value_name = "TEXT")]
    pub boot_failure: String,
    /// Every n-th server stays in BUILD.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub boot_sticks_every: u64,
    /// Every n-th deletion of a server never ends.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub delete_sticks_every: u64,
    /// Every n-th deletion of a server is accepted and not begun: the server stays as it is.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub delete_ignored_every: u64,
    /// Lists lack every n-th server.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub hidden_every: u64,
    /// Every n-th server disappears without a deletion.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub vanish_every: u64,
    /// Seconds from the creation of such a server until it disappears.
    #[arg(long, default_value_t = 5.0, value_name = "S")]
    pub vanish_after_s: f64,
    /// The port of every n-th server leaks, DOWN, when the server is deleted.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub port_stays_every: u64,
    /// Lists of servers show the cloud as it was this many seconds ago.
    #[arg(long, default_value_t = 0.0, value_name = "S")]
    pub stale_lists_s: f64,
    /// Maximum number of entries on a page of a list.
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub page_size: u64,
    /// The connection of an upload breaks after this many bytes of its image; 0 means never.
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    pub uploads_break_at: u64,
    /// Duration of the fault `hang`.
    #[arg(long, default_value_t = 600.0, value_name = "S")]
    pub hang_s: f64,
    /// Close the port of the services and all its connections until the knob is false again.
    #[arg(long)]
    pub refuse_connections: bool,
    /// Close each connection shortly after a response, without announcing it.
    #[arg(long)]
    pub close_connections: bool,

    /// Form of the links of version documents: `other-host`, `compute=other-host,image=missing`.
    #[arg(long, default_value = "own", value_name = "FORM")]
    pub document_links: DocumentLinks,
    /// The versions of Keystone.
    #[arg(long, value_delimiter = ',', default_value = "v3", value_enum)]
    pub identity_versions: Vec<IdentityVersion>,
    /// The path of Nova in the catalogue; PROJECT is replaced by the project's id.
    #[arg(long, default_value = "v2.1", value_enum, value_name = "PATH")]
    pub compute_address: ComputeAddress,
    /// The types of Cinder's entries in the catalogue.
    #[arg(long, value_delimiter = ',', default_value = "volumev3", value_enum)]
    pub volume_types: Vec<VolumeType>,
    /// Kinds whose first object exists twice, with the same name.
    #[arg(long, value_delimiter = ',', value_enum)]
    pub duplicates: Vec<Duplicate>,

    /// A fault of calls: its kind and its limits, as in `503 every=5 method=POST path=/servers$`; may be given
    /// several times.
    #[arg(long = "fault", value_name = "FAULT")]
    pub faults: Vec<CallFault>,
}

impl Knobs {
    /// These knobs with some of them changed.
    pub fn updated(&self, change: Value) -> Result<Self, String> {
        let knobs: Self = knobs::updated(self, change)?;
        knobs::check_times(&[
            knobs.boot_time_s,
            knobs.delete_time_s,
            knobs.token_lifetime_s,
            knobs.vanish_after_s,
            knobs.stale_lists_s,
            knobs.hang_s,
        ])?;
        if knobs.zones.is_empty() {
            return Err("at least one availability zone is required".to_owned());
        }
        if knobs.identity_versions.is_empty() || knobs.volume_types.is_empty() {
            return Err("identity_versions and volume_types require at least one entry".to_owned());
        }
        if knobs.page_size == 0 || !(400..500).contains(&knobs.throttle_status) {
            return Err("page_size must be 1 or more, throttle_status must be 4xx".to_owned());
        }
        Ok(knobs)
    }
}
