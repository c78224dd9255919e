//! CleanupWorker of a builder: actor that deletes uploads, builds and files that are no longer needed, and sends the
//! gauges of images to statsd.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, SpawnHandle};
use serde_json::json;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::build_job::BuildEnvironment;
use super::image_deletion::{self, FilesView};
use super::upload_worker::ReconfigureUploadWorker;
use super::work_queue::WorkQueue;
use crate::actors::provider::jobs::{JobUpdate, ProviderHandle, facts_of};
use crate::actors::provider::provider_client::{PendingJobs, ProviderClient};
use crate::actors::runtime::actor_tasks::ActorTasks;
use crate::actors::runtime::messages::{Dump, Shutdown};
use crate::actors::runtime::panics::PanicGuard;
use crate::actors::runtime::reconcile::{Reconcile, Triggers};
use crate::actors::runtime::registry::Registration;
use crate::actors::runtime::{clock, invariant_guard, profile};
use crate::actors::telemetry::builder_metrics;
use nodepool_drivers::common::image_files::ImagesDir;
use nodepool_model::config::Config;
use nodepool_model::records::ids::{ImageName, ProviderName};
use nodepool_model::records::image_build::{BuildKey, BuildState};
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::WriteError;
use nodepool_model::snapshot::images::UploadLockKey;
use nodepool_policy::images::pending_uploads::{self, PendingUpload};
use nodepool_policy::images::retention::{self, RetentionAction, RetentionScope};
use nodepool_policy::inputs::Inputs;
use nodepool_policy::invariants::images::check_upload_deletions;
use nodepool_zk::txn::store::Store;

/// Minimum age of an upload without a lock before it is deleted: the builder with its file may be restarting.
const STALE_GRACE_PERIOD: Duration = Duration::from_secs(10);
/// Maximum number of concurrent upload deletions per provider; each may list all images of the cloud.
const MAX_DELETIONS_PER_PROVIDER: usize = 8;

pub struct ImageCleanupDeps {
    pub config: Arc<Config>,
    pub providers: BTreeMap<ProviderName, ProviderHandle>,
    pub store: Store,
    pub work_queue: WorkQueue,
    pub build_env: BuildEnvironment,
    /// Interval of complete runs. Records that are marked `deleting` are deleted without this delay.
    pub interval: Seconds,
    pub build_workers: usize,
    /// Number of UploadWorkers. With at least one, uploads that a previous process of this builder started are resumed.
    pub upload_workers: usize,
    pub guard: PanicGuard,
    pub dumps: crate::actors::runtime::dump::DumpRegistry,
}

pub struct ImageCleanupWorker {
    deps: ImageCleanupDeps,
    triggers: Triggers,
    pending_jobs: PendingJobs,
    actor_tasks: ActorTasks<Self>,
    /// Deletions in progress, with the provider whose cloud they call.
    in_progress: BTreeMap<String, Option<ProviderName>>,
    /// Failed deletions; the next complete run retries them.
    backed_off: BTreeSet<String>,
    /// Uploads without a builder, with the time of the first observation.
    stale: BTreeMap<String, Instant>,
    stale_due: Option<SpawnHandle>,
    /// A deletion completed since the last complete run, and may make another one due.
    reconcile_again: bool,
    file_scan: FileScan,
    /// The builds whose files are kept, as of the last file scan.
    builds: BTreeSet<BuildKey>,
    registration: Option<Registration>,
}

/// State of the file scan; one runs at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FileScan {
    Idle,
    Running,
    RunningAndRequested,
}

impl ImageCleanupWorker {
    pub fn new(deps: ImageCleanupDeps) -> Self {
        let mut triggers = Triggers::new(deps.store.mirror().clone());
        triggers.watch_facts(deps.providers.values().map(|provider| provider.facts.clone()).collect());
        Self {
            deps,
            triggers,
            pending_jobs: PendingJobs::default(),
            actor_tasks: ActorTasks::default(),
            in_progress: BTreeMap::new(),
            backed_off: BTreeSet::new(),
            stale: BTreeMap::new(),
            stale_due: None,
            reconcile_again: false,
            file_scan: FileScan::Idle,
            builds: BTreeSet::new(),
            registration: None,
        }
    }

