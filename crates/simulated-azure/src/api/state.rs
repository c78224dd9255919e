//! The JSON of `GET /sim/state`: numbers and names of resources, usages, tokens and counters.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::api::simulation::Simulation;
use crate::cloud::cloud::Cloud;
use crate::cloud::resources::{Disk, Image, Nic, PublicIp, Resource, Vm};

/// Maximum number of names of each kind.
const MAX_NAMES: usize = 1000;

impl Simulation {
    pub fn state_json(&self) -> Value {
        let cloud = &self.cloud;
        json!({
            "base": cloud.base, "control": self.control, "now_ms": cloud.epoch_ms(cloud.now),
            "vms": counts(cloud.vms.values().map(|vm| vm.state.name())),
            "nics": counts(cloud.nics.values().map(|nic| if nic.vm.is_some() { "attached" } else { "free" })),
            "ips": counts(cloud.ips.values().map(|ip| if ip.configuration.is_some() { "attached" } else { "free" })),
            "disks": counts(cloud.disks.values().map(Disk::state_name)),
            "images": counts(cloud.images.values().map(|image| image.state.name())),
            "names": {
                "vms": names::<Vm>(cloud), "nics": names::<Nic>(cloud), "ips": names::<PublicIp>(cloud),
                "disks": names::<Disk>(cloud), "images": names::<Image>(cloud),
            },
            "usages": cloud.usage.all(), "tokens_issued": cloud.tokens.issued,
            "tokens_revoked": cloud.tokens.revoked, "counters": cloud.stats,
        })
    }
}

fn counts(states: impl Iterator<Item = &'static str>) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    for state in states {
        *counts.entry(state).or_default() += 1;
    }
    counts
}

fn names<R: Resource + 'static>(cloud: &Cloud) -> Vec<&str> {
    R::table(cloud).values().take(MAX_NAMES).map(|one| one.meta().name.as_str()).collect()
}
