//! Simple drivers, for clouds where one call creates and one call deletes an instance. An adapter must implement four
//! functions, and more if its cloud has more calls. `Simple` makes it a driver, with the state machines of every job.

use std::future::{Future, ready};
use std::sync::Arc;

use crate::call_guard::CallGuard;
use crate::cloud_resource::{CloudResource, UnusedResources};
use crate::driver::{ApiCall, Driver};
use crate::error::{CloudError, FailureKind};
use crate::facts::{LaunchConfig, ProviderFacts};
use crate::instance::{Instance, InstanceState, Inventory};
use crate::job::{Job, LaunchOrder, Notification, Outcome};
use crate::state_machine::{InFlightLimit, Input, Lane, Next, REFRESH_INTERVAL, RateLimits, Spacing, StateMachine};
use nodepool_model::config::upload_config::{StoredImage, UploadConfig, UploadOrder};
use nodepool_model::records::ids::{ExternalId, ProviderName};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;

/// Calls of a simple cloud. They run one after another, unless `rate_limits` allows more at a time.
pub trait SimpleAdapter: Send + 'static {
    /// Names of the calls for statsd.
    const KEYS: Keys = Keys {
        create: "create_instance",
        delete: "delete_instance",
        list: "list_instances",
        limits: "get_quota_limits",
        list_unused: "list_unused_resources",
        delete_unused: "delete_unused_resource",
        console: "get_console",
        upload: "upload_image",
        delete_image: "delete_image",
        list_images: "list_images",
    };

    /// Creates an instance with all the metadata of the order. If an instance of this host name exists already, from a
    /// creation whose answer was lost, returns that one.
    fn create_instance(&self, order: &LaunchOrder) -> impl Future<Output = Result<ExternalId, CloudError>>;

    /// Requests the deletion. `NotFound` counts as success.
    fn delete_instance(&self, id: &ExternalId) -> impl Future<Output = Result<(), CloudError>>;

    /// All visible instances, ours or not. An incomplete listing is an error.
    fn list_instances(&self) -> impl Future<Output = Result<Vec<Instance>, CloudError>>;

    /// Limits of the cloud. The default is unlimited.
    fn quota_limits(&self) -> impl Future<Output = Result<Resources, CloudError>> {
        ready(Ok(Resources::unlimited()))
    }

    /// Resources of these kinds of `LaunchConfig::resource_kinds` that are unused now, or carry the metadata of a node.
    /// Called at the intervals of the kinds.
    fn unused_resources(&self, _kinds: &[&'static str]) -> impl Future<Output = Result<UnusedResources, CloudError>> {
        ready(Ok(UnusedResources::default()))
    }

    /// `NotFound` counts as success, and `Failed` says that the resource is in use again.
    fn delete_unused(&self, _resource: &CloudResource) -> impl Future<Output = Result<(), CloudError>> {
        ready(Err(CloudError::not_found("this cloud has no such resources")))
    }

    /// The text that an instance has written to its console, for the log of a failed launch.
    fn console(&self, _id: &ExternalId) -> impl Future<Output = Result<Option<String>, CloudError>> {
        ready(Ok(None))
    }

    /// Uploads an image with all the order's properties and marks. If a complete image with these marks exists already,
    /// from an attempt whose answer was lost, returns that one.
    fn upload_image(&self, _order: &UploadOrder) -> impl Future<Output = Result<ExternalId, CloudError>> {
        ready(Err(CloudError::Denied("this cloud takes no images".to_owned())))
    }

    /// `NotFound` counts as success.
    fn delete_image(&self, _id: &ExternalId) -> impl Future<Output = Result<(), CloudError>> {
        ready(Err(CloudError::not_found("this cloud has no such resources")))
    }

    /// All visible images, ours or not.
    fn list_images(&self) -> impl Future<Output = Result<Vec<StoredImage>, CloudError>> {
        ready(Ok(Vec::new()))
    }

    /// Settings for launches and the facts about each label, from the configuration alone.
    fn launching(&self) -> LaunchConfig;

    /// Settings for uploads of images, from the configuration alone; `None` if the cloud takes no images.
    fn uploading(&self) -> Option<UploadConfig> {
        None
    }

    /// Whether `on_notification` does anything.
    const WANTS_NOTIFICATIONS: bool = false;

    /// Receives the fate of a node.
    fn on_notification(&self, _notification: &Notification) {}

    fn rate_limits(&self) -> RateLimits {
        RateLimits {
            spacing: Spacing::NONE,
            in_flight: InFlightLimit::Fixed(1),
            listing_delay: Seconds(1.0),
            refresh: Some(REFRESH_INTERVAL),
        }
    }
}

