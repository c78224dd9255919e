//! Log of labels that cannot be launched. A reason is logged once: when it appears, changes or is resolved.

use std::collections::BTreeMap;
use std::sync::Arc;

use tracing::{info, warn};

use nodepool_driver::facts::ProviderFacts;
use nodepool_model::records::ids::ProviderName;

type AllFacts = BTreeMap<ProviderName, Arc<ProviderFacts>>;

pub fn log_changes(before: &AllFacts, now: &AllFacts) {
    for (provider, facts) in now {
        let before = before.get(provider);
        // Before the first refresh, facts contain no label status.
        if before.is_some_and(|before| Arc::ptr_eq(before, facts)) || !facts.is_refreshed() {
            continue;
        }
        log_provider_changes(provider, before.map(Arc::as_ref), facts);
    }
}

fn log_provider_changes(provider: &ProviderName, before: Option<&ProviderFacts>, facts: &ProviderFacts) {
    for (pool, labels) in facts.launch_config.iter().flat_map(|launching| &launching.labels) {
        for (label, label_facts) in labels {
            let logged = before.and_then(|before| before.launch_label(pool, label)?.unavailable.as_ref());
            match &label_facts.unavailable {
                unavailable if unavailable.as_ref() == logged => {}
                Some(unavailable) => {
                    let reason = unavailable.reason();
                    warn!(target: "nodepool.CleanupWorker", %provider, %pool, %label, reason, "label is unavailable");
                }
                None => {
                    info!(target: "nodepool.CleanupWorker", %provider, %pool, %label, "label can be launched again");
                }
            }
        }
    }
}
