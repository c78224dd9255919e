//! The driver aws: nodes are instances of EC2, which boot AMIs of others or images of the builder.

mod api;
mod config;
mod context;
mod image_body;
mod image_id;
mod instances;
mod jobs;
mod label;
mod leaks;
mod quota_codes;
mod request_body;
#[cfg(test)]
mod test_settings;

use std::path::PathBuf;
use std::sync::Arc;

use crate::common::file_stamps::FileStamps;
use aws_credential_types::Credentials;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
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

use api::calls::{Call, Reply, Request};
use api::client::Connection;
use api::credentials::{Account, Source};
use api::errors::failed;
use context::ProviderContext;
use instances::AwsId;
use jobs::delete::DeleteInstance;
use jobs::images::{DeleteImage, ListImages};
use jobs::launch::LaunchInstance;
use jobs::listing::ListInstances;
use jobs::refresh::RefreshProvider;
use jobs::unused_resources;
use jobs::upload::UploadImage;

/// Interval between listings while instances boot.
const OBSERVE_INTERVAL: Seconds = Seconds(1.0);

/// AWS reclaims spot instances at any time.
const SPOT_REFRESH_INTERVAL: Seconds = Seconds(60.0);

pub struct Aws {
    context: Arc<ProviderContext>,
    connection: Connection,
    stamps: FileStamps,
}

pub fn open(section: &ProviderConfig) -> Result<Aws, Vec<Diagnostic>> {
    open_from(section, None)
}

/// Opens the driver with fixed credentials and one endpoint for all services, for tests and other callers.
pub fn open_with(
    section: &ProviderConfig,
    endpoint: &str,
    access_key_id: &str,
    secret_access_key: &str,
) -> Result<Aws, Vec<Diagnostic>> {
    let credentials = Credentials::new(access_key_id, secret_access_key, None, None, "fixed");
    open_from(section, Some(Source::Fixed { credentials, endpoint: endpoint.to_owned() }))
}

fn open_from(section: &ProviderConfig, source: Option<Source>) -> Result<Aws, Vec<Diagnostic>> {
    let (settings, mut diagnostics) = read(section);
    diagnostics.items.retain(Diagnostic::is_error);
    if !diagnostics.items.is_empty() {
        return Err(diagnostics.items);
    }
    let source = source.unwrap_or_else(|| Source::Chain { profile: settings.profile.clone() });
    let stamps = FileStamps::read(files());
    let connection = Connection::new(Account::new(source, settings.region.clone())).map_err(|error| {
        let help = format!("provider {} is out of service", section.name);
        vec![Diagnostic::error(section.section.at, error).help(help)]
    })?;
    let facts = ProviderFacts {
        launch_config: Some(Arc::new(settings.launch_config(|_| (None, None)))),
        upload_config: Some(Arc::new(settings.upload_config())),
        ..ProviderFacts::initial()
    };
    let context = Arc::new(ProviderContext::new(section.name.clone(), settings, facts));
    Ok(Aws { context, connection, stamps })
}

/// The files of profiles, which a provider reads besides its section.
pub fn files() -> Vec<PathBuf> {
    api::credentials::files()
}

/// Errors and warnings of a section.
pub fn diagnostics(section: &ProviderConfig) -> Vec<Diagnostic> {
    read(section).1.items
}

fn read(section: &ProviderConfig) -> (config::Settings, Diagnostics) {
    let mut diagnostics = Diagnostics::default();
    (config::read(section, &mut diagnostics), diagnostics)
}

impl Driver for Aws {
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
            refresh: Some(if self.context.settings.has_spot() { SPOT_REFRESH_INTERVAL } else { REFRESH_INTERVAL }),
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
            Job::Console(id) => {
                let call = api::calls::console(&AwsId::of(id).instance.unwrap_or_default());
                Box::new(OneCall::new("reading the console", call, console_of))
            }
            Job::Upload(order) => Box::new(UploadImage::new(context, order.clone())),
            Job::DeleteImage(id) => Box::new(DeleteImage::new(context, id)),
            Job::ListImages => Box::new(ListImages::new(context)),
            // AWS has no static hosts.
            Job::Inspect(_) | Job::Probe(_) => Box::new(OneCall::unsupported()),
        }
    }

    fn needs_reopen(&self) -> Option<NeedsReopen> {
        Some(self.stamps.needs_reopen())
    }

    async fn prepare(&self, _: &Call) -> Result<(), CloudError> {
        self.connection.prepare().await
    }

    fn share(&self, reply: &Reply) -> Reply {
        match reply {
            Reply::Terminated(result) => Reply::Terminated(result.clone()),
            Reply::Lost(detail) => Reply::Lost(detail.clone()),
            Reply::Refused(error) => Reply::Refused(error.clone()),
            reply => unreachable!("a termination has no reply {reply:?}"),
        }
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
            Request::Terminate(ids) => api::transfer::terminate(&self.connection, ids, guard).await,
            Request::SendParts { requests } => api::transfer::send_parts(&self.connection, requests, guard).await,
            Request::SendBlocks { snapshot, blocks } => {
                api::transfer::send_blocks(&self.connection, snapshot, blocks, guard).await
            }
        }
    }
}

fn console_of(reply: Reply) -> Result<Outcome, CloudError> {
    match reply {
        Reply::Console(console) => {
            let encoded = console.output.unwrap_or_default().split_whitespace().collect::<String>();
            let text = STANDARD.decode(encoded).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            Ok(Outcome::Console(text.filter(|text| !text.is_empty())))
        }
        Reply::Refused(error) => Err(error.into_error()),
        reply => Err(failed(format!("unexpected reply {reply:?}"))),
    }
}
