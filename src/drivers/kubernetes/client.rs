//! Connection to one cluster: kubeconfig or in-cluster credentials, and raw requests over the client of `kube`.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::TryStreamExt;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{Request, StatusCode};
use kube::client::middleware::AuthLayer;
use kube::client::{Body, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tokio::sync::Mutex;
use tower::{Layer, ServiceExt};

use super::calls::{Call, Reply, Response};
use super::errors::{Rejection, failed, rejection, transport_error, with_causes};
use super::watch::{Watches, lines};
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::error::CloudError;

/// A cluster as a provider's section names it. Its credentials are read at the first call, and again when they are not
/// accepted.
pub struct Cluster {
    /// The kubeconfig files, the first first.
    files: Vec<PathBuf>,
    context: Option<String>,
    /// Whether the login of the account is handed out with nodes.
    hands_out_login: bool,
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

/// The login of the account itself. It contains secrets, so it is not shown.
#[derive(Clone)]
pub struct OwnLogin {
    /// `None` if the account has a client certificate or a password.
    pub token: Option<String>,
    /// The cluster's authority in base64, as a kubeconfig has it.
    pub ca_crt: Option<String>,
}

/// A client with its address.
pub struct Connected {
    client: Client,
    pub address: ClusterAddress,
    /// Adds the current token to requests.
    authorization: Option<AuthLayer>,
    ca_crt: Option<String>,
}

/// The kubeconfig files, as kubectl finds them.
pub fn kubeconfig_files() -> Vec<PathBuf> {
    match std::env::var_os("KUBECONFIG").filter(|value| !value.is_empty()) {
        Some(value) => std::env::split_paths(&value).filter(|path| !path.as_os_str().is_empty()).collect(),
        None => std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube/config")).into_iter().collect(),
    }
}

impl Cluster {
    pub fn new(files: Vec<PathBuf>, context: Option<String>, hands_out_login: bool) -> Self {
        Self { files, context, hands_out_login, connected: Mutex::new(None) }
    }

    /// The connection; reads the credentials if there is none yet.
    pub async fn connection(&self) -> Result<Arc<Connected>, CloudError> {
        let mut connected = self.connected.lock().await;
        if let Some(connected) = &*connected {
            return Ok(connected.clone());
        }
        let new = Arc::new(self.connect().await.map_err(CloudError::Denied)?);
        *connected = Some(new.clone());
        Ok(new)
    }

    async fn connect(&self) -> Result<Connected, String> {
        connect(self.files.clone(), self.context.clone(), self.hands_out_login).await
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
            Ok(Answer::Whole(status, headers, body)) => (status, headers, body),
            Ok(Answer::Watching) => return Ok(Reply::Watching),
            Ok(Answer::Event(event)) => return Ok(Reply::Event(event)),
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
            Rejection::Error(CloudError::Denied(text))
                if call.is_hidden_if_forbidden && status == StatusCode::FORBIDDEN =>
            {
                Ok(Reply::Rejected(Rejection::Hidden(text)))
            }
            Rejection::Error(CloudError::Outage { detail, .. }) if changes => Ok(Reply::Lost(detail)),
            Rejection::Error(error) => Err(error),
            other => Ok(Reply::Rejected(other)),
        }
    }

    async fn request(&self, call: &Call, watches: &Watches) -> Result<Answer, CloudError> {
        let body = call.body.as_ref().map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request::builder()
            .method(call.method.clone())
            .uri(&call.path)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, call.content_type())
            .body(Body::from(body))
            .map_err(|error| failed(format!("{} is no path: {error}", call.path)))?;
        let response = self.client.send(request).await.map_err(|error| transport_error(&error))?;
        let (status, headers) = (response.status(), response.headers().clone());
        match &call.response {
            Response::Stream { source, is_first } if status.is_success() => {
                watches.follow(source.clone(), *is_first, response.into_body()).await;
                return Ok(Answer::Watching);
            }
            Response::Event if status.is_success() => {
                return Ok(Answer::Event(next_event(response.into_body()).await?));
            }
            Response::Object | Response::Stream { .. } | Response::Event => {}
        }
        let body = response.into_body().collect_bytes().await.map_err(|error| transport_error(&error))?;
        Ok(Answer::Whole(status, headers, body))
    }

    /// The token that the requests of this account have now.
    async fn token(&self) -> Result<Option<String>, CloudError> {
        let Some(layer) = &self.authorization else { return Ok(None) };
        // The request goes nowhere; its headers are the response.
        let echo = tower::service_fn(|request: Request<Body>| async move {
            let mut response = http::Response::new(());
            *response.headers_mut() = request.headers().clone();
            Ok::<_, tower::BoxError>(response)
        });
        let echoed = layer.layer(echo).oneshot(Request::new(Body::empty())).await;
        let echoed = echoed.map_err(|error| CloudError::Denied(format!("credentials: {error}")))?;
        let header = echoed.headers().get(AUTHORIZATION).and_then(|header| header.to_str().ok());
        Ok(header.and_then(|header| header.strip_prefix("Bearer ")).map(str::to_owned))
    }

    /// The login of this account, for those who use pods in its projects.
    pub async fn own_login(&self) -> Result<OwnLogin, CloudError> {
        Ok(OwnLogin { token: self.token().await?, ca_crt: self.ca_crt.clone() })
    }
}

