//! The survey of a cloud, one request after the other: services, flavors, networks, images, zones, limits, servers.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use crate::common::servers::Label;
use crate::openstack::api_types::{self, Flavor, Network, Server, Zone};
use crate::openstack::calls::{self, Call, Listing, Reply};
use crate::openstack::catalog::catalog::{Kept, NetworkQuota, Networks, Stock};
use crate::openstack::catalog::shared::{Gathered, Shared};
use crate::openstack::config::{Image, Settings};
use crate::openstack::errors::failed;
use crate::openstack::http::Services;
use crate::openstack::instances::floating_addresses;
use crate::openstack::pagination::{Pages, Step, typed};
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::{Facts, Launching, Trouble};
use nodepool_driver::instance::Inventory;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next};
use nodepool_model::records::ids::{LabelName, PoolName};
use nodepool_model::records::resources::Amounts;

pub struct Survey {
    shared: Arc<Shared>,
    todo: VecDeque<Todo>,
    asked: Option<Asked>,
    found: Found,
    /// What the survey before found.
    before: Arc<Stock>,
}

/// What is still to be looked at.
#[derive(Clone, Debug)]
enum Todo {
    Services,
    List(Listing),
    /// Active images of a name, which may be an id.
    ImageNamed(String),
    ImageWithId(String),
    Zones,
    ComputeLimits,
    VolumeLimits,
    NetworkQuota,
    Servers,
}

/// The request that is under way.
enum Asked {
    One(Todo),
    Pages(Listing, Pages<Value>),
    Servers(Pages<Server>),
}

#[derive(Default)]
struct Found {
    services: Services,
    lists: HashMap<&'static str, Vec<Value>>,
    images: Vec<(String, Result<String, String>)>,
    zones: Vec<String>,
    limits: Option<Amounts>,
    volume_limits: Option<Amounts>,
    network: Option<NetworkQuota>,
    limits_trouble: Option<Trouble>,
    servers: Vec<Server>,
    unanswered: Vec<&'static str>,
}

impl Survey {
    pub fn new(shared: Arc<Shared>) -> Self {
        let before = shared.stock();
        Self { shared, todo: VecDeque::from([Todo::Services]), asked: None, found: Found::default(), before }
    }

