//! One region: its objects, and the timers that change them.

use std::collections::{BTreeMap, HashMap};

use crate::region::instance::Instance;
use crate::region::objects::{
    Host, Image, ImportTask, KeyPair, LaunchTemplate, SecurityGroup, Snapshot, Subnet, Volume,
};
use crate::region::table::Table;
use crate::region::tags::Tags;
use crate::region::work::Step;
use crate::region::world::World;

#[derive(Default)]
pub struct Region {
    pub name: String,
    pub instances: Table<Instance>,
    pub images: Table<Image>,
    pub volumes: Table<Volume>,
    pub snapshots: Table<Snapshot>,
    pub hosts: Table<Host>,
    pub templates: Table<LaunchTemplate>,
    pub key_pairs: Table<KeyPair>,
    pub snapshot_imports: Table<ImportTask>,
    pub image_imports: Table<ImportTask>,
    pub subnets: Table<Subnet>,
    pub groups: Table<SecurityGroup>,
    /// Results of calls by action and client token.
    pub tokens: HashMap<String, Token>,
    pub usage: Usage,
}

/// The result of a call with a client token.
pub struct Token {
    /// The parameters that a repeated call must have.
    pub fingerprint: String,
    /// Ids of the objects, or the response.
    pub result: Vec<String>,
}

/// Usage of resources that have limits.
#[derive(Default)]
pub struct Usage {
    /// vCPUs by code of their quota.
    pub vcpus: BTreeMap<&'static str, u32>,
    /// GiB by volume type.
    pub storage: BTreeMap<String, u64>,
    pub iops: BTreeMap<String, u64>,
    /// Hosts by family.
    pub hosts: BTreeMap<String, u32>,
}

/// A region with the state that all regions share, as actions need both.
pub struct Ec2<'a> {
    pub world: &'a mut World,
    pub region: &'a mut Region,
}

impl Ec2<'_> {
    pub fn zones(&self) -> [String; 3] {
        ["a", "b", "c"].map(|letter| format!("{}{letter}", self.region.name))
    }

    pub fn after(&mut self, seconds: f64, step: Step) {
        self.world.after(seconds, &self.region.name, step);
    }

    /// Counts a new object and records its creation. `what` is its type or name.
    pub fn created(&mut self, kind: &'static str, id: &str, what: &str, tags: &Tags) {
        self.world.stats.created(kind);
        self.world.history.created(kind, id, &self.region.name, what, tags, self.world.now);
    }

    /// Counts the end of an object and records it.
    pub fn deleted(&mut self, kind: &'static str, id: &str) {
        self.world.stats.deleted(kind);
        self.world.history.ended(id, self.world.now);
    }

    pub fn run(&mut self, step: Step) {
        match step {
            Step::Boot(id) => self.boot(&id),
            Step::Fail(id) => self.fail(&id),
            Step::Reclaim(id) => self.reclaim(&id),
            Step::Terminate(id) => self.finish_termination(&id),
            Step::Forget(id) => self.forget(&id),
            Step::HostAvailable(id) => self.host_available(&id),
            Step::SnapshotCompleted(id) => self.snapshot_completed(&id),
            Step::ImportProgress(id, percent) => self.import_progress(&id, percent),
        }
    }

    fn forget(&mut self, id: &str) {
        if let Some(instance) = self.region.instances.remove(id) {
            if let Some(token) = instance.client_token {
                self.region.tokens.remove(&format!("RunInstances {token}"));
            }
        } else if id.starts_with("h-") {
            self.region.hosts.remove(id);
        } else if id.starts_with("import-snap-") {
            self.region.snapshot_imports.remove(id);
        } else {
            self.region.image_imports.remove(id);
        }
    }
}