    fn sweep(&mut self, ctx: &mut Context<Self>) {
        self.backed_off.clear();
        self.reconcile_scope(RetentionScope::All, ctx);
        self.scan_files(ctx);
        self.report();
    }

    fn reconcile_scope(&mut self, scope: RetentionScope, ctx: &mut Context<Self>) {
        let (snapshot, facts, config) =
            (self.triggers.snapshot(), facts_of(&self.deps.providers), self.deps.config.clone());
        if !snapshot.connected {
            return;
        }
        let inputs = clock::inputs(&config, &snapshot, &facts);
        if scope == RetentionScope::All {
            self.reconcile_again = false;
        }
        let running = self.deps.work_queue.running_builds();
        let all = retention::due(&inputs, RetentionScope::All, &running);
        self.track_stale_uploads(&all, &inputs, ctx);
        let due = if scope == RetentionScope::All { all } else { retention::due(&inputs, scope, &running) };
        let upload_deletions = due.iter().filter_map(|action| match action {
            RetentionAction::Upload(key, _) => Some(key),
            _ => None,
        });
        let has_upload_entry = |provider: &ProviderName, image: &ImageName| {
            let config = inputs.facts.get(provider).and_then(|facts| facts.upload_config.as_deref());
            config.is_some_and(|config| config.images.contains_key(image))
        };
        let may_delete_uploads =
            invariant_guard::enforce(check_upload_deletions(upload_deletions, &snapshot.images, has_upload_entry))
                .is_ok();
        for action in due {
            if may_delete_uploads || !matches!(action, RetentionAction::Upload(..)) {
                self.start(action, scope, ctx);
            }
        }
        let existing = snapshot.images.builds().filter(|(_, stored)| stored.record.state != BuildState::Deleting);
        let builds = existing.map(|(key, _)| key).collect();
        if self.builds != builds {
            self.builds = builds;
            self.scan_files(ctx);
        }
    }

    /// Records the time since which uploads have no builder, and sets a timer for the next one whose grace period ends.
    /// Uploads that this builder will resume do not count, however long they are queued.
    fn track_stale_uploads(&mut self, all: &[RetentionAction], inputs: &Inputs<'_>, ctx: &mut Context<Self>) {
        if let Some(timer) = self.stale_due.take() {
            ctx.cancel_future(timer);
        }
        if !all.iter().any(|action| matches!(action, RetentionAction::Stale(_))) {
            return self.stale.clear();
        }
        let build_env = &self.deps.build_env;
        let own = |pending: &PendingUpload| {
            self.deps.upload_workers > 0
                && pending.build.record.builder_id.as_ref() == Some(&build_env.builder_id)
                && build_env.images.file(&pending.lock_key.build, &pending.format).exists()
        };
        let ours: BTreeSet<UploadLockKey> =
            pending_uploads::due(inputs).into_iter().filter(own).map(|pending| pending.lock_key).collect();
        let (mut stale, now) = (BTreeMap::new(), Instant::now());
        for action in all {
            if let RetentionAction::Stale(upload) = action
                && !ours.contains(&UploadLockKey::of(upload))
            {
                let key = action.key();
                let since = self.stale.get(&key).copied().unwrap_or(now);
                stale.insert(key, since);
            }
        }
        self.stale = stale;
        let due = self.stale.values().map(|since| *since + self.grace_period()).filter(|due| *due > now).min();
        if let Some(due) = due {
            let wait = due - now + Duration::from_millis(10);
            self.stale_due = Some(ctx.run_later(wait, |act, ctx| act.reconcile_scope(RetentionScope::All, ctx)));
        }
    }

    /// Minimum age of an upload without a lock before it is deleted.
    fn grace_period(&self) -> Duration {
        self.deps.interval.to_duration().max(STALE_GRACE_PERIOD)
    }

