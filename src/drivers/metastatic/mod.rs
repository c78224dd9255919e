//! Metastatic: nodes in the slots of backing nodes, which other providers launch. There is no cloud: a launch waits for
//! a slot, and a deletion frees it.
//!
//! The launcher decides which node gets which slot and which backing nodes exist (`nodepool-policy/backing/`). This
//! driver sees the result as `Slots`.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{Mutex, watch};

use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::driver::{ApiCall, Driver, JobMachine};
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::instance::{Instance, Inventory};
use nodepool_driver::job::{Job, Notification, Outcome};
use nodepool_driver::state_machine::{InFlightLimit, Lane, OneCall, RateLimits, Spacing};
use nodepool_model::config::ProviderConfig;
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::records::ids::{ExternalId, NodeId};
use nodepool_model::records::time::Seconds;
use python_yaml::diagnostics::Diagnostic;

mod config;
mod launch;

pub use config::need;
use launch::AwaitSlot;

/// A ZooKeeper transaction takes milliseconds; after this time there is no connection.
const DEADLINE: Seconds = Seconds(60.0);
/// Transactions in flight. Each frees one slot.
const MAX_IN_FLIGHT: usize = 100;

/// The slots of a provider, as a launcher keeps them.
pub trait Slots: Send + Sync + 'static {
    /// From now on the node needs a slot, until it has one or `withdraw` is called. A failure from before is forgotten.
    fn request(&self, node: &NodeId);

    fn withdraw(&self, node: &NodeId);

    fn state_of(&self, node: &NodeId) -> SlotState;

    /// An attempt to launch the node failed. If it has a slot, the backing node may be sick.
    fn attempt_failed(&self, node: &NodeId);

    /// Changes when the state of a node that needs a slot may have changed.
    fn changes(&self) -> watch::Receiver<()>;

    /// Frees the slot of a node that is still being launched. The slot of every other node becomes free when its record
    /// is deleted.
    fn free(&self, node: &NodeId) -> impl Future<Output = Result<(), CloudError>>;
}

/// State of a node that needs a slot.
#[derive(Clone, Debug, PartialEq)]
pub enum SlotState {
    /// It has none yet; the text says what it waits for.
    Waiting(String),
    /// It has a slot. The instance is the node's, with the connection data of its backing node.
    Taken(Box<Instance>),
    /// It gets no slot in this attempt, for this reason.
    Failed(String),
}

pub struct Metastatic<S> {
    facts: ProviderFacts,
    slots: Arc<S>,
    changes: Mutex<watch::Receiver<()>>,
}

/// Opens the driver of a launcher.
pub fn open<S: Slots>(section: &ProviderConfig, slots: Arc<S>) -> Result<Metastatic<S>, Vec<Diagnostic>> {
    let mut diagnostics = Diagnostics::default();
    let launch_config = config::read(section, &mut diagnostics);
    diagnostics.items.retain(Diagnostic::is_error);
    if !diagnostics.items.is_empty() {
        return Err(diagnostics.items);
    }
    let facts = ProviderFacts { launch_config: Some(Arc::new(launch_config)), ..ProviderFacts::initial() };
    Ok(Metastatic { facts, changes: Mutex::new(slots.changes()), slots })
}

/// Opens the driver of a command, which launches no nodes.
pub fn open_without_launcher(section: &ProviderConfig) -> Result<Metastatic<NoSlots>, Vec<Diagnostic>> {
    open(section, Arc::new(NoSlots))
}

/// Errors and warnings of a section.
pub fn diagnostics(section: &ProviderConfig) -> Vec<Diagnostic> {
    let mut diagnostics = Diagnostics::default();
    config::read(section, &mut diagnostics);
    diagnostics.items
}

/// Slots outside a launcher: there are none.
pub struct NoSlots;

impl Slots for NoSlots {
    fn request(&self, _: &NodeId) {}

    fn withdraw(&self, _: &NodeId) {}

    fn state_of(&self, _: &NodeId) -> SlotState {
        SlotState::Failed("only a launcher puts nodes into slots".to_owned())
    }

    fn attempt_failed(&self, _: &NodeId) {}

    fn changes(&self) -> watch::Receiver<()> {
        watch::Sender::default().subscribe()
    }

    async fn free(&self, _: &NodeId) -> Result<(), CloudError> {
        Ok(())
    }
}

/// Every step that this driver performs itself.
#[derive(Clone, Debug)]
pub enum Call {
    Free(NodeId),
}

impl ApiCall for Call {
    fn key(&self) -> &'static str {
        "slot.free"
    }

    fn lane(&self) -> Lane {
        Lane::Change
    }

    /// The transaction carries its own conditions, so no fence is needed.
    fn is_mutating(&self) -> bool {
        false
    }

    fn deadline(&self) -> Seconds {
        DEADLINE
    }
}

impl<S: Slots> Driver for Metastatic<S> {
    type Call = Call;
    type Reply = ();

    const WATCHES: bool = true;
    const WANTS_NOTIFICATIONS: bool = true;

    fn facts(&self) -> ProviderFacts {
        self.facts.clone()
    }

    fn rate_limits(&self) -> RateLimits {
        RateLimits {
            spacing: Spacing::NONE,
            in_flight: InFlightLimit::Fixed(MAX_IN_FLIGHT),
            listing_delay: Seconds::ZERO,
            refresh: None,
        }
    }

    fn begin(&self, job: &Job) -> JobMachine<Self> {
        let immediate = match job {
            Job::Launch(order) => return Box::new(AwaitSlot::new(self.slots.clone(), order)),
            Job::Delete(ExternalId::Text(id)) => {
                let call = Call::Free(id.as_str().into());
                return Box::new(OneCall::new("freeing", call, |()| Ok(Outcome::Deleted)));
            }
            Job::Delete(_) => Ok(Outcome::Deleted),
            Job::Refresh => Ok(Outcome::Refreshed(Arc::new(self.facts.clone()), Arc::default())),
            Job::List | Job::ListServerIds => Ok(Outcome::Listed(Arc::default())),
            Job::ListImages => Ok(Outcome::Images(Vec::new())),
            Job::Upload(_) => Err(CloudError::Denied("metastatic providers take no images".to_owned())),
            Job::ListUnused(_)
            | Job::DeleteUnused(_)
            | Job::Console(_)
            | Job::DeleteImage(_)
            | Job::Inspect(_)
            | Job::Probe(_) => Err(CloudError::not_found("metastatic providers have no such resources")),
        };
        Box::new(OneCall::finished(immediate))
    }

    /// The inventories of the watch are empty: they only wake the machines, each of which looks up its own slot.
    fn begin_watch(&self) -> Option<JobMachine<Self>> {
        Some(self.begin(&Job::List))
    }

    async fn next_inventory(&self) -> Result<Arc<Inventory>, CloudError> {
        if self.changes.lock().await.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        Ok(Arc::default())
    }

    fn on_notification(&self, notification: &Notification) {
        match notification {
            Notification::AttemptFailed(node) => self.slots.attempt_failed(node),
            Notification::NodeDeleted(_) | Notification::NodeReused(_) => {}
        }
    }

    async fn call(&self, call: Call, _: &CallGuard) -> Result<(), CloudError> {
        let Call::Free(node) = call;
        self.slots.free(&node).await
    }
}
