//! HTTP client of one cloud: finds the endpoint, adds the token, sends a request and returns the response.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use openstack::ErrorKind;
use openstack::session::Session;
use reqwest::{Client, Identity, Method, StatusCode, Url, redirect};
use serde_json::Value;

use super::auth::{Keystone, KeystoneAuth};
use super::catalog::timings::Timings;
use super::discovery;
use super::errors::{DEFAULT_RETRY_DELAY, Failure, error_response, failed, status_of, truncated, with_causes};
use super::jobs::image_stream::{Content, ContentError};
use super::tls;
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::error::CloudError;
use openstack_clouds::{CloudSettings, Secret, Verify};
use sending::Repeatable;

/// Timeout of the TCP and TLS connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of the preparation of a request: the token and the version documents.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(60);

/// A service of the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    Compute,
    Network,
    Image,
    BlockStorage,
    ObjectStore,
}

/// Placeholder in a path or query for the id of the token's project.
pub const PROJECT: &str = "{project}";

/// One request as data.
#[derive(Clone, Debug)]
pub struct Request {
    pub api: Api,
    pub method: Method,
    pub path: Vec<String>,
    pub query: Vec<(Cow<'static, str>, String)>,
    pub body: Option<Value>,
    /// Sent instead of a body.
    pub content: Option<Content>,
    pub headers: Vec<(&'static str, String)>,
    /// Nova's microversion; `None` is the oldest of the major version.
    pub version: Option<String>,
    /// The request creates a resource, so sending it twice creates two.
    pub creates: bool,
}

impl Request {
    pub fn new(api: Api, method: Method, path: &[&str]) -> Self {
        let path = path.iter().map(|part| (*part).to_owned()).collect();
        Self {
            api,
            method,
            path,
            query: Vec::new(),
            body: None,
            content: None,
            headers: Vec::new(),
            version: None,
            creates: false,
        }
    }
}

/// The newest microversion of Nova that this driver supports.
const MAX_MICROVERSION: (u16, u16) = (2, 93);

/// Optional services of a cloud, beside Nova and Glance.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Services {
    pub network: bool,
    pub block_storage: bool,
    /// The newest microversion of Nova that both sides support.
    pub microversion: Option<(u16, u16)>,
}

/// A successful response.
#[derive(Debug)]
pub struct ApiResponse {
    pub status: u16,
    pub body: Vec<u8>,
}

/// Modification times and lengths of the files that a connection uses; `None` for an unreadable file.
#[derive(Debug, PartialEq)]
pub struct FileStamps(Vec<Option<(SystemTime, u64)>>);

impl FileStamps {
    pub fn read(settings: &CloudSettings) -> Self {
        let stamp = |path: &PathBuf| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        };
        Self(files_of(settings).map(stamp).collect())
    }
}

/// The authority, certificate and key that a cloud's settings name.
pub fn files_of(settings: &CloudSettings) -> impl Iterator<Item = &PathBuf> {
    let bundle = match &settings.verify {
        Verify::Bundle(path) => Some(path),
        Verify::System | Verify::Off => None,
    };
    let own = settings.certificate.iter().flat_map(|own| std::iter::once(&own.certificate).chain(&own.key));
    bundle.into_iter().chain(own)
}

/// HTTP connection to one cloud.
pub struct Connection {
    settings: Arc<CloudSettings>,
    keystone: Arc<Keystone>,
    documents: Mutex<HashMap<Api, endpoints::DocumentHistory>>,
    client: Client,
    discovered: Mutex<Option<DiscoveredServices>>,
}

/// Endpoints and versions of the services. They are discovered again at each refresh and with each token, because
/// endpoints move and services are upgraded.
struct DiscoveredServices {
    session: Session,
    endpoints: HashMap<Api, discovery::Endpoint>,
    /// The token whose catalogue contained the services.
    token: Secret,
    /// An optional service is missing; the next refresh checks for it with a new token.
    incomplete: bool,
}

impl Connection {
    pub fn new(settings: Arc<CloudSettings>, timings: Arc<Timings>) -> Result<Self, String> {
        let keystone = Arc::new(Keystone::new(settings.clone(), timings)?);
        let client = client(&settings)?;
        Ok(Self { settings, keystone, client, documents: Mutex::default(), discovered: Mutex::default() })
    }

