//! The driver azure: nodes are virtual machines of Azure, which boot images of Azure or of the builder.

mod api;
mod config;
mod context;
mod instances;
mod jobs;
mod label;
mod leaks;
mod request_body;

use std::path::PathBuf;
use std::sync::Arc;

use crate::common::file_stamps::FileStamps;
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::driver::{ApiCall, Driver, JobMachine, NeedsReopen};
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::job::Job;
use nodepool_driver::state_machine::{InFlightLimit, OneCall, REFRESH_INTERVAL, RateLimits};
use nodepool_model::config::ProviderConfig;
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::records::time::Seconds;
use python_yaml::diagnostics::Diagnostic;
use serde_json::Value;

use api::calls::{Call, Kind, Reply, Request};
use api::client::Connection;
use api::credentials::Credentials;
use context::ProviderContext;
use jobs::delete::DeleteInstance;
use jobs::images::{DeleteImage, ListImages};
use jobs::launch::LaunchInstance;
use jobs::listing::ListInstances;
use jobs::refresh::RefreshProvider;
use jobs::unused_resources::{self, DeleteUnused};
use jobs::upload::UploadImage;

/// Interval between listings while machines boot.
const OBSERVE_INTERVAL: Seconds = Seconds(1.0);

pub struct Azure {
    context: Arc<ProviderContext>,
    connection: Connection,
    stamps: FileStamps,
}

pub fn open(section: &ProviderConfig) -> Result<Azure, Vec<Diagnostic>> {
    let stamps = FileStamps::read(files(section));
    let credentials = match config::auth_file(section) {
        Some(file) => Credentials::read(&file),
        None => Err("there is neither auth-path nor AZURE_AUTH_LOCATION".to_owned()),
    };
    open_from(section, credentials, stamps)
}

/// Opens the driver with the content of an authentication file, for tests and other callers.
pub fn open_with(section: &ProviderConfig, auth: Value) -> Result<Azure, Vec<Diagnostic>> {
    open_from(section, Credentials::of(auth), FileStamps::default())
}

fn open_from(
    section: &ProviderConfig,
    credentials: Result<Credentials, String>,
    stamps: FileStamps,
) -> Result<Azure, Vec<Diagnostic>> {
    let (settings, mut diagnostics) = read(section);
    diagnostics.items.retain(Diagnostic::is_error);
    if !diagnostics.items.is_empty() {
        return Err(diagnostics.items);
    }
    let unusable = |error: String| {
        let help = format!("provider {} is out of service", section.name);
        vec![Diagnostic::error(section.section.at, error).help(help)]
    };
    let credentials = credentials.map_err(unusable)?;
    let subscription = credentials.subscription_id.clone();
    let connection = Connection::new(credentials).map_err(unusable)?;
    let facts = ProviderFacts {
        launch_config: Some(Arc::new(settings.launch_config(|_| (None, None)))),
        upload_config: Some(Arc::new(settings.upload_config())),
        ..ProviderFacts::initial()
    };
    let context = Arc::new(ProviderContext::new(section.name.clone(), settings, subscription, facts));
    Ok(Azure { context, connection, stamps })
}

/// The authentication file, which a provider reads besides its section.
pub fn files(section: &ProviderConfig) -> Vec<PathBuf> {
    config::auth_file(section).into_iter().collect()
}

/// Errors and warnings of a section.
pub fn diagnostics(section: &ProviderConfig) -> Vec<Diagnostic> {
    read(section).1.items
}

fn read(section: &ProviderConfig) -> (config::Settings, Diagnostics) {
    let mut diagnostics = Diagnostics::default();
    (config::read(section, &mut diagnostics), diagnostics)
}

impl Driver for Azure {
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
            Job::DeleteUnused(resource) => match leaks::kind_of(resource.kind) {
                Some(kind @ (Kind::Interface | Kind::Address | Kind::Disk)) if resource.kind != leaks::UPLOAD_DISKS => {
                    Box::new(DeleteUnused::new(context, kind, resource))
                }
                _ => Box::new(DeleteImage::new(context, &resource.id)),
            },
            Job::Upload(order) => Box::new(UploadImage::new(context, order.clone())),
            Job::DeleteImage(id) => Box::new(DeleteImage::new(context, id)),
            Job::ListImages => Box::new(ListImages::new(context)),
            // Azure has no static hosts, and no console text without a storage account.
            Job::Console(_) | Job::Inspect(_) | Job::Probe(_) => Box::new(OneCall::unsupported()),
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
            Request::Arm(request) => self.connection.send(&call, request, guard).await,
            Request::SendPages { sas, file, pages } => self.connection.send_pages(sas, file, pages, guard).await,
        }
    }
}
