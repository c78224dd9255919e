//! Invariant guard: refuses actions of the running program that would violate an invariant, and reports them.

use std::sync::{Mutex, PoisonError};

use tracing::error;

use nodepool_model::snapshot::WriteError;
use nodepool_policy::invariants::nodes::Violation;

/// The first violations since the start of the process.
static VIOLATIONS: Mutex<Vec<String>> = Mutex::new(Vec::new());
const MAX_RECORDED: usize = 10;

/// Violations for which actions were refused, up to `MAX_RECORDED`.
pub fn recorded_violations() -> Vec<String> {
    VIOLATIONS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Refuses an action that has violations, and logs it; panics if debug assertions are enabled.
pub fn enforce(violations: impl IntoIterator<Item = Violation>) -> Result<(), WriteError> {
    let violations: Vec<String> = violations.into_iter().map(|violation| violation.0).collect();
    if violations.is_empty() {
        return Ok(());
    }
    let text = violations.join("; ");
    let mut recorded = VIOLATIONS.lock().unwrap_or_else(PoisonError::into_inner);
    if recorded.len() < MAX_RECORDED {
        recorded.push(text.clone());
    }
    drop(recorded);
    error!(target: "nodepool.invariants", "refused: would violate an invariant: {text}; please report this bug");
    debug_assert!(violations.is_empty(), "an invariant would be violated: {text}");
    Err(WriteError::Failed(format!("would violate an invariant: {text}")))
}
