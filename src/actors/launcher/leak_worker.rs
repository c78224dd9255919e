//! LeakWorker: imperative shell of `LeakDetector`. Lists instances, reads proof from ZooKeeper, deletes leaks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Recipient, WrapFuture};
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::cleanup_worker::ReconfigureCleanupWorker;
use super::deletions::DELETE_TIMEOUT;
use crate::actors::provider::jobs::{Abandon, JobId, JobUpdate, ProviderHandle, SetLeakedUsage, Submit, facts_of};
use crate::actors::runtime::messages::{Dump, Shutdown};
use crate::actors::runtime::panics::PanicGuard;
use crate::actors::runtime::registry::Registration;
use crate::actors::runtime::{clock, invariant_guard, profile};
use crate::actors::telemetry::samples::SampleSink;
use nodepool_driver::cloud_resource::{CloudResource, UnusedResources, UploadMark};
use nodepool_driver::error::CloudError;
use nodepool_driver::job::{Job, JobEvent, Outcome};
use nodepool_model::config::Config;
use nodepool_model::metrics::statsd_metrics;
use nodepool_model::records::ids::{BuildId, ExternalId, NodeId, ProviderName, UploadId};
use nodepool_policy::cleanup::leaks::{Effect, Event, LeakCandidate, LeakDetector, Proof, upload_marks};
use nodepool_policy::cleanup::unused_resources::UploadProof;
use nodepool_policy::invariants::nodes::check_server_deletion;
use nodepool_zk::txn::store::Store;
use zookeeper_server::types::ZkError;

pub struct LeakWorkerDeps {
    pub config: Arc<Config>,
    pub providers: BTreeMap<ProviderName, ProviderHandle>,
    pub store: Store,
    /// Interval between two sweeps.
    pub sweep_interval: Duration,
    pub samples: SampleSink,
    pub guard: PanicGuard,
    pub dumps: crate::actors::runtime::dump::DumpRegistry,
}

pub struct LeakWorker {
    deps: LeakWorkerDeps,
    detector: LeakDetector,
    jobs: BTreeMap<JobId, OpenJob>,
    /// Back-offs of deletions that failed, by provider and instance.
    backoffs: BTreeMap<(ProviderName, String), Backoff>,
    last_job_id: u64,
    registration: Option<Registration>,
}

/// Back-off of the deletion of one instance.
#[derive(Default)]
struct Backoff {
    failures: u32,
    until: Option<Instant>,
}

impl Backoff {
    const INITIAL: Duration = Duration::from_secs(60);
    const MAX: Duration = Duration::from_secs(3600);

    fn is_running(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }

    fn is_outdated(&self) -> bool {
        self.until.is_some_and(|until| until.elapsed() > 2 * Self::MAX)
    }

    /// The deletion failed once more; returns the delay until the next one.
    fn extend(&mut self) -> Duration {
        let delay = (Self::INITIAL * 2_u32.saturating_pow(self.failures.min(10))).min(Self::MAX);
        (self.failures, self.until) = (self.failures + 1, Some(Instant::now() + delay));
        delay
    }
}

/// A running job with the recipient that cancels it, because its provider may have been replaced meanwhile.
struct OpenJob {
    provider: ProviderName,
    purpose: JobPurpose,
    began: Instant,
    abandon: Recipient<Abandon>,
}

/// Purpose of a submitted job.
enum JobPurpose {
    Listing,
    Deletion(LeakCandidate),
    UnusedListing,
    UnusedDeletion(CloudResource),
}

/// Maximum number of ids in a report.
const MAX_SHOWN: usize = 20;

/// Key of a resource among those that are being deleted.
fn key_of(resource: &CloudResource) -> String {
    format!("{} {}", resource.kind, resource.id)
}

fn first_ids(candidates: &[LeakCandidate]) -> String {
    let shown = candidates.iter().take(MAX_SHOWN).map(|candidate| candidate.external_id.to_string());
    shown.collect::<Vec<_>>().join(",")
}

/// The uploads to a provider, by ZooKeeper itself and not by the mirror.
async fn read_uploads(store: &Store, provider: &ProviderName) -> Result<UploadProof, ZkError> {
    let (existing, issued_builds_below) = store.read_upload_ids(provider).await?;
    let mark =
        |(build, upload): (BuildId, UploadId)| UploadMark { build: build.to_string(), upload: upload.to_string() };
    Ok(UploadProof { existing: existing.into_iter().map(mark).collect(), issued_builds_below })
}

