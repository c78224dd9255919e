//! The driver gce: nodes are instances of Google Compute Engine. It is the example of a simple driver: its cloud has
//! one call to create and one to delete an instance, each of which ends with an operation.
//!
//! `config.rs` reads the section, `client.rs` sends requests, `credentials.rs` has the tokens for them, `api_types.rs`
//! and `errors.rs` read the answers. This file is the `SimpleAdapter`.

mod api_types;
mod client;
mod config;
mod credentials;
mod errors;
mod request_body;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use reqwest::{Method, StatusCode};
use tokio::time::Instant;

use crate::common::error_text::failed;
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::driver::NeedsReopen;
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::{LaunchConfig, Unavailable};
use nodepool_driver::instance::Instance;
use nodepool_driver::job::LaunchOrder;
use nodepool_driver::simple_adapter::{Creation, Keys, LaunchPlan, Operation, OperationState, Simple, SimpleAdapter};
use nodepool_driver::state_machine::{InFlightLimit, REFRESH_INTERVAL, RateLimits};
use nodepool_model::config::ProviderConfig;
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::records::ids::{ExternalId, ProviderName};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;
use python_yaml::diagnostics::Diagnostic;

use api_types::{AggregatedPage, Image, InstancePage, MachineType, Region, VmInstance, one_instance};
use client::{Connection, Refusal};
use config::{GceLabel, ImageSource, Settings};
use credentials::Source;
use request_body::{CREATION, creation_mark, request_id};

/// Interval between listings while instances boot or end. It is short because machines wait for a listing only after
/// their operations have ended.
const OBSERVE_INTERVAL: Seconds = Seconds(0.25);
/// Google preempts spot instances at any time.
const SPOT_REFRESH_INTERVAL: Seconds = Seconds(60.0);
/// The most that Google returns at once.
const PAGE: &str = "500";
/// Metadata with the provider of an instance.
const PROVIDER_MARK: &str = "nodepool_provider_name";

pub struct Gce {
    provider: ProviderName,
    settings: Settings,
    connection: Connection,
    catalog: Mutex<Catalog>,
    /// Part of request ids that no other process has.
    process: String,
    stamps: Vec<(PathBuf, Option<SystemTime>)>,
}

/// Machine types, images and instances, as Google has described them.
#[derive(Default)]
struct Catalog {
    /// Resources by zone and machine type; `Err` says why there can be no node of it.
    types: BTreeMap<(String, String), Result<Resources, Unavailable>>,
    /// Images of boot disks; `Err` says why one cannot be used.
    images: BTreeMap<ImageSource, Result<Image, Unavailable>>,
    /// Our instances, by name.
    own: HashMap<String, Own>,
}

/// An instance of ours.
#[derive(Clone)]
struct Own {
    zone: String,
    /// The time at which it was created or listed last.
    seen: Instant,
    /// The operation that creates it, in this process.
    insert: Option<Operation>,
}

/// Time for which an instance is remembered that no listing shows.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);
/// Looks for an instance that an earlier process may have requested a moment ago, and the pause between two.
const APPEARANCE_LOOKS: u32 = 5;
const APPEARANCE_PAUSE: Duration = Duration::from_secs(1);

pub fn open(section: &ProviderConfig) -> Result<Simple<Gce>, Vec<Diagnostic>> {
    open_from(section, Source::Default, None)
}

/// Opens the driver with one endpoint and token, for tests and other callers.
pub fn open_with(
    section: &ProviderConfig,
    endpoint: &str,
    token: Option<&str>,
) -> Result<Simple<Gce>, Vec<Diagnostic>> {
    open_from(section, Source::Fixed(token.map(str::to_owned)), Some(endpoint))
}

fn open_from(section: &ProviderConfig, source: Source, endpoint: Option<&str>) -> Result<Simple<Gce>, Vec<Diagnostic>> {
    let (settings, mut diagnostics) = read(section);
    diagnostics.items.retain(Diagnostic::is_error);
    if !diagnostics.items.is_empty() {
        return Err(diagnostics.items);
    }
    let connection = Connection::new(source, endpoint).map_err(|error| {
        let help = format!("provider {} is out of service", section.name);
        vec![Diagnostic::error(section.section.at, error).help(help)]
    })?;
    let provider = section.name.clone();
    let (catalog, process) = (Mutex::default(), uuid::Uuid::new_v4().to_string());
    let gce = Gce { provider, settings, connection, catalog, process, stamps: stamps() };
    Ok(Simple::new(section.name.clone(), gce))
}

/// The files of credentials, which a provider reads besides its section.
pub fn files() -> Vec<PathBuf> {
    credentials::files()
}

