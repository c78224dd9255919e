//! The driver ibmvpc: nodes are instances of IBM Cloud's VPC, which boot images of others or images of the builder.

mod api;
mod config;
mod context;
mod image_id;
mod instances;
mod jobs;
mod leaks;
mod names;
mod request_body;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::file_stamps::FileStamps;
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::driver::{ApiCall, Driver, JobMachine, NeedsReopen};
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::job::{Job, Outcome};
use nodepool_driver::state_machine::{InFlightLimit, OneCall, REFRESH_INTERVAL, RateLimits};
use nodepool_model::config::ProviderConfig;
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::records::time::Seconds;
use python_yaml::diagnostics::Diagnostic;
use tracing::warn;

use api::calls::{Call, Reply, Request};
use api::client::Connection;
use api::properties::{self, Properties};
use context::ProviderContext;
use jobs::delete::DeleteInstance;
use jobs::images::{DeleteImage, ListImages};
use jobs::launch::LaunchInstance;
use jobs::listing::ListInstances;
use jobs::refresh::RefreshProvider;
use jobs::unused_resources;
use jobs::upload::UploadImage;

/// Interval between listings while instances boot or end.
const OBSERVE_INTERVAL: Seconds = Seconds(1.0);

pub struct IbmVpc {
    context: Arc<ProviderContext>,
    connection: Connection,
    stamps: FileStamps,
}

pub fn open(section: &ProviderConfig) -> Result<IbmVpc, Vec<Diagnostic>> {
    open_from(section, None)
}

/// Opens the driver with a credentials file besides its section, for tests and other callers.
pub fn open_with(section: &ProviderConfig, credentials_file: &Path) -> Result<IbmVpc, Vec<Diagnostic>> {
    open_from(section, Some(credentials_file))
}

fn open_from(section: &ProviderConfig, credentials_file: Option<&Path>) -> Result<IbmVpc, Vec<Diagnostic>> {
    let (mut settings, mut diagnostics) = read(section);
    settings.credentials_file = credentials_file.map(Path::to_owned).or(settings.credentials_file);
    diagnostics.items.retain(Diagnostic::is_error);
    if !diagnostics.items.is_empty() {
        return Err(diagnostics.items);
    }
    let file = settings.credentials_file.as_deref();
    if let Some((path, Err(error))) = file.map(|path| (path, std::fs::read_to_string(path))) {
        let path = path.display();
        warn!(provider = %section.name, "cannot read the credentials-file {path}: {error}; the environment counts");
    }
    let stamps = FileStamps::read(properties::files(file));
    let storage = settings.storage.as_ref().map(|storage| storage.endpoint.as_str());
    let connection = Connection::new(&Properties::find(file), &settings.region, storage).map_err(|error| {
        let help = format!("provider {} is out of service", section.name);
        vec![Diagnostic::error(section.section.at, error).help(help)]
    })?;
    let facts = ProviderFacts {
        limits: settings.limits.clone(),
        launch_config: Some(Arc::new(settings.launch_config(|_| (None, None)))),
        upload_config: Some(Arc::new(settings.upload_config())),
        ..ProviderFacts::initial()
    };
    let context = Arc::new(ProviderContext::new(section.name.clone(), settings, facts));
    Ok(IbmVpc { context, connection, stamps })
}

/// The credentials files, which a provider reads besides its section.
pub fn files(section: &ProviderConfig) -> Vec<PathBuf> {
    properties::files(read(section).0.credentials_file.as_deref())
}

/// Errors and warnings of a section.
pub fn diagnostics(section: &ProviderConfig) -> Vec<Diagnostic> {
    read(section).1.items
}

fn read(section: &ProviderConfig) -> (config::Settings, Diagnostics) {
    let mut diagnostics = Diagnostics::default();
    (config::read(section, &mut diagnostics), diagnostics)
}

impl Driver for IbmVpc {
    type Call = Call;
    type Reply = Reply;

    fn facts(&self) -> ProviderFacts {
        self.context.facts.clone()
    }

    fn rate_limits(&self) -> RateLimits {
        RateLimits {
            spacing: self.context.settings.spacing,
            in_flight: InFlightLimit::Configurable,
            listing_delay: OBSERVE_INTERVAL,
            refresh: Some(REFRESH_INTERVAL),
        }
    }

    fn begin(&self, job: &Job) -> JobMachine<Self> {
        let context = self.context.clone();
        match job {
            Job::Launch(order) => Box::new(LaunchInstance::new(context, order.clone())),
            Job::Delete(id) => Box::new(DeleteInstance::new(context, id)),
            Job::Refresh => Box::new(RefreshProvider::new(context)),
            Job::List | Job::ListServerIds => Box::new(ListInstances::new(context)),
            Job::ListUnused(kinds) => Box::new(unused_resources::list(context, kinds)),
            Job::DeleteUnused(resource) if leaks::is_of_uploads(resource.kind) => {
                Box::new(DeleteImage::new(context, &resource.id))
            }
            Job::DeleteUnused(resource) => Box::new(unused_resources::delete(resource)),
            // IBM shows consoles to terminals only.
            Job::Console(_) => Box::new(OneCall::finished(Ok(Outcome::Console(None)))),
            Job::Upload(order) => Box::new(UploadImage::new(context, order.clone())),
            Job::DeleteImage(id) => Box::new(DeleteImage::new(context, id)),
            Job::ListImages => Box::new(ListImages::new(context)),
            // IBM Cloud has no static hosts.
            Job::Inspect(_) | Job::Probe(_) => Box::new(OneCall::unsupported()),
        }
    }

    fn needs_reopen(&self) -> Option<NeedsReopen> {
        Some(self.stamps.needs_reopen())
    }

    async fn prepare(&self, _: &Call) -> Result<(), CloudError> {
        self.connection.prepare().await
    }

    async fn call(&self, call: Call, guard: &CallGuard) -> Result<Reply, CloudError> {
        if call.delay > Seconds::ZERO {
            tokio::time::sleep(call.delay.to_duration()).await;
            // The session was alive before the delay.
            if call.is_mutating() {
                guard.wait_until_allowed().await;
            }
        }
        match &call.request {
            Request::Http(request) => self.connection.send(&call, request, guard).await,
            Request::SendParts(requests) => api::transfer::send_parts(&self.connection, requests, guard).await,
        }
    }
}
