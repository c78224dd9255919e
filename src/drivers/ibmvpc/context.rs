//! State that the machines of one provider share: the catalog, full zones, and what the last listing has shown.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::api::api_types::{FloatingIp, Image, Profile, StatusReason, Subnet, Thing, VpcInstance};
use super::config::{IbmLabel, ImageFilter, ImageSource, Settings};
use super::names;
use nodepool_driver::facts::{ProviderFacts, Unavailable};
use nodepool_driver::full_places::FullPlaces;
use nodepool_driver::job::LaunchOrder;
use nodepool_model::records::ids::{ExternalId, PoolName, ProviderName};
use nodepool_model::records::resources::Resources;

/// Time for which a zone counts as full.
const FULL_FOR: Duration = Duration::from_secs(180);
pub const MIB_PER_GIB: f64 = 1024.0;

pub struct ProviderContext {
    pub provider: ProviderName,
    pub settings: Settings,
    /// Facts before the first refresh.
    pub facts: ProviderFacts,
    catalog: Mutex<Catalog>,
    full: Mutex<FullPlaces<String>>,
    seen: Mutex<Seen>,
}

/// Objects to which launches refer, by name. `None` until they have been listed.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// Ids of all VPCs.
    pub vpcs: Option<BTreeMap<String, String>>,
    /// Names repeat in other VPCs.
    pub subnets: Option<Vec<Subnet>>,
    pub keys: Option<BTreeMap<String, String>>,
    pub profiles: Option<BTreeMap<String, Profile>>,
    pub images: Option<Vec<Image>>,
    /// Ids of resource groups by name.
    pub groups: BTreeMap<String, String>,
}

/// Resources of this provider's nodes in the last complete listing, by the name of the instance.
#[derive(Debug, Default)]
struct Seen {
    instances: HashMap<String, SeenInstance>,
    floating_ips: HashMap<String, FloatingIp>,
    /// Ids of instances with the name of one of our nodes and another owner.
    foreign: HashSet<String>,
    /// Ids of instances that were created since a listing has shown them, or that none has shown yet.
    created: HashMap<String, String>,
}

#[derive(Clone, Debug)]
pub struct SeenInstance {
    pub id: String,
    pub interface: String,
    pub status: String,
    pub reasons: Vec<StatusReason>,
    /// The mark of the node's creation. Instances of Nodepool 11 have another name here.
    pub mark: String,
}

impl SeenInstance {
    pub fn new(instance: &VpcInstance) -> Self {
        Self {
            id: instance.id.clone(),
            interface: instance.primary_network_interface.id.clone(),
            status: instance.status.clone(),
            reasons: instance.status_reasons.clone(),
            mark: instance.boot_volume_attachment.name.clone(),
        }
    }
}

impl ProviderContext {
    pub fn new(provider: ProviderName, settings: Settings, facts: ProviderFacts) -> Self {
        Self {
            provider,
            settings,
            facts,
            catalog: Mutex::default(),
            full: FullPlaces::new(FULL_FOR).into(),
            seen: Mutex::default(),
        }
    }