    fn start(&mut self, action: RetentionAction, scope: RetentionScope, ctx: &mut Context<Self>) {
        let key = action.key();
        if self.in_progress.contains_key(&key) || self.backed_off.contains(&key) {
            return;
        }
        let busy_provider = action.provider().cloned();
        if busy_provider.is_some()
            && self.in_progress.values().filter(|provider| **provider == busy_provider).count()
                >= MAX_DELETIONS_PER_PROVIDER
        {
            // The next completed deletion of this provider triggers another run.
            self.reconcile_again |= scope == RetentionScope::All;
            return;
        }
        let store = self.deps.store.clone();
        let reply = ctx.address().recipient();
        let client = |provider: &ProviderName| {
            let provider = self.deps.providers.get(provider).cloned()?;
            Some(ProviderClient { pending_jobs: self.pending_jobs.clone(), provider, reply: reply.clone() })
        };
        match action {
            RetentionAction::Upload(upload, stored) => {
                let Some(client) = client(&upload.provider) else { return };
                self.spawn(
                    key,
                    busy_provider,
                    scope,
                    image_deletion::delete_upload(store, client, upload, stored),
                    ctx,
                );
            }
            RetentionAction::Stale(upload) => {
                if self.stale.get(&key).is_none_or(|since| since.elapsed() < self.grace_period()) {
                    return;
                }
                let Some(client) = client(&upload.provider) else { return };
                self.spawn(key, busy_provider, scope, image_deletion::end_stale_upload(store, client, upload), ctx);
            }
            RetentionAction::Build(build, stored) => {
                self.spawn(key, busy_provider, scope, image_deletion::mark_build(store, build, stored), ctx);
            }
            RetentionAction::Record(build, stored) => {
                self.spawn(key, busy_provider, scope, image_deletion::remove_build(store, build, stored), ctx);
            }
        }
    }

    fn spawn(
        &mut self,
        key: String,
        busy_provider: Option<ProviderName>,
        scope: RetentionScope,
        deletion: impl Future<Output = Result<(), WriteError>> + 'static,
        ctx: &mut Context<Self>,
    ) {
        self.in_progress.insert(key.clone(), busy_provider);
        self.actor_tasks.spawn(ctx, deletion, move |result, act, ctx| act.on_deleted(key, scope, result, ctx));
    }

    fn on_deleted(
        &mut self,
        key: String,
        scope: RetentionScope,
        result: Result<(), WriteError>,
        ctx: &mut Context<Self>,
    ) {
        self.in_progress.remove(&key);
        match result {
            Ok(()) => self.reconcile_again |= scope == RetentionScope::All,
            // Another builder handles it, or the next snapshot decides again.
            Err(WriteError::Conflict | WriteError::Contended) => {
                debug!(target: "nodepool.builder.CleanupWorker.0", item = key, "lost a race: the record changed since the snapshot");
                self.backed_off.insert(key);
            }
            Err(error) => {
                warn!(target: "nodepool.builder.CleanupWorker.0", item = key, %error, "cannot delete; retrying");
                self.backed_off.insert(key);
            }
        }
        if self.reconcile_again && self.in_progress.is_empty() {
            self.reconcile_scope(RetentionScope::All, ctx);
        } else {
            self.reconcile_scope(RetentionScope::Marked, ctx);
        }
    }

