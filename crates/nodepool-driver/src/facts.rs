//! Provider facts: what is known about a provider. One immutable value, replaced as a whole.
//!
//! Drivers have no clock, so the TaskManager sets the times in the facts when it receives a reply.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use serde::Serialize;

use crate::cloud_resource::ResourceKind;
use crate::health::CloudHealth;
use nodepool_model::config::upload_config::UploadConfig;
use nodepool_model::records::ids::{ExternalId, ImageName, LabelName, NodeId, PoolName};
use nodepool_model::records::node::Node;
use nodepool_model::records::resources::Resources;
use nodepool_model::records::static_host::{HostCheck, HostIdentity, StaticHost};
use nodepool_model::records::time::{Seconds, Timestamp};

/// Facts about one provider; one immutable value, replaced as a whole.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProviderFacts {
    /// End of the last refresh; the epoch if none has ended yet.
    pub refreshed_at: Timestamp,
    /// Reason why the whole provider cannot be used, according to the last refresh.
    pub unavailable: Option<Unavailable>,
    /// Zones of the instances of our nodes, by node id.
    pub zones: BTreeMap<NodeId, String>,
    /// Instances of our nodes that the last listing shows ending or failed, by node id.
    pub ending: BTreeMap<NodeId, Vec<ExternalId>>,
    /// Infinite if the cloud has no limit.
    pub limits: Resources,
    /// Part of the limits that other users of the cloud take.
    pub unmanaged: Resources,
    /// Limits of single pools, whose nodes have a quota of their own in the cloud.
    pub pool_quotas: BTreeMap<PoolName, PoolQuota>,
    /// Part of the limits that leaked instances take, according to the last leak detection.
    pub leaked: Resources,
    /// Resources of one node of each label.
    pub label_needs: BTreeMap<LabelName, Resources>,
    /// Hosts that exist without a launch, in the order of the configuration.
    pub static_hosts: Vec<Arc<StaticHost>>,
    /// Settings for launches; `None` if requests are served only from static hosts.
    pub launch_config: Option<Arc<LaunchConfig>>,
    /// Settings for uploads of images; `None` if the provider takes no images.
    pub upload_config: Option<Arc<UploadConfig>>,
    /// Queries that failed in the last refresh. Their earlier results are kept, and the refresh is repeated soon.
    pub failed_queries: Vec<&'static str>,
    /// Queries that the account may not make. What they would show counts as unlimited.
    pub refused_queries: Vec<&'static str>,
    /// Whether the cloud responds and takes launches. A refresh does not cover it: the TaskManager derives it from the
    /// results of all calls.
    pub health: CloudHealth,
}

/// A limit of the cloud that is no provider's own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolQuota {
    /// Infinite where there is no limit.
    pub limits: Resources,
    /// Part of the limits that other users of the cloud take.
    pub unmanaged: Resources,
}

impl PoolQuota {
    /// Resources that the cloud leaves to our nodes.
    pub fn capacity(&self) -> Resources {
        let mut capacity = self.limits.clone();
        capacity.subtract(&self.unmanaged);
        capacity
    }
}

/// Settings of a provider for launches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaunchConfig {
    /// Attempts per node; at least one.
    pub attempts: u32,
    /// Time for one attempt, from its start to a ready node.
    pub timeout: Seconds,
    /// Time in which a running instance must answer at its connection port.
    pub boot_timeout: Seconds,
    /// Availability zones to choose from; empty if the cloud has none or chooses itself.
    pub zones: Vec<String>,
    /// Kinds of resources besides instances that are deleted once they are unused, in the order of deletion.
    pub resource_kinds: Vec<ResourceKind>,
    pub labels: BTreeMap<PoolName, BTreeMap<LabelName, LaunchLabel>>,
}

/// Facts about one label of one pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaunchLabel {
    /// Resources of one node; `None` until the cloud has reported them.
    pub need: Option<Resources>,
    /// `None` if the driver knows no images.
    pub image: Option<LabelImage>,
    pub login: Login,
    pub host_key_checking: bool,
    /// Whether the instance's console is logged after a failed host key scan.
    pub console_log: bool,
    /// Reason why no node of this label can be launched.
    pub unavailable: Option<Unavailable>,
    /// The backing nodes in whose slots the nodes of this label are; `None` if they have instances of their own.
    pub backing: Option<Arc<BackingLabel>>,
}