    pub fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        let result = match (input, self.asked.take()) {
            (Input::Start, _) => Ok(None),
            (Input::Reply(Ok(reply)), Some(asked)) => self.take(asked, reply),
            (Input::Reply(Err(error)), Some(asked)) => self.do_without(asked, error),
            (input, _) => unreachable!("a survey asks before it hears {input:?}"),
        };
        match result {
            Ok(Some(call)) => Next::Call(call),
            Ok(None) => match self.todo.pop_front() {
                Some(todo) => Next::Call(self.ask(todo)),
                None => match self.facts() {
                    Ok((facts, inventory)) => Next::Done(Outcome::Surveyed(Arc::new(facts), Arc::new(inventory))),
                    Err(error) => Next::Failed(error),
                },
            },
            Err(error) => Next::Failed(error),
        }
    }

    fn ask(&mut self, todo: Todo) -> Call {
        let call = match &todo {
            Todo::Services => calls::discover(),
            Todo::List(listing) => {
                let (pages, call) = Pages::begin(*listing);
                self.asked = Some(Asked::Pages(*listing, pages));
                return call;
            }
            Todo::Servers => {
                let (pages, call) = Pages::servers();
                self.asked = Some(Asked::Servers(pages));
                return call;
            }
            Todo::ImageNamed(name) => calls::IMAGES.page(None, &[("name", name), ("status", "active")]),
            Todo::ImageWithId(id) => calls::image(id),
            Todo::Zones => calls::zones(),
            Todo::ComputeLimits => calls::compute_limits(),
            Todo::VolumeLimits => calls::volume_limits(),
            Todo::NetworkQuota => calls::network_quota(),
        };
        self.asked = Some(Asked::One(todo));
        call
    }

    fn take(&mut self, asked: Asked, reply: Reply) -> Result<Option<Call>, CloudError> {
        match (asked, reply) {
            (Asked::One(_), Reply::Discovered(services)) => {
                self.plan(&services);
                self.found.services = services;
            }
            (Asked::Pages(listing, pages), Reply::Json(answer)) => match pages.take_json(&answer)? {
                Step::Next(pages, call) => {
                    self.asked = Some(Asked::Pages(listing, pages));
                    return Ok(Some(call));
                }
                Step::Complete(entries) => {
                    self.found.lists.insert(listing.list, entries);
                }
            },
            (Asked::Servers(pages), Reply::Servers(page)) => match pages.take_servers(page)? {
                Step::Next(pages, call) => {
                    self.asked = Some(Asked::Servers(pages));
                    return Ok(Some(call));
                }
                Step::Complete(servers) => self.take_servers(servers),
            },
            (Asked::One(todo), Reply::Json(answer)) => self.take_one(todo, &answer)?,
            (_, reply) => return Err(failed(format!("{reply:?} does not answer a survey"))),
        }
        Ok(None)
    }

    /// What is to be looked at depends on what the cloud has and the configuration wants.
    fn plan(&mut self, services: &Services) {
        let settings = &self.shared.settings;
        self.todo.push_back(Todo::List(calls::FLAVORS));
        if services.network {
            self.todo.push_back(Todo::List(calls::NETWORKS));
            if self.shared.uses_floating_ips() {
                self.todo.extend([Todo::List(calls::SUBNETS), Todo::List(calls::ROUTERS)]);
            }
        }
        let images =
            settings.servers.values().flat_map(|labels| labels.values()).filter_map(|wanted| match &wanted.image {
                Image::Name(name) => Some(name.clone()),
                Image::Id(_) | Image::Uploaded => None,
            });
        self.todo.extend(images.collect::<BTreeSet<_>>().into_iter().map(Todo::ImageNamed));
        if settings.wants_zones {
            self.todo.push_back(Todo::Zones);
        }
        self.todo.push_back(Todo::ComputeLimits);
        if services.block_storage {
            self.todo.push_back(Todo::VolumeLimits);
        }
        if services.network && !settings.ignores_limits() {
            self.todo.push_back(Todo::NetworkQuota);
        }
        self.todo.push_back(Todo::Servers);
    }

    fn take_servers(&mut self, servers: Vec<Server>) {
        let has_volumes = servers.iter().any(|server| !server.volumes.is_empty());
        if has_volumes && self.found.services.block_storage {
            self.todo.push_back(Todo::List(calls::VOLUMES));
        }
        self.found.servers = servers;
    }

    fn take_one(&mut self, todo: Todo, answer: &Value) -> Result<(), CloudError> {
        match todo {
            Todo::ImageNamed(name) => {
                let images: Vec<api_types::Image> = api_types::list(answer, "images").map_err(failed)?;
                // The newest comes first.
                match images.into_iter().find(|image| image.status == "active") {
                    Some(image) => self.found.images.push((name, Ok(image.id))),
                    None => self.todo.push_front(Todo::ImageWithId(name)),
                }
            }
            Todo::ImageWithId(name) => {
                let image: Option<api_types::Image> = serde_json::from_value(answer.clone()).ok();
                let active = image.filter(|image| image.status == "active");
                let id = active.map(|image| image.id).ok_or_else(|| no_image(&name));
                self.found.images.push((name, id));
            }
            Todo::Zones => {
                let zones: Vec<Zone> = api_types::list(answer, "availabilityZoneInfo").map_err(failed)?;
                let available = zones.into_iter().filter(|zone| zone.state.available);
                self.found.zones = available.map(|zone| zone.name).collect();
            }
            Todo::ComputeLimits => self.found.limits = Some(limits(answer, &COMPUTE_LIMITS)?),
            Todo::VolumeLimits => self.found.volume_limits = Some(limits(answer, &VOLUME_LIMITS)?),
            Todo::NetworkQuota => self.found.network = Some(NetworkQuota::of(answer)),
            Todo::Services | Todo::List(_) | Todo::Servers => {
                return Err(failed("an answer of another kind than asked for".to_owned()));
            }
        }
        Ok(())
    }

    /// What a cloud may refuse and still be used.
    fn do_without(&mut self, asked: Asked, error: CloudError) -> Result<Option<Call>, CloudError> {
        match (&asked, &error) {
            (Asked::One(Todo::ImageWithId(name)), CloudError::NotFound | CloudError::Failed { .. }) => {
                self.found.images.push((name.clone(), Err(no_image(name))));
            }
            // There is no Glance, or none for us: that is about labels whose image has to be looked up, and no others.
            (
                Asked::One(Todo::ImageNamed(name) | Todo::ImageWithId(name)),
                CloudError::NotFound | CloudError::Denied(_),
            ) => {
                let why = format!("image {name} cannot be looked up ({error}); an image-id does without a look");
                self.found.images.push((name.clone(), Err(why)));
            }
            (Asked::One(Todo::Zones), _) => {}
            (Asked::One(Todo::ComputeLimits), _) => self.do_without_limits(&error)?,
            (Asked::One(Todo::VolumeLimits), _) => {
                self.found.volume_limits = self.before.kept.volume_limits.clone();
                if !is_refusal(&error) && !self.shared.settings.ignores_limits() {
                    self.found.unanswered.push("volume limits");
                }
            }
            // A Neutron that does not tell them refuses what is too much all the same.
            (Asked::One(Todo::NetworkQuota), _) => {
                self.found.network = self.before.kept.network.clone();
                if !is_refusal(&error) {
                    self.found.unanswered.push("network limits");
                }
            }
            // What is refused will be refused tomorrow; what has failed is asked for again soon.
            (Asked::Pages(listing, _), _) if matches!(listing.list, "subnets" | "routers" | "volumes") => {
                match is_refusal(&error) {
                    true => drop(self.found.lists.insert(listing.list, Vec::new())),
                    false => self.found.unanswered.push(listing.list),
                }
            }
            (Asked::One(Todo::ImageNamed(name) | Todo::ImageWithId(name)), _) if self.knew_image(name) => {
                self.found.images.extend(self.before.images.get_key_value(name).map(|(k, v)| (k.clone(), v.clone())));
                self.found.unanswered.push("images");
            }
            // The message of a refused listing is about that listing, not about the provider.
            (_, CloudError::NotFound) => return Err(failed("the cloud has no such service".to_owned())),
            _ => return Err(error),
        }
        Ok(None)
    }

    /// They do not matter to pools with `ignore-provider-quota`; others go by what they were, and without that wait or decline.
    fn do_without_limits(&mut self, error: &CloudError) -> Result<(), CloudError> {
        let settings = &self.shared.settings;
        if settings.ignores_limits() {
            return Ok(());
        }
        self.found.unanswered.push("limits");
        if self.before.kept.limits.is_some() {
            self.found.limits = self.before.kept.limits.clone();
            return Ok(());
        }
        let why =
            format!("the cloud does not tell its limits ({error}); ignore-provider-quota: true does without them");
        if settings.limited.len() < settings.servers.len() {
            self.found.limits_trouble = Some(Trouble::Broken(why));
            return Ok(());
        }
        Err(if is_refusal(error) { CloudError::Denied(why) } else { failed(why) })
    }

    fn knew_image(&self, name: &str) -> bool {
        self.before.images.get(name).is_some_and(Result::is_ok)
    }

    fn facts(&mut self) -> Result<(Facts, Inventory), CloudError> {
        let before = self.before.clone();
        let kept = Kept {
            subnets: self.known("subnets", &before.kept.subnets)?,
            routers: self.known("routers", &before.kept.routers)?,
            volumes: self.known("volumes", &before.kept.volumes)?,
            limits: self.found.limits.take(),
            volume_limits: self.found.volume_limits.take(),
            network: self.found.network.take(),
        };
        let shared = &self.shared;
        let mut list = |name: &str| self.found.lists.remove(name).unwrap_or_default();
        let flavors: Vec<Flavor> = typed(list("flavors"), "flavors")?;
        let networks: Vec<Network> = typed(list("networks"), "networks")?;
        let networks = Networks::new(networks, kept.subnets.as_deref(), kept.routers.as_deref(), &shared.cloud);
        let mut stock = Stock::new(self.found.services.clone(), flavors).with_networks(networks);
        let sizes = kept.volumes.iter().flatten().map(|volume| (volume.id.clone(), volume.size)).collect();
        stock.kept = kept;
        stock.limits_trouble = self.found.limits_trouble.take();
        stock.images = self.found.images.drain(..).collect();
        stock.zones = std::mem::take(&mut self.found.zones);
        let floating = self.found.servers.iter().filter(|server| !floating_addresses(server).is_empty());
        let floating = floating.filter_map(|server| shared.label_of(&server.metadata));
        let floating = floating.map(|(pool, wanted)| (pool.clone(), wanted.label.clone()));
        stock.floating_labels = before.floating_labels.iter().cloned().chain(floating).collect();
        let mut gathered = Gathered::default();
        gathered.add(std::mem::take(&mut self.found.servers), &shared.view(&stock), &sizes);
        let inventory = shared.inventory(gathered);
        let limits = stock.limits();
        let mut unmanaged = inventory.used_by_others(&shared.provider);
        let ours = inventory.instances().iter().filter_map(|instance| shared.label_of(&instance.metadata));
        unmanaged.add(&stock.network_use_of_others(ours));
        let facts = Facts {
            unmanaged,
            limits,
            launching: Some(Arc::new(launching(shared, &stock))),
            unanswered: std::mem::take(&mut self.found.unanswered),
            ..shared.facts.clone()
        };
        shared.put_stock(Arc::new(stock));
        Ok((facts, inventory))
    }

    /// A listing, or where the cloud did not answer what it said the last time. Nothing where nobody asked.
    fn known<T: for<'de> Deserialize<'de> + Clone>(
        &mut self,
        list: &'static str,
        before: &Option<Vec<T>>,
    ) -> Result<Option<Vec<T>>, CloudError> {
        match self.found.lists.remove(list) {
            Some(entries) => typed(entries, list).map(Some),
            None if self.found.unanswered.contains(&list) => Ok(before.clone()),
            None => Ok(Some(Vec::new())),
        }
    }
}

