//! The OpenStack driver: nodes are servers of a cloud that clouds.yaml describes.

pub(crate) mod api_types;
mod auth;
mod calls;
pub mod catalog;
mod config;
mod discovery;
pub(crate) mod errors;
mod http;
mod instances;
pub mod jobs;
pub(crate) mod pagination;
pub(crate) mod request_body;
#[cfg(test)]
mod test_settings;
mod tls;

use std::path::PathBuf;
use std::sync::Arc;

use tokio::time::Instant;
use tracing::warn;

use crate::openstack::api_types::OneServer;
use crate::openstack::calls::{Call, CallKind, Reply, ResponseKind};
use crate::openstack::catalog::shared::ProviderContext;
use crate::openstack::catalog::timings::Timings;
use crate::openstack::errors::{Failure, failed};
use crate::openstack::http::{Connection, FileStamps};
use crate::openstack::jobs::delete::DeleteServer;
use crate::openstack::jobs::import::ImportImage;
use crate::openstack::jobs::launch::LaunchServer;
use crate::openstack::jobs::listing::{ListImages, ListServerIds, ListServers};
use crate::openstack::jobs::refresh::RefreshProvider;
use crate::openstack::jobs::unused_resources::{self, ListUnused};
use crate::openstack::jobs::upload::UploadImage;
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::driver::{ApiCall, Driver, JobMachine, NeedsReopen};
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::job::{Job, Outcome};
use nodepool_driver::state_machine::{InFlightLimit, OneCall, REFRESH_INTERVAL, RateLimits, Spacing};
use nodepool_model::config::ProviderConfig;
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::metrics::statsd_metrics::{Sample, StatsdAddress};
use nodepool_model::records::time::Seconds;
use openstack_clouds::{CloudSettings, ConfigPaths};
use python_yaml::diagnostics::Diagnostic;

/// Interval between listings while servers boot.
const OBSERVE_INTERVAL: Seconds = Seconds(1.0);

pub struct OpenStack {
    context: Arc<ProviderContext>,
    connection: Connection,
    timings: Arc<Timings>,
    config_paths: ConfigPaths,
    file_stamps: Arc<FileStamps>,
}

pub fn open(section: &ProviderConfig) -> Result<OpenStack, Vec<Diagnostic>> {
    open_with(section, &ConfigPaths::from_process())
}

/// Files that a provider reads besides its section, before it is opened.
pub fn files() -> Vec<PathBuf> {
    ConfigPaths::from_process().files().cloned().collect()
}

/// Opens the driver with explicit paths of clouds.yaml and its companion files, for tests and other callers.
pub fn open_with(section: &ProviderConfig, config_paths: &ConfigPaths) -> Result<OpenStack, Vec<Diagnostic>> {
    let (settings, mut diagnostics) = read(section);
    let cloud = cloud(section, &settings, config_paths, &mut diagnostics);
    diagnostics.items.retain(Diagnostic::is_error);
    let Some(cloud) = cloud.filter(|_| diagnostics.items.is_empty()) else { return Err(diagnostics.items) };
    let cloud = Arc::new(cloud);
    let timings = Arc::new(Timings::new(&cloud));
    // The stamps are taken before the files are read, so that a concurrent write is detected later.
    let file_stamps = Arc::new(FileStamps::read(&cloud));
    let connection = Connection::new(cloud.clone(), timings.clone()).map_err(|error| {
        let help = format!("provider {} is out of service; clouds.yaml describes its cloud", section.name);
        vec![Diagnostic::error(section.section.at, error).help(help)]
    })?;
    let has_ipv6 = instances::host_has_ipv6();
    let facts = ProviderFacts {
        launch_config: Some(Arc::new(jobs::refresh::initial_launching(&settings))),
        upload_config: Some(Arc::new(settings.section.uploading(&cloud.image_format))),
        ..ProviderFacts::initial()
    };
    let context = Arc::new(ProviderContext::new(section.name.clone(), settings, cloud, has_ipv6, facts));
    Ok(OpenStack { context, connection, timings, config_paths: config_paths.clone(), file_stamps })
}

/// Errors and warnings of a section, without those of clouds.yaml.
pub fn diagnostics(section: &ProviderConfig) -> Vec<Diagnostic> {
    read(section).1.items
}

fn read(section: &ProviderConfig) -> (config::Settings, Diagnostics) {
    let mut diagnostics = Diagnostics::default();
    (config::read(section, &mut diagnostics), diagnostics)
}

