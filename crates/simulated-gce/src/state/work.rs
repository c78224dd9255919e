//! Work that is due at a time: the steps of instances and operations.

use simulated_service::timers;

/// The place of an instance or operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub project: String,
    pub zone: String,
}

/// Steps of instances name the id, too: another instance may have the name meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A PENDING operation is RUNNING.
    RunOperation(String),
    /// An operation fails with the error that was decided at its call.
    FailOperation(String),
    /// A DONE operation is known no more.
    ForgetOperation(String),
    /// A PROVISIONING instance is STAGING.
    Stage(String, u64),
    /// A STAGING instance is RUNNING.
    Boot(String, u64),
    /// A spot instance is preempted.
    Preempt(String, u64),
    /// A STOPPING instance is TERMINATED.
    FinishStop(String, u64),
    /// A STOPPING instance is deleted.
    FinishDelete(String, u64),
    /// The id of a request is remembered no more.
    ForgetRequest(String),
}

pub type Timers = timers::Timers<(Place, Step)>;
