//! What the machines of one provider share: its settings, and what they last saw of the cloud.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::catalog::Stock;
use crate::openstack::api_types::Server;
use crate::openstack::config::{Settings, Wanted};
use crate::openstack::instances::{View, floating_addresses};
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::instance::{Instance, Inventory};
use nodepool_driver::job::LaunchOrder;
use nodepool_model::records::ids::{ExternalId, LabelName, PoolName, ProviderName};
use openstack_clouds::{CloudSettings, FloatingIps};

pub struct Shared {
    pub provider: ProviderName,
    pub settings: Settings,
    pub cloud: Arc<CloudSettings>,
    pub has_ipv6: bool,
    pub facts: ProviderFacts,
    shelf: Mutex<Shelf>,
}

/// What is remembered from one job to the next.
#[derive(Default)]
struct Shelf {
    stock: Arc<Stock>,
    /// Servers of the last listing, and those made since.
    servers: HashSet<String>,
    /// Ports and floating addresses that nobody used at the last look.
    unused: HashMap<&'static str, HashSet<String>>,
    /// Floating addresses by server: those that Nova showed, and those that we made since.
    floating: HashMap<String, Vec<String>>,
    /// Names of servers that were refused for what the stock says of images, flavors and networks, until there is another stock, and the
    /// uploads that they were to boot from.
    refused: HashMap<String, Option<ExternalId>>,
    /// Ports by server for which a floating address was asked, until it is among those above.
    asked: HashMap<String, String>,
}

/// What a listing has shown so far. Thousands of servers are much to keep as Nova writes them.
#[derive(Default)]
pub struct Gathered {
    instances: Vec<Instance>,
    ids: HashSet<String>,
    floating: HashMap<String, Vec<String>>,
}

impl Gathered {
    pub fn add(&mut self, servers: Vec<Server>, view: &View<'_>, sizes: &HashMap<String, f64>) {
        for server in servers {
            let addresses = floating_addresses(&server);
            // What we have just made, Nova shows a little later.
            if !addresses.is_empty() {
                self.floating.insert(server.id.clone(), addresses);
            }
            self.ids.insert(server.id.clone());
            // Administrators see servers that are gone for a while.
            if !matches!(server.status.as_str(), "DELETED" | "SOFT_DELETED") {
                self.instances.push(view.instance(server, sizes));
            }
        }
    }
}

impl Shared {
    pub fn new(
        provider: ProviderName,
        settings: Settings,
        cloud: Arc<CloudSettings>,
        has_ipv6: bool,
        facts: ProviderFacts,
    ) -> Self {
        Self { provider, settings, cloud, has_ipv6, facts, shelf: Mutex::default() }
    }

    pub fn stock(&self) -> Arc<Stock> {
        self.shelf().stock.clone()
    }

    pub fn put_stock(&self, stock: Arc<Stock>) {
        let mut shelf = self.shelf();
        shelf.stock = stock;
        shelf.refused.clear();
    }

    /// The cloud found something wrong with what was asked for: what is known of it may be outdated.
    pub fn refused_server(&self, order: &LaunchOrder) {
        self.shelf().refused.insert(order.hostname.clone(), order.image.clone());
    }

    /// Whether the same would be asked for again; another upload may be what it takes.
    pub fn was_refused(&self, order: &LaunchOrder) -> bool {
        self.shelf().refused.get(&order.hostname) == Some(&order.image)
    }

    pub fn wanted(&self, order: &LaunchOrder) -> Option<Arc<Wanted>> {
        self.settings.servers.get(&order.pool)?.get(&order.label).cloned()
    }

    /// Of which pool and label a server of this provider is, by its metadata.
    pub fn label_of(&self, metadata: &BTreeMap<String, String>) -> Option<(&PoolName, &Wanted)> {
        let given = |key: &str| metadata.get(key).map(String::as_str);
        let (pool, label) = (given("nodepool_pool_name")?, given("nodepool_node_label")?);
        let is_ours = given("nodepool_provider_name")? == self.provider.as_str();
        let (pool, labels) = self.settings.servers.get_key_value(&PoolName::from(pool)).filter(|_| is_ours)?;
        Some((pool, labels.get(&LabelName::from(label))?))
    }

    pub fn view<'a>(&'a self, stock: &'a Stock) -> View<'a> {
        View { cloud: &self.cloud, region: self.region(), has_ipv6: self.has_ipv6, stock }
    }

    /// A complete listing as an inventory; what it shows of floating addresses is remembered.
    pub fn inventory(&self, gathered: Gathered) -> Inventory {
        let mut shelf = self.shelf();
        shelf.servers = gathered.ids;
        let Shelf { servers: known, floating, .. } = &mut *shelf;
        floating.retain(|id, _| known.contains(id));
        floating.extend(gathered.floating);
        Inventory::new(gathered.instances)
    }

    pub fn made_server(&self, id: &str) {
        self.shelf().servers.insert(id.to_owned());
    }

    /// To be said before the request goes out: its answer may be lost, or nobody may be there any more to hear it.
    pub fn asks_floating_ip(&self, server: &str, port: &str) {
        self.shelf().asked.insert(server.to_owned(), port.to_owned());
    }

    pub fn made_floating_ip(&self, server: &str, address: &str) {
        let mut shelf = self.shelf();
        shelf.asked.remove(server);
        shelf.floating.entry(server.to_owned()).or_default().push(address.to_owned());
    }

    /// The port at which there may be a floating address that nobody has heard of.
    pub fn port_in_doubt(&self, server: &str) -> Option<String> {
        self.shelf().asked.get(server).cloned()
    }

    pub fn deleted_server(&self, id: &str) {
        self.shelf().asked.remove(id);
    }

    /// The floating addresses of a server; `None` for one that was not seen since the start.
    pub fn floating_addresses_of(&self, server: &str) -> Option<Vec<String>> {
        let shelf = self.shelf();
        let known = shelf.servers.contains(server) || shelf.floating.contains_key(server);
        known.then(|| shelf.floating.get(server).cloned().unwrap_or_default())
    }

    /// Takes down what nobody uses now; comes back with what nobody used at the look before as well.
    pub fn unused_twice(&self, what: &'static str, now: Vec<String>) -> Vec<String> {
        let now: HashSet<String> = now.into_iter().collect();
        let before = self.shelf().unused.insert(what, now.clone()).unwrap_or_default();
        now.into_iter().filter(|id| before.contains(id)).collect()
    }

    /// Whether servers of this provider may have floating addresses of Neutron.
    pub fn uses_floating_ips(&self) -> bool {
        self.cloud.floating_ips == FloatingIps::Neutron
            && self.settings.servers.values().flat_map(|labels| labels.values()).any(|wanted| wanted.floating_ip)
    }

    pub fn region(&self) -> Option<&str> {
        self.settings.region.as_deref()
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        // Nothing in here is ever half changed.
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