/// What the cloud refuses today it will refuse tomorrow; what has failed may work in a moment.
fn is_refusal(error: &CloudError) -> bool {
    matches!(error, CloudError::Denied(_) | CloudError::NotFound)
}

fn no_image(name: &str) -> String {
    format!("the cloud has no active image {name}; it is looked for again")
}

/// How the provider launches, as far as this stock goes.
pub fn launching(shared: &Shared, stock: &Stock) -> Launching {
    let settings = &shared.settings;
    let need = |pool: &PoolName, label: &LabelName, _: &Label| {
        if let Some(trouble) = stock.limits_trouble.as_ref().filter(|_| settings.limited.contains(pool)) {
            return Err(trouble.clone());
        }
        match settings.servers.get(pool).and_then(|labels| labels.get(label)) {
            Some(wanted) => stock.need(pool, wanted),
            None => Ok(Amounts::none().with("instances", 1.0)),
        }
    };
    Launching { zones: stock.zones.clone(), tidy: settings.tidy(), ..settings.section.launching(need) }
}

const COMPUTE_LIMITS: [(&str, &str); 3] =
    [("maxTotalInstances", "instances"), ("maxTotalCores", "cores"), ("maxTotalRAMSize", "ram")];
const VOLUME_LIMITS: [(&str, &str); 2] = [("maxTotalVolumes", "volumes"), ("maxTotalVolumeGigabytes", "volume-gb")];

/// A negative limit is none, and so is one that is not named.
fn limits(answer: &Value, names: &[(&str, &str)]) -> Result<Amounts, CloudError> {
    let absolute = answer.pointer("/limits/absolute").ok_or_else(|| failed("limits without `absolute`".to_owned()))?;
    let mut limits = Amounts::unlimited();
    for (key, name) in names {
        if let Some(limit) = absolute.get(*key).and_then(Value::as_f64).filter(|limit| *limit >= 0.0) {
            limits.set(name, limit);
        }
    }
    Ok(limits)
}

/// How it launches before anything has been seen: nothing is known to be missing.
pub fn unseen(settings: &Settings) -> Launching {
    let launching = settings.section.launching(|_, _, _| Ok(Amounts::none().with("instances", 1.0)));
    Launching { tidy: settings.tidy(), ..launching }
}
