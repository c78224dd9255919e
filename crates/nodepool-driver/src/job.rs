//! Jobs: work submitted to a provider, and the events that its submitter receives.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::cloud_resource::{CloudResource, UnusedResources};
use super::error::CloudError;
use super::facts::ProviderFacts;
use super::instance::{Instance, Inventory};
use nodepool_model::config::upload_config::{StoredImage, UploadOrder};
use nodepool_model::records::ids::{ExternalId, LabelName, NodeId, PoolName};
use nodepool_model::records::static_host::{HostCheck, HostIdentity};

/// Work submitted to a provider.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Job {
    Launch(Arc<LaunchOrder>),
    /// Delete an instance. Ends with `Outcome::Deleted`, or with `CloudError::NotFound`, which counts as success.
    Delete(ExternalId),
    /// Refresh the `ProviderFacts`. The first refresh of a provider runs at its start, without a submission.
    Refresh,
    /// List resources of these kinds of `LaunchConfig::resource_kinds`: the unused ones, or those with metadata. A kind
    /// that cannot be listed does not hide the others.
    ListUnused(Vec<&'static str>),
    /// Delete such a resource. Ends with `Outcome::Deleted`, or with `CloudError::NotFound`, which counts as success. A
    /// resource that is in use again stays, with `CloudError::Failed`.
    DeleteUnused(CloudResource),
    /// List all instances, for machines that wait for their instance. Cheaper than a refresh, and frequent.
    List,
    /// List the ids of all instances, if the cloud lists them more cheaply than the instances. Otherwise it ends with
    /// `Outcome::Listed`.
    ListServerIds,
    /// Check one static host as for its registration: connect to it and gather its keys, if configured. The result is
    /// recorded in the facts.
    Inspect(HostIdentity),
    /// Read the text that an instance has written to its console, for the log of a failed launch.
    Console(ExternalId),
    /// Upload an image. Ends with `Outcome::Uploaded`; what a failed upload left is deleted with `Job::DeleteImage`.
    Upload(Arc<UploadOrder>),
    /// Delete an image. Ends with `Outcome::Deleted`, or with `CloudError::NotFound`, which counts as success.
    DeleteImage(ExternalId),
    /// List the images that are visible to this provider, ours or not.
    ListImages,
    /// Probe a static host: connect without gathering keys; cheap enough to precede a fulfilment. A failure is recorded
    /// in the facts; a success changes nothing in them.
    Probe(HostIdentity),
}

impl Job {
    /// Name of the job in dumps, logs and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Job::Launch(_) => "launch",
            Job::Delete(_) => "delete",
            Job::Refresh => "refresh",
            Job::List => "list",
            Job::ListServerIds => "list server ids",
            Job::Console(_) => "console",
            Job::ListUnused(_) => "list unused",
            Job::DeleteUnused(_) => "delete unused",
            Job::Inspect(_) => "inspect",
            Job::Upload(_) => "upload",
            Job::DeleteImage(_) => "delete image",
            Job::ListImages => "list images",
            Job::Probe(_) => "probe",
        }
    }
}

/// Description of a node to launch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaunchOrder {
    pub pool: PoolName,
    pub label: LabelName,
    pub hostname: String,
    /// Names this creation of the node. Unlike node ids, it does not repeat in another or a restored ZooKeeper.
    pub identity: String,
    /// Number of the creation, from 1. It is another one if the instance of the last one has been deleted.
    pub attempt: u32,
    pub zone: Option<String>,
    /// Id of the uploaded image to boot from. Without it, the node boots from the label's cloud image.
    pub image: Option<ExternalId>,
    /// The request of the node, for properties that reference it. All nodes of a request share it.
    pub request: Arc<Value>,
    /// Metadata that the instance receives at its creation, so that an inventory identifies its owner.
    pub metadata: BTreeMap<String, String>,
    /// Continue with this instance of a previous process instead of creating one.
    pub prior_instance: Option<ExternalId>,
    /// An earlier creation may have succeeded although its answer was lost: search for an instance of this node before
    /// creating one.
    pub may_exist: bool,
    /// The process that requested the instance died recently: the instance may still appear, so the launch searches for
    /// it for a few seconds.
    pub may_appear: bool,
}

/// Result of a successful job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Outcome {
    Launched(Box<Instance>),
    Deleted,
    /// The facts as they are now published, and the inventory.
    Refreshed(Arc<ProviderFacts>, Arc<Inventory>),
    Listed(Arc<Inventory>),
    /// The ids of all instances.
    ServerIds(Vec<String>),
    /// Console text; `None` if the cloud has none.
    Console(Option<String>),
    Uploaded(ExternalId),
    /// A complete list of the visible images.
    Images(Vec<StoredImage>),
    Unused(UnusedResources),
    /// The check was performed; it may have found the host unusable. An error means that it was not performed.
    Inspected(HostIdentity, HostCheck),
    /// The host answered a probe.
    Alive(HostIdentity),
}

/// Event of a job: any number of others, then exactly one `Finished`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum JobEvent {
    /// An instance or image may exist in the cloud from now on, under this id. An id of several parts may grow.
    InstanceKnown(ExternalId),
    /// Nothing of this job exists under the id that was reported: the cloud refused to create it, or what has this id
    /// belongs to others.
    NoInstance,
    /// The obstacle that holds the job up from now on, in the cloud's own words; `None` if it goes on.
    Waiting(Option<String>),
    Finished(Result<Outcome, CloudError>),
}

/// Fate of a node outside the jobs of its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notification {
    /// Its record was deleted, after its instance.
    NodeDeleted(NodeId),
    /// It was allocated to a request other than the one it was launched for.
    NodeReused(NodeId),
    /// An attempt to launch it failed. Its instance, if any, still exists.
    AttemptFailed(NodeId),
}
