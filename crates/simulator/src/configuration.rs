//! Configuration of launchers and builders in a run, and the participants that are drawn from the seed.

use std::path::Path;

use nodepool_model::records::ids::{ImageName, PoolId, ProviderName};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use testkit::in_process_launcher::fake_cloud::{self, provider};

/// Both launchers serve the provider `middle`.
pub const PROVIDERS: [&str; 3] = ["north", "middle", "south"];
pub const LAUNCHERS: [Launcher; 2] = [
    Launcher { name: "east", providers: ["north", "middle"], own_provider: "north" },
    Launcher { name: "west", providers: ["middle", "south"], own_provider: "south" },
];
/// Providers of the Nodepool 11 launcher: its own, where it launches, and a shared one.
pub const NODEPOOL11_PROVIDERS: [&str; 2] = ["old", "middle"];
/// Labels that all launchers serve.
pub const LABELS: &[&str] = &["a", "b"];
/// A label that only the Nodepool 11 launcher serves.
pub const NODEPOOL11_LABEL: &str = "c";
/// A provider of static hosts that the first launcher has in some runs, and the label that only it serves.
pub const STATIC_PROVIDER: &str = "rack";
pub const STATIC_LABEL: &str = "h";
/// Its hosts with `max-parallel-jobs`. Names with this prefix are not resolved.
pub const HOSTS: [(&str, usize); 2] = [("fake-1", 2), ("fake-2", 1)];
/// Limit of its pool: few backing nodes suffice, so that enough servers are left for other requests.
const METASTATIC_NODES: usize = 9;
/// A label that only the second launcher serves, in some runs. Its requests belong to a tenant with a limit. Two
/// launchers that count at the same time could exceed the limit together.
pub const TENANT_LABEL: &str = "t";
pub const TENANT: &str = "small";
/// Limit of `TENANT`: more nodes than any request has.
pub const TENANT_NODES: usize = 5;
/// A metastatic provider that both launchers have in some runs, and its label. Its backing nodes have the first of the
/// common labels.
pub const METASTATIC_PROVIDER: &str = "inner";
pub const METASTATIC_LABEL: &str = "m";
/// All labels that consumers may request in some run.
pub const ALL_LABELS: [&str; 6] = ["a", "b", NODEPOOL11_LABEL, STATIC_LABEL, TENANT_LABEL, METASTATIC_LABEL];
/// Factor by which the labels of all launchers are requested more often than those of one launcher.
const COMMON_LABEL_WEIGHT: usize = 3;

pub const BUILDERS: [&str; 2] = ["oak", "elm"];
/// Images of the builders, with `rebuild-age` in seconds.
pub const IMAGES: [(&str, u32); 2] = [("debian", 900), ("fedora", 1500)];
/// Provider where the label `b` uses a built image, in runs with builders.
const IMAGE_PROVIDER: &str = "middle";
/// Provider of `TENANT_LABEL`.
const TENANT_PROVIDER: &str = LAUNCHERS[1].own_provider;

/// Participants of a run beside the launchers. Each run has some of them (swarm testing): one participant may hide
/// failures of another, and runs with fewer are shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Participants {
    pub builders: bool,
    /// The launcher of Nodepool 11.
    pub nodepool11: bool,
    /// No transaction has room for the records of two nodes: writes are chunked, as for a request of a thousand nodes.
    pub small_transactions: bool,
    /// Static hosts.
    pub static_hosts: bool,
    /// Pools have `max-cores` instead of `max-servers`.
    pub core_limits: bool,
    /// `max-ready-age` and `max-hold-age` are set.
    pub max_ages: bool,
    /// A tenant with a limit of nodes.
    pub tenant_limit: bool,
    /// The provider that only one launcher serves has a second pool.
    pub second_pool: bool,
    /// The label `b` has `min-ready`, too.
    pub second_min_ready: bool,
    /// Clouds are slow, full or absent, and have no other faults: no request fails by them.
    pub harmless_clouds: bool,
    /// Nodes in slots of backing nodes.
    pub metastatic: bool,
}

/// `max-ready-age` of the label `a` and `max-hold-age`, in seconds. Most nodes are held for longer.
const READY_AGE: u32 = 300;
const HOLD_AGE: u32 = 120;
/// `min-ready` of the label `b`, in runs in which it has one.
const SECOND_MIN_READY: usize = 1;
/// Cores of each server.
pub const CORES: usize = 2;

