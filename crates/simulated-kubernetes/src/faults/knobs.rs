//! Knobs, adjustable while the cluster runs: times, limits, throttling and faults.

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use simulated_service::knobs;
use simulated_service::latency::Latency;

use crate::faults::fault::CallFault;

/// Every knob is a flag of the command line (`--pod-start-s 2`) and a key of `PUT /sim/knobs` (`{"pod_start_s": 2}`).
/// Knobs that say "every" are exact: 5 is the fifth, the tenth and so on; 0 is never.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knobs {
    /// Seconds from the binding of a pod until it is Running.
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    pub pod_start_s: f64,
    /// Seconds until a token secret is filled.
    #[arg(long, default_value_t = 0.1, value_name = "S")]
    pub secret_fill_s: f64,
    /// Seconds until a new namespace has its account `default`.
    #[arg(long, default_value_t = 0.0, value_name = "S")]
    pub default_account_s: f64,
    /// Seconds from the deletion of a namespace until its content is deleted; about 5 in real clusters.
    #[arg(long, default_value_t = 0.0, value_name = "S")]
    pub namespace_wait_s: f64,
    /// Seconds from the end of a namespace's content until the namespace no longer exists.
    #[arg(long, default_value_t = 0.5, value_name = "S")]
    pub namespace_delete_s: f64,
    /// Maximum grace period of pods: none takes longer to stop.
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    pub grace_max_s: f64,
    /// Seconds for which tokens of `admin` and `nodepool` are valid that are issued from now on; 0: without end.
    #[arg(long, default_value_t = 0.0, value_name = "S")]
    pub token_lifetime_s: f64,
    /// Milliseconds until a call is answered: `20`, `20-50`.
    #[arg(long, default_value = "0", value_name = "MS")]
    pub latency_ms: Latency,
    /// Seed of latencies: the latency of a call within its range depends only on the seed and the number of the call.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Maximum number of projects of a user, including those in deletion; -1 is no limit.
    #[arg(long, default_value_t = -1, value_name = "N", allow_negative_numbers = true)]
    pub max_projects: i64,
    /// Refuse requests for projects: users may not request any.
    #[arg(long)]
    pub refuse_projects: bool,
    /// Copy the labels of a project request to its project.
    #[arg(long)]
    pub copy_project_labels: bool,

    /// Every n-th deleted namespace stays Terminating until the knob is 0.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub stuck_namespaces_every: u64,
    /// Every n-th created pod stays Pending in ContainerCreating.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub pods_stick_every: u64,
    /// Every n-th created pod ends in Failed instead of Running.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub pods_fail_every: u64,

    /// Watches end after this many seconds; 0: when the client's timeout ends them.
    #[arg(long, default_value_t = 0.0, value_name = "S")]
    pub watch_closes_after_s: f64,
    /// Seconds between the bookmarks of a watch.
    #[arg(long, default_value_t = 60.0, value_name = "S")]
    pub bookmark_s: f64,
    /// Refuse watches with this status, 403 or 405; 0 serves them.
    #[arg(long, default_value_t = 0, value_name = "STATUS")]
    pub no_watch: u16,
    /// A watch from a resource version that is too old is refused with 410, instead of an event ERROR.
    #[arg(long)]
    pub gone_as_status: bool,
    /// Number of changes that watches and lists can go back to; older resource versions are gone.
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    pub history_size: usize,
    /// Maximum number of objects on a page of a list, also if the client did not set a limit; 0: no maximum.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub page_limit: usize,

    /// Refuse every n-th call with 429.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub throttle_every: u64,
    /// Refuse calls above this many per second with 429; 0 refuses none.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub throttle_above_per_s: u64,
    /// Retry-After of 429 and 503.
    #[arg(long, default_value_t = 1, value_name = "S")]
    pub retry_after_s: u64,
    /// Duration of the fault `hang`.
    #[arg(long, default_value_t = 600.0, value_name = "S")]
    pub hang_s: f64,
    /// Close the port of the API and all its connections until the knob is false again.
    #[arg(long)]
    pub refuse_connections: bool,

    /// A fault of calls: its kind and its limits, as in `503 every=5 verb=create resource=pods`; may be given several
    /// times.
    #[arg(long = "fault", value_name = "FAULT")]
    pub faults: Vec<CallFault>,
}

impl Knobs {
    /// These knobs with some of them changed.
    pub fn updated(&self, change: Value) -> Result<Self, String> {
        let knobs: Self = knobs::updated(self, change)?;
        knobs::check_times(&[
            knobs.pod_start_s,
            knobs.secret_fill_s,
            knobs.default_account_s,
            knobs.namespace_wait_s,
            knobs.namespace_delete_s,
            knobs.grace_max_s,
            knobs.token_lifetime_s,
            knobs.watch_closes_after_s,
            knobs.bookmark_s,
            knobs.hang_s,
        ])?;
        if !matches!(knobs.no_watch, 0 | 403 | 405) {
            return Err("no_watch must be 0, 403 or 405".to_owned());
        }
        Ok(knobs)
    }
}
