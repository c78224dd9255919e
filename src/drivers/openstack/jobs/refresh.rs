//! Refresh of a cloud's catalog, one query at a time: services, flavors, networks, images, zones, limits, servers.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use tracing::warn;

use crate::common::server_section::Label;
use crate::openstack::api_types::{self, Flavor, Network, Server, Zone};
use crate::openstack::calls::{self, Call, ListKind, Reply};
use crate::openstack::catalog::catalog::{CloudCatalog, FallbackData, NetworkQuota, Networks};
use crate::openstack::catalog::shared::{ListingAccumulator, ProviderContext};
use crate::openstack::config::{ImageRef, Settings};
use crate::openstack::errors::failed;
use crate::openstack::http::{PROJECT, Services};
use crate::openstack::instances::floating_addresses;
use crate::openstack::pagination::{Filters, PageResult, Pages, typed};
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::{LaunchConfig, ProviderFacts, Unavailable};
use nodepool_driver::instance::Inventory;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::records::ids::{LabelName, PoolName};
use nodepool_model::records::resources::Resources;

pub struct RefreshProvider {
    context: Arc<ProviderContext>,
    pending: VecDeque<PendingQuery>,
    in_flight: Option<InFlightQuery>,
    results: RefreshResults,
    /// The catalog of the previous refresh.
    previous: Arc<CloudCatalog>,
}

/// Nova resolves the names of security groups among those of the server's project.
const OWN_GROUPS: Filters = &[("project_id", PROJECT), ("fields", "id"), ("fields", "name")];

/// A query that has not been sent yet.
#[derive(Clone, Debug)]
enum PendingQuery {
    Services,
    List(ListKind, Filters),
    /// Active images with a name; the name may be an id.
    ImageNamed(String),
    ImageWithId(String),
    Zones,
    ComputeLimits,
    VolumeLimits,
    NetworkQuota,
    Servers,
}

/// The query in flight.
enum InFlightQuery {
    Single(PendingQuery),
    Pages(ListKind, Pages<Value>),
    Servers(Pages<Server>),
}

#[derive(Default)]
struct RefreshResults {
    services: Services,
    lists: HashMap<&'static str, Vec<Value>>,
    images: Vec<(String, Result<String, String>)>,
    ambiguous_images: BTreeSet<String>,
    zones: Vec<String>,
    limits: Option<Resources>,
    volume_limits: Option<Resources>,
    network: Option<NetworkQuota>,
    limits_unavailable: Option<Unavailable>,
    servers: Vec<Server>,
    unanswered: Vec<&'static str>,
}

impl StateMachine for RefreshProvider {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        let result = match (input, self.in_flight.take()) {
            (Input::Start, _) => Ok(None),
            (Input::Reply(Ok(reply)), Some(query)) => self.on_reply(query, reply),
            (Input::Reply(Err(error)), Some(query)) => self.on_failure(query, error),
            (input, _) => unreachable!("unexpected {input:?} before the first query"),
        };
        match result {
            Ok(Some(call)) => Next::Call(call),
            Ok(None) => match self.pending.pop_front() {
                Some(query) => Next::Call(self.send_query(query)),
                None => match self.build_facts() {
                    Ok((facts, inventory)) => Next::Done(Outcome::Refreshed(Arc::new(facts), Arc::new(inventory))),
                    Err(error) => Next::Failed(error),
                },
            },
            Err(error) => Next::Failed(error),
        }
    }

    fn label(&self) -> &'static str {
        "refreshing"
    }
}

impl RefreshProvider {
    pub fn new(context: Arc<ProviderContext>) -> Self {
        let previous = context.catalog();
        Self {
            context,
            pending: VecDeque::from([PendingQuery::Services]),
            in_flight: None,
            results: RefreshResults::default(),
            previous,
        }
    }