fn cloud(
    section: &ProviderConfig,
    settings: &config::Settings,
    config_paths: &ConfigPaths,
    diagnostics: &mut Diagnostics,
) -> Option<CloudSettings> {
    let selector =
        openstack_clouds::CloudSelector { cloud: settings.cloud.as_deref(), region: settings.region.as_deref() };
    match openstack_clouds::load(config_paths, selector) {
        Ok(loaded) => {
            // The warnings are logged, because they concern clouds.yaml, which is read only when a provider starts.
            loaded.warnings.iter().for_each(|warning| warn!(provider = %section.name, "{warning}"));
            Some(loaded.settings)
        }
        Err(error) => {
            let at = section.section.get("cloud").map_or(section.section.at, |value| value.at);
            diagnostics.error(at, error.to_string(), format!("provider {} is out of service", section.name));
            None
        }
    }
}

impl Driver for OpenStack {
    type Call = Call;
    type Reply = Reply;

    fn facts(&self) -> ProviderFacts {
        self.context.facts.clone()
    }

    fn rate_limits(&self) -> RateLimits {
        RateLimits {
            spacing: Spacing::Shared(self.context.settings.section.spacing),
            in_flight: InFlightLimit::Configurable,
            listing_delay: OBSERVE_INTERVAL,
            refresh: Some(REFRESH_INTERVAL),
        }
    }

    fn begin(&self, job: &Job) -> JobMachine<Self> {
        let context = self.context.clone();
        match job {
            Job::Launch(order) => Box::new(LaunchServer::new(context, order.clone())),
            Job::Delete(id) => Box::new(DeleteServer::new(context, id.clone())),
            Job::Refresh => Box::new(RefreshProvider::new(context)),
            Job::List => Box::new(ListServers::new(context)),
            Job::ListServerIds => Box::new(ListServerIds::new()),
            Job::Console(id) => {
                Box::new(OneCall::new("reading the console", calls::console(&id.to_string()), console_of))
            }
            Job::Upload(order) if self.context.cloud.image_api_use_tasks => {
                let of_cloud = self.context.cloud.image_properties.clone();
                Box::new(ImportImage::new(order.clone(), context.settings.section.upload_timeout, of_cloud))
            }
            Job::Upload(order) => Box::new(UploadImage::new(context, order.clone())),
            Job::DeleteImage(id) => {
                let call = calls::delete_image(&id.to_string());
                Box::new(OneCall::new("deleting image", call, |_| Ok(Outcome::Deleted)))
            }
            Job::ListImages => Box::new(ListImages::new()),
            Job::ListUnused(kinds) => Box::new(ListUnused::new(context, kinds)),
            Job::DeleteUnused(resource) => Box::new(unused_resources::delete(resource)),
            Job::Inspect(_) | Job::Probe(_) => Box::new(OneCall::unsupported()),
        }
    }

    fn needs_reopen(&self) -> Option<NeedsReopen> {
        let (context, config_paths, file_stamps) =
            (self.context.clone(), self.config_paths.clone(), self.file_stamps.clone());
        let files = self.config_paths.files().chain(http::files_of(&self.context.cloud)).cloned().collect();
        let check = Arc::new(move || {
            let (cloud, region) = (context.settings.cloud.as_deref(), context.settings.region.as_deref());
            // A reopened provider could not use an invalid file, so the provider keeps its settings until it is valid.
            let now = openstack_clouds::load(&config_paths, openstack_clouds::CloudSelector { cloud, region });
            now.is_ok_and(|loaded| {
                let is_renewed =
                    || FileStamps::read(&loaded.settings) != *file_stamps && is_usable(loaded.settings.clone());
                loaded.settings != *context.cloud || is_renewed()
            })
        });
        Some(NeedsReopen { files, check })
    }

    fn statsd_address(&self) -> Option<StatsdAddress> {
        self.context.cloud.statsd.as_ref().map(|statsd| StatsdAddress { host: statsd.host.clone(), port: statsd.port })
    }

    fn take_samples(&self) -> Vec<Sample> {
        self.timings.take()
    }

    async fn prepare(&self, call: &Call) -> Result<(), CloudError> {
        let CallKind::Send(request, _) = &call.kind else { return Ok(()) };
        let began = Instant::now();
        self.connection.prepare(request).await.map_err(|failure| {
            self.timings.record(call.key(), failure.status, began.elapsed());
            failure.error
        })
    }

