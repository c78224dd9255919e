//! State that the machines of one provider share: sizes, full sizes, our names, and what machines wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::api::api_types::{Address, Disk, Interface, Machine, Sku, Tags, Usage, is_same_location};
use super::api::calls::Scope;
use super::config::Settings;
use super::label::AzureLabel;
use super::leaks;
use super::request_body::CREATION;
use nodepool_driver::facts::{ProviderFacts, Unavailable};
use nodepool_driver::full_places::FullPlaces;
use nodepool_driver::job::LaunchOrder;
use nodepool_model::records::ids::ProviderName;
use nodepool_model::records::resources::Resources;
use sha2::{Digest, Sha256};
use tracing::warn;

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
    /// Our machines by name, also those that do not exist any more.
    known: Mutex<BTreeMap<String, Known>>,
    /// Machines that have the name of one of ours and another owner.
    foreign: Mutex<BTreeSet<String>>,
    /// Disks of unknown machines that were reported.
    unknown_disks: Mutex<BTreeSet<String>>,
    waiting: Mutex<Waiting>,
    parts: Mutex<Parts>,
    /// Why the last listing has no parts.
    parts_error: Mutex<Option<String>>,
}

/// A machine of ours.
#[derive(Clone, Debug, Default)]
struct Known {
    tags: Tags,
    /// Whether it was seen with these tags.
    is_seen: bool,
    /// The name of its disk, once it was seen.
    disk: String,
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
            known: Mutex::default(),
            foreign: Mutex::default(),
            unknown_disks: Mutex::default(),
            waiting: Mutex::default(),
            parts: Mutex::default(),
            parts_error: Mutex::default(),
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
        let mut known = lock(&self.known);
        for machine in machines.iter().filter(|machine| machine.node(self.provider.as_str()).is_some()) {
            let entry = known.entry(machine.name.clone()).or_default();
            if entry.tags.get(CREATION).is_some_and(|mark| machine.tags.get(CREATION) != Some(mark)) {
                // Another installation has this machine.
                continue;
            }
            entry.tags.clone_from(&machine.tags);
            entry.is_seen = true;
            entry.disk.clone_from(&machine.properties.storage_profile.os_disk.name);
        }
        // Names grow with the node ids, so the first ones are the oldest.
        while known.len() > MAX_NAMES {
            known.pop_first();
        }
    }

    /// Remembers a machine that is about to be created.
    pub fn record_creation(&self, name: &str, tags: Tags) {
        let mut known = lock(&self.known);
        let entry = known.entry(name.to_owned()).or_default();
        if entry.tags != tags {
            *entry = Known { tags, ..Known::default() };
        }
    }

    /// The tags of a machine that is, was or may be ours.
    pub fn tags_of(&self, name: &str) -> Option<Tags> {
        lock(&self.known).get(name).map(|known| known.tags.clone())
    }

    /// Whether a machine of this name was seen with our tags.
    pub fn has_seen(&self, name: &str) -> bool {
        lock(&self.known).get(name).is_some_and(|known| known.is_seen)
    }

    pub fn record_foreign(&self, name: &str) {
        lock(&self.foreign).insert(name.to_owned());
    }

    pub fn is_foreign(&self, name: &str) -> bool {
        lock(&self.foreign).contains(name)
    }

    /// Reports the disk of a machine that this process has not seen, once. It is not deleted.
    pub fn report_unknown_disk(&self, disk: &str) {
        if lock(&self.unknown_disks).insert(disk.to_owned()) {
            let resource_group = &self.settings.group;
            warn!(provider = %self.provider, resource_group, disk, "this disk may be left from a node; if so, delete it");
        }
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

    /// The parts that a listing has found, or why it found none.
    pub fn record_parts(&self, parts: Result<Parts, String>) {
        let error = match parts {
            Ok(parts) => {
                *lock(&self.parts) = parts;
                None
            }
            Err(error) => Some(error),
        };
        *lock(&self.parts_error) = error;
    }

    pub fn parts_error(&self) -> Option<String> {
        lock(&self.parts_error).clone()
    }

    pub fn parts(&self) -> Parts {
        lock(&self.parts).clone()
    }

    pub fn are_sizes_due(&self) -> bool {
        lock(&self.sizes).read_at.is_none_or(|at| at.elapsed() >= SIZES_VALID_FOR)
    }

    /// Records the sizes of the location.
    pub fn record_sizes(&self, skus: &[Sku]) {
        let is_here = |sku: &&Sku| sku.locations.iter().any(|at| is_same_location(at, &self.settings.location));
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
            // An account that may not read sizes may still create machines. Otherwise requests wait for the sizes.
            return (are_sizes_refused.then(|| Resources::none().with("instances", 1.0)), None);
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
            // A negative limit is none.
            if usage.limit >= 0.0 {
                limits.set(&name, usage.limit);
            }
            others.set(&name, (usage.current_value - own.get(&name)).max(0.0));
        }
        (limits, others)
    }

    /// The name of the resources of an upload. Uploads of several providers begin in the same second, so it names the
    /// provider.
    pub fn image_name(&self, upload: &str) -> String {
        format!("{upload}-{}", self.provider_mark())
    }

    /// The recorded name of the upload of an image.
    pub fn upload_name<'a>(&self, image: &'a str) -> &'a str {
        let own = image.strip_suffix(&self.provider_mark()).and_then(|name| name.strip_suffix('-'));
        own.unwrap_or(image)
    }

    fn provider_mark(&self) -> String {
        hex(&Sha256::digest(self.provider.as_str().as_bytes())[..4])
    }

    /// Whether an unattached disk is that of a machine that is or was ours. One that was never seen has the name that
    /// Azure gives such disks.
    pub fn is_disk_of(&self, disk: &Disk, machine: &str) -> bool {
        let Some(known) = lock(&self.known).get(machine).cloned() else { return false };
        let is_named = match known.disk.is_empty() {
            true => leaks::machine_of_disk(&disk.name).is_some_and(|owner| owner.eq_ignore_ascii_case(machine)),
            false => known.disk.eq_ignore_ascii_case(&disk.name),
        };
        is_named && disk.tags.is_empty() && disk.managed_by.as_deref().is_none_or(str::is_empty)
    }

    pub fn are_sizes_known(&self) -> bool {
        lock(&self.sizes).known.is_some()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    // No update can panic halfway, so the value is consistent even if the lock is poisoned.
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