impl Participants {
    pub fn draw(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed ^ 0xca57);
        Self {
            builders: rng.gen_bool(0.3),
            nodepool11: rng.gen_bool(0.2),
            small_transactions: rng.gen_bool(0.2),
            static_hosts: rng.gen_bool(0.3),
            core_limits: rng.gen_bool(0.3),
            max_ages: rng.gen_bool(0.3),
            tenant_limit: rng.gen_bool(0.3),
            second_pool: rng.gen_bool(0.3),
            second_min_ready: rng.gen_bool(0.3),
            harmless_clouds: rng.gen_bool(0.4),
            metastatic: rng.gen_bool(0.4),
        }
    }

    /// Labels to draw from, equally likely, with repetitions as weights.
    pub fn weighted_labels(self) -> Vec<&'static str> {
        let mut labels = LABELS.repeat(COMMON_LABEL_WEIGHT);
        let some = [(self.nodepool11, NODEPOOL11_LABEL), (self.static_hosts, STATIC_LABEL)];
        labels.extend([METASTATIC_LABEL; COMMON_LABEL_WEIGHT].iter().filter(|_| self.metastatic));
        labels.extend(some.iter().filter(|(is_there, _)| *is_there).map(|(_, label)| label));
        if self.tenant_limit {
            // The label is rare, so that requests that waited for a faulty cloud are served within the recovery
            // timeout.
            labels = labels.repeat(2);
            labels.push(TENANT_LABEL);
        }
        labels
    }

    /// Images and the providers that must have them at the end.
    pub fn expected_images(self) -> Vec<(ImageName, ProviderName)> {
        let images = IMAGES.iter().filter(|_| self.builders);
        let uploads = images.flat_map(|(image, _)| PROVIDERS.map(|provider| (*image, provider)));
        uploads.map(|(image, provider)| (image.into(), provider.into())).collect()
    }
}

/// The configuration of a builder, with its own folder of images.
pub fn builders_yaml(images: &Path) -> String {
    let names: Vec<Value> = IMAGES.iter().map(|(name, _)| json!({"name": name})).collect();
    let section = |name| json!({"name": name, "driver": "fake", "cloud": "fake", "diskimages": names, "pools": [{"name": "main"}]});
    let image =
        |(name, age): &(&str, u32)| json!({"name": name, "rebuild-age": age, "build-timeout": 600, "elements": ["vm"]});
    json!({
        "zookeeper-servers": [{"host": "localhost"}],
        "images-dir": images,
        "build-log-dir": images.join("logs"),
        "diskimages": IMAGES.iter().map(image).collect::<Vec<_>>(),
        "providers": PROVIDERS.map(section),
    })
    .to_string()
}

pub struct Launcher {
    pub name: &'static str,
    pub providers: [&'static str; 2],
    /// Provider that no other launcher serves. Its limits hold strictly, while two launchers that count at the same
    /// time may exceed the limits of a shared provider.
    pub own_provider: &'static str,
}

/// Values that a reload changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReloadSizes {
    pub max_servers: usize,
    /// `min-ready` of the label `a`.
    pub min_ready: usize,
    pub removed: Option<RemovedSection>,
}

/// Section that an operator removes from the file of a launcher, in whatever state its nodes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovedSection {
    /// The label `b`, in each of its pools.
    Label,
    /// The provider that the other launcher also serves.
    Provider,
}

impl Default for ReloadSizes {
    fn default() -> Self {
        Self { max_servers: 8, min_ready: 1, removed: None }
    }
}

/// Name and server limit of the second pool, in runs that have one.
const SECOND_POOL: &str = "annexe";
const SECOND_POOL_SERVERS: usize = 2;

impl Launcher {
    pub fn serves(&self, provider: &ProviderName) -> bool {
        self.providers.contains(&provider.as_str())
            || provider.as_str() == STATIC_PROVIDER && self.name == LAUNCHERS[0].name
            || provider.as_str() == METASTATIC_PROVIDER
    }

    /// Server limits of the pools of its own provider.
    pub fn limits(&self, sizes: ReloadSizes, participants: Participants) -> Vec<(PoolId, usize)> {
        let mut limits = vec![(PoolId::new(self.own_provider, "main"), sizes.max_servers)];
        limits.extend(
            participants.second_pool.then(|| (PoolId::new(self.own_provider, SECOND_POOL), SECOND_POOL_SERVERS)),
        );
        limits
    }