    fn send_query(&mut self, query: PendingQuery) -> Call {
        let call = match &query {
            PendingQuery::Services => calls::discover(),
            PendingQuery::List(listing, filters) => {
                let (pages, call) = Pages::filtered(*listing, filters);
                self.in_flight = Some(InFlightQuery::Pages(*listing, pages));
                return call;
            }
            PendingQuery::Servers => {
                let (pages, call) = Pages::servers();
                self.in_flight = Some(InFlightQuery::Servers(pages));
                return call;
            }
            PendingQuery::ImageNamed(name) => calls::IMAGES.page(None, &[("name", name), ("status", "active")]),
            PendingQuery::ImageWithId(id) => calls::image(id),
            PendingQuery::Zones => calls::zones(),
            PendingQuery::ComputeLimits => calls::compute_limits(),
            PendingQuery::VolumeLimits => calls::volume_limits(),
            PendingQuery::NetworkQuota => calls::network_quota(),
        };
        self.in_flight = Some(InFlightQuery::Single(query));
        call
    }

    fn on_reply(&mut self, query: InFlightQuery, reply: Reply) -> Result<Option<Call>, CloudError> {
        match (query, reply) {
            (InFlightQuery::Single(_), Reply::Discovered(services)) => {
                self.plan_queries(&services);
                self.results.services = services;
            }
            (InFlightQuery::Pages(listing, pages), Reply::Json(answer)) => match pages.add_json_page(&answer)? {
                PageResult::Next(pages, call) => {
                    self.in_flight = Some(InFlightQuery::Pages(listing, pages));
                    return Ok(Some(call));
                }
                PageResult::Complete(entries) => {
                    self.results.lists.insert(listing.list, entries);
                }
            },
            (InFlightQuery::Servers(pages), Reply::Servers(page)) => match pages.add_servers_page(page)? {
                PageResult::Next(pages, call) => {
                    self.in_flight = Some(InFlightQuery::Servers(pages));
                    return Ok(Some(call));
                }
                PageResult::Complete(servers) => self.on_servers(servers),
            },
            (InFlightQuery::Single(query), Reply::Json(answer)) => {
                if let Err(error) = self.on_single_reply(query.clone(), &answer) {
                    return self.on_failure(InFlightQuery::Single(query), error);
                }
            }
            (_, reply) => return Err(failed(format!("unexpected reply in a refresh: {reply:?}"))),
        }
        Ok(None)
    }

    /// Adds the queries that the services of the cloud and the configuration require.
    fn plan_queries(&mut self, services: &Services) {
        let settings = &self.context.settings;
        self.pending.push_back(PendingQuery::List(calls::FLAVORS, &[]));
        if services.network {
            self.pending.push_back(PendingQuery::List(calls::NETWORKS, &[]));
            if self.context.uses_floating_ips() {
                self.pending.extend([calls::SUBNETS, calls::ROUTERS].map(|list| PendingQuery::List(list, &[])));
            }
            if settings.servers.values().flat_map(|labels| labels.values()).any(|spec| !spec.security_groups.is_empty())
            {
                self.pending.push_back(PendingQuery::List(calls::SECURITY_GROUPS, OWN_GROUPS));
            }
        }
        let images =
            settings.servers.values().flat_map(|labels| labels.values()).filter_map(|spec| match &spec.image {
                ImageRef::Name(name) => Some(name.clone()),
                ImageRef::Id(_) | ImageRef::Uploaded => None,
            });
        self.pending.extend(images.collect::<BTreeSet<_>>().into_iter().map(PendingQuery::ImageNamed));
        if settings.needs_zones {
            self.pending.push_back(PendingQuery::Zones);
        }
        self.pending.push_back(PendingQuery::ComputeLimits);
        if services.block_storage {
            self.pending.push_back(PendingQuery::VolumeLimits);
        }
        if services.network && !settings.ignores_quota() {
            self.pending.push_back(PendingQuery::NetworkQuota);
        }
        self.pending.push_back(PendingQuery::Servers);
    }