    /// Sends a request and returns the response. If the cloud rejects the token, sends it once more with a new token,
    /// after the call guard allows it.
    pub async fn send(&self, request: &Request, guard: &CallGuard) -> Result<ApiResponse, Failure> {
        let target = self.request_target(request).await?;
        let result = match self.send_once(request, target).await {
            Err(CallFailure::TokenRejected(used)) => {
                self.keystone.invalidate_token(&used).await;
                let target = self.request_target(request).await?;
                guard.wait_until_allowed().await;
                self.send_once(request, target).await
            }
            other => other,
        };
        result.map_err(CallFailure::into_failure)
    }

    async fn send_once(
        &self,
        request: &Request,
        RequestTarget { url, token }: RequestTarget,
    ) -> Result<ApiResponse, CallFailure> {
        let mut builder = self.client.request(request.method.clone(), url).header("x-auth-token", token.expose());
        if let Some(version) = &request.version {
            builder = builder
                .header("x-openstack-nova-api-version", version)
                .header("openstack-api-version", format!("compute {version}"));
        }
        for (name, value) in &request.headers {
            builder = builder.header(*name, value);
        }
        if let Some(body) = &request.body {
            builder = builder.json(body);
        }
        let answer = match &request.content {
            None => {
                let repeatable = if request.method == Method::GET { Repeatable::Yes } else { Repeatable::No };
                sending::send(builder, repeatable).await.map_err(|error| transport_error(&error))?
            }
            Some(content) => content.send(builder).await.map_err(|error| match error {
                ContentError::Http(error) => transport_error(&error),
                ContentError::Local(text) => Failure::not_executed(failed(text)).into(),
                ContentError::Stalled(text) => {
                    Failure { error: failed(text), may_have_worked: true, status: None }.into()
                }
            })?,
        };
        let (status, headers) = (answer.status(), answer.headers().clone());
        let body = answer.bytes().await.map_err(|error| transport_error(&error))?;
        if status == StatusCode::NOT_ACCEPTABLE {
            // The service has changed its versions, so they are discovered again.
            *self.discovered() = None;
        }
        match status {
            StatusCode::UNAUTHORIZED => Err(CallFailure::TokenRejected(token)),
            _ if status.is_success() => Ok(ApiResponse { status: status.as_u16(), body: body.into() }),
            _ => Err(error_response(request.creates, status, &headers, &String::from_utf8_lossy(&body)).into()),
        }
    }

    /// Fetches the token and endpoint of a request before it is sent.
    pub async fn prepare(&self, request: &Request) -> Result<(), Failure> {
        self.request_target(request).await.map(drop)
    }

    /// Finds URL and token within the short timeout, even if the request itself may take hours.
    async fn request_target(&self, request: &Request) -> Result<RequestTarget, Failure> {
        let search = self.with_token(async || self.find_target(request).await);
        tokio::time::timeout(PREPARE_TIMEOUT, search).await.unwrap_or_else(|_| {
            let text = format!("no token or endpoint within {} s", PREPARE_TIMEOUT.as_secs());
            Err(Failure::not_executed(outage(self.with_cloud_name(&text))))
        })
    }

    /// Repeats the attempt once with a new token if the token is rejected.
    async fn with_token<T>(&self, attempt: impl AsyncFn() -> Result<T, CallFailure>) -> Result<T, Failure> {
        let result = match attempt().await {
            Err(CallFailure::TokenRejected(used)) => {
                self.keystone.invalidate_token(&used).await;
                attempt().await
            }
            other => other,
        };
        result.map_err(CallFailure::into_failure)
    }

    async fn find_target(&self, request: &Request) -> Result<RequestTarget, CallFailure> {
        let token = self.keystone.token(&self.client).await.map_err(|error| self.error_before_sending(&error))?;
        let session = self.session(&token).await.map_err(|error| self.error_before_sending(&error))?;
        let texts = || request.path.iter().chain(request.query.iter().map(|(_, value)| value));
        let project = match texts().any(|text| text == PROJECT) {
            true => self.keystone.project(&self.client).await.map_err(|error| self.error_before_sending(&error))?,
            false => String::new(),
        };
        let with_project = |text: &String| if text == PROJECT { project.clone() } else { text.clone() };
        let endpoint = self.endpoint(&session, request.api, &token).await;
        let mut url = endpoint.map_err(|error| self.endpoint_error(&error, &token))?.url;
        if url.cannot_be_a_base() {
            let text = format!("the catalogue's {} endpoint {url} takes no paths", request.api.service_type());
            return Err(Failure::not_executed(failed(self.with_cloud_name(&text))).into());
        }
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(request.path.iter().map(with_project));
        }
        if !request.query.is_empty() {
            let query = request.query.iter().map(|(key, value)| (key, with_project(value)));
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(RequestTarget { url, token })
    }