    /// `min-ready` of its labels.
    pub fn min_ready(&self, sizes: ReloadSizes, participants: Participants) -> [(&'static str, usize); 2] {
        let second = if participants.second_min_ready { SECOND_MIN_READY } else { 0 };
        [(LABELS[0], sizes.min_ready), (LABELS[1], second)]
    }

    pub fn yaml(&self, sizes: ReloadSizes, participants: Participants) -> String {
        let limit = |servers: usize| match participants.core_limits {
            true => json!({"max-cores": servers * CORES}),
            false => json!({"max-servers": servers}),
        };
        let section = |name: &&str| {
            let mut section = provider(name, json!({"launch-timeout": 180}), limit(sizes.max_servers));
            section["pools"][0]["host-key-checking"] = false.into();
            if *name == IMAGE_PROVIDER && participants.builders {
                section["diskimages"] = json!([{"name": IMAGES[0].0}]);
                section["pools"][0]["labels"][1] =
                    json!({"name": "b", "diskimage": IMAGES[0].0, "flavor-name": "Unreal Flavor"});
            }
            if sizes.removed == Some(RemovedSection::Label) {
                labels_of(&mut section).truncate(1);
            }
            if *name == self.own_provider && participants.second_pool {
                let mut second_pool = section["pools"][0].clone();
                second_pool["name"] = SECOND_POOL.into();
                fake_cloud::merge(&mut second_pool, limit(SECOND_POOL_SERVERS));
                section["pools"].as_array_mut().expect("a provider has pools").push(second_pool);
            }
            if *name == TENANT_PROVIDER && participants.tenant_limit {
                let mut label = labels_of(&mut section)[0].clone();
                label["name"] = TENANT_LABEL.into();
                labels_of(&mut section).push(label);
            }
            section
        };
        let is_served = |name: &&&str| **name == self.own_provider || sizes.removed != Some(RemovedSection::Provider);
        let mut sections: Vec<Value> = self.providers.iter().filter(is_served).map(section).collect();
        let label = |(name, number)| json!({"name": name, "min-ready": number});
        let mut labels: Vec<Value> = self.min_ready(sizes, participants).map(label).into();
        if participants.max_ages {
            labels[0]["max-ready-age"] = READY_AGE.into();
        }
        if participants.static_hosts && self.name == LAUNCHERS[0].name {
            sections.push(static_provider());
            labels.push(json!({"name": STATIC_LABEL}));
        }
        if participants.tenant_limit && self.own_provider == TENANT_PROVIDER {
            labels.push(json!({"name": TENANT_LABEL}));
        }
        if participants.metastatic {
            sections.push(metastatic_provider(sizes));
            // An idle node keeps a host of `STATIC_PROVIDER` from requests that need all of its hosts.
            labels.push(json!({"name": METASTATIC_LABEL, "max-ready-age": READY_AGE}));
        }
        let mut configuration = fake_cloud::configuration(&sections);
        if participants.tenant_limit {
            configuration["tenant-resource-limits"] = json!([{"tenant-name": TENANT, "max-servers": TENANT_NODES}]);
        }
        if participants.builders {
            configuration["diskimages"] = json!([{"name": IMAGES[0].0}]);
        }
        if participants.max_ages {
            configuration["max-hold-age"] = HOLD_AGE.into();
        }
        configuration["labels"] = labels.into();
        configuration.to_string()
    }
}

fn labels_of(section: &mut Value) -> &mut Vec<Value> {
    section["pools"][0]["labels"].as_array_mut().expect("a pool has labels")
}

/// A reload changes the grace time, so that the driver is replaced.
fn metastatic_provider(sizes: ReloadSizes) -> Value {
    let label = json!({"name": METASTATIC_LABEL, "backing-label": LABELS[0], "max-parallel-jobs": 3,
        "grace-time": 5 * sizes.max_servers, "max-age": 900, "max-failures": 3});
    let pool = json!({"name": "main", "max-servers": METASTATIC_NODES, "labels": [label]});
    json!({"name": METASTATIC_PROVIDER, "driver": "metastatic", "launch-timeout": 600, "pools": [pool]})
}

fn static_provider() -> Value {
    let host = |(name, jobs): &(&str, usize)| json!({"name": name, "labels": ["a", STATIC_LABEL], "max-parallel-jobs": jobs, "host-key-checking": false});
    let hosts: Vec<Value> = HOSTS.iter().map(host).collect();
    json!({"name": STATIC_PROVIDER, "driver": "static", "pools": [{"name": "main", "nodes": hosts}]})
}