    fn on_servers(&mut self, servers: Vec<Server>) {
        let has_volumes = servers.iter().any(|server| !server.volumes.is_empty());
        if has_volumes && self.results.services.block_storage {
            self.pending.push_back(PendingQuery::List(calls::VOLUMES, &[]));
        }
        self.results.servers = servers;
    }

    fn on_single_reply(&mut self, query: PendingQuery, answer: &Value) -> Result<(), CloudError> {
        match query {
            PendingQuery::ImageNamed(name) => {
                let images: Vec<api_types::GlanceImage> = api_types::list(answer, "images").map_err(failed)?;
                // The newest image is the first. Some clouds ignore the filters and list all images.
                let mut active = images.into_iter().filter(|image| image.status == "active" && image.name == name);
                match active.next() {
                    Some(image) => {
                        if active.next().is_some() {
                            self.results.ambiguous_images.insert(name.clone());
                        }
                        self.results.images.push((name, Ok(image.id)));
                    }
                    None => self.pending.push_front(PendingQuery::ImageWithId(name)),
                }
            }
            PendingQuery::ImageWithId(name) => {
                let image: Option<api_types::GlanceImage> = serde_json::from_value(answer.clone()).ok();
                let active = image.filter(|image| image.status == "active");
                let id = active.map(|image| image.id).ok_or_else(|| no_image(&name));
                self.results.images.push((name, id));
            }
            PendingQuery::Zones => {
                let zones: Vec<Zone> = api_types::list(answer, "availabilityZoneInfo").map_err(failed)?;
                let available = zones.into_iter().filter(|zone| zone.state.available && !zone.name.is_empty());
                self.results.zones = available.map(|zone| zone.name).collect();
            }
            PendingQuery::ComputeLimits => self.results.limits = Some(limits(answer, &COMPUTE_LIMITS)?),
            PendingQuery::VolumeLimits => self.results.volume_limits = Some(limits(answer, &VOLUME_LIMITS)?),
            PendingQuery::NetworkQuota => self.results.network = Some(NetworkQuota::from_json(answer)),
            PendingQuery::Services | PendingQuery::List(..) | PendingQuery::Servers => {
                return Err(failed("the response has an unexpected type".to_owned()));
            }
        }
        Ok(())
    }

    /// Handles failures that leave the provider usable; other errors fail the refresh.
    fn on_failure(&mut self, query: InFlightQuery, error: CloudError) -> Result<Option<Call>, CloudError> {
        match (&query, &error) {
            (
                InFlightQuery::Single(PendingQuery::ImageWithId(name)),
                CloudError::NotFound(_) | CloudError::Failed { .. },
            ) => {
                self.results.images.push((name.clone(), Err(no_image(name))));
            }
            // Glance does not exist or denies access: only labels whose image has to be looked up become unavailable.
            (
                InFlightQuery::Single(PendingQuery::ImageNamed(name) | PendingQuery::ImageWithId(name)),
                CloudError::NotFound(_) | CloudError::Denied(_),
            ) => {
                let reason =
                    format!("image {name} cannot be looked up ({error}); configure image-id to skip the lookup");
                self.results.images.push((name.clone(), Err(reason)));
            }
            (InFlightQuery::Single(PendingQuery::Zones), _) => {}
            (InFlightQuery::Single(PendingQuery::ComputeLimits), _) => self.on_limits_failure(&error)?,
            (InFlightQuery::Single(PendingQuery::VolumeLimits), _) => {
                self.results.volume_limits = self.previous.fallback.volume_limits.clone();
                if !is_permanent(&error) && !self.context.settings.ignores_quota() {
                    self.results.unanswered.push("volume limits");
                }
            }
            // Neutron enforces its limits even if it does not report them.
            (InFlightQuery::Single(PendingQuery::NetworkQuota), _) => {
                self.results.network = self.previous.fallback.network.clone();
                if !is_permanent(&error) {
                    self.results.unanswered.push("network limits");
                }
            }
            // A rejection is permanent; a failed query is repeated soon.
            (InFlightQuery::Pages(listing, _), _)
                if matches!(listing.list, "subnets" | "routers" | "security_groups" | "volumes") =>
            {
                match is_permanent(&error) {
                    true => drop(self.results.lists.insert(listing.list, Vec::new())),
                    false => self.results.unanswered.push(listing.list),
                }
            }
            (InFlightQuery::Single(PendingQuery::ImageNamed(name) | PendingQuery::ImageWithId(name)), _)
                if self.had_image(name) =>
            {
                self.results
                    .images
                    .extend(self.previous.images.get_key_value(name).map(|(k, v)| (k.clone(), v.clone())));
                self.results.unanswered.push("images");
            }
            // `NotFound` describes the listing; for the provider it means that a service is missing.
            (_, CloudError::NotFound(text)) => return Err(failed(format!("the cloud has no such service: {text}"))),
            _ => return Err(error),
        }
        Ok(None)
    }

