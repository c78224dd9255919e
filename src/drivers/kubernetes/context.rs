//! State that the state machines of one provider share: its settings, and the last observation of its pods.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tracing::warn;

use super::client::{ClusterAddress, OwnLogin};
use super::config::{PodLabel, Settings};
use super::inventory::PodState;
use super::own_login;
use super::watch::Objects;
use nodepool_driver::facts::{PoolQuota, ProviderFacts};
use nodepool_model::records::ids::{ExternalId, LabelName, PoolName, ProviderName};
use nodepool_model::records::resources::Resources;

pub struct ProviderContext {
    pub provider: ProviderName,
    pub settings: Settings,
    pub facts: ProviderFacts,
    /// The pods of the last inventory, by the id of their node.
    pods: Mutex<HashMap<String, PodState>>,
    /// Ids of the nodes of this provider in the last inventory.
    ours: Mutex<HashSet<String>>,
    /// Obstacles of deletions by the id of the node, according to the last inventory.
    obstacles: Mutex<HashMap<String, String>>,
    /// The objects as the watches last showed them.
    objects: Mutex<Objects>,
    /// Known once the credentials were read.
    address: OnceLock<ClusterAddress>,
    own_login: Mutex<Option<OwnLogin>>,
    /// The cluster has refused to change labels of projects.
    refuses_labels: AtomicBool,
    refuses_quotas: AtomicBool,
    quota: Mutex<Option<PoolQuota>>,
    unwatched: Mutex<BTreeSet<String>>,
}

impl ProviderContext {
    pub fn new(provider: ProviderName, settings: Settings, facts: ProviderFacts) -> Self {
        Self {
            provider,
            settings,
            facts,
            pods: Mutex::default(),
            ours: Mutex::default(),
            obstacles: Mutex::default(),
            objects: Mutex::default(),
            address: OnceLock::new(),
            own_login: Mutex::default(),
            refuses_labels: AtomicBool::new(false),
            refuses_quotas: AtomicBool::new(false),
            quota: Mutex::default(),
            unwatched: Mutex::default(),
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

    /// The obstacle that holds up the deletion of a node, in the cluster's words.
    pub fn obstacle(&self, id: &ExternalId) -> Option<String> {
        self.obstacles.lock().unwrap_or_else(PoisonError::into_inner).get(&id.to_string()).cloned()
    }

    pub fn set_ours(&self, ids: HashSet<String>) {
        *self.ours.lock().unwrap_or_else(PoisonError::into_inner) = ids;
    }

    /// Whether the last inventory had this node, with the marks of this provider.
    pub fn is_listed_as_ours(&self, id: &ExternalId) -> bool {
        self.ours.lock().unwrap_or_else(PoisonError::into_inner).contains(&id.to_string())
    }

    pub fn set_pods(&self, pods: HashMap<String, PodState>) {
        *self.pods() = pods;
    }

    /// The pod of a node, as the last inventory showed it.
    pub fn pod_state(&self, id: &ExternalId) -> Option<PodState> {
        self.pods().get(&id.to_string()).cloned()
    }

    /// Whether the account may change the labels of projects, as far as is known.
    pub fn may_label(&self) -> bool {
        !self.refuses_labels.load(Ordering::Relaxed)
    }

    pub fn refuse_labels(&self) {
        self.refuses_labels.store(true, Ordering::Relaxed);
    }

    /// The cluster has refused to show its quotas. Returns whether this is the first refusal.
    pub fn refuse_quotas(&self) -> bool {
        !self.refuses_quotas.swap(true, Ordering::Relaxed)
    }

    /// The quota of all projects, after a look that found this one, or none.
    pub fn set_quota(&self, found: Option<PoolQuota>) {
        *self.quota.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }

    /// The quota of all projects as last seen. Who used what of it then is unknown now.
    pub fn last_quota(&self) -> Option<PoolQuota> {
        let quota = self.quota.lock().unwrap_or_else(PoisonError::into_inner);
        quota.as_ref().map(|quota| PoolQuota { limits: quota.limits.clone(), unmanaged: Resources::none() })
    }

    /// The projects whose pods no watch shows, because the account may not watch them.
    pub fn set_unwatched(&self, projects: BTreeSet<String>) {
        *self.unwatched.lock().unwrap_or_else(PoisonError::into_inner) = projects;
    }

    pub fn is_unwatched(&self, project: &str) -> bool {
        self.unwatched.lock().unwrap_or_else(PoisonError::into_inner).contains(project)
    }

    /// The account's own login as of now, which is handed out with pods in shared projects.
    pub fn own_login(&self) -> Option<OwnLogin> {
        self.own_login.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records the login. Warns once of a token that ends.
    pub fn set_own_login(&self, login: OwnLogin) {
        let mut known = self.own_login.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_none()
            && let Some(end) = login.token.as_deref().and_then(own_login::end_of)
        {
            warn!(provider = %self.provider, end, "the token of the account ends, and with it the access of jobs to their pods; use one of a secret of type kubernetes.io/service-account-token");
        }
        *known = Some(login);
    }

    pub fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<String, PodState>> {
        // No update can panic halfway, so the value is consistent even if the lock is poisoned.
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
