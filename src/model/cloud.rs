//! What a cloud is asked to do, what comes of it, and what is known about it: jobs, news, facts.
//!
//! Drivers have no clock. Times in here are stamped by the TaskManager when it hears an answer.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use serde::Serialize;
use serde_json::Value;

pub use super::hosts::{HostCheck, HostIdentity, StandingHost};
pub use super::ids::ExternalId;
use super::ids::{ImageName, LabelName, NodeId, PoolName, ProviderName};
use super::quantity::Amounts;
use super::tidying::{Tidied, Tidy, Tidying};
use super::time::{Span, Timestamp};
use super::uploading::{StoredImage, UploadOrder, Uploading};

/// One thing that a provider is asked to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Job {
    Launch(Arc<LaunchOrder>),
    /// Ends with `Outcome::Deleted` or `CloudError::NotFound`, which is as good.
    Delete(ExternalId),
    /// Refresh the provider's `Facts`. The first one of a provider needs no submit, it is made at the start.
    Survey,
    /// Delete what bears no mark and nobody uses: floating addresses, and ports where it says so.
    Tidy {
        ports: bool,
        doing: Tidying,
    },
    /// See every instance, for machines that wait for theirs; cheaper than a survey, and asked for often.
    List,
    /// Which instances there are, and no more of them than a cloud tells cheaply. Ends with `Outcome::Listed` where that is
    /// all the same to it.
    RollCall,
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
            Job::Survey => "survey",
            Job::List => "list",
            Job::RollCall => "roll call",
            Job::Console(_) => "console",
            Job::Tidy { .. } => "tidy",
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
    pub found: Option<ExternalId>,
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
    Surveyed(Arc<Facts>, Arc<Inventory>),
    Listed(Arc<Inventory>),
    /// The ids of all.
    Called(Vec<String>),
    /// `None` where the cloud has none.
    Console(Option<String>),
    Uploaded(ExternalId),
    /// Complete, or there is none.
    Images(Vec<StoredImage>),
    Tidied(Tidied),
    /// The check has been made; it may have found the host unusable. An error means that it has not been made.
    Inspected(HostIdentity, HostCheck),
    /// The host answered a probe.
    Alive(HostIdentity),
}

/// What a submitter hears of its job: at most one `Known`, then exactly one `Ended`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum News {
    /// Something may exist in the cloud from now on, under this id.
    Known(ExternalId),
    Ended(Result<Outcome, CloudError>),
}

/// Why a call or a job failed, by what the caller should do next.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize)]
pub enum CloudError {
    /// Deleting: that is success.
    #[error("not found")]
    NotFound,
    /// Not a failed attempt: the node is aborted and the facts are refreshed.
    #[error("over quota: {0}")]
    Quota(String),
    /// The zone that was asked for is not there any more: no failed attempt either, and another zone is chosen.
    #[error("availability zone {0} is not there any more")]
    NoZone(String),
    /// The cloud is full; counts as an attempt.
    #[error("no capacity: {0}")]
    Capacity(String),
    /// Slow down. The TaskManager does so and repeats the call for as long as somebody wants it; no submitter hears of it.
    #[error("throttled, retry after {} s", retry_after.0)]
    Throttled { retry_after: Span },
    /// The label can never work: it is taken out of service.
    #[error("denied: {0}")]
    Denied(String),
    #[error("{detail}")]
    Failed { kind: FailureKind, detail: String },
    /// Our own deadline passed.
    #[error("deadline passed")]
    Deadline,
}

impl CloudError {
    /// Of what kind, in one word: for figures.
    pub fn kind(&self) -> &'static str {
        match self {
            CloudError::NotFound => "not-found",
            CloudError::Quota(_) => "quota",
            CloudError::NoZone(_) => "no-zone",
            CloudError::Capacity(_) => "capacity",
            CloudError::Throttled { .. } => "throttled",
            CloudError::Denied(_) => "denied",
            CloudError::Failed { .. } => "failed",
            CloudError::Deadline => "deadline",
        }
    }

    /// A job that Nodepool itself gave up: the provider drains, the submitter abandoned it, the tree ends.
    pub fn given_up(detail: impl Into<String>) -> Self {
        CloudError::Failed { kind: FailureKind::Nodepool, detail: detail.into() }
    }
}

/// Kinds of failed launches and deletes that operators watch separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum FailureKind {
    /// Something on our side: no uploaded image, no token, given up.
    Nodepool,
    /// The cloud reports the instance as failed.
    Status,
    /// No usable address.
    Network,
    KeyScan,
    Ssh,
    Capacity,
    Quota,
    ServerCreateTimeout,
    ServerDeleteTimeout,
    /// The ZooKeeper session ended meanwhile.
    Session,
    Unknown,
}