    fn scan_files(&mut self, ctx: &mut Context<Self>) {
        if self.file_scan != FileScan::Idle {
            self.file_scan = FileScan::RunningAndRequested;
            return;
        }
        let (snapshot, facts, config) =
            (self.triggers.snapshot(), facts_of(&self.deps.providers), self.deps.config.clone());
        if !snapshot.connected {
            return;
        }
        self.file_scan = FileScan::Running;
        let inputs = clock::inputs(&config, &snapshot, &facts);
        let builds = snapshot.images.builds();
        let view = FilesView {
            store: self.deps.store.clone(),
            images: self.deps.build_env.images.clone(),
            builder_id: self.deps.build_env.builder_id.clone(),
            running_builds: self.deps.work_queue.running_builds(),
            builds: builds
                .map(|(key, stored)| (key.clone(), (stored.clone(), retention::needed_formats(&inputs, &key))))
                .collect(),
        };
        self.actor_tasks.spawn(ctx, image_deletion::clean_files(view), |result, act, ctx| {
            if let Err(error) = result {
                warn!(target: "nodepool.builder.CleanupWorker.0", "{error}; retrying");
            }
            let requested_again = act.file_scan == FileScan::RunningAndRequested;
            act.file_scan = FileScan::Idle;
            if requested_again {
                act.scan_files(ctx);
            }
        });
    }

    fn report(&self) {
        let samples = &self.deps.build_env.samples;
        if !samples.has_server() {
            return;
        }
        let (snapshot, facts) = (self.triggers.snapshot(), facts_of(&self.deps.providers));
        let inputs = clock::inputs(&self.deps.config, &snapshot, &facts);
        let work_queue = &self.deps.work_queue;
        let samples_due = builder_metrics::state_samples(
            &inputs,
            &self.deps.build_env.builder,
            |image| work_queue.is_building(image),
            |provider, image| work_queue.is_uploading(provider, image),
        );
        let (builds, uploads) = work_queue.busy();
        let (build_workers, upload_workers) = (self.deps.build_workers, self.deps.upload_workers);
        let busy = builder_metrics::BuilderUtilization { builds, uploads, build_workers, upload_workers };
        let samples_due =
            samples_due.into_iter().chain(builder_metrics::utilization_samples(&self.deps.build_env.builder, &busy));
        samples_due.for_each(|sample| samples.send_to_statsd(sample));
    }
}

impl Reconcile for ImageCleanupWorker {
    fn triggers(&mut self) -> &mut Triggers {
        &mut self.triggers
    }

    fn reconcile(&mut self, ctx: &mut Context<Self>) {
        self.reconcile_scope(RetentionScope::Marked, ctx);
    }
}

impl Actor for ImageCleanupWorker {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.registration = Some(self.deps.dumps.register("CleanupWorker", "", ctx.address().downgrade().recipient()));
        self.sweep(ctx);
        Self::start_reconciler(ctx);
        self.actor_tasks.spawn_interval(ctx, self.deps.interval.to_duration(), |act, ctx| act.sweep(ctx));
    }
}

impl Handler<JobUpdate> for ImageCleanupWorker {
    type Result = ();

    fn handle(&mut self, message: JobUpdate, _: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("JobUpdate");
        self.pending_jobs.on_update(message);
    }
}

impl Handler<ReconfigureUploadWorker> for ImageCleanupWorker {
    type Result = ();

    fn handle(&mut self, message: ReconfigureUploadWorker, ctx: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("Reconfigure");
        self.triggers.watch_facts(message.providers.values().map(|provider| provider.facts.clone()).collect());
        if let Some(images) = &message.config.images_dir {
            self.deps.build_env.images = ImagesDir::new(images);
        }
        (self.deps.config, self.deps.providers) = (message.config, message.providers);
        self.sweep(ctx);
    }
}

impl Handler<Shutdown> for ImageCleanupWorker {
    type Result = ();

    fn handle(&mut self, _: Shutdown, ctx: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("Shutdown");
        ctx.stop();
    }
}

impl Handler<Dump> for ImageCleanupWorker {
    type Result = Option<serde_json::Value>;

    fn handle(&mut self, _: Dump, _: &mut Context<Self>) -> Option<serde_json::Value> {
        let _measured = profile::time_handler::<Self>("Dump");
        let stale: BTreeSet<&String> = self.stale.keys().collect();
        Some(
            json!({"actor": "CleanupWorker", "in_progress": self.in_progress.keys().collect::<Vec<_>>(), "backed_off": self.backed_off, "stale": stale}),
        )
    }
}