/// Names of an adapter's calls, for statsd.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    pub create: &'static str,
    pub delete: &'static str,
    pub list: &'static str,
    pub limits: &'static str,
    pub list_unused: &'static str,
    pub delete_unused: &'static str,
    pub console: &'static str,
    pub upload: &'static str,
    pub delete_image: &'static str,
    pub list_images: &'static str,
}

/// Deadline of one call.
const CALL_DEADLINE: Seconds = Seconds(60.0);
/// Deadline of an image upload.
const UPLOAD_DEADLINE: Seconds = Seconds(72_000.0);

/// A driver made of an adapter.
pub struct Simple<A> {
    adapter: A,
    provider: ProviderName,
    facts: ProviderFacts,
}

impl<A: SimpleAdapter> Simple<A> {
    pub fn new(provider: ProviderName, adapter: A) -> Self {
        let facts = ProviderFacts {
            launch_config: Some(Arc::new(adapter.launching())),
            upload_config: adapter.uploading().map(Arc::new),
            ..ProviderFacts::initial()
        };
        Self { adapter, provider, facts }
    }
}

/// One call of an adapter.
#[derive(Clone, Debug)]
pub struct Call {
    key: &'static str,
    request: Request,
}

#[derive(Clone, Debug)]
enum Request {
    Create(Arc<LaunchOrder>),
    Delete(ExternalId),
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
    Created(ExternalId),
    Accepted,
    Listed(Vec<Instance>),
    Limits(Resources),
    Unused(UnusedResources),
    Console(Option<String>),
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
            Request::List | Request::Limits | Request::ListUnused(_) | Request::Console(_) | Request::Images => {
                Lane::Read
            }
            Request::Upload(_) => Lane::Bulk,
        }
    }

    fn deadline(&self) -> Seconds {
        if matches!(self.request, Request::Upload(_)) { UPLOAD_DEADLINE } else { CALL_DEADLINE }
    }
}

impl<A: SimpleAdapter> Driver for Simple<A> {
    type Call = Call;
    type Reply = Reply;
    type Machine = Machine;

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

    fn begin(&self, job: &Job) -> Machine {
        let (step, external_id) = match job {
            Job::Launch(order) if order.prior_instance.is_some() => (Step::Booting, order.prior_instance.clone()),
            Job::Launch(order) => (Step::Create(order.clone()), None),
            Job::Delete(id) => (Step::Delete(id.clone()), None),
            Job::Refresh => (Step::Refresh(Box::new(self.facts.clone()), self.provider.clone()), None),
            Job::List | Job::ListServerIds => (Step::List, None),
            Job::ListUnused(kinds) => (Step::ListUnused(kinds.clone()), None),
            Job::DeleteUnused(resource) => (Step::DeleteUnused(resource.clone()), None),
            Job::Console(id) => (Step::Console(id.clone()), None),
            Job::Upload(order) => (Step::Upload(order.clone()), None),
            Job::DeleteImage(id) => (Step::DeleteImage(id.clone()), None),
            Job::ListImages => (Step::ListImages, None),
            Job::Inspect(_) | Job::Probe(_) => (Step::Unsupported, None),
        };
        Machine { keys: A::KEYS, step, external_id }
    }

