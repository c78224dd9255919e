//! What the launchers of an hour serve.

use std::path::Path;

use nodepool_model::records::ids::{ImageName, PoolId, ProviderName};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::grown::fake::{self, provider};

/// Both launchers have the provider in the middle.
pub const PROVIDERS: [&str; 3] = ["north", "middle", "south"];
pub const LAUNCHERS: [Launcher; 2] = [
    Launcher { name: "east", providers: ["north", "middle"], own: "north" },
    Launcher { name: "west", providers: ["middle", "south"], own: "south" },
];
/// What the launcher of Nodepool 11 serves: a provider of its own, where it launches, and one of others.
pub const OLD: [&str; 2] = ["old", "middle"];
/// What all of them serve.
pub const LABELS: &[&str] = &["a", "b"];
/// What only that one serves.
pub const OLD_LABEL: &str = "c";
/// A provider of hosts that the first launcher has, in some hours, and the label that only it serves.
pub const RACK: &str = "rack";
pub const RACK_LABEL: &str = "h";
/// Its hosts, and how many jobs each takes at a time. What begins so has no address to be looked up.
pub const HOSTS: [(&str, usize); 2] = [("fake-1", 2), ("fake-2", 1)];
/// A label that only the second launcher serves, in some hours. Whoever wants it is of a tenant that is limited: elsewhere, where two
/// launchers count at the same time, both together may exceed a limit.
pub const TENANT_LABEL: &str = "t";
pub const TENANT: &str = "small";
/// Nodes that it may have at a time: more than a request asks for at most.
pub const TENANT_NODES: usize = 5;
/// All of which somebody may ask for, in some hours.
pub const WISHES: [&str; 5] = ["a", "b", OLD_LABEL, RACK_LABEL, TENANT_LABEL];
/// What all launchers have is asked for so much more often than what one of them has.
const COMMON: usize = 3;

pub const BUILDERS: [&str; 2] = ["oak", "elm"];
/// What builders build, and how old it gets, in seconds.
pub const IMAGES: [(&str, u32); 2] = [("debian", 900), ("fedora", 1500)];
/// Where the label `b` is an image that was built, if anybody builds.
const BUILT_FOR: &str = "middle";
/// Where the label of the tenant that may have few nodes is.
const LIMITED: &str = LAUNCHERS[1].own;

/// Who takes part in an hour beside the launchers. Not everybody in each: who is there hides what would happen without, and hours with
/// fewer of them are shorter (Groce and others: Swarm Testing, 2012).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    pub builders: bool,
    /// The launcher of Nodepool 11.
    pub old: bool,
    /// No transaction takes records of two nodes: what is one write otherwise goes step by step, as a request for a thousand nodes does.
    pub narrow: bool,
    /// Static hosts.
    pub rack: bool,
    /// Pools are limited in their cores, and not in the number of their servers.
    pub cores: bool,
    /// Idle and held nodes go when they get old.
    pub ages: bool,
    /// Somebody who may have few nodes.
    pub tenant: bool,
    /// The provider that only one launcher serves has a second pool.
    pub annexe: bool,
}

/// How old idle nodes of the label `a` get, in seconds, and held ones; which is less than most are held.
const READY_AGE: u32 = 300;
const HOLD_AGE: u32 = 120;
/// What a server has.
pub const CORES: usize = 2;

impl Cast {
    pub fn of(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed ^ 0xca57);
        Self {
            builders: rng.gen_bool(0.3),
            old: rng.gen_bool(0.2),
            narrow: rng.gen_bool(0.2),
            rack: rng.gen_bool(0.3),
            cores: rng.gen_bool(0.3),
            ages: rng.gen_bool(0.3),
            tenant: rng.gen_bool(0.3),
            annexe: rng.gen_bool(0.3),
        }
    }

    /// What consumers ask for, one as likely as the other.
    pub fn wishes(self) -> Vec<&'static str> {
        let mut wishes = LABELS.repeat(COMMON);
        let some = [(self.old, OLD_LABEL), (self.rack, RACK_LABEL)];
        wishes.extend(some.iter().filter(|(is_there, _)| *is_there).map(|(_, label)| label));
        if self.tenant {
            // Seldom enough that what has waited for a cloud in bad weather is served within the time for healing.
            wishes = wishes.repeat(2);
            wishes.push(TENANT_LABEL);
        }
        wishes
    }

    /// Where which image has to be.
    pub fn wanted_images(self) -> Vec<(ImageName, ProviderName)> {
        let images = IMAGES.iter().filter(|_| self.builders);
        let places = images.flat_map(|(image, _)| PROVIDERS.map(|provider| (*image, provider)));
        places.map(|(image, provider)| (image.into(), provider.into())).collect()
    }
}

