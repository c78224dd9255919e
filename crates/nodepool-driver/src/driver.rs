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

    /// What the configuration alone says: published before anything has been seen.
    fn facts(&self) -> ProviderFacts;

    fn rate_limits(&self) -> RateLimits;

    /// The smaller jobs that a job consists of, where each is worth knowing on its own: they run at once, each result is
    /// noted when it comes, and the job ends with the last of them. A job without parts is one machine.
    fn subjobs(&self, _job: &Job) -> Vec<Job> {
        Vec::new()
    }

    /// Starts the machine for a job. Pure.
    fn begin(&self, job: &Job) -> Self::Machine;

    /// The statsd of this cloud, where its samples go instead of to nobody or to that of the process. Asked once.
    fn statsd_address(&self) -> Option<StatsdAddress> {
        None
    }

    /// How to find out whether the driver would be another one if it were opened again for the same section: where it reads
    /// more than that. Asked once; the answer is used at each load of the configuration.
    fn needs_reopen(&self) -> Option<NeedsReopen> {
        None
    }

    /// What the driver itself has counted since it was asked last, for statsd.
    fn take_samples(&self) -> Vec<Sample> {
        Vec::new()
    }

    /// Whether `notified` does anything: nobody is told anything in vain.
    const WANTS_NOTIFICATIONS: bool = false;

    /// Hears what became of a node. What is to be done about it is another job's.
    fn on_notification(&self, _notification: &Notification) {}

    /// Gets what a call needs before it can go out, a token say. Called for what changes something, before it is held back until the
    /// session is known to live: the call itself shall go out at once then.
    fn prepare(&self, _call: &Self::Call) -> impl Future<Output = Result<(), CloudError>> {
        std::future::ready(Ok(()))
    }

    /// Performs one API request. This and `prepare` are the only I/O a driver does. What it sends once more by itself, with another
    /// token say, passes the gate first.
    fn call(&self, call: Self::Call, guard: &CallGuard) -> impl Future<Output = Result<Self::Reply, CloudError>>;
}

/// Whether what a driver has read besides its section says something else by now.
#[derive(Clone)]
pub struct NeedsReopen(pub Arc<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for NeedsReopen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outdated").finish_non_exhaustive()
    }
}

/// One API request as data. It is cloned because a throttled request is sent again.
pub trait ApiCall: Clone + fmt::Debug + 'static {
    /// For statsd: `compute.GET.servers`.
    fn key(&self) -> &'static str;
    fn lane(&self) -> Lane;
    /// Whether something is another afterwards. Such a call is held back until the session is known to live.
    fn is_mutating(&self) -> bool {
        self.lane() != Lane::Read
    }
    /// No default: a call without a deadline cannot be written.
    fn deadline(&self) -> Seconds;
}
