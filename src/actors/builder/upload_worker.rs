//! UploadWorker: actor that leases the first pending upload and runs it, one upload at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message};
use serde_json::json;
use tracing::{Instrument, info_span};

use super::build_job::BuildEnvironment;
use super::upload_job::{self, UploadContext, UploadOutcome};
use super::work_queue::{WorkItem, WorkLease, WorkQueue};
use crate::actors::provider::jobs::{JobUpdate, ProviderHandle, facts_of};
use crate::actors::provider::provider_client::{PendingJobs, ProviderClient};
use crate::actors::runtime::actor_tasks::ActorTasks;
use crate::actors::runtime::messages::{Dump, Shutdown};
use crate::actors::runtime::panics::PanicGuard;
use crate::actors::runtime::reconcile::{Reconcile, Triggers};
use crate::actors::runtime::registry::Registration;
use crate::actors::runtime::{clock, profile};
use nodepool_drivers::common::image_files::ImagesDir;
use nodepool_model::config::Config;
use nodepool_model::records::ids::ProviderName;
use nodepool_model::records::time::{Seconds, Timestamp};
use nodepool_model::snapshot::images::UploadLockKey;
use nodepool_policy::images::pending_uploads::{self, PendingUpload};
use nodepool_zk::txn::store::Store;

/// Back-off of an upload whose file is not on this machine.
const NO_LOCAL_FILE_BACKOFF: Seconds = Seconds(60.0);

pub struct UploadWorkerDeps {
    /// Counted from 0, for logs and dumps.
    pub number: usize,
    pub config: Arc<Config>,
    pub providers: BTreeMap<ProviderName, ProviderHandle>,
    pub store: Store,
    pub work_queue: WorkQueue,
    pub build_env: BuildEnvironment,
    /// Back-off after a failed upload, and interval of the periodic reconcile run that complements the events.
    pub interval: Seconds,
    /// Pause between two uploads of this worker.
    pub pause: Seconds,
    pub hook_timeout: Seconds,
    pub guard: PanicGuard,
    pub dumps: crate::actors::runtime::dump::DumpRegistry,
}

pub struct UploadWorker {
    deps: UploadWorkerDeps,
    triggers: Triggers,
    pending_jobs: PendingJobs,
    actor_tasks: ActorTasks<Self>,
    uploading: Option<(UploadLockKey, Timestamp)>,
    registration: Option<Registration>,
}

/// The configuration and possibly the providers changed.
#[derive(Clone, Message)]
#[rtype(result = "()")]
pub struct ReconfigureUploadWorker {
    pub config: Arc<Config>,
    pub providers: BTreeMap<ProviderName, ProviderHandle>,
}

impl UploadWorker {
    pub fn new(deps: UploadWorkerDeps) -> Self {
        let mut triggers = Triggers::new(deps.store.mirror().clone());
        triggers.watch_facts(deps.providers.values().map(|provider| provider.facts.clone()).collect());
        Self {
            deps,
            triggers,
            pending_jobs: PendingJobs::default(),
            actor_tasks: ActorTasks::default(),
            uploading: None,
            registration: None,
        }
    }

    fn start_upload(&mut self, pending: PendingUpload, lease: WorkLease, ctx: &mut Context<Self>) {
        let (Some(provider), Some(image)) = (
            self.deps.providers.get(&pending.lock_key.provider).cloned(),
            self.deps.config.diskimages.get(&pending.lock_key.build.image).cloned(),
        ) else {
            return;
        };
        let context = UploadContext {
            store: self.deps.store.clone(),
            build_env: self.deps.build_env.clone(),
            client: ProviderClient {
                pending_jobs: self.pending_jobs.clone(),
                provider,
                reply: ctx.address().recipient(),
            },
            config: self.deps.config.clone(),
            image,
            hook_timeout: self.deps.hook_timeout,
        };
        self.uploading = Some((pending.lock_key.clone(), clock::now()));
        let lock_key = &pending.lock_key;
        // The worker's number in the span selects its logger (`nodepool.builder.UploadWorker.N`).
        let span = info_span!("upload", worker = self.deps.number, image = %lock_key.build.image, provider = %lock_key.provider);
        let uploading = upload_job::upload(context, pending);
        self.actor_tasks
            .spawn(ctx, uploading.instrument(span), |outcome, act, ctx| act.on_upload_finished(outcome, lease, ctx));
    }

