//! Work that is due at a time: the steps of instances, floating IPs and images, which are named by their ids.

use simulated_service::timers;

/// Steps of the status of instances have the number of the status change that scheduled them, so that a later change
/// makes them obsolete.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A pending instance is starting.
    Start(String, u64),
    /// A starting instance is running.
    Run(String, u64),
    /// A pending or starting instance fails.
    Fail(String, u64),
    /// A stopping instance is stopped.
    FinishStop(String, u64),
    /// A deleting instance is gone.
    FinishDelete(String),
    /// A pending floating IP is available.
    FloatingIpAvailable(String),
    /// A floating IP has its target, which is the interface with the second id.
    Attach(String, String),
    /// A deleting floating IP is gone.
    FloatingIpGone(String),
    /// A pending image is available or failed.
    FinishImport(String),
    /// A deleting image is gone.
    ImageGone(String),
}

pub type Timers = timers::Timers<Step>;
