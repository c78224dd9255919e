//! Simple drivers, for clouds where one call creates and one call deletes an instance. An adapter must implement four
//! functions, and more if its cloud has more calls. `Simple` makes it a driver, with the state machines of every job.

use std::future::{Future, ready};

use crate::call_guard::CallGuard;
use crate::cloud_resource::{CloudResource, UnusedResources};
use crate::driver::NeedsReopen;
use crate::error::CloudError;
use crate::facts::LaunchConfig;
use crate::instance::Instance;
use crate::job::{LaunchOrder, Notification};
use crate::state_machine::{InFlightLimit, REFRESH_INTERVAL, RateLimits, Spacing};
use nodepool_model::config::upload_config::{StoredImage, UploadConfig, UploadOrder};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;

pub use crate::simple::Simple;

/// Calls of a simple cloud. They run one after another, unless `rate_limits` allows more at a time.
pub trait SimpleAdapter: Send + 'static {
    /// Names of the calls for statsd.
    const KEYS: Keys = Keys::DEFAULT;

    /// Creates an instance with all the metadata of the order, in its zone if it has one. If an instance of this host
    /// name exists already, from a creation whose answer was lost, returns that one. An adapter that makes other calls
    /// before, or repeats the call by itself, waits for the guard before it sends it.
    fn create_instance(
        &self,
        order: &LaunchOrder,
        guard: &CallGuard,
    ) -> impl Future<Output = Result<Creation, CloudError>>;

    /// Requests the deletion. `NotFound` says that there is nothing to delete now; if listings still show the
    /// instance, the deletion is requested again. Returns the operation that performs it, if the cloud names
    /// one. The guard is as for `create_instance`.
    fn delete_instance(
        &self,
        id: &ExternalId,
        guard: &CallGuard,
    ) -> impl Future<Output = Result<Option<Operation>, CloudError>>;

    /// Waits until an operation has ended, if the cloud can wait. An error is that of the operation; an `Outage` is
    /// that of this call, which is then repeated.
    fn await_operation(&self, _: &Operation) -> impl Future<Output = Result<OperationState, CloudError>> {
        ready(Ok(OperationState::Ended))
    }

    /// The zones of a launch, and the address of its node.
    fn plan(&self, _order: &LaunchOrder) -> LaunchPlan {
        LaunchPlan::default()
    }

    /// All visible instances, ours or not. An incomplete listing is an error.
    fn list_instances(&self) -> impl Future<Output = Result<Vec<Instance>, CloudError>>;

    /// Whether `describe_labels` asks the cloud.
    const DESCRIBES_LABELS: bool = false;

    /// `launching` with what the cloud says about each label: its resources, or why none of its nodes can be launched.
    /// Called at each refresh.
    fn describe_labels(&self) -> impl Future<Output = Result<LaunchConfig, CloudError>> {
        ready(Ok(self.launching()))
    }

    /// Limits of the cloud. The default is unlimited, and so are limits that the account may not read (`Denied`).
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
        ready(Err(CloudError::unsupported()))
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
        ready(Err(CloudError::unsupported()))
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

    /// As `Driver::prepare`, for all calls.
    fn prepare(&self) -> impl Future<Output = Result<(), CloudError>> {
        ready(Ok(()))
    }

    /// As `Driver::needs_reopen`.
    fn needs_reopen(&self) -> Option<NeedsReopen> {
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

/// An instance whose creation the cloud has accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct Creation {
    pub id: ExternalId,
    /// The operation that performs the creation, if the cloud names one. If it fails, there is no instance.
    pub operation: Option<Operation>,
}

impl From<ExternalId> for Creation {
    fn from(id: ExternalId) -> Self {
        Self { id, operation: None }
    }
}

/// Id of work that the cloud has accepted and performs later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation(pub String);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationState {
    Running,
    Ended,
}

/// Terms of one launch, from the configuration alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaunchPlan {
    /// Zones, in the order in which they are tried: one that has no capacity is skipped for a while. If there are none,
    /// there is one try in the zone of the order.
    pub zones: Vec<String>,
    /// Part of the cloud's capacity that the launch takes, such as a machine type. Each zone has its own of each.
    pub capacity: String,
    /// Whether the node has its private address, if the instance has one.
    pub use_internal_ip: bool,
    /// Id of the instance, if it is known before the creation. An instance whose creation was not answered is deleted
    /// by this id.
    pub id: Option<ExternalId>,
}

/// Names of an adapter's calls, for statsd.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    pub create: &'static str,
    pub delete: &'static str,
    pub operation: &'static str,
    pub labels: &'static str,
    pub list: &'static str,
    pub limits: &'static str,
    pub list_unused: &'static str,
    pub delete_unused: &'static str,
    pub console: &'static str,
    pub upload: &'static str,
    pub delete_image: &'static str,
    pub list_images: &'static str,
}

impl Keys {
    pub const DEFAULT: Keys = Keys {
        create: "create_instance",
        delete: "delete_instance",
        operation: "get_operation",
        labels: "get_quota_for_label",
        list: "list_instances",
        limits: "get_quota_limits",
        list_unused: "list_unused_resources",
        delete_unused: "delete_unused_resource",
        console: "get_console",
        upload: "upload_image",
        delete_image: "delete_image",
        list_images: "list_images",
    };
}