impl LeakWorker {
    pub fn new(deps: LeakWorkerDeps) -> Self {
        Self {
            deps,
            detector: LeakDetector::default(),
            jobs: BTreeMap::new(),
            backoffs: BTreeMap::new(),
            last_job_id: 0,
            registration: None,
        }
    }

    fn handle_event(&mut self, event: Event, ctx: &mut Context<Self>) {
        let snapshot = self.deps.store.mirror().snapshot();
        let facts = facts_of(&self.deps.providers);
        let inputs = clock::inputs(&self.deps.config, &snapshot, &facts);
        for effect in self.detector.step(event, &inputs) {
            self.perform(effect, ctx);
        }
    }

    fn perform(&mut self, effect: Effect, ctx: &mut Context<Self>) {
        match effect {
            Effect::ListServerIds(provider) => self.submit(provider, Job::ListServerIds, JobPurpose::Listing, ctx),
            Effect::List(provider) => self.submit(provider, Job::List, JobPurpose::Listing, ctx),
            Effect::Prove(provider, nodes) => self.prove(provider, nodes, false, Event::Proven, ctx),
            Effect::ProveUnused(provider, nodes, has_uploads) => {
                self.prove(provider, nodes, has_uploads, Event::UnusedProven, ctx);
            }
            Effect::SetLeakedUsage(provider, usage) => {
                if let Some(handle) = self.deps.providers.get(&provider) {
                    handle.set_leaked_usage.do_send(SetLeakedUsage(usage));
                }
            }
            Effect::Delete { provider, candidate } => {
                let LeakCandidate { external_id, node, reason } = candidate.clone();
                if self.is_held_back(&provider, &external_id.to_string()) || !self.is_proven(&external_id, &node) {
                    return;
                }
                let reason = reason.text();
                warn!(target: "nodepool.LeakWorker", %provider, %external_id, node_id = %node, reason, "deleting leaked instance");
                self.submit(provider, Job::Delete(external_id), JobPurpose::Deletion(candidate), ctx);
            }
            Effect::Exceeded { provider, candidates, budget } => {
                error!(
                    target: "nodepool.LeakWorker",
                    %provider, count = candidates.len(), budget, first = first_ids(&candidates),
                    "leak budget exceeded; no instance is deleted. Is this the right ZooKeeper? \
                     `nodepool alien-list` shows them all"
                );
            }
            Effect::UnissuedId(provider, candidates) => {
                error!(
                    target: "nodepool.LeakWorker",
                    %provider, count = candidates.len(), first = first_ids(&candidates),
                    "instances carry our metadata and node ids that this ZooKeeper never issued; not deleted. Is this the right \
                     ZooKeeper, or was it restored? `nodepool alien-list` shows them all"
                );
            }
            Effect::ListUnused(provider, kinds) => {
                self.submit(provider, Job::ListUnused(kinds), JobPurpose::UnusedListing, ctx);
            }
            Effect::DeleteUnused(provider, resource) => self.delete_unused(provider, resource, ctx),
            Effect::TooManyUnused { provider, kind, number, budget } => {
                error!(
                    target: "nodepool.LeakWorker",
                    %provider, resource = kind, number, budget,
                    "budget for unused resources exceeded; none is deleted. Check them and delete them manually"
                );
            }
        }
    }

    fn prove(
        &mut self,
        provider: ProviderName,
        nodes: Vec<NodeId>,
        has_uploads: bool,
        event: fn(ProviderName, Option<Proof>) -> Event,
        ctx: &mut Context<Self>,
    ) {
        let (store, of_provider) = (self.deps.store.clone(), provider.clone());
        let reading = async move {
            let nodes = store.read_latest(&nodes).await?;
            let uploads = if has_uploads { Some(read_uploads(&store, &of_provider).await?) } else { None };
            Ok(Proof { nodes, issued_ids_below: store.issued_id_count().await?, uploads })
        };
        ctx.spawn(reading.into_actor(self).map(move |result: Result<Proof, ZkError>, act, ctx| {
            let proof = result.map_err(|error| {
                warn!(target: "nodepool.LeakWorker", %provider, %error, "cannot read nodes from ZooKeeper");
            });
            act.handle_event(event(provider, proof.ok()), ctx);
        }));
    }

