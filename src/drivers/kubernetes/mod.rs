//! The drivers kubernetes, openshift and openshiftpods: nodes are namespaces or projects, with or without a pod, or
//! pods in a shared project.

mod calls;
mod client;
mod config;
mod context;
mod errors;
mod inventory;
mod jobs;
mod names;
mod objects;
mod own_login;
mod quantity;
mod quota;
mod variant;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;

use crate::common::file_stamps::FileStamps;
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::driver::{ApiCall, Driver, JobMachine, NeedsReopen};
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::instance::Inventory;
use nodepool_driver::job::Job;
use nodepool_driver::state_machine::{InFlightLimit, OneCall, REFRESH_INTERVAL, RateLimits, Spacing};
use nodepool_model::config::ProviderConfig;
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::records::time::Seconds;
use python_yaml::diagnostics::Diagnostic;

use calls::{Call, Reply};
use client::{Cluster, kubeconfig_files};
use context::ProviderContext;
use jobs::delete::DeleteNode;
use jobs::delete_pod::DeletePod;
use jobs::launch::LaunchNode;
use jobs::launch_pod::LaunchPod;
use jobs::listing::{ListNodes, Purpose};
use jobs::refresh::Refresh;
use jobs::watch::WatchNodes;
use variant::Variant;
use watch::Watches;

/// Interval between listings while pods start.
const OBSERVE_INTERVAL: Seconds = Seconds(0.5);

pub struct Kubernetes {
    context: Arc<ProviderContext>,
    cluster: Cluster,
    watches: Watches,
    stamps: FileStamps,
}

pub fn open(section: &ProviderConfig) -> Result<Kubernetes, Vec<Diagnostic>> {
    open_with(section, kubeconfig_files())
}

/// Opens the driver with explicit kubeconfig files, for tests and other callers.
pub fn open_with(section: &ProviderConfig, files: Vec<PathBuf>) -> Result<Kubernetes, Vec<Diagnostic>> {
    let (settings, mut diagnostics) = read(section, &files);
    diagnostics.items.retain(Diagnostic::is_error);
    if !diagnostics.items.is_empty() {
        return Err(diagnostics.items);
    }
    let stamps = FileStamps::read(files.clone());
    let cluster = Cluster::new(files, settings.context.clone(), settings.variant == Variant::OpenShiftPods);
    let facts = ProviderFacts { launch_config: Some(Arc::new(settings.launch_config())), ..ProviderFacts::initial() };
    let context = Arc::new(ProviderContext::new(section.name.clone(), settings, facts));
    Ok(Kubernetes { context, cluster, watches: Watches::default(), stamps })
}

/// The kubeconfig files, which a provider reads besides its section.
pub fn files() -> Vec<PathBuf> {
    kubeconfig_files()
}

/// Errors and warnings of a section.
pub fn diagnostics(section: &ProviderConfig) -> Vec<Diagnostic> {
    read(section, &kubeconfig_files()).1.items
}

fn read(section: &ProviderConfig, files: &[PathBuf]) -> (config::Settings, Diagnostics) {
    let mut diagnostics = Diagnostics::default();
    let settings = config::read(section, &mut diagnostics);
    if settings.variant == Variant::OpenShiftPods {
        own_login::check(section, &settings, files, &mut diagnostics);
    }
    (settings, diagnostics)
}

impl Driver for Kubernetes {
    type Call = Call;
    type Reply = Reply;

    fn facts(&self) -> ProviderFacts {
        self.context.facts.clone()
    }

    fn rate_limits(&self) -> RateLimits {
        RateLimits {
            spacing: Spacing::NONE,
            in_flight: InFlightLimit::Configurable,
            listing_delay: OBSERVE_INTERVAL,
            refresh: Some(REFRESH_INTERVAL),
        }
    }

    fn begin(&self, job: &Job) -> JobMachine<Self> {
        let context = self.context.clone();
        let has_shared_projects = context.settings.variant == Variant::OpenShiftPods;
        match job {
            Job::Launch(order) if has_shared_projects => Box::new(LaunchPod::new(context, order.clone())),
            Job::Launch(order) => Box::new(LaunchNode::new(context, order.clone())),
            Job::Delete(id) if has_shared_projects => Box::new(DeletePod::new(context, id.clone())),
            Job::Delete(id) => Box::new(DeleteNode::new(context, id.clone())),
            Job::Refresh => Box::new(Refresh::new(context)),
            Job::List | Job::ListServerIds => Box::new(ListNodes::new(context, Purpose::List)),
            // A cluster has no images, consoles, static hosts and resources without labels.
            Job::ListUnused(_)
            | Job::DeleteUnused(_)
            | Job::Console(_)
            | Job::Upload(_)
            | Job::DeleteImage(_)
            | Job::ListImages
            | Job::Inspect(_)
            | Job::Probe(_) => Box::new(OneCall::unsupported()),
        }
    }

    const WATCHES: bool = true;

    fn begin_watch(&self) -> Option<JobMachine<Self>> {
        Some(Box::new(WatchNodes::new(self.context.clone())))
    }

    async fn next_inventory(&self) -> Result<Arc<Inventory>, CloudError> {
        self.watches.next(&self.context).await
    }

    fn needs_reopen(&self) -> Option<NeedsReopen> {
        Some(self.stamps.needs_reopen())
    }

    async fn prepare(&self, _: &Call) -> Result<(), CloudError> {
        self.connect().await
    }

    async fn call(&self, call: Call, guard: &CallGuard) -> Result<Reply, CloudError> {
        if call.delay > Seconds::ZERO {
            tokio::time::sleep(call.delay.to_duration()).await;
            // The session was alive before the delay.
            if call.is_mutating() {
                guard.wait_until_allowed().await;
            }
        }
        self.connect().await?;
        self.cluster.send(&call, &self.watches, guard).await
    }
}

impl Kubernetes {
    /// Reads the credentials if they have not been read yet.
    async fn connect(&self) -> Result<(), CloudError> {
        let connection = self.cluster.connection().await?;
        self.context.set_address(connection.address.clone());
        if self.context.settings.variant == Variant::OpenShiftPods {
            self.context.set_own_login(connection.own_login().await?);
        }
        Ok(())
    }
}
