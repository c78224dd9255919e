//! Jobs: what a provider is asked to do, and what a submitter receives about it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::error::CloudError;
use super::facts::ProviderFacts;
use super::instance::{Instance, Inventory};
use nodepool_model::config::unused_resources::{CleanMode, CleanReport};
use nodepool_model::config::upload_config::{StoredImage, UploadOrder};
use nodepool_model::records::ids::{ExternalId, LabelName, NodeId, PoolName};
use nodepool_model::records::static_host::{HostCheck, HostIdentity};

/// One thing that a provider is asked to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Job {
    Launch(Arc<LaunchOrder>),
    /// Ends with `Outcome::Deleted` or `CloudError::NotFound`, which is as good.
    Delete(ExternalId),
    /// Refresh the provider's `Facts`. The first one of a provider needs no submit, it is made at the start.
    Refresh,
    /// Delete what bears no mark and nobody uses: floating addresses, and ports where it says so.
    CleanUnused {
        ports: bool,
        mode: CleanMode,
    },
    /// See every instance, for machines that wait for theirs; cheaper than a survey, and asked for often.
    List,
    /// Which instances there are, and no more of them than a cloud tells cheaply. Ends with `Outcome::Listed` where that is
    /// all the same to it.
    ListServerIds,
    /// Check one standing host as for its registration: reach it and gather its keys where that applies. What was
    /// found is noted in the facts.
    Inspect(HostIdentity),
    /// The text that an instance has written to its console, for the log of a launch that failed.
    Console(ExternalId),
    /// Bring an image there. Ends with `Outcome::Uploaded`; what a failed one has left goes with `Job::DeleteImage`.
    Upload(Arc<UploadOrder>),
    /// Ends with `Outcome::Deleted` or `CloudError::NotFound`, which is as good.
    DeleteImage(ExternalId),
    /// See the images that this provider may see, ours or not.
    ListImages,
    /// Is this standing host alive? Reaches it without gathering keys; cheap enough to precede a hand-out. A failure
    /// is noted in the facts, a success changes nothing there.
    Probe(HostIdentity),
}

impl Job {
    /// For dumps, logs and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Job::Launch(_) => "launch",
            Job::Delete(_) => "delete",
            Job::Refresh => "survey",
            Job::List => "list",
            Job::ListServerIds => "roll call",
            Job::Console(_) => "console",
            Job::CleanUnused { .. } => "tidy",
            Job::Inspect(_) => "inspect",
            Job::Upload(_) => "upload",
            Job::DeleteImage(_) => "delete image",
            Job::ListImages => "list images",
            Job::Probe(_) => "probe",
        }
    }
}

/// What a new node shall be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaunchOrder {
    pub pool: PoolName,
    pub label: LabelName,
    pub hostname: String,
    pub zone: Option<String>,
    /// The uploaded image to boot, as the cloud knows it; without one, the label's cloud image.
    pub image: Option<ExternalId>,
    /// The request that the node is for, for properties that quote it. All nodes of a request share it.
    pub request: Arc<Value>,
    /// Put on the resource at creation, so that an inventory tells whose it is.
    pub metadata: BTreeMap<String, String>,
    /// Continue with this instance of an earlier life instead of creating one.
    pub prior_instance: Option<ExternalId>,
    /// An earlier creation may have succeeded though nobody heard of it: look for an instance of this node before
    /// creating one.
    pub may_exist: bool,
    /// Who asked for it before died a moment ago: it may still appear, and is looked for during some seconds.
    pub may_appear: bool,
}

/// How a job ended well.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Outcome {
    Launched(Box<Instance>),
    Deleted,
    /// The facts as they are now published, and what was seen.
    Refreshed(Arc<ProviderFacts>, Arc<Inventory>),
    Listed(Arc<Inventory>),
    /// The ids of all.
    ServerIds(Vec<String>),
    /// `None` where the cloud has none.
    Console(Option<String>),
    Uploaded(ExternalId),
    /// Complete, or there is none.
    Images(Vec<StoredImage>),
    CleanedUnused(CleanReport),
    /// The check has been made; it may have found the host unusable. An error means that it has not been made.
    Inspected(HostIdentity, HostCheck),
    /// The host answered a probe.
    Alive(HostIdentity),
}

/// What a submitter hears of its job: at most one `Known`, then exactly one `Ended`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum JobEvent {
    /// Something may exist in the cloud from now on, under this id.
    InstanceKnown(ExternalId),
    Finished(Result<Outcome, CloudError>),
}

/// What became of a node of a provider outside the jobs of its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notification {
    /// Its record is gone, and its instance before that.
    NodeDeleted(NodeId),
    /// A request takes it that it was not launched for.
    NodeReused(NodeId),
}