/// Errors and warnings of a section.
pub fn diagnostics(section: &ProviderConfig) -> Vec<Diagnostic> {
    read(section).1.items
}

fn read(section: &ProviderConfig) -> (Settings, Diagnostics) {
    let mut diagnostics = Diagnostics::default();
    (config::read(section, &mut diagnostics), diagnostics)
}

/// Times of change of the files of credentials; `None` for one that does not exist.
fn stamps() -> Vec<(PathBuf, Option<SystemTime>)> {
    let changed = |path: &PathBuf| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    files().into_iter().map(|path| (path.clone(), changed(&path))).collect()
}

impl SimpleAdapter for Gce {
    const KEYS: Keys = Keys {
        create: "instances.insert",
        delete: "instances.delete",
        operation: "zoneOperations.wait",
        labels: "machineTypes.get",
        list: "instances.list",
        limits: "regions.get",
        ..Keys::DEFAULT
    };
    const DESCRIBES_LABELS: bool = true;

    /// The same request id makes Google treat a repetition as the same request. An instance of an earlier attempt,
    /// whose answer was lost, has the mark of this node's creation.
    async fn create_instance(&self, order: &LaunchOrder, guard: &CallGuard) -> Result<Creation, CloudError> {
        let label = self.label(order)?;
        let id = ExternalId::text(&order.hostname);
        if self.adopt(order).await? {
            return Ok(id.into());
        }
        let zone = order.zone.as_ref().or(self.settings.zones.first()).cloned().unwrap_or_default();
        let image = self.image(label)?;
        let body = request_body::instance(label, order, &zone, &image);
        let path = format!("{}/zones/{zone}/instances", self.settings.project);
        let request_id = request_id(order, &zone, &self.process);
        let sent: Result<api_types::Operation, Refusal> =
            self.connection.send(Method::POST, &path, &[("requestId", &request_id)], Some(&body), guard).await;
        match sent {
            Ok(operation) => {
                let operation = handle(&zone, &operation);
                self.record_own(&order.hostname, zone, Some(operation.clone()));
                Ok(Creation { id, operation: Some(operation) })
            }
            Err(Refusal::ByGoogle(error, _)) if error.status == StatusCode::CONFLICT => {
                match self.find(&order.hostname, CREATION, &creation_mark(order)).await? {
                    Some(zone) => {
                        self.record_own(&order.hostname, zone, None);
                        Ok(id.into())
                    }
                    // Another attempt would have the same name.
                    None => {
                        let text = format!("another owner has an instance of this name: {}", error.text());
                        Err(CloudError::Denied(text))
                    }
                }
            }
            // The image or the machine type has vanished since the last refresh.
            Err(refusal) => Err(match refusal.into() {
                CloudError::NotFound(text) => CloudError::Denied(text),
                error => error,
            }),
        }
    }

    async fn delete_instance(&self, id: &ExternalId, guard: &CallGuard) -> Result<Option<Operation>, CloudError> {
        let name = match id {
            ExternalId::Text(name) if is_name(name) => name,
            other => return Err(CloudError::not_found(format!("{other} is no name of an instance"))),
        };
        let known = self.catalog().own.get(name).cloned();
        let (zone, insert) = match known {
            Some(own) => (own.zone, own.insert),
            None => match self.find(name, PROVIDER_MARK, self.provider.as_str()).await? {
                Some(zone) => (zone, None),
                None => return Err(CloudError::not_found(format!("no instance {name} of provider {}", self.provider))),
            },
        };
        match (self.delete_in(&zone, name, guard).await, insert) {
            // The insert may not have begun yet.
            (Err(CloudError::NotFound(_)), Some(insert)) => {
                self.await_operation(&insert).await.ok();
                self.delete_in(&zone, name, guard).await
            }
            (deleted, _) => deleted,
        }
    }

    /// Google keeps the request until the operation has ended, for up to two minutes.
    async fn await_operation(&self, operation: &Operation) -> Result<OperationState, CloudError> {
        let (zone, name) = operation.0.split_once('/').unwrap_or_default();
        let path = format!("{}/zones/{zone}/operations/{name}/wait", self.settings.project);
        let sent: Result<api_types::Operation, Refusal> =
            self.connection.send(Method::POST, &path, &[], None, &CallGuard::none()).await;
        match sent {
            Ok(operation) if operation.status != "DONE" => Ok(OperationState::Running),
            Ok(operation) => operation.into_failure().map_or(Ok(OperationState::Ended), Err),
            // Google forgets operations after two weeks; the listings show what became of it.
            Err(Refusal::ByGoogle(error, _)) if error.status == StatusCode::NOT_FOUND => Ok(OperationState::Ended),
            Err(Refusal::ByGoogle(error, retry_after)) => Err(error.into_error(retry_after)),
            // An answer was lost or cannot be read.
            Err(Refusal::Otherwise(_)) => Ok(OperationState::Running),
        }
    }