    fn delete_unused(&mut self, provider: ProviderName, resource: CloudResource, ctx: &mut Context<Self>) {
        if self.is_held_back(&provider, &key_of(&resource)) {
            return;
        }
        if let Some(node) = resource.node().map(NodeId::from)
            && !self.is_proven(&resource.id, &node)
        {
            return;
        }
        let snapshot = self.deps.store.mirror().snapshot();
        if let (None, Some(mark)) = (resource.node(), resource.upload())
            && upload_marks(&snapshot, &provider).any(|known| known == mark)
        {
            return;
        }
        let job = Job::DeleteUnused(resource.clone());
        self.submit(provider, job, JobPurpose::UnusedDeletion(resource), ctx);
    }

    /// Whether the thing with this key is being deleted, or its deletion has failed a short time ago. A cloud may list
    /// an instance unchanged after it accepted the deletion.
    fn is_held_back(&self, provider: &ProviderName, key: &str) -> bool {
        let is_this = |purpose: &JobPurpose| match purpose {
            JobPurpose::Deletion(candidate) => candidate.external_id.to_string() == key,
            JobPurpose::UnusedDeletion(resource) => key_of(resource) == key,
            JobPurpose::Listing | JobPurpose::UnusedListing => false,
        };
        self.jobs.values().any(|open_job| open_job.provider == *provider && is_this(&open_job.purpose))
            || self.backoffs.get(&(provider.clone(), key.to_owned())).is_some_and(Backoff::is_running)
    }

    /// Whether the mirror, an independent source, agrees with the proof that was read from ZooKeeper.
    fn is_proven(&self, id: &ExternalId, node: &NodeId) -> bool {
        let snapshot = self.deps.store.mirror().snapshot();
        let record = snapshot.node(node).map(|node| &*node.record);
        invariant_guard::enforce(check_server_deletion(&id.to_string(), node, record)).is_ok()
    }

    fn submit(&mut self, provider: ProviderName, job: Job, purpose: JobPurpose, ctx: &mut Context<Self>) {
        let Some(handle) = self.deps.providers.get(&provider).cloned() else {
            // The provider was removed meanwhile, and may be added again before the detector notices its absence.
            return self.on_job_end(provider, purpose, Err(CloudError::abandoned("the provider was removed")), ctx);
        };
        self.last_job_id += 1;
        let job_id = JobId(self.last_job_id);
        let abandon = handle.abandon.clone();
        self.jobs.insert(job_id, OpenJob { provider, purpose, began: Instant::now(), abandon });
        // Bounded by the budget. A stopped provider answers by dropping the job.
        handle.submit.do_send(Submit::new(job_id, job, ctx.address().recipient()));
    }

    /// Cancels deletions that take too long: a pending deletion causes repeated listings of all instances, and keeps a
    /// replaced provider from stopping. The duration of an outage of the cloud does not count.
    fn abandon_overdue_deletions(&mut self, ctx: &mut Context<Self>) {
        let reply = ctx.address().recipient();
        for (job_id, open_job) in &mut self.jobs {
            let provider = self.deps.providers.get(&open_job.provider);
            if provider.is_some_and(ProviderHandle::is_down) {
                open_job.began = Instant::now();
            }
            let is_deletion = matches!(open_job.purpose, JobPurpose::Deletion(_) | JobPurpose::UnusedDeletion(_));
            if is_deletion && open_job.began.elapsed() >= DELETE_TIMEOUT {
                open_job.abandon.do_send(Abandon { job_id: *job_id, reply: reply.clone() });
            }
        }
    }

    fn on_job_end(
        &mut self,
        provider: ProviderName,
        purpose: JobPurpose,
        result: Result<Outcome, CloudError>,
        ctx: &mut Context<Self>,
    ) {
        match purpose {
            JobPurpose::Deletion(candidate) => self.on_deleted(&provider, &candidate, result),
            JobPurpose::UnusedDeletion(resource) => self.on_unused_deleted(&provider, &resource, result),
            JobPurpose::UnusedListing => {
                let listing = self.on_unused_listed(&provider, result);
                self.handle_event(Event::UnusedListed(provider, listing), ctx);
            }
            JobPurpose::Listing => {
                let event = match result {
                    Ok(Outcome::ServerIds(ids)) => Event::ServerIdsListed(provider, ids),
                    Ok(Outcome::Listed(inventory)) => Event::Listed(provider, Some(inventory)),
                    Ok(_) => Event::Listed(provider, None),
                    Err(error) => {
                        warn!(target: "nodepool.LeakWorker", %provider, %error, "cannot list instances for leak detection");
                        Event::Listed(provider, None)
                    }
                };
                self.handle_event(event, ctx);
            }
        }
    }

