//! Promises as assertions of the running program: what would break one is not done.

use std::sync::{Mutex, PoisonError};

use tracing::error;

use nodepool_model::snapshot::WriteError;
use nodepool_policy::invariants::nodes::Violation;

/// What was refused since the program began, the first of it.
static VIOLATIONS: Mutex<Vec<String>> = Mutex::new(Vec::new());
const MAX_RECORDED: usize = 10;

/// What would have broken a promise, each time that something was refused for it; after the first few no more is kept.
pub fn recorded_violations() -> Vec<String> {
    VIOLATIONS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Refuses what would break a promise, and says so; where assertions are on, it ends there.
pub fn enforce(violations: impl IntoIterator<Item = Violation>) -> Result<(), WriteError> {
    let violations: Vec<String> = violations.into_iter().map(|violation| violation.0).collect();
    if violations.is_empty() {
        return Ok(());
    }
    let broken = violations.join("; ");
    let mut recorded = VIOLATIONS.lock().unwrap_or_else(PoisonError::into_inner);
    if recorded.len() < MAX_RECORDED {
        recorded.push(broken.clone());
    }
    drop(recorded);
    error!(target: "nodepool.promises", "not done, because it would break a promise: {broken}; please report this defect");
    debug_assert!(violations.is_empty(), "a promise would be broken: {broken}");
    Err(WriteError::Failed(format!("it would break a promise: {broken}")))
}