impl FailureKind {
    /// What follows `nodepool.launch.` and its relatives in a metric's name.
    pub fn statsd_suffix(self) -> &'static str {
        match self {
            FailureKind::Nodepool => "error.nodepool",
            FailureKind::Status => "error.status",
            FailureKind::Network => "error.network",
            FailureKind::KeyScan => "error.keyscan",
            FailureKind::Ssh => "error.ssh",
            FailureKind::Capacity => "error.capacity",
            FailureKind::Quota => "error.quota",
            FailureKind::ServerCreateTimeout => "error.servercreatetimeout",
            FailureKind::ServerDeleteTimeout => "error.serverdeletetimeout",
            FailureKind::Session => "error.zksession",
            FailureKind::Unknown => "error.unknown",
        }
    }
}

/// A resource that runs and can be handed out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Instance {
    pub external_id: ExternalId,
    /// The address Zuul connects to.
    pub interface_ip: Option<String>,
    pub public_ipv4: Option<String>,
    pub public_ipv6: Option<String>,
    pub private_ipv4: Option<String>,
    pub private_ipv6: Option<String>,
    pub cloud: Option<String>,
    pub zone: Option<String>,
    pub region: Option<String>,
    /// The hypervisor, as far as the cloud says which.
    pub host_id: Option<String>,
    pub metadata: BTreeMap<String, String>,
    /// What it takes from the limits.
    pub amounts: Amounts,
    pub state: InstanceState,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum InstanceState {
    Starting,
    Running,
    /// With the cloud's word for it.
    Failed(String),
    Stopping,
}

impl Instance {
    /// Of which nothing else is known.
    pub fn new(external_id: ExternalId) -> Self {
        Self {
            external_id,
            interface_ip: None,
            public_ipv4: None,
            public_ipv6: None,
            private_ipv4: None,
            private_ipv6: None,
            cloud: None,
            zone: None,
            region: None,
            host_id: None,
            metadata: BTreeMap::new(),
            amounts: Amounts::none(),
            state: InstanceState::Running,
        }
    }

    /// Was it made by this provider?
    pub fn is_of(&self, provider: &ProviderName) -> bool {
        self.metadata.get("nodepool_provider_name").is_some_and(|name| name == provider.as_str())
    }

    /// The node that it was made for.
    pub fn node(&self) -> Option<&str> {
        self.metadata.get("nodepool_node_id").map(String::as_str)
    }
}

/// Every instance of the provider that could be seen, ours or not; complete, or there is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Inventory {
    instances: Vec<Instance>,
    /// Where to find those whose id is a text.
    #[serde(skip)]
    by_id: HashMap<String, usize>,
}

impl Inventory {
    pub fn new(instances: Vec<Instance>) -> Self {
        let id = |(index, instance): (usize, &Instance)| match &instance.external_id {
            ExternalId::Text(id) => Some((id.clone(), index)),
            ExternalId::Object(_) => None,
        };
        let by_id = instances.iter().enumerate().filter_map(id).collect();
        Self { instances, by_id }
    }

    pub fn instances(&self) -> &[Instance] {
        &self.instances
    }

    /// What instances that are not this provider's use of the limits.
    pub fn used_by_others(&self, provider: &ProviderName) -> Amounts {
        let mut total = Amounts::none();
        self.instances.iter().filter(|instance| !instance.is_of(provider)).for_each(|other| total.add(&other.amounts));
        total
    }

    /// Where the nodes of a provider are.
    pub fn zones(&self, provider: &ProviderName) -> BTreeMap<NodeId, String> {
        let ours = self.instances.iter().filter(|instance| instance.is_of(provider));
        ours.filter_map(|instance| Some((NodeId::from(instance.node()?), instance.zone.clone()?))).collect()
    }

    pub fn find(&self, id: &ExternalId) -> Option<&Instance> {
        match id {
            ExternalId::Text(id) => self.by_id.get(id).map(|index| &self.instances[*index]),
            ExternalId::Object(_) => self.instances.iter().find(|instance| instance.external_id == *id),
        }
    }
}

/// What became of a node of a provider outside the jobs of its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notification {
    /// Its record is gone, and its instance before that.
    NodeDeleted(NodeId),
    /// A request takes it that it was not launched for.
    NodeReused(NodeId),
}

/// What is known about one provider; one immutable value, replaced as a whole.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Facts {
    /// When the last survey ended; the epoch before the first one.
    pub seen_at: Timestamp,
    /// Why the whole provider cannot be used, as its last survey found.
    pub trouble: Option<Trouble>,
    /// Where the instances of our nodes were seen, by the numbers of the nodes.
    pub zones: BTreeMap<NodeId, String>,
    /// Infinite where the cloud names no limit.
    pub limits: Amounts,
    /// What others use of them.
    pub unmanaged: Amounts,
    /// What leaked instances of ours use of them, as the last look for leaks found.
    pub leaked: Amounts,
    /// What one node of a label takes.
    pub label_needs: BTreeMap<LabelName, Amounts>,
    /// Nodes that exist without being launched, in the order of the configuration.
    pub standing: Vec<Arc<StandingHost>>,
    /// How nodes are launched; `None` where requests are served by reuse only.
    pub launching: Option<Arc<Launching>>,
    /// How it takes images; `None` where it takes none.
    pub uploading: Option<Arc<Uploading>>,
    /// What the last survey had to do without. Of it is known what it was before, and it is asked for again soon.
    pub unanswered: Vec<&'static str>,
}