    pub fn catalog(&self) -> MutexGuard<'_, Catalog> {
        lock(&self.catalog)
    }

    pub fn record_full(&self, label: &IbmLabel) {
        lock(&self.full).insert(label.capacity(), Instant::now());
    }

    pub fn record_capacity(&self, label: &IbmLabel) {
        lock(&self.full).remove(&label.capacity());
    }

    /// Says that the zone of a label is full, for `nodepool why`.
    pub fn full_place(&self, label: &IbmLabel) -> Option<String> {
        lock(&self.full).describe(&[label.capacity()], Instant::now())
    }

    pub fn label(&self, order: &LaunchOrder) -> Option<std::sync::Arc<IbmLabel>> {
        self.settings.label(&order.pool, &order.label).cloned()
    }

    /// Replaces what is known about resource groups.
    pub fn record_groups(&self, groups: Vec<Thing>) {
        self.catalog().groups = groups.into_iter().map(|group| (group.name, group.id)).collect();
    }

    /// The id of a pool's resource group, if it exists.
    pub fn pool_group(&self, pool: &PoolName) -> Option<String> {
        self.catalog().groups.get(&names::pool_group(&self.provider, pool)).cloned()
    }

    /// Replaces what is known about nodes' resources by what a complete listing shows.
    pub fn record_seen(&self, instances: &[VpcInstance], floating_ips: &[FloatingIp]) {
        let catalog = self.catalog();
        let is_own = |group: &super::api::api_types::Reference| {
            catalog.group_name(group).is_some_and(|name| names::is_group_of(&name, &self.provider))
        };
        let own = instances.iter().filter(|instance| is_own(&instance.resource_group));
        let own: HashMap<_, _> = own.map(|instance| (instance.name.clone(), SeenInstance::new(instance))).collect();
        let ips = floating_ips.iter().filter(|ip| is_own(&ip.resource_group));
        let ips = ips.map(|ip| (ip.name.clone(), ip.clone())).collect();
        drop(catalog);
        let mut seen = lock(&self.seen);
        seen.created.retain(|name, _| !own.contains_key(name));
        (seen.instances, seen.floating_ips) = (own, ips);
    }

    /// The instance of a node, according to the last listing.
    pub fn seen(&self, name: &str) -> Option<SeenInstance> {
        lock(&self.seen).instances.get(name).cloned()
    }

    pub fn floating_ip(&self, name: &str) -> Option<FloatingIp> {
        lock(&self.seen).floating_ips.get(name).cloned()
    }

    pub fn record_created(&self, name: &str, id: &str) {
        lock(&self.seen).created.insert(name.to_owned(), id.to_owned());
    }

    /// The id of an instance that was created and is in no listing yet.
    pub fn created(&self, name: &str) -> Option<String> {
        lock(&self.seen).created.get(name).cloned()
    }

    pub fn record_foreign(&self, id: &str) {
        lock(&self.seen).foreign.insert(id.to_owned());
    }

    pub fn is_foreign(&self, id: &str) -> bool {
        lock(&self.seen).foreign.contains(id)
    }

    pub fn forget_created(&self, name: &str) {
        lock(&self.seen).created.remove(name);
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    // No update can panic halfway, so the value is consistent even if the lock is poisoned.
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Catalog {
    /// The name of a group. Lists of images have the id alone.
    pub fn group_name(&self, group: &super::api::api_types::Reference) -> Option<String> {
        let by_id = || self.groups.iter().find(|(_, id)| **id == group.id).map(|(name, _)| name.clone());
        group.name.clone().or_else(by_id)
    }

    pub fn subnet(&self, vpc: &str, name: &str) -> Option<&Subnet> {
        self.subnets.iter().flatten().find(|subnet| subnet.name == name && subnet.vpc.id == vpc)
    }

    /// Resources of an instance of a profile. A profile with a range of sizes has no numbers.
    pub fn profile_resources(&self, profile: &Profile) -> Resources {
        let mut resources = Resources::none().with("instances", 1.0);
        resources.set("cores", profile.vcpu_count.value);
        resources.set("ram", profile.memory.value * MIB_PER_GIB);
        resources
    }

    /// The image of a label, as a creation names it; `None` if there is none, or for an uploaded one.
    pub fn image(&self, source: &ImageSource) -> Option<Value> {
        let id = match source {
            ImageSource::Id(id) => id.clone(),
            ImageSource::Href(href) => return Some(json!({"href": href})),
            ImageSource::Name(name) => newest(self.images.iter().flatten().filter(|image| image.name == *name))?,
            ImageSource::Filter(filter) => newest(self.images.iter().flatten().filter(|image| filter.admits(image)))?,
            ImageSource::Uploaded | ImageSource::Missing => return None,
        };
        Some(json!({"id": id}))
    }

    /// Resources of one node of a label, and why none can be launched now.
    pub fn label_facts(&self, settings: &Settings, label: &IbmLabel) -> (Option<Resources>, Option<Unavailable>) {
        let profile = self.profiles.as_ref().and_then(|profiles| profiles.get(&label.profile));
        let need = profile.map(|profile| self.profile_resources(profile));
        (need, self.obstacle(settings, label))
    }

    fn obstacle(&self, settings: &Settings, label: &IbmLabel) -> Option<Unavailable> {
        let temporary = |text: String| Some(Unavailable::Temporary(text));
        if self.profiles.as_ref().is_some_and(|profiles| !profiles.contains_key(&label.profile)) {
            return Some(Unavailable::Permanent(format!("there is no profile {}", label.profile)));
        }
        if let Some(vpcs) = &self.vpcs {
            let Some(vpc) = vpcs.get(&settings.vpc) else {
                return temporary(format!("there is no VPC {}", settings.vpc));
            };
            let (zone, name) = (&label.place.zone, &label.place.subnet);
            match (self.subnet(vpc, name), &self.subnets) {
                (Some(subnet), _) if subnet.zone.name != *zone => {
                    let other = &subnet.zone.name;
                    let text = format!("subnet {name} is in zone {other}, which is not the pool's zone {zone}");
                    return Some(Unavailable::Permanent(text));
                }
                (None, Some(_)) => return temporary(format!("VPC {} has no subnet {name}", settings.vpc)),
                (Some(_), _) | (None, None) => {}
            }
        }
        let missing = |keys: &BTreeMap<String, String>| label.keys.iter().find(|key| !keys.contains_key(*key)).cloned();
        if let Some(key) = self.keys.as_ref().and_then(missing) {
            return temporary(format!("there is no key {key}"));
        }
        match &label.source {
            ImageSource::Name(name) if self.images.is_some() && self.image(&label.source).is_none() => {
                temporary(format!("there is no image {name}"))
            }
            ImageSource::Filter(_) if self.images.is_some() && self.image(&label.source).is_none() => {
                temporary("no image matches the image-filter".to_owned())
            }
            _ => None,
        }
    }
}

/// The id of the newest of these images that can be booted; else of the newest one. IBM lists new images first, so the
/// first of equally old ones is taken.
fn newest<'a>(images: impl DoubleEndedIterator<Item = &'a Image>) -> Option<String> {
    let is_bootable = |image: &Image| matches!(image.status.as_str(), "available" | "deprecated");
    let best = images.rev().max_by_key(|image| (is_bootable(image), image.created_at.clone()));
    best.map(|image| image.id.clone())
}

