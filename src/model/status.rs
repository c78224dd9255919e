//! What operators are shown: tables and JSON for the CLI and the web, and why a request waits.

use serde::{Deserialize, Serialize};

use super::ids::{LauncherId, PoolName, ProviderName};
use super::time::Timestamp;

/// What one pool last decided about one request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Why {
    pub launcher: LauncherId,
    pub provider: ProviderName,
    pub pool: PoolName,
    pub verdict: VerdictKind,
    /// For people: what is missing or in the way.
    pub reason: String,
    /// When this verdict with this reason was first given.
    pub since: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerdictKind {
    /// Not this pool's business: ended, declined before, or being served.
    Ignore,
    /// Somebody else is better placed to serve it.
    Yield,
    /// This pool could serve it, but not now.
    Defer,
    /// This pool can never serve it.
    Decline,
    /// This pool serves it.
    Accept,
}