/// How a provider launches nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Launching {
    /// Attempts for one node; at least one.
    pub attempts: u32,
    /// For one attempt, from its beginning to a node that is ready.
    pub timeout: Span,
    /// From a running instance to its answer at the connection port.
    pub boot_timeout: Span,
    /// Availability zones to choose from; none where the cloud has none, or chooses itself.
    pub zones: Vec<String>,
    pub tidy: Tidy,
    pub labels: BTreeMap<PoolName, BTreeMap<LabelName, LaunchLabel>>,
}

/// What is known about one label of one pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaunchLabel {
    /// What one node takes; `None` until the cloud has said it.
    pub need: Option<Amounts>,
    pub image: LabelImage,
    pub login: Login,
    pub host_key_checking: bool,
    /// After a failed look for host keys the instance's console is logged.
    pub console_log: bool,
    /// Why no node of it can be launched.
    pub trouble: Option<Trouble>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum LabelImage {
    /// An image that the cloud has, by its name in the configuration.
    Cloud(String),
    /// One that the builder makes and uploads.
    Disk(ImageName),
}

/// How to log in to nodes of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Login {
    pub username: Option<String>,
    pub python_path: Option<String>,
    pub shell_type: Option<String>,
    pub connection_type: Option<String>,
    pub connection_port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Trouble {
    /// May pass by itself: an image is not there yet, the cloud does not answer.
    NotReady(String),
    /// It can never work with this configuration.
    Broken(String),
}

impl Trouble {
    pub fn why(&self) -> &str {
        match self {
            Trouble::NotReady(why) | Trouble::Broken(why) => why,
        }
    }
}

impl Facts {
    /// Nothing seen yet, nothing limited.
    pub fn unseen() -> Self {
        Self {
            seen_at: Timestamp::default(),
            trouble: None,
            zones: BTreeMap::new(),
            limits: Amounts::unlimited(),
            unmanaged: Amounts::none(),
            leaked: Amounts::none(),
            label_needs: BTreeMap::new(),
            standing: Vec::new(),
            launching: None,
            uploading: None,
            unanswered: Vec::new(),
        }
    }

    /// Notes what the last check of one host found. Hosts that are not known are left alone.
    pub fn note_check(&mut self, identity: &HostIdentity, check: HostCheck) {
        if let Some(host) = self.standing.iter_mut().find(|host| host.identity == *identity) {
            Arc::make_mut(host).check = check;
        }
    }

    /// What is known about launching a label in a pool.
    pub fn launch_label(&self, pool: &PoolName, label: &LabelName) -> Option<&LaunchLabel> {
        self.launching.as_ref()?.labels.get(pool)?.get(label)
    }

    /// Is an image missing that a label wants?
    pub fn lacks_an_image(&self) -> bool {
        let labels = self.launching.iter().flat_map(|launching| launching.labels.values().flat_map(BTreeMap::values));
        labels.into_iter().any(|label| matches!(label.trouble, Some(Trouble::NotReady(_))))
    }

    /// What the cloud leaves to this provider's nodes: its limits without what others and leaked instances use.
    pub fn room(&self) -> Amounts {
        let mut room = self.limits.clone();
        room.subtract(&self.unmanaged);
        room.subtract(&self.leaked);
        room
    }

    /// What may ever be free: leaked instances go, and the network's resources are in use by whoever comes first.
    pub fn most(&self) -> Amounts {
        let mut most = self.limits.clone();
        most.subtract(&self.unmanaged.recorded(true));
        most
    }

    /// What one node takes; one instance where nothing more is known.
    pub fn need(&self, pool: &PoolName, label: &LabelName) -> &Amounts {
        static ONE_INSTANCE: LazyLock<Amounts> = LazyLock::new(|| Amounts::none().with("instances", 1.0));
        let launched = self.launch_label(pool, label).and_then(|label| label.need.as_ref());
        launched.or_else(|| self.label_needs.get(label)).unwrap_or(&ONE_INSTANCE)
    }

    pub fn standing_host(&self, identity: &HostIdentity) -> Option<&Arc<StandingHost>> {
        self.standing.iter().find(|host| host.identity == *identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_an_unlimited_provider_can_be_dumped() {
        let mut facts = Facts::unseen();
        facts.limits.set("cores", f64::INFINITY);
        facts.limits.set("ram", 4096.0);
        let json = serde_json::to_value(&facts).unwrap();
        assert_eq!(json["limits"], serde_json::json!({"cores": null, "ram": 4096.0}));
        assert_eq!(json["seen_at"], serde_json::json!(0.0));
    }
}
