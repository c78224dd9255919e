//! Contract of a driver: it turns jobs into state machines and performs their API calls.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use super::call_guard::CallGuard;
use super::error::CloudError;
use super::facts::ProviderFacts;
use super::instance::Inventory;
use super::job::{Job, Notification};
use super::state_machine::{Lane, RateLimits, StateMachine};
use nodepool_model::metrics::statsd_metrics::{Sample, StatsdAddress};
use nodepool_model::records::time::Seconds;

/// One kind of cloud, opened for one provider section.
pub trait Driver: Sized + Send + 'static {
    type Call: ApiCall;
    type Reply: 'static;

    /// Provider facts that follow from the configuration alone. They are published before the first refresh.
    fn facts(&self) -> ProviderFacts;

    fn rate_limits(&self) -> RateLimits;

    /// Smaller jobs that a job consists of, if the result of each is worth recording on its own. They run concurrently,
    /// each result is recorded when it arrives, and the job ends with the last of them. A job without subjobs has one
    /// state machine.
    fn subjobs(&self, _job: &Job) -> Vec<Job> {
        Vec::new()
    }

    /// Returns the state machine of a job. Pure: it performs no I/O.
    fn begin(&self, job: &Job) -> JobMachine<Self>;

    /// Whether the cloud reports changes of its instances by itself.
    const WATCHES: bool = false;

    /// The machine that opens the watch. It ends with `Outcome::Listed`, whose inventory the watch continues.
    fn begin_watch(&self) -> Option<JobMachine<Self>> {
        None
    }

    /// Waits for a change that the open watch reports; the result is the inventory after it. After an error the watch
    /// is closed, and `begin_watch` opens it again.
    ///
    /// While a watch is open, machines observe its inventories instead of those of listings. Such an inventory may be
    /// older than a change that the machine has just made, so a machine does not conclude from it that an instance does
    /// not exist.
    fn next_inventory(&self) -> impl Future<Output = Result<Arc<Inventory>, CloudError>> {
        std::future::pending()
    }

    /// Statsd server for the samples of this cloud. If it is `None`, they are sent to the server of the process, if one
    /// is configured. Called once.
    fn statsd_address(&self) -> Option<StatsdAddress> {
        None
    }

    /// Check whether reopening the driver for the same section would change it; `None` if the driver reads nothing but
    /// the section. Called once; the returned check runs at each load of the configuration, and after a change of one
    /// of its files.
    fn needs_reopen(&self) -> Option<NeedsReopen> {
        None
    }

    /// Samples that the driver itself has counted since the last call, for statsd.
    fn take_samples(&self) -> Vec<Sample> {
        Vec::new()
    }

    /// Whether `on_notification` does anything; if not, no notifications are sent.
    const WANTS_NOTIFICATIONS: bool = false;

    /// Receives the fate of a node. This function performs no calls: changes in the cloud that follow from the fate are
    /// made by later jobs.
    fn on_notification(&self, _notification: &Notification) {}

    /// Obtains what a call needs before it is sent, such as a token. Called for mutating calls before the fence checks
    /// the session, because after that check the call must be sent at once.
    fn prepare(&self, _call: &Self::Call) -> impl Future<Output = Result<(), CloudError>> {
        std::future::ready(Ok(()))
    }

    /// The reply of a request for one more of the calls that it performed (`ApiCall::join`).
    fn share(&self, _reply: &Self::Reply) -> Self::Reply {
        unreachable!("a driver whose calls join shares their replies")
    }

    /// Performs one API request. This and `prepare` are the only I/O of a driver. A driver that repeats a request by
    /// itself, for example with another token, waits for the guard before it sends the request again.
    fn call(&self, call: Self::Call, guard: &CallGuard) -> impl Future<Output = Result<Self::Reply, CloudError>>;
}

/// The state machine of a job of a driver.
pub type JobMachine<D> = Box<dyn StateMachine<Call = <D as Driver>::Call, Reply = <D as Driver>::Reply>>;

/// The files that a driver read besides its section, and a check whether they have changed.
#[derive(Clone)]
pub struct NeedsReopen {
    /// Files that are watched, also those that do not exist yet.
    pub files: Vec<PathBuf>,
    /// Returns whether a reopened driver would differ. It may read the files.
    pub check: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for NeedsReopen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NeedsReopen").field("files", &self.files).finish_non_exhaustive()
    }
}

/// One API request as data. It is cloned because a throttled request is sent again.
pub trait ApiCall: Clone + fmt::Debug + 'static {
    /// Name of the call in statsd keys, such as `compute.GET.servers`.
    fn key(&self) -> &'static str;
    fn lane(&self) -> Lane;
    /// Whether the call changes something. Such a call is held back until the session is known to be alive.
    fn is_mutating(&self) -> bool {
        self.lane() != Lane::Read
    }
    /// Whether the call only waits for work that the cloud has already accepted. Its job can be cancelled meanwhile.
    fn only_waits(&self) -> bool {
        false
    }
    /// Time after which the call fails. It has no default, so that no call lacks a deadline.
    fn deadline(&self) -> Seconds;

    /// Whether `join` does anything.
    const JOINS: bool = false;

    /// Takes over what another call of the same lane is to do; false if the two cannot be one request. The reply serves
    /// both (`Driver::share`).
    fn join(&mut self, _other: &Self) -> bool {
        false
    }
}