    /// Pools with `ignore-provider-quota` need no limits. Others use the previous limits; without these, they wait or
    /// decline.
    fn on_limits_failure(&mut self, error: &CloudError) -> Result<(), CloudError> {
        let settings = &self.context.settings;
        if settings.ignores_quota() {
            return Ok(());
        }
        self.results.unanswered.push("limits");
        if self.previous.fallback.limits.is_some() {
            self.results.limits = self.previous.fallback.limits.clone();
            return Ok(());
        }
        let reason =
            format!("cannot read the cloud's limits ({error}); set ignore-provider-quota: true to launch without them");
        if settings.quota_pools.len() < settings.servers.len() {
            self.results.limits_unavailable = Some(Unavailable::Permanent(reason));
            return Ok(());
        }
        Err(if is_permanent(error) { CloudError::Denied(reason) } else { failed(reason) })
    }

    fn had_image(&self, name: &str) -> bool {
        self.previous.images.get(name).is_some_and(Result::is_ok)
    }

    fn build_facts(&mut self) -> Result<(ProviderFacts, Inventory), CloudError> {
        let previous = self.previous.clone();
        let fallback = FallbackData {
            subnets: self.listing_or_previous("subnets", &previous.fallback.subnets)?,
            routers: self.listing_or_previous("routers", &previous.fallback.routers)?,
            security_groups: self.listing_or_previous("security_groups", &previous.fallback.security_groups)?,
            volumes: self.listing_or_previous("volumes", &previous.fallback.volumes)?,
            limits: self.results.limits.take(),
            volume_limits: self.results.volume_limits.take(),
            network: self.results.network.take(),
        };
        let context = &self.context;
        let mut list = |name: &str| self.results.lists.remove(name).unwrap_or_default();
        let flavors: Vec<Flavor> = typed(list("flavors"), "flavors")?;
        let networks: Vec<Network> = typed(list("networks"), "networks")?;
        let networks =
            Networks::new(networks, fallback.subnets.as_deref(), fallback.routers.as_deref(), &context.cloud);
        let mut catalog = CloudCatalog::new(self.results.services.clone(), flavors).with_networks(networks);
        let sizes = fallback.volumes.iter().flatten().map(|volume| (volume.id.clone(), volume.size)).collect();
        catalog.fallback = fallback;
        catalog.limits_unavailable = self.results.limits_unavailable.take();
        catalog.images = self.results.images.drain(..).collect();
        catalog.ambiguous_images = std::mem::take(&mut self.results.ambiguous_images);
        for name in catalog.ambiguous_images.difference(&previous.ambiguous_images) {
            warn!(provider = %context.provider, image = name, "the cloud has several active images of this name; the newest is used");
        }
        catalog.zones = std::mem::take(&mut self.results.zones);
        let floating = self.results.servers.iter().filter(|server| !floating_addresses(server).is_empty());
        let floating = floating.filter_map(|server| context.label_of(&server.metadata));
        let floating = floating.map(|(pool, wanted)| (pool.clone(), wanted.label.clone()));
        catalog.floating_ip_labels = previous.floating_ip_labels.iter().cloned().chain(floating).collect();
        let mut accumulator = ListingAccumulator::default();
        accumulator.add(std::mem::take(&mut self.results.servers), &context.instance_mapper(&catalog), &sizes);
        let inventory = context.inventory(accumulator);
        let limits = catalog.limits();
        let mut unmanaged = inventory.used_by_others(&context.provider);
        let ours = inventory.instances().iter().filter_map(|instance| context.label_of(&instance.metadata));
        unmanaged.add(&catalog.network_usage_by_others(ours));
        let facts = ProviderFacts {
            unmanaged,
            limits,
            launch_config: Some(Arc::new(launching(context, &catalog))),
            failed_queries: std::mem::take(&mut self.results.unanswered),
            ..context.facts.clone()
        };
        context.set_catalog(Arc::new(catalog));
        Ok((facts, inventory))
    }

