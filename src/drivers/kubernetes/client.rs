//! Connection to one cluster: kubeconfig or in-cluster credentials, and raw requests over the client of `kube`.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Request, StatusCode};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::sync::Mutex;

use super::calls::{Call, Reply};
use super::errors::{Rejection, failed, rejection, transport_error, with_causes};
use super::watch::Watches;
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::error::CloudError;

/// A cluster as a provider's section names it. Its credentials are read at the first call, and again when they are not
/// accepted.
pub struct Cluster {
    /// The kubeconfig files, the first first.
    files: Vec<PathBuf>,
    context: Option<String>,
    connected: Mutex<Option<Arc<Connected>>>,
}

/// The address of a cluster's API, for those who use its nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterAddress {
    /// As the kubeconfig has it.
    pub host: String,
    /// Whether the certificate of the API is not checked.
    pub skips_tls: bool,
}

/// A client with its address.
pub struct Connected {
    client: Client,
    pub address: ClusterAddress,
}

/// The kubeconfig files, as kubectl finds them.
pub fn kubeconfig_files() -> Vec<PathBuf> {
    match std::env::var_os("KUBECONFIG").filter(|value| !value.is_empty()) {
        Some(value) => std::env::split_paths(&value).filter(|path| !path.as_os_str().is_empty()).collect(),
        None => std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube/config")).into_iter().collect(),
    }
}

impl Cluster {
    pub fn new(files: Vec<PathBuf>, context: Option<String>) -> Self {
        Self { files, context, connected: Mutex::new(None) }
    }

    /// The connection; reads the credentials if there is none yet.
    pub async fn connection(&self) -> Result<Arc<Connected>, CloudError> {
        let mut connected = self.connected.lock().await;
        if let Some(connected) = &*connected {
            return Ok(connected.clone());
        }
        let new = Arc::new(connect(self.files.clone(), self.context.clone()).await.map_err(CloudError::Denied)?);
        *connected = Some(new.clone());
        Ok(new)
    }

    async fn forget(&self, used: &Arc<Connected>) {
        self.connected.lock().await.take_if(|connected| Arc::ptr_eq(connected, used));
    }

    /// Sends a request. If its credentials are not accepted, they are read anew, once.
    pub async fn send(&self, call: &Call, watches: &Watches, guard: &CallGuard) -> Result<Reply, CloudError> {
        let connection = self.connection().await?;
        match connection.send(call, watches).await? {
            Reply::Rejected(Rejection::Unauthorized(_)) => {
                self.forget(&connection).await;
                let connection = self.connection().await?;
                guard.wait_until_allowed().await;
                match connection.send(call, watches).await? {
                    Reply::Rejected(Rejection::Unauthorized(text)) => {
                        Err(CloudError::Denied(format!("the cluster does not accept the credentials: {text}")))
                    }
                    reply => Ok(reply),
                }
            }
            reply => Ok(reply),
        }
    }
}

impl Connected {
    async fn send(&self, call: &Call, watches: &Watches) -> Result<Reply, CloudError> {
        let changes = call.method != http::Method::GET;
        let (status, headers, body) = match self.request(call, watches).await {
            Ok(Response::Whole(status, headers, body)) => (status, headers, body),
            Ok(Response::Watching) => return Ok(Reply::Watching),
            Err(CloudError::Outage { detail, may_have_worked: true }) if changes => return Ok(Reply::Lost(detail)),
            Err(error) => return Err(error),
        };
        if status.is_success() {
            return match serde_json::from_slice(&body) {
                Ok(object) => Ok(Reply::Object(object)),
                Err(error) if changes => Ok(Reply::Lost(format!("unreadable response: {error}"))),
                Err(error) => {
                    Err(failed(format!("cannot read the response to {} {}: {error}", call.method, call.path)))
                }
            };
        }
        match rejection(status, &headers, &body) {
            Rejection::Error(CloudError::Outage { detail, .. }) if changes => Ok(Reply::Lost(detail)),
            Rejection::Error(error) => Err(error),
            other => Ok(Reply::Rejected(other)),
        }
    }