    async fn call(&self, call: Call, _: &CallGuard) -> Result<Reply, CloudError> {
        match call.request {
            Request::Create(order) => self.adapter.create_instance(&order).await.map(Reply::Created),
            Request::Delete(id) => self.adapter.delete_instance(&id).await.map(|()| Reply::Accepted),
            Request::List => self.adapter.list_instances().await.map(Reply::Listed),
            Request::Limits => self.adapter.quota_limits().await.map(Reply::Limits),
            Request::ListUnused(kinds) => self.adapter.unused_resources(&kinds).await.map(Reply::Unused),
            Request::DeleteUnused(resource) => self.adapter.delete_unused(&resource).await.map(|()| Reply::Accepted),
            Request::Console(id) => self.adapter.console(&id).await.map(Reply::Console),
            Request::Upload(order) => self.adapter.upload_image(&order).await.map(Reply::Created),
            Request::DeleteImage(id) => self.adapter.delete_image(&id).await.map(|()| Reply::Accepted),
            Request::Images => self.adapter.list_images().await.map(Reply::Images),
        }
    }
}

/// State machine of one job.
#[derive(Debug)]
pub struct Machine {
    keys: Keys,
    step: Step,
    external_id: Option<ExternalId>,
}

#[derive(Debug)]
enum Step {
    Create(Arc<LaunchOrder>),
    Creating,
    Booting,
    Delete(ExternalId),
    Deleting(ExternalId),
    AwaitingDeletion(ExternalId),
    List,
    ListUnused(Vec<&'static str>),
    ListingUnused,
    DeleteUnused(CloudResource),
    DeletingUnused,
    Console(ExternalId),
    Upload(Arc<UploadOrder>),
    Uploading,
    DeleteImage(ExternalId),
    DeletingImage,
    ListImages,
    Refresh(Box<ProviderFacts>, ProviderName),
    Listing(Box<ProviderFacts>, ProviderName),
    Limiting(Box<ProviderFacts>, Inventory),
    Unsupported,
    Finished,
}

impl StateMachine for Machine {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        let step = std::mem::replace(&mut self.step, Step::Finished);
        let keys = self.keys;
        match (step, input) {
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (Step::Create(order), Input::Start) => self.call(Step::Creating, keys.create, Request::Create(order)),
            (Step::Creating, Input::Reply(Ok(Reply::Created(id)))) => {
                self.external_id = Some(id);
                self.observe(Step::Booting)
            }
            (Step::Booting, Input::Start) => self.observe(Step::Booting),
            (Step::Booting, Input::Observed(inventory)) => self.check_boot(inventory),
            (Step::Delete(id), Input::Start) => self.call(Step::Deleting(id.clone()), keys.delete, Request::Delete(id)),
            (Step::Deleting(id), Input::Reply(Ok(Reply::Accepted))) => self.observe(Step::AwaitingDeletion(id)),
            (Step::AwaitingDeletion(id), Input::Observed(inventory)) => match inventory.find(&id) {
                Some(_) => self.observe(Step::AwaitingDeletion(id)),
                None => Next::Done(Outcome::Deleted),
            },
            (Step::Refresh(facts, provider), Input::Start) => {
                self.call(Step::Listing(facts, provider), keys.list, Request::List)
            }
            (Step::List, Input::Start) => self.call(Step::List, keys.list, Request::List),
            (Step::List, Input::Reply(Ok(Reply::Listed(instances)))) => {
                Next::Done(Outcome::Listed(Arc::new(Inventory::new(instances))))
            }
            (Step::Listing(mut facts, provider), Input::Reply(Ok(Reply::Listed(instances)))) => {
                let inventory = Inventory::new(instances);
                facts.unmanaged = inventory.used_by_others(&provider);
                self.call(Step::Limiting(facts, inventory), keys.limits, Request::Limits)
            }
            (Step::Limiting(mut facts, inventory), Input::Reply(Ok(Reply::Limits(limits)))) => {
                facts.limits = limits;
                Next::Done(Outcome::Refreshed(Arc::new(*facts), Arc::new(inventory)))
            }
            (Step::ListUnused(kinds), Input::Start) => {
                self.call(Step::ListingUnused, keys.list_unused, Request::ListUnused(kinds))
            }
            (Step::ListingUnused, Input::Reply(Ok(Reply::Unused(unused)))) => Next::Done(Outcome::Unused(unused)),
            (Step::DeleteUnused(resource), Input::Start) => {
                self.call(Step::DeletingUnused, keys.delete_unused, Request::DeleteUnused(resource))
            }
            (Step::DeletingUnused, Input::Reply(Ok(Reply::Accepted))) => Next::Done(Outcome::Deleted),
            (Step::Console(id), Input::Start) => {
                self.call(Step::Console(id.clone()), keys.console, Request::Console(id))
            }
            (Step::Console(_), Input::Reply(Ok(Reply::Console(text)))) => Next::Done(Outcome::Console(text)),
            (Step::Upload(order), Input::Start) => self.call(Step::Uploading, keys.upload, Request::Upload(order)),
            (Step::Uploading, Input::Reply(Ok(Reply::Created(id)))) => {
                self.external_id = Some(id.clone());
                Next::Done(Outcome::Uploaded(id))
            }
            (Step::DeleteImage(id), Input::Start) => {
                self.call(Step::DeletingImage, keys.delete_image, Request::DeleteImage(id))
            }
            (Step::DeletingImage, Input::Reply(Ok(Reply::Accepted))) => Next::Done(Outcome::Deleted),
            (Step::ListImages, Input::Start) => self.call(Step::ListImages, keys.list_images, Request::Images),
            (Step::ListImages, Input::Reply(Ok(Reply::Images(images)))) => Next::Done(Outcome::Images(images)),
            (Step::Unsupported, Input::Start) => {
                Next::Failed(CloudError::not_found("this cloud has no such resources"))
            }
            (step, input) => unreachable!("unexpected {input:?} in step {step:?}"),
        }
    }

