//! State that the state machines of one provider share: its settings, and the last observations of its cloud.

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

/// State kept from one job to the next.
#[derive(Default)]
struct ProviderCache {
    catalog: Arc<CloudCatalog>,
    /// Servers of the last listing, and those created since.
    servers: HashSet<String>,
    /// Floating addresses by server: those that Nova listed, and those that we created since.
    floating_ips: HashMap<String, Vec<String>>,
    /// Servers whose creation was rejected, perhaps because the catalog is outdated: their names, and the uploads that
    /// they would boot from. Cleared when the catalog is replaced.
    refused_servers: HashMap<String, Option<ExternalId>>,
    /// Ports that were down in the previous listing of unused resources.
    ports_down: HashSet<String>,
    /// Ports by server for which a floating address was requested, until it is confirmed.
    pending_floating_ips: HashMap<String, String>,
}

/// Pages of a listing received so far. Servers are converted per page: thousands of Nova's records use much memory.
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
            // Nova lists a new floating address a little later, so an empty list does not replace it.
            if !addresses.is_empty() {
                self.floating_ips.insert(server.id.clone(), addresses);
            }
            self.ids.insert(server.id.clone());
            // Administrators see deleted servers for a while.
            if !matches!(server.status.to_uppercase().as_str(), "DELETED" | "SOFT_DELETED") {
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

    /// Called when the cloud has rejected a creation as invalid: the catalog may be outdated.
    pub fn record_refused_server(&self, order: &LaunchOrder) {
        self.cache().refused_servers.insert(order.hostname.clone(), order.image.clone());
    }

    /// Whether the cloud has rejected this order with the same image. A new upload may be accepted.
    pub fn was_refused(&self, order: &LaunchOrder) -> bool {
        self.cache().refused_servers.get(&order.hostname) == Some(&order.image)
    }

    pub fn server_spec(&self, order: &LaunchOrder) -> Option<Arc<ServerSpec>> {
        self.settings.servers.get(&order.pool)?.get(&order.label).cloned()
    }

    /// Pool and label of a server of this provider, by its metadata.
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

    /// Converts a complete listing to an inventory, and caches its floating addresses.
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

    /// Called before the request is sent: the response may be lost, or the job may be cancelled before it arrives.
    pub fn record_floating_ip_request(&self, server: &str, port: &str) {
        self.cache().pending_floating_ips.insert(server.to_owned(), port.to_owned());
    }

    pub fn record_created_floating_ip(&self, server: &str, address: &str) {
        let mut cache = self.cache();
        cache.pending_floating_ips.remove(server);
        cache.floating_ips.entry(server.to_owned()).or_default().push(address.to_owned());
    }

    /// The port whose requested floating address has not been confirmed.
    pub fn port_with_unconfirmed_floating_ip(&self, server: &str) -> Option<String> {
        self.cache().pending_floating_ips.get(server).cloned()
    }

    pub fn record_deleted_server(&self, id: &str) {
        self.cache().pending_floating_ips.remove(id);
    }

    /// The floating addresses of a server; `None` if the server has not been listed since the start.
    pub fn floating_addresses_of(&self, server: &str) -> Option<Vec<String>> {
        let cache = self.cache();
        let known = cache.servers.contains(server) || cache.floating_ips.contains_key(server);
        known.then(|| cache.floating_ips.get(server).cloned().unwrap_or_default())
    }

    /// Records the ports that are down now; returns those that were down in the previous listing.
    pub fn remember_ports_down(&self, now: HashSet<String>) -> HashSet<String> {
        std::mem::replace(&mut self.cache().ports_down, now)
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
        // No update can panic halfway, so the value is consistent even if the lock is poisoned.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
