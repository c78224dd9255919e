//! Promises as assertions of the running program: what would break one is not done.

use std::sync::{Mutex, PoisonError};

use tracing::error;

use nodepool_model::snapshot::WriteError;
use nodepool_policy::invariants::nodes::Violation;

/// What was refused since the program began, the first of it.
static REFUSED: Mutex<Vec<String>> = Mutex::new(Vec::new());
const MOST_KEPT: usize = 10;

/// What would have broken a promise, each time that something was refused for it; after the first few no more is kept.
pub fn refused() -> Vec<String> {
    REFUSED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Refuses what would break a promise, and says so; where assertions are on, it ends there.
pub fn kept(found: impl IntoIterator<Item = Violation>) -> Result<(), WriteError> {
    let found: Vec<String> = found.into_iter().map(|violation| violation.0).collect();
    if found.is_empty() {
        return Ok(());
    }
    let broken = found.join("; ");
    let mut refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
    if refused.len() < MOST_KEPT {
        refused.push(broken.clone());
    }
    drop(refused);
    error!(target: "nodepool.promises", "not done, because it would break a promise: {broken}; please report this defect");
    debug_assert!(found.is_empty(), "a promise would be broken: {broken}");
    Err(WriteError::Failed(format!("it would break a promise: {broken}")))
}
