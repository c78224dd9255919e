//! Providers of the configuration that failed to start, and the verdicts of their pools about requests.

use std::collections::BTreeMap;

use serde::Serialize;
use tracing::error;

use crate::actors::runtime::clock;
use nodepool_model::config::Config;
use nodepool_model::records::ids::{LauncherId, PoolId, ProviderName};
use nodepool_model::records::request::NodeRequest;
use nodepool_model::records::time::Timestamp;
use nodepool_model::report::status::{PoolVerdict, VerdictKind};
use python_yaml::diagnostics::Diagnostic;

#[derive(Debug, Default)]
pub struct FailedProviders {
    reasons: BTreeMap<ProviderName, StartFailure>,
}

#[derive(Clone, Debug, Serialize)]
struct StartFailure {
    reason: String,
    since: Timestamp,
}

impl FailedProviders {
    /// Logs a new reason and returns true. The start is retried, so a known reason is not logged with every attempt.
    pub fn record_failure(&mut self, provider: &ProviderName, diagnostics: &[Diagnostic]) -> bool {
        let reason = diagnostics.iter().map(|diagnostic| diagnostic.message.clone()).collect::<Vec<_>>().join("; ");
        let is_new = self.reasons.get(provider).is_none_or(|failure| failure.reason != reason);
        if is_new {
            for diagnostic in diagnostics {
                error!(target: "nodepool.ProviderManager", %provider, %diagnostic, "Error starting provider");
            }
            self.reasons.insert(provider.clone(), StartFailure { reason, since: clock::now() });
        }
        is_new
    }

    /// Forgets a failure. Called when the provider has started or is no longer configured.
    pub fn remove(&mut self, provider: &ProviderName) {
        self.reasons.remove(provider);
    }

    /// Verdict of the first pool that would have a label of the request if its provider could be started.
    pub fn verdict_for(
        &self,
        request: &NodeRequest,
        config: &Config,
        launcher: impl Fn(&PoolId) -> LauncherId,
    ) -> Option<PoolVerdict> {
        self.reasons.iter().find_map(|(provider, failure)| {
            let pools = &config.providers.get(provider)?.pools;
            let has_label =
                |labels: &std::collections::BTreeSet<_>| request.node_types.iter().any(|label| labels.contains(label));
            let pool = pools.values().find(|pool| has_label(&pool.labels))?;
            let id = PoolId { provider: provider.clone(), pool: pool.name.clone() };
            Some(PoolVerdict {
                launcher: launcher(&id),
                provider: provider.clone(),
                pool: pool.name.clone(),
                verdict: VerdictKind::Decline,
                reason: format!("the provider is out of service: {}", failure.reason),
                since: failure.since,
            })
        })
    }

    /// For dumps: the reasons by provider.
    pub fn view(&self) -> BTreeMap<&ProviderName, &String> {
        self.reasons.iter().map(|(provider, failure)| (provider, &failure.reason)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use python_yaml::tree::Position;

    #[test]
    fn reason_is_logged_once() {
        let (mut failed_providers, provider) = (FailedProviders::default(), ProviderName::from("lab"));
        let mut failed = |message: &str| {
            failed_providers.record_failure(&provider, &[Diagnostic::error(Position::default(), message)])
        };
        assert_eq!(["no file", "no file", "no cloud", "no file"].map(&mut failed), [true, false, true, true]);
        failed_providers.remove(&provider);
        assert!(failed_providers.record_failure(&provider, &[Diagnostic::error(Position::default(), "no file")]));
    }
}