/// The configuration of all builders, but for where their images are.
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
    /// What nobody else serves: there its limits hold strictly, while two that count at the same time may exceed theirs.
    pub own: &'static str,
}

/// What a reload changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub max_servers: usize,
    /// Of the label `a`.
    pub min_ready: usize,
    pub lacks: Option<Lack>,
}

/// What an operator takes out of the file of a launcher, in whatever state its nodes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The label `b`, in each of its pools.
    Label,
    /// The provider that the other launcher serves, too.
    Provider,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { max_servers: 8, min_ready: 1, lacks: None }
    }
}

/// The second pool of a provider, where it has one, and how many servers that may have.
const ANNEXE: &str = "annexe";
const ANNEXE_SERVERS: usize = 2;

impl Launcher {
    pub fn serves(&self, provider: &ProviderName) -> bool {
        self.providers.contains(&provider.as_str()) || provider.as_str() == RACK && self.name == LAUNCHERS[0].name
    }

    /// How many servers the pools of its own provider may have.
    pub fn limits(&self, sizes: Sizes, cast: Cast) -> Vec<(PoolId, usize)> {
        let mut limits = vec![(PoolId::new(self.own, "main"), sizes.max_servers)];
        limits.extend(cast.annexe.then(|| (PoolId::new(self.own, ANNEXE), ANNEXE_SERVERS)));
        limits
    }

    pub fn yaml(&self, sizes: Sizes, cast: Cast) -> String {
        let limit = |servers: usize| match cast.cores {
            true => json!({"max-cores": servers * CORES}),
            false => json!({"max-servers": servers}),
        };
        let section = |name: &&str| {
            let mut section = provider(name, json!({"launch-timeout": 180}), limit(sizes.max_servers));
            section["pools"][0]["host-key-checking"] = false.into();
            if *name == BUILT_FOR && cast.builders {
                section["diskimages"] = json!([{"name": IMAGES[0].0}]);
                section["pools"][0]["labels"][1] =
                    json!({"name": "b", "diskimage": IMAGES[0].0, "flavor-name": "Unreal Flavor"});
            }
            if sizes.lacks == Some(Lack::Label) {
                labels_of(&mut section).truncate(1);
            }
            if *name == self.own && cast.annexe {
                let mut annexe = section["pools"][0].clone();
                annexe["name"] = ANNEXE.into();
                fake::add(&mut annexe, limit(ANNEXE_SERVERS));
                section["pools"].as_array_mut().expect("a provider has pools").push(annexe);
            }
            if *name == LIMITED && cast.tenant {
                let mut label = labels_of(&mut section)[0].clone();
                label["name"] = TENANT_LABEL.into();
                labels_of(&mut section).push(label);
            }
            section
        };
        let is_served = |name: &&&str| **name == self.own || sizes.lacks != Some(Lack::Provider);
        let mut sections: Vec<Value> = self.providers.iter().filter(is_served).map(section).collect();
        let mut labels = vec![json!({"name": "a", "min-ready": sizes.min_ready}), json!({"name": "b"})];
        if cast.ages {
            labels[0]["max-ready-age"] = READY_AGE.into();
        }
        if cast.rack && self.name == LAUNCHERS[0].name {
            sections.push(rack());
            labels.push(json!({"name": RACK_LABEL}));
        }
        if cast.tenant && self.own == LIMITED {
            labels.push(json!({"name": TENANT_LABEL}));
        }
        let mut configuration = fake::configuration(&sections);
        if cast.tenant {
            configuration["tenant-resource-limits"] = json!([{"tenant-name": TENANT, "max-servers": TENANT_NODES}]);
        }
        if cast.builders {
            configuration["diskimages"] = json!([{"name": IMAGES[0].0}]);
        }
        if cast.ages {
            configuration["max-hold-age"] = HOLD_AGE.into();
        }
        configuration["labels"] = labels.into();
        configuration.to_string()
    }
}

fn labels_of(section: &mut Value) -> &mut Vec<Value> {
    section["pools"][0]["labels"].as_array_mut().expect("a pool has labels")
}

fn rack() -> Value {
    let host = |(name, jobs): &(&str, usize)| json!({"name": name, "labels": ["a", RACK_LABEL], "max-parallel-jobs": jobs, "host-key-checking": false});
    let hosts: Vec<Value> = HOSTS.iter().map(host).collect();
    json!({"name": RACK, "driver": "static", "pools": [{"name": "main", "nodes": hosts}]})
}
