//! Drivers: tables of API calls and small machines that decide which call comes next; and the list of them.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use self::gate::Gate;
use crate::model::cloud::{CloudError, Facts, Job, Notification};
use crate::model::config::ProviderConfig;
use crate::model::metrics::{Sample, StatsdAddress};
use crate::model::problem::Problem;
use crate::model::time::Span;
use crate::policy::machine::{Lane, Pace, StateMachine};

pub mod checksums;
pub mod process_group;
pub mod dib;
pub mod hook;
pub mod example;
pub mod fake;
pub mod format;
pub mod gate;
pub mod image_files;
pub mod keyscan;
pub mod openstack;
pub mod servers;
pub mod simple;
pub mod static_nodes;

/// The drivers of this version.
pub const BUILT: &[&str] = &["static", "fake", "openstack", "example"];

/// What somebody wants to do with a driver whose type only `open` knows.
pub trait OpenDriver {
    type Out;
    fn with<D: Driver>(self, driver: D) -> Self::Out;
}

/// Opens the driver of a provider section, or says everything that is wrong with the driver's part of it.
pub fn open<V: OpenDriver>(section: &ProviderConfig, visitor: V) -> Result<V::Out, Vec<Problem>> {
    match section.driver.as_str() {
        "static" => Ok(visitor.with(static_nodes::open(section)?)),
        "fake" => Ok(visitor.with(fake::open(section)?)),
        "openstack" => Ok(visitor.with(openstack::open(section)?)),
        "example" => Ok(visitor.with(example::open(section)?)),
        other => {
            let message = format!("the driver {other} is not part of this version");
            let help = format!("provider {} is out of service; the drivers are: {}", section.name, BUILT.join(", "));
            Err(vec![Problem::error(section.section.at, message).help(help)])
        }
    }
}

/// What a driver of this version says against its part of a section, without being opened. With an error among it, the
/// provider cannot be used.
pub fn check(section: &ProviderConfig) -> Vec<Problem> {
    match section.driver.as_str() {
        "static" => static_nodes::config::problems(section),
        "fake" => fake::problems(section),
        "openstack" => openstack::problems(section),
        "example" => example::problems(section),
        _ => Vec::new(),
    }
}

/// One kind of cloud, opened for one provider section.
pub trait Driver: Send + 'static {
    type Call: ApiCall;
    type Reply: 'static;
    type Machine: StateMachine<Call = Self::Call, Reply = Self::Reply> + 'static;

    /// What the configuration alone says: published before anything has been seen.
    fn facts(&self) -> Facts;

    fn pace(&self) -> Pace;

    /// The smaller jobs that a job consists of, where each is worth knowing on its own: they run at once, each result is
    /// noted when it comes, and the job ends with the last of them. A job without parts is one machine.
    fn parts(&self, _job: &Job) -> Vec<Job> {
        Vec::new()
    }

    /// Starts the machine for a job. Pure.
    fn begin(&self, job: &Job) -> Self::Machine;

    /// The statsd of this cloud, where its samples go instead of to nobody or to that of the process. Asked once.
    fn samples_to(&self) -> Option<StatsdAddress> {
        None
    }

    /// How to find out whether the driver would be another one if it were opened again for the same section: where it reads
    /// more than that. Asked once; the answer is used at each load of the configuration.
    fn outdated(&self) -> Option<Outdated> {
        None
    }

    /// What the driver itself has counted since it was asked last, for statsd.
    fn take_samples(&self) -> Vec<Sample> {
        Vec::new()
    }

    /// Whether `notified` does anything: nobody is told anything in vain.
    const LISTENS: bool = false;

    /// Hears what became of a node. What is to be done about it is another job's.
    fn notified(&self, _notification: &Notification) {}

    /// Gets what a call needs before it can go out, a token say. Called for what changes something, before it is held back until the
    /// session is known to live: the call itself shall go out at once then.
    fn prepare(&self, _call: &Self::Call) -> impl Future<Output = Result<(), CloudError>> {
        std::future::ready(Ok(()))
    }

    /// Performs one API request. This and `prepare` are the only I/O a driver does. What it sends once more by itself, with another
    /// token say, passes the gate first.
    fn call(&self, call: Self::Call, gate: &Gate) -> impl Future<Output = Result<Self::Reply, CloudError>>;
}

/// Whether what a driver has read besides its section says something else by now.
#[derive(Clone)]
pub struct Outdated(pub Arc<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for Outdated {
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
    fn changes(&self) -> bool {
        self.lane() != Lane::Look
    }
    /// No default: a call without a deadline cannot be written.
    fn deadline(&self) -> Span;
}
