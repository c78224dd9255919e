//! Facts: what is known of a provider. One immutable value, replaced as a whole.
//!
//! Drivers have no clock: the TaskManager stamps the times in here when it receives a reply.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use serde::Serialize;

use nodepool_model::config::unused_resources::UnusedResourcePolicy;
use nodepool_model::config::upload_config::UploadConfig;
use nodepool_model::records::ids::{ImageName, LabelName, NodeId, PoolName};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::static_host::{HostCheck, HostIdentity, StaticHost};
use nodepool_model::records::time::{Seconds, Timestamp};

/// What is known about one provider; one immutable value, replaced as a whole.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProviderFacts {
    /// When the last survey ended; the epoch before the first one.
    pub refreshed_at: Timestamp,
    /// Why the whole provider cannot be used, as its last survey found.
    pub unavailable: Option<Unavailable>,
    /// Where the instances of our nodes were seen, by the numbers of the nodes.
    pub zones: BTreeMap<NodeId, String>,
    /// Infinite where the cloud names no limit.
    pub limits: Resources,
    /// What others use of them.
    pub unmanaged: Resources,
    /// What leaked instances of ours use of them, as the last look for leaks found.
    pub leaked: Resources,
    /// What one node of a label takes.
    pub label_needs: BTreeMap<LabelName, Resources>,
    /// Nodes that exist without being launched, in the order of the configuration.
    pub static_hosts: Vec<Arc<StaticHost>>,
    /// How nodes are launched; `None` where requests are served by reuse only.
    pub launch_config: Option<Arc<LaunchConfig>>,
    /// How it takes images; `None` where it takes none.
    pub upload_config: Option<Arc<UploadConfig>>,
    /// What the last survey had to do without. Of it is known what it was before, and it is asked for again soon.
    pub failed_queries: Vec<&'static str>,
}

/// How a provider launches nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaunchConfig {
    /// Attempts for one node; at least one.
    pub attempts: u32,
    /// For one attempt, from its beginning to a node that is ready.
    pub timeout: Seconds,
    /// From a running instance to its answer at the connection port.
    pub boot_timeout: Seconds,
    /// Availability zones to choose from; none where the cloud has none, or chooses itself.
    pub zones: Vec<String>,
    pub unused_resources: UnusedResourcePolicy,
    pub labels: BTreeMap<PoolName, BTreeMap<LabelName, LaunchLabel>>,
}

/// What is known about one label of one pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaunchLabel {
    /// What one node takes; `None` until the cloud has said it.
    pub need: Option<Resources>,
    pub image: LabelImage,
    pub login: Login,
    pub host_key_checking: bool,
    /// After a failed look for host keys the instance's console is logged.
    pub console_log: bool,
    /// Why no node of it can be launched.
    pub unavailable: Option<Unavailable>,
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
pub enum Unavailable {
    /// May pass by itself: an image is not there yet, the cloud does not answer.
    Temporary(String),
    /// It can never work with this configuration.
    Permanent(String),
}

impl Unavailable {
    pub fn reason(&self) -> &str {
        match self {
            Unavailable::Temporary(why) | Unavailable::Permanent(why) => why,
        }
    }
}

impl ProviderFacts {
    /// Nothing seen yet, nothing limited.
    pub fn initial() -> Self {
        Self {
            refreshed_at: Timestamp::default(),
            unavailable: None,
            zones: BTreeMap::new(),
            limits: Resources::unlimited(),
            unmanaged: Resources::none(),
            leaked: Resources::none(),
            label_needs: BTreeMap::new(),
            static_hosts: Vec::new(),
            launch_config: None,
            upload_config: None,
            failed_queries: Vec::new(),
        }
    }

    /// Notes what the last check of one host found. Hosts that are not known are left alone.
    pub fn record_check(&mut self, identity: &HostIdentity, check: HostCheck) {
        if let Some(host) = self.static_hosts.iter_mut().find(|host| host.identity == *identity) {
            Arc::make_mut(host).check = check;
        }
    }

    /// What is known about launching a label in a pool.
    pub fn launch_label(&self, pool: &PoolName, label: &LabelName) -> Option<&LaunchLabel> {
        self.launch_config.as_ref()?.labels.get(pool)?.get(label)
    }

    /// Is an image missing that a label wants?
    pub fn is_missing_an_image(&self) -> bool {
        let labels = self.launch_config.iter().flat_map(|config| config.labels.values().flat_map(BTreeMap::values));
        labels.into_iter().any(|label| matches!(label.unavailable, Some(Unavailable::Temporary(_))))
    }

    /// What the cloud leaves to this provider's nodes: its limits without what others and leaked instances use.
    pub fn capacity(&self) -> Resources {
        let mut capacity = self.limits.clone();
        capacity.subtract(&self.unmanaged);
        capacity.subtract(&self.leaked);
        capacity
    }

    /// What may ever be free: leaked instances go, and the network's resources are in use by whoever comes first.
    pub fn max_capacity(&self) -> Resources {
        let mut capacity = self.limits.clone();
        capacity.subtract(&self.unmanaged.recorded(true));
        capacity
    }

    /// What one node takes; one instance where nothing more is known.
    pub fn need(&self, pool: &PoolName, label: &LabelName) -> &Resources {
        static ONE_INSTANCE: LazyLock<Resources> = LazyLock::new(|| Resources::none().with("instances", 1.0));
        let launched = self.launch_label(pool, label).and_then(|label| label.need.as_ref());
        launched.or_else(|| self.label_needs.get(label)).unwrap_or(&ONE_INSTANCE)
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
        assert_eq!(json["seen_at"], serde_json::json!(0.0));
    }
}
