//! What the machines of one provider share: its settings, and what they last saw of the cloud.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::catalog::CloudCatalog;
use crate::openstack::api_types::Server;
use crate::openstack::config::{ServerSpec, Settings};
use crate::openstack::instances::{InstanceMapper, floating_addresses};
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::instance::{Instance, Inventory};
use nodepool_driver::job::LaunchOrder;
use nodepool_model::records::ids::{ExternalId, LabelName, PoolName, ProviderName};
use openstack_clouds::{CloudSettings, FloatingIps};

pub struct ProviderContext {
    pub provider: ProviderName,
    pub settings: Settings,
    pub cloud: Arc<CloudSettings>,
    pub has_ipv6: bool,
    pub facts: ProviderFacts,
    cache: Mutex<ProviderCache>,
}

/// What is remembered from one job to the next.
#[derive(Default)]
struct ProviderCache {
    catalog: Arc<CloudCatalog>,
    /// Servers of the last listing, and those made since.
    servers: HashSet<String>,
    /// Ports and floating addresses that nobody used at the last look.
    previously_unused: HashMap<&'static str, HashSet<String>>,
    /// Floating addresses by server: those that Nova showed, and those that we made since.
    floating_ips: HashMap<String, Vec<String>>,
    /// Names of servers that were refused for what the stock says of images, flavors and networks, until there is another stock, and the
    /// uploads that they were to boot from.
    refused_servers: HashMap<String, Option<ExternalId>>,
    /// Ports by server for which a floating address was asked, until it is among those above.
    pending_floating_ips: HashMap<String, String>,
}

/// What a listing has shown so far. Thousands of servers are much to keep as Nova writes them.
#[derive(Default)]
pub struct ListingAccumulator {
    instances: Vec<Instance>,
    ids: HashSet<String>,
    floating_ips: HashMap<String, Vec<String>>,
}

impl ListingAccumulator {
    pub fn add(&mut self, servers: Vec<Server>, mapper: &InstanceMapper<'_>, sizes: &HashMap<String, f64>) {
        for server in servers {
            let addresses = floating_addresses(&server);
            // What we have just made, Nova shows a little later.
            if !addresses.is_empty() {
                self.floating_ips.insert(server.id.clone(), addresses);
            }
            self.ids.insert(server.id.clone());
            // Administrators see servers that are gone for a while.
            if !matches!(server.status.as_str(), "DELETED" | "SOFT_DELETED") {
                self.instances.push(mapper.instance(server, sizes));
            }
        }
    }
}

impl ProviderContext {
    pub fn new(
        provider: ProviderName,
        settings: Settings,
        cloud: Arc<CloudSettings>,
        has_ipv6: bool,
        facts: ProviderFacts,
    ) -> Self {
        Self { provider, settings, cloud, has_ipv6, facts, cache: Mutex::default() }
    }

    pub fn catalog(&self) -> Arc<CloudCatalog> {
        self.cache().catalog.clone()
    }

    pub fn set_catalog(&self, catalog: Arc<CloudCatalog>) {
        let mut cache = self.cache();
        cache.catalog = catalog;
        cache.refused_servers.clear();
    }

    /// The cloud found something wrong with what was asked for: what is known of it may be outdated.
    pub fn record_refused_server(&self, order: &LaunchOrder) {
        self.cache().refused_servers.insert(order.hostname.clone(), order.image.clone());
    }

    /// Whether the same would be asked for again; another upload may be what it takes.
    pub fn was_refused(&self, order: &LaunchOrder) -> bool {
        self.cache().refused_servers.get(&order.hostname) == Some(&order.image)
    }

    pub fn server_spec(&self, order: &LaunchOrder) -> Option<Arc<ServerSpec>> {
        self.settings.servers.get(&order.pool)?.get(&order.label).cloned()
    }

    /// Of which pool and label a server of this provider is, by its metadata.
    pub fn label_of(&self, metadata: &BTreeMap<String, String>) -> Option<(&PoolName, &ServerSpec)> {
        let metadata_value = |key: &str| metadata.get(key).map(String::as_str);
        let (pool, label) = (metadata_value("nodepool_pool_name")?, metadata_value("nodepool_node_label")?);
        let is_ours = metadata_value("nodepool_provider_name")? == self.provider.as_str();
        let (pool, labels) = self.settings.servers.get_key_value(&PoolName::from(pool)).filter(|_| is_ours)?;
        Some((pool, labels.get(&LabelName::from(label))?))
    }

    pub fn instance_mapper<'a>(&'a self, catalog: &'a CloudCatalog) -> InstanceMapper<'a> {
        InstanceMapper { cloud: &self.cloud, region: self.region(), has_ipv6: self.has_ipv6, catalog }
    }

    /// A complete listing as an inventory; what it shows of floating addresses is remembered.
    pub fn inventory(&self, listing: ListingAccumulator) -> Inventory {
        let mut cache = self.cache();
        cache.servers = listing.ids;
        let ProviderCache { servers: known, floating_ips: floating, .. } = &mut *cache;
        floating.retain(|id, _| known.contains(id));
        floating.extend(listing.floating_ips);
        Inventory::new(listing.instances)
    }

    pub fn record_created_server(&self, id: &str) {
        self.cache().servers.insert(id.to_owned());
    }

    /// To be said before the request goes out: its answer may be lost, or nobody may be there any more to hear it.
    pub fn record_floating_ip_request(&self, server: &str, port: &str) {
        self.cache().pending_floating_ips.insert(server.to_owned(), port.to_owned());
    }

    pub fn record_created_floating_ip(&self, server: &str, address: &str) {
        let mut cache = self.cache();
        cache.pending_floating_ips.remove(server);
        cache.floating_ips.entry(server.to_owned()).or_default().push(address.to_owned());
    }

    /// The port at which there may be a floating address that nobody has heard of.
    pub fn port_with_unconfirmed_floating_ip(&self, server: &str) -> Option<String> {
        self.cache().pending_floating_ips.get(server).cloned()
    }

    pub fn record_deleted_server(&self, id: &str) {
        self.cache().pending_floating_ips.remove(id);
    }

    /// The floating addresses of a server; `None` for one that was not seen since the start.
    pub fn floating_addresses_of(&self, server: &str) -> Option<Vec<String>> {
        let cache = self.cache();
        let known = cache.servers.contains(server) || cache.floating_ips.contains_key(server);
        known.then(|| cache.floating_ips.get(server).cloned().unwrap_or_default())
    }

    /// Takes down what nobody uses now; comes back with what nobody used at the look before as well.
    pub fn unused_since_previous_listing(&self, kind: &'static str, now: Vec<String>) -> Vec<String> {
        let now: HashSet<String> = now.into_iter().collect();
        let previous = self.cache().previously_unused.insert(kind, now.clone()).unwrap_or_default();
        now.into_iter().filter(|id| previous.contains(id)).collect()
    }

    /// Whether servers of this provider may have floating addresses of Neutron.
    pub fn uses_floating_ips(&self) -> bool {
        self.cloud.floating_ips == FloatingIps::Neutron
            && self.settings.servers.values().flat_map(|labels| labels.values()).any(|wanted| wanted.floating_ip)
    }

    pub fn region(&self) -> Option<&str> {
        self.settings.region.as_deref()
    }

    fn cache(&self) -> MutexGuard<'_, ProviderCache> {
        // Nothing in here is ever half changed.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
