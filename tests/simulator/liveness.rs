//! Looks into launchers while they run: whether their books are right, and whether they know why somebody waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use nodepool::actors::process::context::ProcessContext;
use nodepool::actors::runtime::messages::ExplainRequest;
use nodepool_model::records::ids::RequestId;
use nodepool_model::records::request::RequestState;
use nodepool_policy::invariants::nodes::{CloudObjectKey, Violation, check_usage_totals};

use super::cloud::Clouds;
use super::history::RunHistory;
use super::process::{Configured, ProcessHandle};
use super::step_budget::StepBudget;

/// Between two looks. Not the period of anything else.
const INTERVAL: Duration = Duration::from_secs(97);
/// Nobody who answers takes any of this time.
const DEADLINE: Duration = Duration::from_secs(5);

/// As long as the process lives.
pub async fn check_launcher(name: &'static str, shared: Arc<ProcessContext>, budget: StepBudget, history: RunHistory) {
    let (mut waited, mut session) = (BTreeSet::new(), None);
    loop {
        tokio::time::sleep(INTERVAL).await;
        if budget.is_exhausted() {
            return;
        }
        let before = std::mem::replace(&mut session, budget.live_session());
        let Some(snapshot) = shared.snapshot_feed.latest() else { continue };
        if let Some(Violation(text)) = check_usage_totals(&snapshot) {
            history.report_violation(Violation(format!("{name}: {text}")));
        }
        let is_open = |state| matches!(state, RequestState::Requested | RequestState::Pending);
        let open = snapshot.requests().filter(|(_, request)| is_open(request.record.state));
        let open: BTreeSet<RequestId> = open.map(|(id, _)| id.clone()).collect();
        // Whoever has lost sight of ZooKeeper, or just come back to it, may not know yet; nor who is between two sessions.
        if snapshot.connected && session.is_some() && session == before {
            for id in open.intersection(&waited) {
                let answers = shared.explain_registry.request_all(ExplainRequest(id.clone()), DEADLINE).await;
                let has_reason = answers.iter().any(|(_, answer)| matches!(answer, Ok(Some(_))));
                if !has_reason && history.is_open(id) && !budget.is_exhausted() {
                    history.report_violation(Violation(format!("{name} cannot say why {id} waits")));
                }
            }
            waited = open;
        } else {
            waited.clear();
        }
    }
}

/// Between two looks at requests, and how often one may be found by which a launcher passes: for the five seconds that are promised.
const NEGLECT_CHECK_INTERVAL: Duration = Duration::from_millis(2_600);
const MAX_NEGLECTED_CHECKS: u32 = 2;
/// One that was let down may wait for room as before. For other launchers it is as if it had never been taken up after a minute.
const MAX_ABANDONED_CHECKS: u32 = 28;

/// Sees requests that nobody looks after, although a launcher could to which nothing has happened all the while. One that has just begun
/// hands out nothing of a cloud that does not answer it.
pub async fn check_neglected_requests(launchers: Vec<(ProcessHandle, Configured)>, clouds: Clouds, book: RunHistory) {
    let mut seen: BTreeMap<(RequestId, i64, bool), u32> = BTreeMap::new();
    loop {
        tokio::time::sleep(NEGLECT_CHECK_INTERVAL).await;
        let mut found = BTreeMap::new();
        for (id, provider) in book.neglected() {
            let serves = |file: &Configured| match &provider {
                Some(provider) => file.is_settled() && file.launcher.serves(provider) && clouds.is_fault_free(provider),
                None => true,
            };
            let able = launchers.iter().filter(|(_, file)| serves(file));
            for session in able.filter_map(|(seat, _)| seat.healthy_session()) {
                let max_checks = if provider.is_some() { MAX_NEGLECTED_CHECKS } else { MAX_ABANDONED_CHECKS };
                let key = (id.clone(), session, provider.is_some());
                let checks = seen.get(&key).map_or(1, |checks| checks + 1);
                if checks == max_checks + 1 {
                    let idle = provider.as_ref().map(|provider| format!(", though {provider} has an idle node"));
                    book.report_violation(Violation(format!("nobody looks after {id}{}", idle.unwrap_or_default())));
                }
                found.insert(key, checks);
            }
        }
        seen = found;
    }
}

/// In fair weather a server that is nobody's is there for so many looks at most, whatever else fails.
const MAX_STRAY_CHECKS: u32 = 10;

/// Sees servers that are nobody's, as long as anybody lives.
pub async fn check_stray_servers(clouds: Clouds, book: RunHistory) {
    let mut seen: BTreeMap<CloudObjectKey, u32> = BTreeMap::new();
    loop {
        tokio::time::sleep(INTERVAL).await;
        let stray = book.stray_servers().into_iter().filter(|(provider, _)| clouds.is_fault_free(provider));
        seen = stray.map(|key| (key.clone(), seen.get(&key).map_or(1, |checks| checks + 1))).collect();
        for ((provider, server), checks) in &seen {
            if *checks == MAX_STRAY_CHECKS {
                book.report_violation(Violation(format!(
                    "server {server} of {provider} is nobody's, and nobody ends it"
                )));
            }
        }
    }
}