    fn plan(&self, order: &LaunchOrder) -> LaunchPlan {
        let Ok(label) = self.label(order) else { return LaunchPlan::default() };
        let catalog = self.catalog();
        let has_type = |zone: &&String| {
            let found = catalog.types.get(&((*zone).clone(), label.machine_type.clone()));
            !matches!(found, Some(Err(_)))
        };
        LaunchPlan {
            zones: self.settings.zones.iter().filter(has_type).cloned().collect(),
            capacity: label.capacity(),
            use_internal_ip: label.use_internal_ip,
            id: Some(ExternalId::text(&order.hostname)),
        }
    }

    async fn list_instances(&self) -> Result<Vec<Instance>, CloudError> {
        let mut found = Vec::new();
        for zone in &self.settings.zones {
            self.list_zone(zone, &mut found).await?;
        }
        let is_marked = |instance: &VmInstance| instance.has_metadata(PROVIDER_MARK, self.provider.as_str());
        let marked = found.iter().filter(|(_, instance)| is_marked(instance));
        self.record_listed(marked.map(|(zone, instance)| (instance.name.as_str(), zone.as_str())));
        let mut instances = Vec::with_capacity(found.len());
        for (zone, instance) in found {
            let resources = self.resources(zone, instance.machine_type()).await;
            let is_own = is_marked(&instance) && self.is_own(&instance.name, zone);
            // Names are unique in a zone only, and those of others may be ours as well.
            let id = if is_own { instance.name.clone() } else { format!("{zone}/{}", instance.name) };
            instances.push(instance.to_instance(ExternalId::text(id), resources));
        }
        Ok(instances)
    }

    async fn describe_labels(&self) -> Result<LaunchConfig, CloudError> {
        let (mut types, mut images) = (BTreeMap::new(), BTreeMap::new());
        for label in self.settings.labels() {
            for zone in &self.settings.zones {
                if let Entry::Vacant(entry) = types.entry((zone.clone(), label.machine_type.clone())) {
                    entry.insert(self.read_type(zone, &label.machine_type).await?);
                }
            }
            if let Entry::Vacant(entry) = images.entry(label.source.clone()) {
                entry.insert(self.read_image(&label.source).await?);
            }
        }
        let mut catalog = self.catalog();
        (catalog.types, catalog.images) = (types, images);
        drop(catalog);
        Ok(self.settings.launch_config(|label| self.need(label).map(Some)))
    }

    async fn quota_limits(&self) -> Result<Resources, CloudError> {
        let Settings { project, region, .. } = &self.settings;
        let region: Region = self.connection.get(&format!("{project}/regions/{region}"), &[]).await?;
        Ok(region.limits())
    }

    fn launching(&self) -> LaunchConfig {
        self.settings.launch_config(|_| Ok(None))
    }

    fn rate_limits(&self) -> RateLimits {
        RateLimits {
            spacing: self.settings.spacing,
            in_flight: InFlightLimit::Configurable,
            listing_delay: OBSERVE_INTERVAL,
            refresh: Some(if self.settings.has_spot() { SPOT_REFRESH_INTERVAL } else { REFRESH_INTERVAL }),
        }
    }

    async fn prepare(&self) -> Result<(), CloudError> {
        self.connection.prepare().await
    }

    fn needs_reopen(&self) -> Option<NeedsReopen> {
        let before = self.stamps.clone();
        Some(NeedsReopen { files: files(), check: Arc::new(move || stamps() != before) })
    }
}

impl Gce {
    fn catalog(&self) -> MutexGuard<'_, Catalog> {
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn label(&self, order: &LaunchOrder) -> Result<&GceLabel, CloudError> {
        let label = self.settings.label(&order.pool, &order.label);
        label.ok_or_else(|| CloudError::Denied(format!("pool {} has no label {}", order.pool, order.label)))
    }