    async fn session(&self, token: &Secret) -> Result<Session, openstack::Error> {
        let cached =
            || self.discovered().as_ref().filter(|known| known.token == *token).map(|known| known.session.clone());
        if let Some(session) = cached() {
            return Ok(session);
        }
        let session = self.log_in().await?;
        // Another call may have stored a session meanwhile.
        Ok(cached().unwrap_or_else(|| self.store_session(session, token, false)))
    }

    fn store_session(&self, session: Session, token: &Secret, incomplete: bool) -> Session {
        let endpoints = HashMap::new();
        let services = DiscoveredServices { session: session.clone(), endpoints, token: token.clone(), incomplete };
        *self.discovered() = Some(services);
        session
    }

    fn discovered(&self) -> MutexGuard<'_, Option<DiscoveredServices>> {
        // No update can panic halfway, so the value is consistent even if the lock is poisoned.
        self.discovered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn log_in(&self) -> Result<Session, openstack::Error> {
        Session::new_with_client(self.client.clone(), KeystoneAuth(self.keystone.clone())).await
    }

    /// Adds the name of the cloud to a message.
    fn with_cloud_name(&self, text: &str) -> String {
        format!("cloud {}: {text}", self.settings.cloud.as_deref().unwrap_or("of the environment"))
    }

    /// Maps the error of a failed endpoint lookup.
    fn endpoint_error(&self, error: &openstack::Error, token: &Secret) -> CallFailure {
        match error.kind() {
            // A version document rejected the token; Keystone had accepted it.
            ErrorKind::AuthenticationFailed => CallFailure::TokenRejected(token.clone()),
            // The catalogue may have been incomplete when the token was issued.
            ErrorKind::EndpointNotFound => {
                self.keystone.request_renewal();
                self.error_before_sending(error)
            }
            _ => self.error_before_sending(error),
        }
    }

    /// Maps an error that occurred before the request was sent.
    fn error_before_sending(&self, error: &openstack::Error) -> CallFailure {
        let text = self.with_cloud_name(&truncated(&error.to_string()));
        CallFailure::Failed(Failure::not_executed(match error.kind() {
            ErrorKind::AuthenticationFailed | ErrorKind::EndpointNotFound | ErrorKind::InvalidConfig => {
                CloudError::Denied(text)
            }
            // Statuses for which `openstack` has no kind of its own. Most of them are permanent.
            ErrorKind::InvalidInput => match status_of(error) {
                Some(503) => outage(format!("{text} (503)")),
                Some(408 | 413 | 429) => CloudError::Throttled {
                    retry_after: self.keystone.take_retry_after().unwrap_or(DEFAULT_RETRY_DELAY),
                },
                Some(status) => failed(format!("{text} ({status})")),
                None => failed(text),
            },
            ErrorKind::ProtocolError
            | ErrorKind::InternalServerError
            | ErrorKind::OperationTimedOut
            | ErrorKind::OperationFailed => outage(text),
            _ => failed(text),
        }))
    }

    /// Discovers which optional services exist. A cloud without Nova is an error.
    pub async fn discover(&self) -> Result<Services, Failure> {
        self.with_token(async || self.discover_once().await).await
    }

