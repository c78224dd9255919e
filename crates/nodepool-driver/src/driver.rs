//! The boundary to a cloud: a `Driver` turns jobs into state machines and performs their API calls.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use super::call_guard::CallGuard;
use super::error::CloudError;
use super::facts::ProviderFacts;
use super::job::{Job, Notification};
use super::state_machine::{Lane, RateLimits, StateMachine};
use nodepool_model::metrics::statsd_metrics::{Sample, StatsdAddress};
use nodepool_model::records::time::Seconds;

/// One kind of cloud, opened for one provider section.
pub trait Driver: Send + 'static {
    type Call: ApiCall;
    type Reply: 'static;
    type Machine: StateMachine<Call = Self::Call, Reply = Self::Reply> + 'static;

    /// Provider facts from the configuration alone: published before the first refresh.
    fn facts(&self) -> ProviderFacts;

    fn rate_limits(&self) -> RateLimits;

    /// Smaller jobs that a job consists of, if each is worth reporting on its own. They run at once, each result is
    /// recorded when it arrives, and the job ends with the last of them. A job without subjobs is one machine.
    fn subjobs(&self, _job: &Job) -> Vec<Job> {
        Vec::new()
    }

    /// Starts the machine for a job. Pure.
    fn begin(&self, job: &Job) -> Self::Machine;

    /// The statsd server for samples of this cloud; `None` sends them to that of the process, if it has one. Called
    /// once.
    fn statsd_address(&self) -> Option<StatsdAddress> {
        None
    }

    /// How to detect that reopening the driver for the same section would change it, if the driver reads more than the
    /// section. Called once; the result is used at each load of the configuration.
    fn needs_reopen(&self) -> Option<NeedsReopen> {
        None
    }

    /// Samples that the driver itself has counted since the last call, for statsd.
    fn take_samples(&self) -> Vec<Sample> {
        Vec::new()
    }

    /// Whether `on_notification` does anything; if not, no notifications are sent.
    const WANTS_NOTIFICATIONS: bool = false;

    /// Receives the fate of a node. Consequences in the cloud are another job's task.
    fn on_notification(&self, _notification: &Notification) {}

    /// Obtains what a call needs before it is sent, such as a token. Called for mutating calls, before the fence holds
    /// them back: afterwards the call itself must be sent at once.
    fn prepare(&self, _call: &Self::Call) -> impl Future<Output = Result<(), CloudError>> {
        std::future::ready(Ok(()))
    }

    /// Performs one API request. This and `prepare` are the only I/O of a driver. A request that the driver repeats by
    /// itself, for example with another token, passes the guard first.
    fn call(&self, call: Self::Call, guard: &CallGuard) -> impl Future<Output = Result<Self::Reply, CloudError>>;
}

/// Returns whether the data that a driver read besides its section has changed.
#[derive(Clone)]
pub struct NeedsReopen(pub Arc<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for NeedsReopen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NeedsReopen").finish_non_exhaustive()
    }
}

/// One API request as data. It is cloned because a throttled request is sent again.
pub trait ApiCall: Clone + fmt::Debug + 'static {
    /// For statsd: `compute.GET.servers`.
    fn key(&self) -> &'static str;
    fn lane(&self) -> Lane;
    /// Whether the call changes something. Such a call is held back until the session is known to be alive.
    fn is_mutating(&self) -> bool {
        self.lane() != Lane::Read
    }
    /// No default: a call without a deadline cannot be written.
    fn deadline(&self) -> Seconds;
}