    fn on_deleted(&mut self, provider: &ProviderName, candidate: &LeakCandidate, result: Result<Outcome, CloudError>) {
        let id = &candidate.external_id;
        match result {
            Ok(_) | Err(CloudError::NotFound(_)) => {
                self.backoffs.remove(&(provider.clone(), id.to_string()));
                info!(target: "nodepool.LeakWorker", %provider, external_id = %id, "deleted leaked instance");
                self.count(provider, "instances", 1);
            }
            Err(error) => {
                // Without an end, failures would be remembered of instances that others have deleted.
                self.backoffs.retain(|_, backoff| !backoff.is_outdated());
                let delay = self.backoffs.entry((provider.clone(), id.to_string())).or_default().extend();
                warn!(target: "nodepool.LeakWorker", %provider, external_id = %id, %error, retry_in_s = delay.as_secs(), "cannot delete leaked instance");
            }
        }
    }

    /// The deletion of another resource has ended. A failed one is repeated after the next listing.
    fn on_unused_deleted(
        &mut self,
        provider: &ProviderName,
        resource: &CloudResource,
        result: Result<Outcome, CloudError>,
    ) {
        let CloudResource { kind, id, .. } = resource;
        match result {
            Ok(_) => {
                info!(target: "nodepool.LeakWorker", %provider, resource = kind, %id, "deleted unused resource");
                self.count(provider, kind, 1);
            }
            // The resource was deleted by another client, or is in use again. Neither is an error.
            Err(CloudError::NotFound(_)) => {}
            Err(CloudError::Failed { .. }) if resource.node().is_none() && resource.upload().is_none() => {}
            Err(error) => {
                warn!(target: "nodepool.LeakWorker", %provider, resource = kind, %id, %error, "cannot delete unused resource");
            }
        }
    }

    fn on_unused_listed(
        &self,
        provider: &ProviderName,
        result: Result<Outcome, CloudError>,
    ) -> Option<UnusedResources> {
        match result {
            Ok(Outcome::Unused(listing)) => {
                for (resource, error) in &listing.failed {
                    warn!(target: "nodepool.LeakWorker", %provider, resource, %error, "cannot list all unused resources");
                }
                Some(listing)
            }
            Ok(_) | Err(CloudError::NotFound(_)) => None,
            Err(error) => {
                warn!(target: "nodepool.LeakWorker", %provider, %error, "cannot list unused resources");
                None
            }
        }
    }

    fn count(&self, provider: &ProviderName, resource: &str, number: usize) {
        self.deps.samples.send(statsd_metrics::leaked_sample(provider, resource, number));
    }
}

impl Actor for LeakWorker {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.registration = Some(self.deps.dumps.register("LeakWorker", "", ctx.address().downgrade().recipient()));
        ctx.run_interval(self.deps.sweep_interval, |act, ctx| {
            act.abandon_overdue_deletions(ctx);
            act.handle_event(Event::Sweep, ctx);
        });
    }
}

impl Handler<JobUpdate> for LeakWorker {
    type Result = ();

    fn handle(&mut self, message: JobUpdate, ctx: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("JobUpdate");
        let JobEvent::Finished(result) = message.event else { return };
        if let Some(OpenJob { provider, purpose, .. }) = self.jobs.remove(&message.job_id) {
            self.on_job_end(provider, purpose, result, ctx);
        }
    }
}

impl Handler<ReconfigureCleanupWorker> for LeakWorker {
    type Result = ();

    fn handle(&mut self, message: ReconfigureCleanupWorker, _: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("Reconfigure");
        self.deps.config = message.config;
        self.deps.providers = message.providers;
    }
}

impl Handler<Shutdown> for LeakWorker {
    type Result = ();

    fn handle(&mut self, _: Shutdown, ctx: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("Shutdown");
        ctx.stop();
    }
}

impl Handler<Dump> for LeakWorker {
    type Result = Option<serde_json::Value>;

    fn handle(&mut self, _: Dump, _: &mut Context<Self>) -> Option<serde_json::Value> {
        let _measured = profile::time_handler::<Self>("Dump");
        serde_json::to_value(serde_json::json!({"actor": "LeakWorker", "candidates": self.detector.candidates()})).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_backoff_of_a_deletion_doubles_up_to_an_hour() {
        let mut backoff = Backoff::default();
        assert!(!backoff.is_running());
        let delays: Vec<u64> = (0..8).map(|_| backoff.extend().as_secs()).collect();
        assert_eq!(delays, [60, 120, 240, 480, 960, 1920, 3600, 3600]);
        assert!(backoff.is_running());
        tokio::time::advance(Duration::from_secs(3601)).await;
        assert!(!backoff.is_running() && !backoff.is_outdated());
    }
}
