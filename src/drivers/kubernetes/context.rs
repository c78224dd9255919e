//! State that the state machines of one provider share: its settings, and the last observation of its pods.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::client::ClusterAddress;
use super::config::{PodLabel, Settings};
use super::inventory::PodState;
use super::watch::Objects;
use nodepool_driver::facts::ProviderFacts;
use nodepool_model::records::ids::{LabelName, PoolName, ProviderName};

pub struct ProviderContext {
    pub provider: ProviderName,
    pub settings: Settings,
    pub facts: ProviderFacts,
    /// The pods of the last inventory, by namespace.
    pods: Mutex<HashMap<String, PodState>>,
    /// Obstacles of deletions by namespace, according to the last inventory.
    obstacles: Mutex<HashMap<String, String>>,
    /// The objects as the watches last showed them.
    objects: Mutex<Objects>,
    /// Known once the credentials were read.
    address: OnceLock<ClusterAddress>,
}

impl ProviderContext {
    pub fn new(provider: ProviderName, settings: Settings, facts: ProviderFacts) -> Self {
        Self {
            provider,
            settings,
            facts,
            pods: Mutex::default(),
            obstacles: Mutex::default(),
            objects: Mutex::default(),
            address: OnceLock::new(),
        }
    }

    pub fn label(&self, pool: &PoolName, label: &LabelName) -> Option<&Arc<PodLabel>> {
        self.settings.pools.get(pool)?.get(label)
    }

    pub fn set_address(&self, address: ClusterAddress) {
        // A changed kubeconfig replaces the provider, so the first address stays.
        let _ = self.address.set(address);
    }

    pub fn address(&self) -> Option<ClusterAddress> {
        self.address.get().cloned()
    }

    /// The selector of the objects that this provider has made.
    pub fn selector(&self) -> String {
        format!("nodepool_provider_name={}", self.provider)
    }

    pub fn set_obstacles(&self, obstacles: HashMap<String, String>) {
        *self.obstacles.lock().unwrap_or_else(PoisonError::into_inner) = obstacles;
    }

    /// The obstacle that holds up the deletion of a namespace, in the cluster's words.
    pub fn obstacle(&self, namespace: &str) -> Option<String> {
        self.obstacles.lock().unwrap_or_else(PoisonError::into_inner).get(namespace).cloned()
    }

    pub fn set_pods(&self, pods: HashMap<String, PodState>) {
        *self.pods() = pods;
    }

    /// The pod in a namespace, as the last inventory showed it.
    pub fn pod_in(&self, namespace: &str) -> Option<PodState> {
        self.pods().get(namespace).cloned()
    }

    pub fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<String, PodState>> {
        // No update can panic halfway, so the value is consistent even if the lock is poisoned.
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
