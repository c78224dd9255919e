//! Providers of the configuration that could not be started, and what that means for a request.

use std::collections::BTreeMap;

use serde::Serialize;

use super::clock;
use crate::model::config::Config;
use crate::model::ids::{LauncherId, PoolId, ProviderName};
use crate::model::problem::Problem;
use crate::model::request::NodeRequest;
use crate::model::status::{VerdictKind, Why};
use crate::model::time::Timestamp;

#[derive(Debug, Default)]
pub struct NotStarted {
    reasons: BTreeMap<ProviderName, Trouble>,
}

#[derive(Clone, Debug, Serialize)]
struct Trouble {
    reason: String,
    since: Timestamp,
}

impl NotStarted {
    pub fn failed(&mut self, provider: &ProviderName, problems: &[Problem]) {
        let reason = problems.iter().map(|problem| problem.message.clone()).collect::<Vec<_>>().join("; ");
        self.reasons.insert(provider.clone(), Trouble { reason, since: clock::now() });
    }

    /// It runs, or is configured no more.
    pub fn forget(&mut self, provider: &ProviderName) {
        self.reasons.remove(provider);
    }

    /// The first pool that would have a label of the request if its provider could be started.
    pub fn why(&self, request: &NodeRequest, config: &Config, launcher: impl Fn(&PoolId) -> LauncherId) -> Option<Why> {
        self.reasons.iter().find_map(|(provider, trouble)| {
            let pools = &config.providers.get(provider)?.pools;
            let has_label =
                |labels: &std::collections::BTreeSet<_>| request.node_types.iter().any(|label| labels.contains(label));
            let pool = pools.values().find(|pool| has_label(&pool.labels))?;
            let id = PoolId { provider: provider.clone(), pool: pool.name.clone() };
            Some(Why {
                launcher: launcher(&id),
                provider: provider.clone(),
                pool: pool.name.clone(),
                verdict: VerdictKind::Decline,
                reason: format!("the provider is out of service: {}", trouble.reason),
                since: trouble.since,
            })
        })
    }

    /// For dumps: the reasons by provider.
    pub fn observe(&self) -> BTreeMap<&ProviderName, &String> {
        self.reasons.iter().map(|(provider, trouble)| (provider, &trouble.reason)).collect()
    }
}