    async fn discover_once(&self) -> Result<Services, CallFailure> {
        if self.discovered().as_ref().is_some_and(|known| known.incomplete) {
            self.keystone.request_renewal();
        }
        let token = self.keystone.token(&self.client).await.map_err(|error| self.error_before_sending(&error))?;
        let session = self.log_in().await.map_err(|error| self.error_before_sending(&error))?;
        let session = self.store_session(session, &token, false);
        let compute = self.endpoint(&session, Api::Compute, &token).await;
        let compute = compute.map_err(|error| self.endpoint_error(&error, &token))?;
        let mut incomplete = false;
        let mut exists = |found: Result<_, openstack::Error>| match found {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::EndpointNotFound => {
                incomplete = true;
                Ok(false)
            }
            Err(error) => Err(self.endpoint_error(&error, &token)),
        };
        let is_enabled = |api: Api| self.keystone.is_enabled(api.service_type());
        let services = Services {
            network: is_enabled(Api::Network) && exists(self.endpoint(&session, Api::Network, &token).await)?,
            block_storage: is_enabled(Api::BlockStorage)
                && exists(self.endpoint(&session, Api::BlockStorage, &token).await)?,
            microversion: compute.microversion.map(|newest| MAX_MICROVERSION.min(newest)),
        };
        if let Some(known) = self.discovered().as_mut() {
            known.incomplete = incomplete;
        }
        Ok(services)
    }
}

/// URL and token of a request.
struct RequestTarget {
    url: Url,
    token: Secret,
}

enum CallFailure {
    /// Status 401: the token may have been revoked.
    TokenRejected(Secret),
    Failed(Failure),
}

impl CallFailure {
    fn into_failure(self) -> Failure {
        match self {
            CallFailure::Failed(failure) => failure,
            CallFailure::TokenRejected(_) => {
                // The credentials are right, or Keystone would not have issued it.
                Failure::not_executed(outage("the cloud rejects a token that Keystone has just issued".to_owned()))
            }
        }
    }
}

impl From<Failure> for CallFailure {
    fn from(failure: Failure) -> Self {
        CallFailure::Failed(failure)
    }
}

/// A client that leaves redirects to `sending`.
fn client(settings: &CloudSettings) -> Result<Client, String> {
    let mut builder =
        Client::builder().connect_timeout(CONNECT_TIMEOUT).redirect(redirect::Policy::none()).user_agent("nodepool");
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    let identity = match &settings.certificate {
        Some(own) => {
            let pem = identity(read(&own.certificate)?, own.key.as_deref().map(read).transpose()?);
            let usable = Identity::from_pem(&pem);
            let usable =
                usable.map_err(|error| format!("cert {} cannot be used: {error}", own.certificate.display()))?;
            Some((pem, usable))
        }
        None => None,
    };
    match &settings.verify {
        Verify::System => {}
        Verify::Off => builder = builder.danger_accept_invalid_certs(true),
        Verify::Bundle(path) => {
            let pem = identity.as_ref().map(|(pem, _)| pem.as_slice());
            builder = builder.use_preconfigured_tls(tls::client_config(path, pem)?);
        }
    }
    if let Some((_, usable)) = identity.filter(|_| !matches!(settings.verify, Verify::Bundle(_))) {
        builder = builder.identity(usable);
    }
    if let Some(limit) = settings.api_timeout_s.map(nodepool_model::records::time::Seconds) {
        builder = builder.timeout(limit.to_duration());
    }
    builder.build().map_err(|error| format!("cannot create an HTTP client: {error}"))
}

/// Client certificate and key. A line break separates them even if the certificate file does not end with one.
fn identity(mut pem: Vec<u8>, key: Option<Vec<u8>>) -> Vec<u8> {
    if let Some(key) = key {
        pem.push(b'\n');
        pem.extend(key);
    }
    pem
}

/// Maps a missing or truncated response.
fn transport_error(error: &reqwest::Error) -> CallFailure {
    let text = truncated(&with_causes(error));
    if error.is_builder() {
        return CallFailure::Failed(Failure::not_executed(failed(text)));
    }
    let may_have_worked = !error.is_connect();
    let error = CloudError::Outage { detail: text, may_have_worked };
    CallFailure::Failed(Failure { error, may_have_worked, status: None })
}

/// The error of a request that was not sent because the cloud did not respond.
fn outage(detail: String) -> CloudError {
    CloudError::Outage { detail, may_have_worked: false }
}

pub mod endpoints;
#[cfg(test)]
mod protocol_tests;
pub mod sending;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_and_key_may_be_two_files_without_a_final_line_break() {
        let made = rcgen::generate_simple_self_signed(["nodepool".to_owned()]).unwrap();
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        for (certificate, key) in [(certificate.trim_end(), key.trim_end()), (&certificate, &key)] {
            Identity::from_pem(&identity(certificate.into(), Some(key.into()))).unwrap();
        }
        Identity::from_pem(&identity(format!("{certificate}{key}").into(), None)).unwrap();
    }
}