    /// The zone that has an instance of this name with this metadata. It may be one that the provider had before a
    /// change of its section.
    async fn find(&self, name: &str, key: &str, value: &str) -> Result<Option<String>, CloudError> {
        let path = format!("{}/aggregated/instances", self.settings.project);
        let filter = format!("name={name}");
        let mut token = None;
        loop {
            let page: AggregatedPage = self.connection.get(&path, &page_query(&[("filter", &filter)], &token)).await?;
            whole(page.is_partial())?;
            let instances = page.items.into_values().flat_map(|scope| scope.instances);
            let mut own = instances.filter(|instance| instance.name == name && instance.has_metadata(key, value));
            match (own.next(), next_token(token, page.next_page_token)?) {
                (Some(_), _) if own.next().is_some() => {
                    return Err(failed(format!("several zones have an instance {name} with {key} {value}")));
                }
                (Some(found), _) => return Ok(Some(found.zone().to_owned())),
                (None, None) => return Ok(None),
                (None, next) => token = next,
            }
        }
    }

    /// Whether an earlier creation of this node has made an instance, which is then ours.
    async fn adopt(&self, order: &LaunchOrder) -> Result<bool, CloudError> {
        let looks = if order.may_appear { APPEARANCE_LOOKS } else { u32::from(order.may_exist) };
        for look in 0..looks {
            if look > 0 {
                tokio::time::sleep(APPEARANCE_PAUSE).await;
            }
            if let Some(zone) = self.find(&order.hostname, CREATION, &creation_mark(order)).await? {
                self.record_own(&order.hostname, zone, None);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn record_own(&self, name: &str, zone: String, insert: Option<Operation>) {
        self.catalog().own.insert(name.to_owned(), Own { zone, seen: Instant::now(), insert });
    }

    /// Records the names and zones of listed instances. A name whose zone is known belongs to that zone. If several
    /// zones have a name, it is not known which instance is ours.
    fn record_listed<'a>(&self, listed: impl Iterator<Item = (&'a str, &'a str)>) {
        let mut zones: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        listed.for_each(|(name, zone)| zones.entry(name).or_default().push(zone));
        let (mut catalog, now) = (self.catalog(), Instant::now());
        for (name, zones) in zones {
            match (catalog.own.get_mut(name), &zones[..]) {
                (Some(own), zones) if zones.contains(&own.zone.as_str()) => own.seen = now,
                (None, [zone]) => {
                    catalog.own.insert(name.to_owned(), Own { zone: (*zone).to_owned(), seen: now, insert: None });
                }
                _ => {}
            }
        }
        catalog.own.retain(|_, own| now - own.seen < REMEMBERED_FOR);
    }

    fn is_own(&self, name: &str, zone: &str) -> bool {
        self.catalog().own.get(name).is_some_and(|own| own.zone == zone)
    }

    async fn delete_in(&self, zone: &str, name: &str, guard: &CallGuard) -> Result<Option<Operation>, CloudError> {
        let path = format!("{}/zones/{zone}/instances/{name}", self.settings.project);
        let sent: Result<api_types::Operation, Refusal> =
            self.connection.send(Method::DELETE, &path, &[], None, guard).await;
        match sent {
            Ok(operation) => Ok(Some(handle(zone, &operation))),
            // Another operation is under way. If it is no deletion, the listings show that.
            Err(Refusal::ByGoogle(error, _)) if error.reason == "resourceNotReady" => Ok(None),
            Err(refusal) => Err(refusal.into()),
        }
    }

    async fn list_zone<'a>(
        &self,
        zone: &'a String,
        found: &mut Vec<(&'a String, VmInstance)>,
    ) -> Result<(), CloudError> {
        let path = format!("{}/zones/{zone}/instances", self.settings.project);
        let mut token = None;
        loop {
            let page: InstancePage = self.connection.get(&path, &page_query(&[], &token)).await?;
            whole(page.is_partial())?;
            found.extend(page.items.into_iter().map(|instance| (zone, instance)));
            token = next_token(token, page.next_page_token)?;
            if token.is_none() {
                return Ok(());
            }
        }
    }

    /// Resources of an instance. An unknown machine type is asked for, and counts as one instance if it cannot be read.
    async fn resources(&self, zone: &str, machine_type: &str) -> Resources {
        let key = (zone.to_owned(), machine_type.to_owned());
        let known = self.catalog().types.get(&key).cloned();
        let found = match known {
            Some(found) => found,
            None => match self.read_type(zone, machine_type).await {
                Ok(read) => self.catalog().types.entry(key).or_insert(read).clone(),
                Err(_) => return one_instance(),
            },
        };
        found.unwrap_or_else(|_| one_instance())
    }

    /// Resources of a machine type, or why there can be no node of it.
    async fn read_type(&self, zone: &str, machine_type: &str) -> Result<Result<Resources, Unavailable>, CloudError> {
        let path = format!("{}/zones/{zone}/machineTypes/{machine_type}", self.settings.project);
        let sent: Result<MachineType, Refusal> =
            self.connection.send(Method::GET, &path, &[], None, &CallGuard::none()).await;
        match sent {
            Ok(machine_type) => Ok(Ok(machine_type.resources())),
            Err(Refusal::ByGoogle(error, _)) if is_wrong(error.status) => {
                Ok(Err(Unavailable::Permanent(format!("there is no machine type {machine_type} in {zone}"))))
            }
            Err(refusal) => match refusal.into() {
                // It may be allowed later.
                CloudError::Denied(text) => Ok(Err(Unavailable::Temporary(text))),
                error => Err(error),
            },
        }
    }

    /// The newest image of a family, or the image itself.
    async fn read_image(&self, source: &ImageSource) -> Result<Result<Image, Unavailable>, CloudError> {
        let path = match source {
            ImageSource::Family { project, family } => format!("{project}/global/images/family/{family}"),
            ImageSource::Id(id) => match request_body::image_path(id, &self.settings.project) {
                Some(path) => path,
                None => return Ok(Ok(Image::named(id))),
            },
        };
        let sent: Result<Image, Refusal> =
            self.connection.send(Method::GET, &path, &[], None, &CallGuard::none()).await;
        let refusal = match (sent, source) {
            (Ok(image), ImageSource::Family { .. }) => return Ok(Ok(image)),
            (Ok(image), ImageSource::Id(id)) => return Ok(Ok(Image { self_link: id.clone(), ..image })),
            (Err(Refusal::ByGoogle(error, _)), _) if is_wrong(error.status) => {
                return Ok(Err(Unavailable::Permanent(format!("no such image: {}", error.text()))));
            }
            (Err(refusal), _) => refusal,
        };
        match (refusal.into(), source) {
            // To boot an image, the account need not read it.
            (CloudError::Denied(_), ImageSource::Id(id)) => Ok(Ok(Image::named(id))),
            (CloudError::Denied(text), _) => Ok(Err(Unavailable::Temporary(text))),
            (error, _) => Err(error),
        }
    }

    /// The image of a launch, as Google is to find it.
    fn image(&self, label: &GceLabel) -> Result<Image, CloudError> {
        match self.catalog().images.get(&label.source) {
            Some(Ok(image)) => Ok(image.clone()),
            Some(Err(unavailable)) => Err(CloudError::Denied(unavailable.reason().to_owned())),
            None => Err(failed("the image has not been looked up yet")),
        }
    }

    /// Resources of a node of a label, or why there can be none.
    fn need(&self, label: &GceLabel) -> Result<Resources, Unavailable> {
        let catalog = self.catalog();
        let types = self.settings.zones.iter().map(|zone| (zone.clone(), label.machine_type.clone()));
        let mut found: Vec<_> = types.filter_map(|key| catalog.types.get(&key).cloned()).collect();
        // One zone suffices.
        found.sort_by_key(Result::is_err);
        let unknown = || Err(Unavailable::Temporary("its machine type is not known yet".to_owned()));
        let need = found.into_iter().next().unwrap_or_else(unknown)?;
        let image = catalog.images.get(&label.source).cloned();
        let min_disk_gb = image.transpose()?.and_then(|image| image.min_disk_gb());
        match min_disk_gb.filter(|min| *min > label.volume_gb) {
            Some(min) => {
                let size = label.volume_gb;
                Err(Unavailable::Permanent(format!("its image needs {min} GB, but volume-size is {size}")))
            }
            None => Ok(need),
        }
    }
}

/// Whether a refusal says that the configuration names something wrong.
fn is_wrong(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST)
}

/// A part of a listing proves nothing.
fn whole(is_partial: bool) -> Result<(), CloudError> {
    match is_partial {
        true => {
            Err(CloudError::Outage { detail: "Google cannot list all instances".to_owned(), may_have_worked: false })
        }
        false => Ok(()),
    }
}

/// Whether Google allows this name, which is part of paths and filters.
fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(is_allowed)
}

fn page_query<'a>(query: &[(&'a str, &'a str)], token: &'a Option<String>) -> Vec<(&'a str, &'a str)> {
    let token = token.iter().map(|token| ("pageToken", token.as_str()));
    query.iter().copied().chain([("maxResults", PAGE)]).chain(token).collect()
}

/// The token of the next page; `None` after the last one.
fn next_token(current: Option<String>, next: Option<String>) -> Result<Option<String>, CloudError> {
    let next = next.filter(|next| !next.is_empty());
    match next.is_some() && next == current {
        true => Err(failed("the listing repeats a page token")),
        false => Ok(next),
    }
}

/// The operation with its zone, by which it is found.
fn handle(zone: &str, operation: &api_types::Operation) -> Operation {
    Operation(format!("{zone}/{}", operation.name))
}