    async fn call(&self, call: Call, guard: &CallGuard) -> Result<Reply, CloudError> {
        if call.delay > Seconds::ZERO {
            tokio::time::sleep(call.delay.to_duration()).await;
        }
        let (key, began) = (call.key(), Instant::now());
        let (request, shape) = match call.kind {
            CallKind::Discover => {
                let services = self.connection.discover().await;
                let status = services.as_ref().map_or_else(|failure| failure.status, |_| Some(200));
                self.timings.record(key, status, began.elapsed());
                return services.map(Reply::Discovered).map_err(|failure| failure.error);
            }
            CallKind::Send(request, shape) => (request, shape),
        };
        let result = self.connection.send(&request, guard).await;
        let status = result.as_ref().map_or_else(|failure| failure.status, |answer| Some(answer.status));
        self.timings.record(key, status, began.elapsed());
        let body = match result.map(|answer| answer.body) {
            Ok(body) => body,
            Err(Failure { error, may_have_worked: true, .. }) if shape == ResponseKind::Created => {
                return Ok(Reply::ResponseLost(error));
            }
            Err(failure) => return Err(failure.error),
        };
        let unreadable = |error: serde_json::Error| {
            failed(format!("cannot read the response to {} /{}: {error}", request.method, request.path.join("/")))
        };
        match shape {
            ResponseKind::Nothing => Ok(Reply::Nothing),
            ResponseKind::Servers => serde_json::from_slice(&body).map(Reply::Servers).map_err(unreadable),
            ResponseKind::ServerIds => serde_json::from_slice(&body).map(Reply::ServerIds).map_err(unreadable),
            ResponseKind::OneServer => {
                let body = serde_json::from_slice::<OneServer>(&body).map_err(unreadable)?;
                Ok(Reply::Server(Box::new(body.server)))
            }
            ResponseKind::Json => serde_json::from_slice(&body).map(Reply::Json).map_err(unreadable),
            ResponseKind::Created => {
                Ok(serde_json::from_slice(&body)
                    .map_or_else(|error| Reply::ResponseLost(unreadable(error)), Reply::Json))
            }
        }
    }
}

/// Whether the certificates can be read; they may be partially written.
fn is_usable(cloud: CloudSettings) -> bool {
    let timings = Arc::new(Timings::new(&cloud));
    Connection::new(Arc::new(cloud), timings).is_ok()
}

fn console_of(reply: Reply) -> Result<Outcome, CloudError> {
    let Reply::Json(answer) = reply else { return Ok(Outcome::Console(None)) };
    Ok(Outcome::Console(answer.get("output").and_then(|text| text.as_str()).map(str::to_owned)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::BUILT_IN_DRIVERS;
    use nodepool_model::config::diagnostics::Source;
    use nodepool_model::config::resolve::resolve;
    use python_yaml::parse;

    fn certificate() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["nodepool".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn a_renewed_certificate_requires_a_reopen_once_it_is_readable() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let files = ["ca.pem", "own.pem", "key.pem"].map(path);
        let (own, key) = certificate();
        for (file, text) in files.iter().zip([&certificate().0, &own, &key]) {
            fs::write(file, text).unwrap();
        }
        let auth = "{auth_url: 'https://keystone', username: u, password: p, project_name: p}";
        let [ca, own, key] = files.each_ref().map(|file| file.display().to_string());
        let clouds = format!("clouds: {{c: {{auth: {auth}, cacert: {ca}, cert: {own}, key: {key}}}}}\n");
        fs::write(path("clouds.yaml"), clouds).unwrap();
        let text = "labels: []\nproviders: [{name: p, driver: openstack, cloud: c}]\n";
        let root = parse::parse(text, &mut Vec::new()).unwrap();
        let config = resolve(Source { file: "nodepool.yaml", root: &root }, None, BUILT_IN_DRIVERS).config.unwrap();
        let section = config.providers.values().next().unwrap();
        let config_paths = ConfigPaths { clouds: vec![path("clouds.yaml")], ..ConfigPaths::default() };
        for file in &files {
            let needs_reopen = open_with(section, &config_paths).unwrap().needs_reopen().unwrap();
            assert!(!(needs_reopen.check)());
            let before = fs::read_to_string(file).unwrap();
            fs::write(file, &before[..before.len() / 2]).unwrap();
            assert!(!(needs_reopen.check)(), "{file:?} is being written");
            fs::write(file, format!("{before}\n")).unwrap();
            assert!((needs_reopen.check)(), "{file:?}");
        }
    }
}