    /// The listing, or the previous one if the query failed; empty if there was no query.
    fn listing_or_previous<T: for<'de> Deserialize<'de> + Clone>(
        &mut self,
        list: &'static str,
        before: &Option<Vec<T>>,
    ) -> Result<Option<Vec<T>>, CloudError> {
        match self.results.lists.remove(list) {
            Some(entries) => typed(entries, list).map(Some),
            None if self.results.unanswered.contains(&list) => Ok(before.clone()),
            None => Ok(Some(Vec::new())),
        }
    }
}

/// A rejection is permanent; another failure may be temporary.
fn is_permanent(error: &CloudError) -> bool {
    matches!(error, CloudError::Denied(_) | CloudError::NotFound(_))
}

fn no_image(name: &str) -> String {
    format!("the cloud has no active image {name}; the lookup is repeated at the next refresh")
}

/// The launch configuration, as far as this catalog determines it.
pub fn launching(context: &ProviderContext, catalog: &CloudCatalog) -> LaunchConfig {
    let settings = &context.settings;
    let need = |pool: &PoolName, label: &LabelName, _: &Label| {
        if let Some(unavailable) = catalog.limits_unavailable.as_ref().filter(|_| settings.quota_pools.contains(pool)) {
            return Err(unavailable.clone());
        }
        match settings.servers.get(pool).and_then(|labels| labels.get(label)) {
            Some(spec) => catalog.need(pool, spec),
            None => Ok(Resources::none().with("instances", 1.0)),
        }
    };
    LaunchConfig {
        zones: catalog.zones.clone(),
        resource_kinds: settings.resource_kinds(),
        ..settings.section.launching(need)
    }
}

const COMPUTE_LIMITS: [(&str, &str); 3] =
    [("maxTotalInstances", "instances"), ("maxTotalCores", "cores"), ("maxTotalRAMSize", "ram")];
const VOLUME_LIMITS: [(&str, &str); 2] = [("maxTotalVolumes", "volumes"), ("maxTotalVolumeGigabytes", "volume-gb")];

/// A negative or missing limit means unlimited.
fn limits(answer: &Value, names: &[(&str, &str)]) -> Result<Resources, CloudError> {
    let absolute =
        answer.pointer("/limits/absolute").ok_or_else(|| failed("the response has no `limits.absolute`".to_owned()))?;
    let mut limits = Resources::unlimited();
    for (key, name) in names {
        if let Some(limit) = absolute.get(*key).and_then(api_types::number).filter(|limit| *limit >= 0.0) {
            limits.set(name, limit);
        }
    }
    Ok(limits)
}

/// The launch configuration before the first refresh: no label counts as unavailable.
pub fn initial_launching(settings: &Settings) -> LaunchConfig {
    let launching = settings.section.launching(|_, _, _| Ok(Resources::none().with("instances", 1.0)));
    LaunchConfig { resource_kinds: settings.resource_kinds(), ..launching }
}