/// Terms of the backing nodes of one label.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BackingLabel {
    /// The label of the backing nodes themselves.
    pub label: LabelName,
    /// Slots of a new backing node.
    pub slots: u32,
    /// Time for which a backing node is kept after its last slot was freed.
    pub grace_time: Seconds,
    /// Time for which a backing node is kept after it was requested.
    pub min_retention_time: Seconds,
    /// Age at which a backing node gets no more nodes.
    pub max_age: Option<Seconds>,
    /// Number of failures after which a backing node gets no more nodes. If it is `None`, one failed launch suffices,
    /// and nodes that are returned early do not count.
    pub max_failures: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum LabelImage {
    /// An image of the cloud, by its name in the configuration.
    Cloud(String),
    /// An image that the builder builds and uploads.
    Disk(ImageName),
}

/// Login settings of nodes of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Login {
    pub username: Option<String>,
    pub python_path: Option<String>,
    pub shell_type: Option<String>,
    pub connection_type: Option<String>,
    pub connection_port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Unavailable {
    /// May end by itself: for example, an image does not exist yet, or the cloud does not answer.
    Temporary(String),
    /// Can never work with this configuration.
    Permanent(String),
}

impl Unavailable {
    pub fn reason(&self) -> &str {
        match self {
            Unavailable::Temporary(reason) | Unavailable::Permanent(reason) => reason,
        }
    }
}

impl ProviderFacts {
    /// Facts before the first refresh: nothing is known, and nothing is limited.
    pub fn initial() -> Self {
        Self {
            refreshed_at: Timestamp::default(),
            unavailable: None,
            zones: BTreeMap::new(),
            ending: BTreeMap::new(),
            limits: Resources::unlimited(),
            unmanaged: Resources::none(),
            pool_quotas: BTreeMap::new(),
            leaked: Resources::none(),
            label_needs: BTreeMap::new(),
            static_hosts: Vec::new(),
            launch_config: None,
            upload_config: None,
            failed_queries: Vec::new(),
            refused_queries: Vec::new(),
            health: CloudHealth::default(),
        }
    }

    /// Whether a refresh has succeeded.
    pub fn is_refreshed(&self) -> bool {
        self.refreshed_at > Timestamp::default()
    }

    /// Records the last check of one host. Unknown hosts are ignored.
    pub fn record_check(&mut self, identity: &HostIdentity, check: HostCheck) {
        if let Some(host) = self.static_hosts.iter_mut().find(|host| host.identity == *identity) {
            Arc::make_mut(host).check = check;
        }
    }

    /// Facts about launching a label in a pool.
    pub fn launch_label(&self, pool: &PoolName, label: &LabelName) -> Option<&LaunchLabel> {
        self.launch_config.as_ref()?.labels.get(pool)?.get(label)
    }

    /// Whether an image that a label needs is missing.
    pub fn is_missing_an_image(&self) -> bool {
        let labels = self.launch_config.iter().flat_map(|config| config.labels.values().flat_map(BTreeMap::values));
        labels.into_iter().any(|label| matches!(label.unavailable, Some(Unavailable::Temporary(_))))
    }

    /// Resources that the cloud leaves to this provider's nodes: its limits minus the usage of other users and of
    /// leaked instances.
    pub fn capacity(&self) -> Resources {
        let mut capacity = self.limits.clone();
        capacity.subtract(&self.unmanaged);
        capacity.subtract(&self.leaked);
        capacity
    }

    /// Resources that may be available at some time: leaked instances will be deleted, and other users may release
    /// network resources.
    pub fn max_capacity(&self) -> Resources {
        let mut capacity = self.limits.clone();
        capacity.subtract(&self.unmanaged.recorded(true));
        capacity
    }

    /// Resources of one node; one instance if nothing more is known.
    pub fn need(&self, pool: &PoolName, label: &LabelName) -> &Resources {
        static ONE_INSTANCE: LazyLock<Resources> = LazyLock::new(|| Resources::none().with("instances", 1.0));
        let launched = self.launch_label(pool, label).and_then(|label| label.need.as_ref());
        launched.or_else(|| self.label_needs.get(label)).unwrap_or(&ONE_INSTANCE)
    }

    /// Whether the instance of a node is ending.
    pub fn is_ending(&self, id: &NodeId, node: &Node) -> bool {
        let Some(ending) = self.ending.get(id) else { return false };
        let own = ExternalId::of(&node.external_id);
        own.is_some_and(|own| ending.iter().any(|instance| own.is_same(instance)))
    }

    pub fn static_host(&self, identity: &HostIdentity) -> Option<&Arc<StaticHost>> {
        self.static_hosts.iter().find(|host| host.identity == *identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_an_unlimited_provider_can_be_dumped() {
        let mut facts = ProviderFacts::initial();
        facts.limits.set("cores", f64::INFINITY);
        facts.limits.set("ram", 4096.0);
        let json = serde_json::to_value(&facts).unwrap();
        assert_eq!(json["limits"], serde_json::json!({"cores": null, "ram": 4096.0}));
        assert_eq!(json["refreshed_at"], serde_json::json!(0.0));
    }
}