    async fn request(&self, call: &Call, watches: &Watches) -> Result<Response, CloudError> {
        let body = call.body.as_ref().map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request::builder()
            .method(call.method.clone())
            .uri(&call.path)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(body))
            .map_err(|error| failed(format!("{} is no path: {error}", call.path)))?;
        let response = self.client.send(request).await.map_err(|error| transport_error(&error))?;
        let (status, headers) = (response.status(), response.headers().clone());
        if let Some(kind) = call.watches.filter(|_| status.is_success()) {
            watches.follow(kind, response.into_body()).await;
            return Ok(Response::Watching);
        }
        let body = response.into_body().collect_bytes().await.map_err(|error| transport_error(&error))?;
        Ok(Response::Whole(status, headers, body))
    }
}

enum Response {
    Whole(StatusCode, http::HeaderMap, Bytes),
    /// `Watches` follows the body.
    Watching,
}

async fn connect(files: Vec<PathBuf>, context: Option<String>) -> Result<Connected, String> {
    let shown = files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ");
    let kubeconfig = read_kubeconfig(files).await?;
    let (mut config, host) = match kubeconfig {
        Some(kubeconfig) => {
            let host = host_of(&kubeconfig, context.as_deref());
            let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
            let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
            let named =
                context.as_ref().map_or_else(|| "the current context".to_owned(), |name| format!("context {name}"));
            (
                config.map_err(|error| format!("{named} of the kubeconfig cannot be used: {}", with_causes(&error)))?,
                host,
            )
        }
        None if context.is_some() => {
            return Err(format!("there is no kubeconfig with a context: {shown} does not exist"));
        }
        None => {
            let config = Config::incluster_env().map_err(|error| {
                format!("there is no kubeconfig, and no credentials of a pod: {}", with_causes(&error))
            })?;
            (config, None)
        }
    };
    // The TaskManager repeats calls.
    config.default_retry = false;
    let host = host.unwrap_or_else(|| config.cluster_url.to_string().trim_end_matches('/').to_owned());
    let skips_tls = config.accept_invalid_certs;
    // `kube` uses the default of the process, which other crates of the program may leave open. One that is installed
    // already stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // An exec plugin runs here, for as long as it takes.
    let client = tokio::task::spawn_blocking(move || Client::try_from(config)).await;
    let client = client.map_err(|error| format!("the credentials cannot be read: {error}"))?;
    let client = client.map_err(|error| format!("the credentials cannot be used: {}", with_causes(&error)))?;
    Ok(Connected { client, address: ClusterAddress { host, skips_tls } })
}

/// The merged kubeconfig files; `None` if none exists.
async fn read_kubeconfig(files: Vec<PathBuf>) -> Result<Option<Kubeconfig>, String> {
    let read = tokio::task::spawn_blocking(move || {
        let mut merged: Option<Kubeconfig> = None;
        for path in files.into_iter().filter(|path| path.exists()) {
            let unusable = |error| format!("{} cannot be read: {}", path.display(), with_causes(&error));
            let next = Kubeconfig::read_from(&path).map_err(unusable)?;
            merged = Some(match merged {
                None => next,
                Some(first) => first.merge(next).map_err(unusable)?,
            });
        }
        Ok(merged.filter(|merged| !merged.clusters.is_empty() || !merged.contexts.is_empty()))
    });
    read.await.map_err(|error| format!("the kubeconfig cannot be read: {error}"))?
}

/// The address of the context's cluster as written, which is what other clients are given.
fn host_of(kubeconfig: &Kubeconfig, context: Option<&str>) -> Option<String> {
    let name = context.or(kubeconfig.current_context.as_deref())?;
    let context = kubeconfig.contexts.iter().find(|named| named.name == name)?.context.as_ref()?;
    let cluster = kubeconfig.clusters.iter().find(|named| named.name == context.cluster)?.cluster.as_ref()?;
    Some(cluster.server.as_ref()?.trim_end_matches('/').to_owned())
}
