//! State that the machines of one provider share: sizes, full sizes, our names, and what machines wait for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::api::api_types::{Address, Disk, Interface, Machine, Sku, Tags, Usage};
use super::api::calls::Scope;
use super::config::Settings;
use super::label::AzureLabel;
use super::leaks;
use nodepool_driver::facts::{ProviderFacts, Unavailable};
use nodepool_driver::full_places::FullPlaces;
use nodepool_driver::job::LaunchOrder;
use nodepool_model::records::ids::ProviderName;
use nodepool_model::records::resources::Resources;

/// Time for which a size without capacity is remembered.
const FULL_FOR: Duration = Duration::from_secs(900);
/// Sizes change rarely, and their list is long.
const SIZES_VALID_FOR: Duration = Duration::from_secs(3600);
/// Names of machines that are remembered.
const MAX_NAMES: usize = 10_000;

pub struct ProviderContext {
    pub provider: ProviderName,
    pub settings: Settings,
    pub scope: Scope,
    /// Facts before the first refresh.
    pub facts: ProviderFacts,
    sizes: Mutex<Sizes>,
    full: Mutex<FullPlaces<String>>,
    /// Tags of our machines by name, also of those that do not exist any more.
    names: Mutex<BTreeMap<String, Tags>>,
    waiting: Mutex<Waiting>,
    parts: Mutex<Parts>,
}

#[derive(Debug, Default)]
struct Sizes {
    /// By name in small letters; `None` until they have been read.
    known: Option<BTreeMap<String, Size>>,
    read_at: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Size {
    resources: Resources,
    restriction: Option<String>,
}

/// Machines of which state machines wait for something, and how many do.
#[derive(Debug, Default)]
struct Waiting {
    addresses: BTreeMap<String, u32>,
    parts: BTreeMap<String, u32>,
    /// The number of listings that have begun.
    listings: u64,
}

/// The parts of machines that a listing has found.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// The number of the listing; 0 if there was none.
    pub listing: u64,
    pub interfaces: Arc<Vec<Interface>>,
    pub addresses: Arc<Vec<Address>>,
    pub disks: Arc<Vec<Disk>>,
}

/// Marks a machine as waited for, until it is dropped.
pub struct Waits {
    context: Arc<ProviderContext>,
    name: String,
    kind: WaitKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitKind {
    Addresses,
    Parts,
}

impl Waiting {
    fn of(&mut self, kind: WaitKind) -> &mut BTreeMap<String, u32> {
        match kind {
            WaitKind::Addresses => &mut self.addresses,
            WaitKind::Parts => &mut self.parts,
        }
    }
}

impl Waits {
    pub fn new(context: &Arc<ProviderContext>, name: &str, kind: WaitKind) -> Self {
        *lock(&context.waiting).of(kind).entry(name.to_owned()).or_default() += 1;
        Self { context: context.clone(), name: name.to_owned(), kind }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let mut waiting = lock(&self.context.waiting);
        let names = waiting.of(self.kind);
        if let Some(count) = names.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                names.remove(&self.name);
            }
        }
    }
}

impl ProviderContext {
    pub fn new(provider: ProviderName, settings: Settings, subscription: String, facts: ProviderFacts) -> Self {
        let scope = Scope { subscription, group: settings.group.clone(), location: settings.location.clone() };
        Self {
            provider,
            settings,
            scope,
            facts,
            sizes: Mutex::default(),
            full: FullPlaces::new(FULL_FOR).into(),
            names: Mutex::default(),
            waiting: Mutex::default(),
            parts: Mutex::default(),
        }
    }

    pub fn label(&self, order: &LaunchOrder) -> Option<Arc<AzureLabel>> {
        self.settings.label(&order.pool, &order.label).cloned()
    }

    pub fn record_full(&self, size: &str) {
        lock(&self.full).insert(size.to_owned(), Instant::now());
    }

    pub fn record_capacity(&self, size: &str) {
        lock(&self.full).remove(&size.to_owned());
    }

    pub fn full_size(&self, size: &str) -> Option<String> {
        lock(&self.full).describe(&[size.to_owned()], Instant::now())
    }

    /// Remembers machines with our tags: their disks have none.
    pub fn record_machines(&self, machines: &[Machine]) {
        let ours = machines.iter().filter(|machine| machine.belongs_to(self.provider.as_str()));
        let mut names = lock(&self.names);
        for machine in ours.filter(|machine| machine.tags.contains_key("nodepool_node_id")) {
            names.insert(machine.name.clone(), machine.tags.clone());
        }
        // Names grow with the node ids, so the first ones are the oldest.
        while names.len() > MAX_NAMES {
            names.pop_first();
        }
    }

    /// Remembers a machine that is about to be created.
    pub fn record_creation(&self, name: &str, tags: Tags) {
        lock(&self.names).insert(name.to_owned(), tags);
    }

