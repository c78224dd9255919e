//! State that the machines of one provider share: instance types, AMIs, quotas, full places, and instances that ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::api::api_types::{Ec2Instance, Image, InstanceType, StateReason, Volume};
use super::config::Settings;
use super::label::{AwsLabel, ImageSource, Place};
use super::quota_codes;
use super::request_body::template_name;
use nodepool_driver::facts::{ProviderFacts, Unavailable};
use nodepool_driver::full_places::FullPlaces;
use nodepool_driver::job::LaunchOrder;
use nodepool_driver::state_machine::REFRESH_INTERVAL;
use nodepool_model::records::ids::{ExternalId, ProviderName};
use nodepool_model::records::resources::Resources;

/// A launch template of ours that was used within this time is not deleted.
const TEMPLATE_KEPT_FOR: Duration = Duration::from_secs(3600);

/// Time for which a full place is skipped.
const SKIPPED_FOR: Duration = Duration::from_secs(180);

pub struct ProviderContext {
    pub provider: ProviderName,
    pub settings: Settings,
    /// Facts before the first refresh.
    pub facts: ProviderFacts,
    catalog: Mutex<Catalog>,
    full: Mutex<FullPlaces<Place>>,
    ended: Mutex<HashMap<String, Ended>>,
    templates: Mutex<BTreeMap<String, Instant>>,
    /// When limits, volumes and AMIs were read.
    limits_read: Mutex<Option<Instant>>,
}

/// Instance types, AMIs and limits that the cloud has reported.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// `None` for a type that does not exist.
    pub types: BTreeMap<String, Option<InstanceType>>,
    /// AMIs by id; `None` for one that does not exist.
    pub images: BTreeMap<String, Option<Image>>,
    /// The newest AMI of each set of filters.
    pub found: BTreeMap<Vec<(String, Vec<String>)>, Option<String>>,
    /// Limits by code, in the units of needs.
    pub limits: BTreeMap<String, f64>,
    /// Resources that the volumes of each instance take.
    pub volumes: HashMap<String, Resources>,
    /// Subjects of warnings that were logged.
    warned: BTreeSet<String>,
}

/// State and reason of an instance that has ended or is ending.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    pub state: String,
    pub reason: StateReason,
}

impl ProviderContext {
    pub fn new(provider: ProviderName, settings: Settings, facts: ProviderFacts) -> Self {
        Self {
            provider,
            settings,
            facts,
            catalog: Mutex::default(),
            full: FullPlaces::new(SKIPPED_FOR).into(),
            ended: Mutex::default(),
            templates: Mutex::default(),
            limits_read: Mutex::default(),
        }
    }

