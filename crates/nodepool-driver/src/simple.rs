//! The driver of a `SimpleAdapter`, and its calls as data.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::call_guard::CallGuard;
use crate::cloud_resource::{CloudResource, UnusedResources};
use crate::driver::{ApiCall, Driver, JobMachine, NeedsReopen};
use crate::error::CloudError;
use crate::facts::{LaunchConfig, ProviderFacts};
use crate::full_places::FullPlaces;
use crate::instance::Instance;
use crate::job::{Job, LaunchOrder, Notification};
use crate::simple_adapter::{Creation, Operation, OperationState, SimpleAdapter};
use crate::simple_launch::{FullZones, Launch};
use crate::simple_machine::{Machine, Step};
use crate::state_machine::{Lane, RateLimits};
use nodepool_model::config::upload_config::{StoredImage, UploadOrder};
use nodepool_model::records::ids::{ExternalId, ProviderName};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;

/// Deadline of one call.
const CALL_DEADLINE: Seconds = Seconds(60.0);
/// Deadline of a call that waits in the cloud.
const WAIT_DEADLINE: Seconds = Seconds(180.0);
/// Deadline of an image upload.
const UPLOAD_DEADLINE: Seconds = Seconds(72_000.0);
/// Repetitions of a creation that was not served, and the pause before each.
const CREATION_REPEATS: u32 = 2;
const REPEAT_PAUSE: Duration = Duration::from_secs(1);
/// Time for which a full zone is skipped.
const SKIPPED_FOR: Duration = Duration::from_secs(180);

/// A driver made of an adapter.
pub struct Simple<A> {
    adapter: A,
    provider: ProviderName,
    facts: ProviderFacts,
    full: FullZones,
}

impl<A: SimpleAdapter> Simple<A> {
    pub fn new(provider: ProviderName, adapter: A) -> Self {
        let facts = ProviderFacts {
            launch_config: Some(Arc::new(adapter.launching())),
            upload_config: adapter.uploading().map(Arc::new),
            ..ProviderFacts::initial()
        };
        Self { adapter, provider, facts, full: Arc::new(Mutex::new(FullPlaces::new(SKIPPED_FOR))) }
    }
}

impl<A: SimpleAdapter> Simple<A> {
    /// Repeats a creation that was not served, or whose answer was lost: the adapter finds what the first one created.
    async fn create(&self, order: &LaunchOrder, guard: &CallGuard) -> Result<Creation, CloudError> {
        for _ in 0..CREATION_REPEATS {
            match self.adapter.create_instance(order, guard).await {
                Err(CloudError::Outage { .. }) => tokio::time::sleep(REPEAT_PAUSE).await,
                result => return result,
            }
            guard.wait_until_allowed().await;
        }
        self.adapter.create_instance(order, guard).await
    }
}

/// One call of an adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub(crate) key: &'static str,
    pub(crate) request: Request,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Request {
    Create(Arc<LaunchOrder>),
    Delete(ExternalId),
    /// Waits for an operation, after a pause.
    Await(Operation, Duration),
    Labels,
    List,
    Limits,
    ListUnused(Vec<&'static str>),
    DeleteUnused(CloudResource),
    Console(ExternalId),
    Upload(Arc<UploadOrder>),
    DeleteImage(ExternalId),
    Images,
}

#[derive(Debug)]
pub enum Reply {
    Created(Creation),
    Accepted(Option<Operation>),
    Operation(OperationState),
    Labels(LaunchConfig),
    Listed(Vec<Instance>),
    Limits(Resources),
    Unused(UnusedResources),
    Console(Option<String>),
    Uploaded(ExternalId),
    Images(Vec<StoredImage>),
}

impl ApiCall for Call {
    fn key(&self) -> &'static str {
        self.key
    }

    fn lane(&self) -> Lane {
        match self.request {
            Request::Create(_) | Request::Delete(_) | Request::DeleteUnused(_) | Request::DeleteImage(_) => {
                Lane::Change
            }
            Request::Labels
            | Request::List
            | Request::Limits
            | Request::ListUnused(_)
            | Request::Console(_)
            | Request::Images => Lane::Read,
            Request::Await(..) | Request::Upload(_) => Lane::Bulk,
        }
    }

    fn is_mutating(&self) -> bool {
        !matches!(self.request, Request::Await(..)) && self.lane() != Lane::Read
    }

    fn only_waits(&self) -> bool {
        matches!(self.request, Request::Await(..))
    }

    fn deadline(&self) -> Seconds {
        match self.request {
            Request::Upload(_) => UPLOAD_DEADLINE,
            Request::Await(..) => WAIT_DEADLINE,
            _ => CALL_DEADLINE,
        }
    }
}