/// The next event of a watch that is no bookmark; `None` at its end.
async fn next_event(body: Body) -> Result<Option<Value>, CloudError> {
    let mut lines = pin!(lines(body));
    while let Some(line) = lines.try_next().await? {
        let event: Value =
            serde_json::from_slice(&line).map_err(|error| failed(format!("unreadable event of a watch: {error}")))?;
        if event["type"] != "BOOKMARK" {
            return Ok(Some(event));
        }
    }
    Ok(None)
}

enum Answer {
    Whole(StatusCode, http::HeaderMap, Bytes),
    /// `Watches` follows the body.
    Watching,
    Event(Option<Value>),
}

async fn connect(files: Vec<PathBuf>, context: Option<String>, hands_out_login: bool) -> Result<Connected, String> {
    let shown = files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ");
    let kubeconfig = read_kubeconfig(files).await?;
    let (mut config, host, ca_crt) = match kubeconfig {
        Some(kubeconfig) => {
            let cluster = cluster_of(&kubeconfig, context.as_deref());
            let (host, ca_crt) = (cluster.and_then(host_of), cluster.map(ca_crt_of).transpose()?.flatten());
            let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
            let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
            let named =
                context.as_ref().map_or_else(|| "the current context".to_owned(), |name| format!("context {name}"));
            let config =
                config.map_err(|error| format!("{named} of the kubeconfig cannot be used: {}", with_causes(&error)))?;
            (config, host, ca_crt)
        }
        None if context.is_some() => {
            return Err(format!("there is no kubeconfig with a context: {shown} does not exist"));
        }
        None => {
            let config = Config::incluster_env().map_err(|error| {
                format!("there is no kubeconfig, and no credentials of a pod: {}", with_causes(&error))
            })?;
            (config, None, None)
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
    let opened = tokio::task::spawn_blocking(move || {
        let authorization = if hands_out_login { config.auth_layer()? } else { None };
        Ok::<_, kube::Error>((Client::try_from(config)?, authorization))
    });
    let opened = opened.await.map_err(|error| format!("the credentials cannot be read: {error}"))?;
    let (client, authorization) =
        opened.map_err(|error| format!("the credentials cannot be used: {}", with_causes(&error)))?;
    Ok(Connected { client, address: ClusterAddress { host, skips_tls }, authorization, ca_crt })
}

async fn read_kubeconfig(files: Vec<PathBuf>) -> Result<Option<Kubeconfig>, String> {
    let read = tokio::task::spawn_blocking(move || merged_kubeconfig(&files));
    read.await.map_err(|error| format!("the kubeconfig cannot be read: {error}"))?
}

/// The merged kubeconfig files; `None` if none exists.
pub fn merged_kubeconfig(files: &[PathBuf]) -> Result<Option<Kubeconfig>, String> {
    let mut merged: Option<Kubeconfig> = None;
    for path in files.iter().filter(|path| path.exists()) {
        let unusable = |error| format!("{} cannot be read: {}", path.display(), with_causes(&error));
        let next = Kubeconfig::read_from(path).map_err(unusable)?;
        merged = Some(match merged {
            None => next,
            Some(first) => first.merge(next).map_err(unusable)?,
        });
    }
    Ok(merged.filter(|merged| !merged.clusters.is_empty() || !merged.contexts.is_empty()))
}

/// The cluster of a context.
fn cluster_of<'a>(kubeconfig: &'a Kubeconfig, context: Option<&str>) -> Option<&'a kube::config::Cluster> {
    let name = context.or(kubeconfig.current_context.as_deref())?;
    let context = kubeconfig.contexts.iter().find(|named| named.name == name)?.context.as_ref()?;
    kubeconfig.clusters.iter().find(|named| named.name == context.cluster)?.cluster.as_ref()
}

/// The address of a cluster as written, which is what other clients are given.
fn host_of(cluster: &kube::config::Cluster) -> Option<String> {
    Some(cluster.server.as_ref()?.trim_end_matches('/').to_owned())
}

/// The authority of a cluster in base64.
fn ca_crt_of(cluster: &kube::config::Cluster) -> Result<Option<String>, String> {
    if let Some(data) = &cluster.certificate_authority_data {
        return Ok(Some(data.clone()));
    }
    let Some(path) = &cluster.certificate_authority else { return Ok(None) };
    let read = std::fs::read(path).map_err(|error| format!("certificate-authority {path} cannot be read: {error}"))?;
    Ok(Some(STANDARD.encode(read)))
}