    pub fn catalog(&self) -> MutexGuard<'_, Catalog> {
        lock(&self.catalog)
    }

    /// Whether limits, volumes and AMIs are to be read again. Refreshes that look for reclaimed instances are more
    /// frequent.
    pub fn are_limits_due(&self) -> bool {
        lock(&self.limits_read).is_none_or(|at| at.elapsed().as_secs_f64() >= REFRESH_INTERVAL.0 - 1.0)
    }

    pub fn record_limits_read(&self) {
        *lock(&self.limits_read) = Some(Instant::now());
    }

    /// The places of a label to try now.
    pub fn usable_places(&self, label: &AwsLabel) -> Vec<Place> {
        lock(&self.full).usable(label.places(), Instant::now())
    }

    pub fn record_full(&self, place: &Place) {
        lock(&self.full).insert(place.clone(), Instant::now());
    }

    pub fn record_capacity(&self, place: &Place) {
        lock(&self.full).remove(place);
    }

    /// The places of a label that are skipped now.
    pub fn full_places(&self, label: &AwsLabel) -> Option<String> {
        lock(&self.full).describe(&label.places(), Instant::now())
    }

    /// Replaces what is known about ended instances by what a complete listing shows.
    pub fn record_ended(&self, instances: &[Ec2Instance]) {
        let ended = instances.iter().filter(|instance| is_ending(&instance.instance_state.name));
        let ended = ended.map(|instance| {
            let reason = instance.state_reason.clone().unwrap_or_default();
            (instance.instance_id.clone(), Ended { state: instance.instance_state.name.clone(), reason })
        });
        *lock(&self.ended) = ended.collect();
    }

    /// The end of an instance, according to the last listing.
    pub fn ended(&self, instance: &str) -> Option<Ended> {
        lock(&self.ended).get(instance).cloned()
    }

    pub fn label(&self, order: &LaunchOrder) -> Option<std::sync::Arc<AwsLabel>> {
        self.settings.label(&order.pool, &order.label).cloned()
    }

    /// The AMI of a launch.
    pub fn image_id(&self, label: &AwsLabel, order: &LaunchOrder) -> Option<String> {
        match &label.source {
            ImageSource::Id(id) => Some(id.clone()),
            ImageSource::Filters(filters) => self.catalog().found.get(filters).cloned().flatten(),
            ImageSource::Uploaded => order.image.as_ref().map(ExternalId::to_string),
            ImageSource::Missing => None,
        }
    }

    /// A launch template is used now.
    pub fn record_template(&self, name: &str) {
        let mut templates = lock(&self.templates);
        templates.retain(|_, used| used.elapsed() < TEMPLATE_KEPT_FOR);
        templates.insert(name.to_owned(), Instant::now());
    }

    /// Whether a launch template was used a short time ago, or a label of the configuration may use it.
    pub fn needs_template(&self, name: &str) -> bool {
        let is_recent = |used: &Instant| used.elapsed() < TEMPLATE_KEPT_FOR;
        lock(&self.templates).get(name).is_some_and(is_recent) || self.configured_templates().contains(name)
    }

    /// The templates of all fleets, with each AMI that is known.
    fn configured_templates(&self) -> BTreeSet<String> {
        let catalog = self.catalog();
        let images: Vec<Option<&Image>> = catalog.images.values().map(Option::as_ref).chain([None]).collect();
        let fleets: Vec<_> = self.settings.labels().filter(|label| label.fleet.is_some()).collect();
        let names =
            fleets.iter().flat_map(|label| images.iter().map(|image| template_name(&self.provider, label, *image)));
        names.collect()
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    // No update can panic halfway, so the value is consistent even if the lock is poisoned.
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether an instance of this state serves no node any more, and may exist no more.
pub fn is_ending(state: &str) -> bool {
    matches!(state, "shutting-down" | "terminated" | "stopping" | "stopped")
}

impl Catalog {
    /// Whether there was no warning about this subject yet.
    pub fn warn_once(&mut self, subject: &str) -> bool {
        self.warned.insert(subject.to_owned())
    }

    /// Resources of an instance without its volumes. A type that is unknown counts as one instance.
    pub fn instance_resources(&self, instance_type: &str, is_spot: bool) -> Resources {
        let mut resources = Resources::none().with("instances", 1.0);
        let Some(Some(known)) = self.types.get(instance_type) else { return resources };
        resources.set("cores", known.v_cpu_info.default_cores);
        resources.set("ram", known.memory_info.size_in_mib);
        if let Some(code) = quota_codes::of_instances(instance_type, is_spot) {
            resources.set(code, known.v_cpu_info.default_v_cpus);
        }
        resources
    }

    /// Resources of an instance on a host of its own, without its volumes.
    pub fn host_resources(&self, instance_type: &str) -> Resources {
        let mut resources = Resources::none().with("instances", 1.0);
        if let Some(code) = quota_codes::of_hosts(instance_type) {
            resources.set(code, 1.0);
        }
        resources
    }

    /// These resources and those of the instance's volumes.
    pub fn with_volumes(&self, mut resources: Resources, instance: &str) -> Resources {
        if let Some(volumes) = self.volumes.get(instance) {
            resources.add(volumes);
        }
        resources
    }

    /// Resources of the volumes that an instance of a label gets: those of the AMI, with the label's root volume.
    pub fn label_volumes(&self, label: &AwsLabel, image: Option<&str>) -> Resources {
        let mut resources = Resources::none();
        let mappings = image.and_then(|id| self.images.get(id)?.as_ref()).map(Image::volumes).unwrap_or_default();
        let own = &label.volume;
        if mappings.is_empty() {
            let given = &label.image_volume;
            let kind = own.kind.as_deref().or(given.kind.as_deref());
            let (size, iops) = (own.size_gib.or(given.size_gib), own.iops.or(given.iops));
            add_volume(&mut resources, kind, size.map(|size| size as f64), iops.map(|iops| iops as f64));
        }
        for (is_root, volume) in mappings {
            let (size, iops) = match is_root {
                true => (own.size_gib.map(|size| size as f64), own.iops.map(|iops| iops as f64)),
                false => (None, None),
            };
            let kind = own.kind.as_deref().filter(|_| is_root).or(volume.volume_type.as_deref());
            add_volume(&mut resources, kind, size.or(volume.volume_size), iops.or(volume.iops));
        }
        resources
    }

    /// Resources of one node of a label, and why none can be launched.
    pub fn label_facts(&self, label: &AwsLabel) -> (Option<Resources>, Option<Unavailable>) {
        let image = match &label.source {
            ImageSource::Id(id) => Some(Some(id.clone())),
            ImageSource::Filters(filters) => self.found.get(filters).cloned(),
            ImageSource::Uploaded | ImageSource::Missing => Some(None),
        };
        let unavailable = self.missing_type(label).or_else(|| self.missing_image(label));
        let types = label.possible_types();
        let Some(first) = types.first() else { return (None, unavailable) };
        if !label.dedicated_host && label.fleet.is_none() && !self.types.contains_key(first) {
            return (None, unavailable);
        }
        let is_spot = label.market != super::label::Market::OnDemand;
        let mut need = match (label.dedicated_host, &label.fleet) {
            (true, _) => self.host_resources(first),
            (false, Some(_)) => Resources::none().with("instances", 1.0),
            (false, None) => self.instance_resources(first, is_spot),
        };
        need.add(&self.label_volumes(label, image.flatten().as_deref()));
        (Some(need), unavailable)
    }

    fn missing_type(&self, label: &AwsLabel) -> Option<Unavailable> {
        let types = label.possible_types();
        let is_missing = |kind: &String| matches!(self.types.get(kind), Some(None));
        (!types.is_empty() && types.iter().all(is_missing))
            .then(|| Unavailable::Permanent(format!("instance type {} does not exist", types.join(", "))))
    }

    fn missing_image(&self, label: &AwsLabel) -> Option<Unavailable> {
        match &label.source {
            ImageSource::Id(id) if matches!(self.images.get(id), Some(None)) => {
                Some(Unavailable::Temporary(format!("AMI {id} does not exist")))
            }
            ImageSource::Filters(filters) if matches!(self.found.get(filters), Some(None)) => {
                Some(Unavailable::Temporary("no AMI matches the image-filters".to_owned()))
            }
            _ => None,
        }
    }

    /// The resources of volumes by instance.
    pub fn record_volumes(&mut self, volumes: &[Volume]) {
        self.volumes.clear();
        for volume in volumes {
            for attachment in &volume.attachment_set.item {
                let resources = self.volumes.entry(attachment.instance_id.clone()).or_insert_with(Resources::none);
                add_volume(resources, Some(&volume.volume_type), Some(volume.size), volume.iops);
            }
        }
    }
}

fn add_volume(resources: &mut Resources, kind: Option<&str>, size_gib: Option<f64>, iops: Option<f64>) {
    let Some((storage, operations)) = kind.and_then(quota_codes::of_volumes) else { return };
    let mut volume = Resources::none();
    if let Some(size) = size_gib {
        volume.set(storage, size);
    }
    if let (Some(code), Some(iops)) = (operations, iops) {
        volume.set(code, iops);
    }
    resources.add(&volume);
}

impl Image {
    /// The volumes of an instance, and whether each is its root.
    pub fn volumes(&self) -> Vec<(bool, &super::api::api_types::Ebs)> {
        let mappings = self.block_device_mapping.item.iter();
        let with_volume: Vec<_> = mappings.filter_map(|mapping| Some((mapping, mapping.ebs.as_ref()?))).collect();
        let is_named = |name: &str| self.root_device_name.as_deref() == Some(name);
        let root = with_volume.iter().position(|(mapping, _)| is_named(&mapping.device_name)).unwrap_or(0);
        with_volume.into_iter().enumerate().map(|(index, (_, ebs))| (index == root, ebs)).collect()
    }

    pub fn has_snapshot(&self, snapshot: &str) -> bool {
        self.volumes().iter().any(|(_, ebs)| ebs.snapshot_id.as_deref() == Some(snapshot))
    }

    /// The names of the devices with volumes, the root's first.
    pub fn devices(&self) -> Vec<&str> {
        let volumes = self.block_device_mapping.item.iter().filter(|mapping| mapping.ebs.is_some());
        let mut names: Vec<&str> = volumes.map(|mapping| mapping.device_name.as_str()).collect();
        if let Some(root) = names.iter().position(|name| self.root_device_name.as_deref() == Some(*name)) {
            names.swap(0, root);
        }
        names
    }
}