impl<A: SimpleAdapter> Driver for Simple<A> {
    type Call = Call;
    type Reply = Reply;

    const WANTS_NOTIFICATIONS: bool = A::WANTS_NOTIFICATIONS;

    fn on_notification(&self, notification: &Notification) {
        self.adapter.on_notification(notification);
    }

    fn facts(&self) -> ProviderFacts {
        self.facts.clone()
    }

    fn rate_limits(&self) -> RateLimits {
        self.adapter.rate_limits()
    }

    fn needs_reopen(&self) -> Option<NeedsReopen> {
        self.adapter.needs_reopen()
    }

    fn begin(&self, job: &Job) -> JobMachine<Self> {
        let step = match job {
            Job::Launch(order) => {
                let launch = Launch::new(order.clone(), self.adapter.plan(order), self.full.clone());
                return Box::new(Machine::launch(A::KEYS, launch));
            }
            Job::Delete(id) => Step::Delete(id.clone()),
            Job::Refresh => {
                let facts = Box::new(self.facts.clone());
                Step::Refresh { facts, provider: self.provider.clone(), describes_labels: A::DESCRIBES_LABELS }
            }
            Job::List | Job::ListServerIds => Step::List,
            Job::ListUnused(kinds) => Step::ListUnused(kinds.clone()),
            Job::DeleteUnused(resource) => Step::DeleteUnused(resource.clone()),
            Job::Console(id) => Step::Console(id.clone()),
            Job::Upload(_) | Job::DeleteImage(_) | Job::ListImages if self.facts.upload_config.is_none() => {
                Step::Unsupported
            }
            Job::Upload(order) => Step::Upload(order.clone()),
            Job::DeleteImage(id) => Step::DeleteImage(id.clone()),
            Job::ListImages => Step::ListImages,
            Job::Inspect(_) | Job::Probe(_) => Step::Unsupported,
        };
        Box::new(Machine::new(A::KEYS, step))
    }

    async fn prepare(&self, _: &Call) -> Result<(), CloudError> {
        self.adapter.prepare().await
    }

    async fn call(&self, call: Call, guard: &CallGuard) -> Result<Reply, CloudError> {
        match call.request {
            Request::Create(order) => self.create(&order, guard).await.map(Reply::Created),
            Request::Delete(id) => self.adapter.delete_instance(&id, guard).await.map(Reply::Accepted),
            Request::Await(operation, pause) => {
                tokio::time::sleep(pause).await;
                match self.adapter.await_operation(&operation).await {
                    // This call failed; it says nothing about the operation.
                    Err(CloudError::Outage { .. }) => Ok(Reply::Operation(OperationState::Running)),
                    state => state.map(Reply::Operation),
                }
            }
            Request::Labels => self.adapter.describe_labels().await.map(Reply::Labels),
            Request::List => self.adapter.list_instances().await.map(Reply::Listed),
            Request::Limits => self.adapter.quota_limits().await.map(Reply::Limits),
            Request::ListUnused(kinds) => self.adapter.unused_resources(&kinds).await.map(Reply::Unused),
            Request::DeleteUnused(resource) => {
                self.adapter.delete_unused(&resource).await.map(|()| Reply::Accepted(None))
            }
            Request::Console(id) => self.adapter.console(&id).await.map(Reply::Console),
            Request::Upload(order) => self.adapter.upload_image(&order).await.map(Reply::Uploaded),
            Request::DeleteImage(id) => self.adapter.delete_image(&id).await.map(|()| Reply::Accepted(None)),
            Request::Images => self.adapter.list_images().await.map(Reply::Images),
        }
    }
}
