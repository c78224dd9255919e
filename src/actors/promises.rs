//! Promises as assertions of the running program: what would break one is not done.

use std::sync::atomic::{AtomicU64, Ordering};

use tracing::error;

use crate::model::snapshot::WriteError;
use crate::policy::invariants::Violation;

static REFUSED: AtomicU64 = AtomicU64::new(0);

/// How often something was refused since the program began.
pub fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

/// Refuses what would break a promise, and says so; where assertions are on, it ends there.
pub fn kept(found: impl IntoIterator<Item = Violation>) -> Result<(), WriteError> {
    let found: Vec<String> = found.into_iter().map(|violation| violation.0).collect();
    if found.is_empty() {
        return Ok(());
    }
    REFUSED.fetch_add(1, Ordering::Relaxed);
    let broken = found.join("; ");
    error!(target: "nodepool.promises", "not done, because it would break a promise: {broken}; please report this defect");
    debug_assert!(found.is_empty(), "a promise would be broken: {broken}");
    Err(WriteError::Failed(format!("it would break a promise: {broken}")))
}