    /// The tags of a machine that is or was ours.
    pub fn tags_of(&self, name: &str) -> Option<Tags> {
        lock(&self.names).get(name).cloned()
    }

    /// A listing begins. Returns its number.
    pub fn begin_listing(&self) -> u64 {
        let mut waiting = lock(&self.waiting);
        waiting.listings += 1;
        waiting.listings
    }

    /// The number of listings that have begun.
    pub fn listings(&self) -> u64 {
        lock(&self.waiting).listings
    }

    pub fn is_waited_for(&self, name: &str, kind: WaitKind) -> bool {
        lock(&self.waiting).of(kind).contains_key(name)
    }

    pub fn are_parts_waited_for(&self) -> bool {
        !lock(&self.waiting).parts.is_empty()
    }

    pub fn record_parts(&self, parts: Parts) {
        *lock(&self.parts) = parts;
    }

    pub fn parts(&self) -> Parts {
        lock(&self.parts).clone()
    }

    pub fn are_sizes_due(&self) -> bool {
        lock(&self.sizes).read_at.is_none_or(|at| at.elapsed() >= SIZES_VALID_FOR)
    }

    /// Records the sizes of the location.
    pub fn record_sizes(&self, skus: &[Sku]) {
        let is_here = |sku: &&Sku| sku.locations.iter().any(|at| at.eq_ignore_ascii_case(&self.settings.location));
        let machines = skus.iter().filter(|sku| sku.resource_type.eq_ignore_ascii_case("virtualMachines"));
        let size = |sku: &Sku| {
            let mut resources = Resources::none().with("instances", 1.0);
            if let Some(cores) = sku.capability("vCPUs") {
                resources.set("cores", cores);
                if !sku.family.is_empty() {
                    resources.set(&sku.family, cores);
                }
            }
            if let Some(memory_gb) = sku.capability("MemoryGB") {
                resources.set("ram", (memory_gb * 1024.0).floor());
            }
            Size { resources, restriction: sku.restriction().map(str::to_owned) }
        };
        let known = machines.filter(is_here).map(|sku| (sku.name.to_lowercase(), size(sku))).collect();
        *lock(&self.sizes) = Sizes { known: Some(known), read_at: Some(Instant::now()) };
    }

    /// Resources of a machine of this size; one instance if it is unknown.
    pub fn resources(&self, size: &str) -> Resources {
        let sizes = lock(&self.sizes);
        let found = sizes.known.as_ref().and_then(|known| known.get(&size.to_lowercase()));
        found.map_or_else(|| Resources::none().with("instances", 1.0), |size| size.resources.clone())
    }

    /// Resources of one node of a label, and why none can be launched.
    pub fn label_facts(&self, label: &AzureLabel, are_sizes_refused: bool) -> (Option<Resources>, Option<Unavailable>) {
        let sizes = lock(&self.sizes);
        let (size, location) = (&label.size, &self.settings.location);
        let Some(known) = &sizes.known else {
            // An account that may not read sizes may still create machines.
            let instance = are_sizes_refused.then(|| Resources::none().with("instances", 1.0));
            let waits = (!are_sizes_refused).then(|| "the sizes of machines are not known yet".to_owned());
            return (instance, waits.map(Unavailable::Temporary));
        };
        match known.get(&size.to_lowercase()) {
            None => (None, Some(Unavailable::Permanent(format!("vm-size {size} does not exist in {location}")))),
            Some(Size { restriction: Some(reason), .. }) => {
                let text = format!("vm-size {size} cannot be used in {location}: {reason}");
                (None, Some(Unavailable::Permanent(text)))
            }
            Some(found) => (Some(found.resources.clone()), None),
        }
    }

    /// Limits of what the labels need, and the part of them that others use: the usage without our own machines.
    pub fn limits(&self, usages: &[Usage], own: &Resources) -> (Resources, Resources) {
        let (mut limits, mut others) = (Resources::unlimited(), Resources::none());
        let needs: Vec<Resources> = self.settings.labels().map(|label| self.resources(&label.size)).collect();
        for usage in usages {
            let name = match usage.name.value.as_str() {
                "cores" => "cores".to_owned(),
                "virtualMachines" => "instances".to_owned(),
                family => {
                    match needs.iter().flat_map(Resources::names).find(|name| name.eq_ignore_ascii_case(family)) {
                        Some(name) => name.to_owned(),
                        None => continue,
                    }
                }
            };
            limits.set(&name, usage.limit);
            others.set(&name, (usage.current_value - own.get(&name)).max(0.0));
        }
        (limits, others)
    }

    /// The unattached disks of a machine that is or was ours.
    pub fn is_disk_of(&self, disk: &Disk, machine: &str) -> bool {
        disk.managed_by.as_deref().is_none_or(str::is_empty)
            && leaks::machine_of_disk(&disk.name).is_some_and(|owner| owner.eq_ignore_ascii_case(machine))
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    // No update can panic halfway, so the value is consistent even if the lock is poisoned.
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