    fn on_upload_finished(&mut self, outcome: UploadOutcome, lease: WorkLease, ctx: &mut Context<Self>) {
        match outcome {
            UploadOutcome::Failed => lease.failed(self.deps.interval),
            UploadOutcome::NoLocalFile => lease.back_off(NO_LOCAL_FILE_BACKOFF),
            // The record that the other builder writes triggers the next run. While the snapshot is stale, the back-off
            // prevents a loop of attempts.
            UploadOutcome::Skipped => lease.back_off(Seconds(1.0)),
            UploadOutcome::Ready => lease.succeeded(),
        }
        drop(lease);
        if outcome == UploadOutcome::Ready && self.deps.pause > Seconds::ZERO {
            ctx.run_later(self.deps.pause.to_duration(), |act, ctx| {
                act.uploading = None;
                act.reconcile(ctx);
            });
        } else {
            self.uploading = None;
            self.reconcile(ctx);
        }
    }
}

impl Reconcile for UploadWorker {
    fn triggers(&mut self) -> &mut Triggers {
        &mut self.triggers
    }

    fn reconcile(&mut self, ctx: &mut Context<Self>) {
        if self.uploading.is_some() {
            return;
        }
        let snapshot = self.triggers.snapshot();
        let facts = facts_of(&self.deps.providers);
        let config = self.deps.config.clone();
        let inputs = clock::inputs(&config, &snapshot, &facts);
        if snapshot.connected {
            let due = pending_uploads::due(&inputs).into_iter();
            let due = due.map(|pending| (WorkItem::Upload(pending.lock_key.clone()), pending));
            if let Some((pending, lease)) = self.deps.work_queue.lease_first(due) {
                return self.start_upload(pending, lease, ctx);
            }
        }
        self.triggers.requeue_at(self.deps.work_queue.next_due().map(|delay| inputs.monotonic_now + delay));
    }
}

impl Actor for UploadWorker {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let number = self.deps.number.to_string();
        self.registration =
            Some(self.deps.dumps.register("UploadWorker", number, ctx.address().downgrade().recipient()));
        self.reconcile(ctx);
        Self::start_reconciler(ctx);
        self.actor_tasks.spawn_interval(ctx, self.deps.interval.to_duration(), |act, ctx| act.reconcile(ctx));
    }
}

impl Handler<JobUpdate> for UploadWorker {
    type Result = ();

    fn handle(&mut self, message: JobUpdate, _: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("JobUpdate");
        self.pending_jobs.on_update(message);
    }
}

impl Handler<ReconfigureUploadWorker> for UploadWorker {
    type Result = ();

    fn handle(&mut self, message: ReconfigureUploadWorker, _: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("Reconfigure");
        self.triggers.watch_facts(message.providers.values().map(|provider| provider.facts.clone()).collect());
        if let Some(images) = &message.config.images_dir {
            self.deps.build_env.images = ImagesDir::new(images);
        }
        (self.deps.config, self.deps.providers) = (message.config, message.providers);
    }
}

impl Handler<Shutdown> for UploadWorker {
    type Result = ();

    /// Stopping the worker cancels its upload. The record stays, and the builder that takes over resumes it.
    fn handle(&mut self, _: Shutdown, ctx: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("Shutdown");
        ctx.stop();
    }
}

impl Handler<Dump> for UploadWorker {
    type Result = Option<serde_json::Value>;

    fn handle(&mut self, _: Dump, _: &mut Context<Self>) -> Option<serde_json::Value> {
        let _measured = profile::time_handler::<Self>("Dump");
        let uploading = self.uploading.as_ref().map(|(lock_key, since)| {
            json!({
                "image": lock_key.build.image,
                "build": lock_key.build.build,
                "provider": lock_key.provider,
                "for_s": (clock::now() - *since).0,
            })
        });
        Some(json!({"actor": "UploadWorker", "name": self.deps.number.to_string(), "uploading": uploading}))
    }
}