    fn external_id(&self) -> Option<&ExternalId> {
        self.external_id.as_ref()
    }

    fn label(&self) -> &'static str {
        match self.step {
            Step::Create(_) | Step::Creating => "creating instance",
            Step::Booting => "booting",
            Step::Delete(_) | Step::Deleting(_) => "deleting instance",
            Step::AwaitingDeletion(_) => "waiting for deletion",
            Step::List => "listing",
            Step::ListUnused(_) | Step::ListingUnused => "listing unused resources",
            Step::DeleteUnused(_) | Step::DeletingUnused => "deleting an unused resource",
            Step::Console(_) => "reading the console",
            Step::Upload(_) | Step::Uploading => "uploading",
            Step::DeleteImage(_) | Step::DeletingImage => "deleting image",
            Step::ListImages => "listing images",
            Step::Refresh(..) | Step::Listing(..) | Step::Limiting(..) => "refreshing",
            Step::Unsupported | Step::Finished => "ended",
        }
    }
}

impl Machine {
    fn call(&mut self, step: Step, key: &'static str, request: Request) -> Next<Call> {
        self.step = step;
        Next::Call(Call { key, request })
    }

    fn observe(&mut self, step: Step) -> Next<Call> {
        self.step = step;
        Next::Observe
    }

    fn check_boot(&mut self, inventory: &Inventory) -> Next<Call> {
        let found = self.external_id.as_ref().and_then(|id| inventory.find(id));
        match found.map(|instance| (&instance.state, instance)) {
            Some((InstanceState::Running, instance)) => Next::Done(Outcome::Launched(Box::new(instance.clone()))),
            Some((InstanceState::Starting, _)) => self.observe(Step::Booting),
            // Some clouds accept a request beyond the quota and let the instance fail.
            Some((InstanceState::Failed(fault), _)) if fault.to_lowercase().contains("quota") => {
                Next::Failed(CloudError::Quota(fault.clone()))
            }
            Some((InstanceState::Failed(fault), _)) => status_failure(format!("Server in error state: {fault}")),
            Some((InstanceState::Stopping, _)) | None => status_failure("the instance no longer exists".to_owned()),
        }
    }
}

fn status_failure(detail: String) -> Next<Call> {
    Next::Failed(CloudError::Failed { kind: FailureKind::Status, detail })
}