impl ImageFilter {
    pub fn admits(&self, image: &Image) -> bool {
        let has = |(key, wanted): (&String, &String)| match &image.operating_system[key] {
            Value::String(text) => text == wanted,
            Value::Bool(value) => *wanted == if *value { "true" } else { "false" },
            _ => false,
        };
        let is_wanted = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        self.operating_system.iter().all(has)
            && is_wanted(&self.owner_type, image.owner_type())
            && is_wanted(&self.status, &image.status)
    }
}

/// The image that an order names, as a creation names it.
pub fn uploaded(order: &LaunchOrder) -> Option<Value> {
    order.image.as_ref().map(|id: &ExternalId| json!({"id": id.to_string()}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: &str, created_at: &str, status: &str) -> Image {
        serde_json::from_value(json!({
            "id": id, "name": "debian", "created_at": created_at, "status": status, "visibility": "public",
            "operating_system": {"name": "debian-12-amd64", "dedicated_host_only": false},
        }))
        .unwrap()
    }

    #[test]
    fn the_newest_image_that_can_be_booted_is_used() {
        let images = vec![
            image("a", "2025-01-01T00:00:00Z", "available"),
            image("b", "2026-01-01T00:00:00Z", "available"),
            image("c", "2026-06-01T00:00:00Z", "obsolete"),
        ];
        let catalog = Catalog { images: Some(images), ..Catalog::default() };
        let name = ImageSource::Name("debian".to_owned());
        assert_eq!(catalog.image(&name), Some(json!({"id": "b"})));
        let filter = |status: Option<&str>, key: &str, value: &str| {
            let operating_system = BTreeMap::from([(key.to_owned(), value.to_owned())]);
            let status = status.map(str::to_owned);
            let filter = ImageFilter { operating_system, owner_type: Some("provider".to_owned()), status };
            catalog.image(&ImageSource::Filter(filter))
        };
        assert_eq!(filter(None, "name", "debian-12-amd64"), Some(json!({"id": "b"})));
        assert_eq!(filter(Some("obsolete"), "dedicated_host_only", "false"), Some(json!({"id": "c"})));
        assert_eq!(filter(None, "name", "ubuntu"), None);
    }

    #[test]
    fn memory_of_profiles_is_in_gib() {
        let profile = r#"{"name": "cx2-2x4", "vcpu_count": {"value": 2}, "memory": {"value": 4}}"#;
        let resources = Catalog::default().profile_resources(&serde_json::from_str(profile).unwrap());
        assert_eq!((resources.get("cores"), resources.get("ram")), (2.0, 4096.0));
    }
}
