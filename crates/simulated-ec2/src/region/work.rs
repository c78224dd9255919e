//! Work that is due at a time: the steps of instances, hosts, snapshots and import tasks.

use simulated_service::timers;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A pending instance is running.
    Boot(String),
    /// An instance ends with the reason of its fate.
    Fail(String),
    /// A spot instance is reclaimed.
    Reclaim(String),
    /// An instance that is shutting down is terminated.
    Terminate(String),
    /// A terminated instance, a released host or a finished import task is listed no more.
    Forget(String),
    HostAvailable(String),
    SnapshotCompleted(String),
    /// An import task has progressed to so many percent.
    ImportProgress(String, u32),
}

pub type Timers = timers::Timers<(String, Step)>;
