//! What the launchers of an hour serve.

use std::path::Path;

use nodepool::model::ids::{ImageName, ProviderName};
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
/// What consumers ask for where these are there, or one of them, one as likely as the other.
const WITH_OLD: &[&str] = &["a", "b", "a", "b", "a", "b", OLD_LABEL];
const WITH_RACK: &[&str] = &["a", "b", "a", "b", "a", "b", RACK_LABEL];
pub const WISHES: &[&str] = &["a", "b", "a", "b", "a", "b", OLD_LABEL, RACK_LABEL];

pub const BUILDERS: [&str; 2] = ["oak", "elm"];
/// What builders build, and how old it gets, in seconds.
pub const IMAGES: [(&str, u32); 2] = [("debian", 900), ("fedora", 1500)];
/// Where the label `b` is an image that was built, if anybody builds.
const BUILT_FOR: &str = "middle";

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
}

/// How old idle nodes of the label `a` get, in seconds, and held ones; which is less than most are held.
const READY_AGE: u32 = 300;
const HOLD_AGE: u32 = 120;
/// What a server has.
pub const CORES: usize = 2;

impl Cast {
    pub fn of(seed: u64) -> Self {
        let mut dice = StdRng::seed_from_u64(seed ^ 0xca57);
        Self {
            builders: dice.gen_bool(0.3),
            old: dice.gen_bool(0.2),
            narrow: dice.gen_bool(0.2),
            rack: dice.gen_bool(0.3),
            cores: dice.gen_bool(0.3),
            ages: dice.gen_bool(0.3),
        }
    }

    /// What consumers ask for.
    pub fn wishes(self) -> &'static [&'static str] {
        match (self.old, self.rack) {
            (false, false) => LABELS,
            (true, false) => WITH_OLD,
            (false, true) => WITH_RACK,
            (true, true) => WISHES,
        }
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

impl Launcher {
    pub fn yaml(&self, sizes: Sizes, cast: Cast) -> String {
        let limit = match cast.cores {
            true => json!({"max-cores": sizes.max_servers * CORES}),
            false => json!({"max-servers": sizes.max_servers}),
        };
        let section = |name: &&str| {
            let mut section = provider(name, json!({"launch-timeout": 180}), limit.clone());
            section["pools"][0]["host-key-checking"] = false.into();
            if *name == BUILT_FOR && cast.builders {
                section["diskimages"] = json!([{"name": IMAGES[0].0}]);
                section["pools"][0]["labels"][1] =
                    json!({"name": "b", "diskimage": IMAGES[0].0, "flavor-name": "Unreal Flavor"});
            }
            if sizes.lacks == Some(Lack::Label) {
                section["pools"][0]["labels"].as_array_mut().expect("a pool has labels").truncate(1);
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
        let mut configuration = fake::configuration(&sections);
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

fn rack() -> Value {
    let host = |(name, jobs): &(&str, usize)| json!({"name": name, "labels": ["a", RACK_LABEL], "max-parallel-jobs": jobs, "host-key-checking": false});
    let hosts: Vec<Value> = HOSTS.iter().map(host).collect();
    json!({"name": RACK, "driver": "static", "pools": [{"name": "main", "nodes": hosts}]})
}
