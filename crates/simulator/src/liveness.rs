//! Liveness checks of running launchers: their usage totals are correct, each waiting request has a verdict, no request
//! is neglected, and no leaked server remains.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::cloud::Clouds;
use super::history::RunHistory;
use super::process::{Configured, ProcessHandle};
use super::step_budget::StepBudget;
use nodepool::actors::process::context::ProcessContext;
use nodepool::actors::runtime::messages::ExplainRequest;
use nodepool_model::records::ids::RequestId;
use nodepool_model::records::request::RequestState;
use nodepool_policy::invariants::nodes::{CloudObjectKey, Violation, check_usage_totals};

/// Interval of the checks. No other period divides it.
const INTERVAL: Duration = Duration::from_secs(97);
/// Timeout of a query. Answers take no virtual time.
const DEADLINE: Duration = Duration::from_secs(5);

/// Checks one launcher until its process is killed.
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
        // A launcher that is disconnected, has just reconnected, or is between two sessions may not have a verdict yet.
        if snapshot.connected && session.is_some() && session == before {
            for id in open.intersection(&waited) {
                let answers = shared.explain_registry.request_all(ExplainRequest(id.clone()), DEADLINE).await;
                let has_reason = answers.iter().any(|(_, answer)| matches!(answer, Ok(Some(_))));
                if !has_reason && history.is_open(id) && !budget.is_exhausted() {
                    history.report_violation(Violation(format!("{name} has no verdict for waiting request {id}")));
                }
            }
            waited = open;
        } else {
            waited.clear();
        }
    }
}

/// Interval of the checks for neglected requests. `MAX_NEGLECTED_CHECKS` checks in a row may find one: together the
/// guaranteed five seconds.
const NEGLECT_CHECK_INTERVAL: Duration = Duration::from_millis(2_600);
const MAX_NEGLECTED_CHECKS: u32 = 2;
/// Checks in a row that may find an abandoned request. It may wait for capacity as before, and other launchers treat it
/// as never accepted after a minute.
const MAX_ABANDONED_CHECKS: u32 = 28;

/// Reports requests that no launcher handles, although a launcher without a fault could. The provider's cloud must not
/// have a fault either, as far as launchers know: one that has just started assigns no nodes of a provider whose cloud
/// does not answer, and notices its return by a probe.
pub async fn check_neglected_requests(
    launchers: Vec<(ProcessHandle, Configured)>,
    clouds: Clouds,
    history: RunHistory,
) {
    let mut seen: BTreeMap<(RequestId, i64, bool), u32> = BTreeMap::new();
    loop {
        tokio::time::sleep(NEGLECT_CHECK_INTERVAL).await;
        let mut found = BTreeMap::new();
        for (id, provider) in history.neglected() {
            let serves = |file: &Configured| match &provider {
                Some(provider) => {
                    file.is_settled() && file.launcher.serves(provider) && clouds.is_known_fault_free(provider)
                }
                None => true,
            };
            let able = launchers.iter().filter(|(_, file)| serves(file));
            for session in able.filter_map(|(handle, _)| handle.healthy_session()) {
                let max_checks = if provider.is_some() { MAX_NEGLECTED_CHECKS } else { MAX_ABANDONED_CHECKS };
                let key = (id.clone(), session, provider.is_some());
                let checks = seen.get(&key).map_or(1, |checks| checks + 1);
                if checks == max_checks + 1 {
                    let idle = provider.as_ref().map(|provider| format!(", although {provider} has an idle node"));
                    history.report_violation(Violation(format!(
                        "no launcher handles request {id}{}",
                        idle.unwrap_or_default()
                    )));
                }
                found.insert(key, checks);
            }
        }
        seen = found;
    }
}

/// Maximum number of checks that find a leaked server while its cloud has no fault, whatever else fails.
const MAX_STRAY_CHECKS: u32 = 10;

/// Reports leaked servers that are not deleted.
pub async fn check_stray_servers(clouds: Clouds, history: RunHistory) {
    let mut seen: BTreeMap<CloudObjectKey, u32> = BTreeMap::new();
    loop {
        tokio::time::sleep(INTERVAL).await;
        let stray = history.stray_servers().into_iter().filter(|(provider, _)| clouds.is_fault_free(provider));
        seen = stray.map(|key| (key.clone(), seen.get(&key).map_or(1, |checks| checks + 1))).collect();
        for ((provider, server), checks) in &seen {
            if *checks == MAX_STRAY_CHECKS {
                history.report_violation(Violation(format!("leaked server {server} of {provider} is not deleted")));
            }
        }
    }
}
