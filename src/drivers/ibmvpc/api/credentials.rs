//! Tokens for IBM Cloud: requested with an API key or with the token of a container, and renewed before they expire.

use std::time::Duration;

use nodepool_driver::error::CloudError;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::errors::{ApiError, retry_after, transport_error};
use super::properties::Properties;

const IAM_URL: &str = "https://iam.cloud.ibm.com";
const TOKEN_PATH: &str = "/identity/token";
const APIKEY_GRANT: &str = "urn:ibm:params:oauth:grant-type:apikey";
const CONTAINER_GRANT: &str = "urn:ibm:params:oauth:grant-type:cr-token";
/// Files in which the token of a container may be.
const CONTAINER_TOKENS: [&str; 3] = [
    "/var/run/secrets/tokens/vault-token",
    "/var/run/secrets/tokens/sa-token",
    "/var/run/secrets/codeengine.cloud.ibm.com/compute-resource-token/token",
];
/// A token is renewed after this part of its lifetime, as by IBM's clients.
const USED_PART: f64 = 0.8;

/// The account of a provider. Nothing in it is ever shown.
pub struct Account {
    source: Source,
    http: reqwest::Client,
    token: Mutex<Option<Token>>,
}

enum Source {
    /// Calls are sent without a token.
    Anonymous,
    Fixed(String),
    Requested(TokenRequest),
    /// No token can be requested, for this reason.
    Missing(String),
}

struct TokenRequest {
    url: String,
    form: Vec<(&'static str, String)>,
    /// The file whose content is the token of the container.
    container: Option<Vec<String>>,
    /// Id and secret of the client.
    client: Option<(String, String)>,
}

#[derive(Clone)]
struct Token {
    text: String,
    renewed_at: Instant,
}

impl Account {
    pub fn new(properties: &Properties, http: reqwest::Client) -> Self {
        Self { source: Source::new(properties), http, token: Mutex::default() }
    }

    /// A valid token; waits while it is requested.
    pub async fn token(&self) -> Result<Option<String>, CloudError> {
        let request = match &self.source {
            Source::Anonymous => return Ok(None),
            Source::Fixed(token) => return Ok(Some(token.clone())),
            Source::Missing(why) => return Err(CloudError::Denied(why.clone())),
            Source::Requested(request) => request,
        };
        let mut state = self.token.lock().await;
        if let Some(token) = state.as_ref().filter(|token| Instant::now() < token.renewed_at) {
            return Ok(Some(token.text.clone()));
        }
        let token = request.send(&self.http).await?;
        Ok(Some(state.insert(token).text.clone()))
    }

    /// The service has refused this token: the next one is requested anew.
    pub async fn renew(&self, refused: Option<&str>) {
        let mut state = self.token.lock().await;
        // Another call may have renewed it meanwhile.
        if state.as_ref().map(|token| token.text.as_str()) == refused {
            *state = None;
        }
    }
}

impl Source {
    fn new(properties: &Properties) -> Self {
        let get = |name: &str| properties.vpc(name).map(str::to_owned);
        let by_default = if get("APIKEY").is_some() { "iam" } else { "container" };
        let kind = get("AUTH_TYPE").or_else(|| get("AUTHTYPE")).unwrap_or_else(|| by_default.to_owned());
        let is_named = get("AUTH_TYPE").or_else(|| get("AUTHTYPE")).is_some();
        match (kind.to_lowercase().as_str(), get("APIKEY")) {
            ("noauth", _) => Source::Anonymous,
            ("bearertoken", _) => match get("BEARER_TOKEN") {
                Some(token) => Source::Fixed(token),
                None => Source::Missing("VPC_BEARER_TOKEN is not set".to_owned()),
            },
            ("iam", Some(key)) => {
                let key = ("apikey", key);
                let form = vec![("grant_type", APIKEY_GRANT.to_owned()), key];
                Source::Requested(TokenRequest::new(properties, form, None))
            }
            ("iam", None) => Source::Missing("VPC_APIKEY is not set".to_owned()),
            ("container", _) if is_named || has_profile(properties) => {
                let mut form = vec![("grant_type", CONTAINER_GRANT.to_owned())];
                form.extend(get("IAM_PROFILE_ID").map(|id| ("profile_id", id)));
                form.extend(get("IAM_PROFILE_NAME").map(|name| ("profile_name", name)));
                let files = match get("CR_TOKEN_FILENAME") {
                    Some(file) => vec![file],
                    None => CONTAINER_TOKENS.map(str::to_owned).to_vec(),
                };
                Source::Requested(TokenRequest::new(properties, form, Some(files)))
            }
            ("container", _) => Source::Missing(
                "no IBM Cloud credentials: neither the credentials file nor the environment has VPC_APIKEY".to_owned(),
            ),
            (other, _) => Source::Missing(format!(
                "VPC_AUTH_TYPE={other} is not supported; use iam, container, bearertoken or noauth"
            )),
        }
    }
}

fn has_profile(properties: &Properties) -> bool {
    ["IAM_PROFILE_ID", "IAM_PROFILE_NAME"].iter().any(|name| properties.vpc(name).is_some())
}

impl TokenRequest {
    fn new(properties: &Properties, mut form: Vec<(&'static str, String)>, container: Option<Vec<String>>) -> Self {
        let get = |name: &str| properties.vpc(name).map(str::to_owned);
        form.push(("response_type", "cloud_iam".to_owned()));
        form.extend(get("SCOPE").map(|scope| ("scope", scope)));
        let base = get("AUTH_URL").unwrap_or_else(|| IAM_URL.to_owned());
        let base = base.trim_end_matches('/').trim_end_matches(TOKEN_PATH);
        let client = get("CLIENT_ID").zip(get("CLIENT_SECRET"));
        Self { url: format!("{base}{TOKEN_PATH}"), form, container, client }
    }

    async fn send(&self, http: &reqwest::Client) -> Result<Token, CloudError> {
        let mut form = self.form.clone();
        if let Some(files) = &self.container {
            form.push(("cr_token", container_token(files)?));
        }
        let requested_at = Instant::now();
        let mut request = http.post(&self.url).form(&form);
        if let Some((id, secret)) = &self.client {
            request = request.basic_auth(id, Some(secret));
        }
        let response = request.send().await.map_err(|error| unanswered(transport_error(error)))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.bytes().await.map_err(|error| unanswered(transport_error(error)))?;
        if !status.is_success() {
            let text = format!("IBM Cloud issues no token: {}", ApiError::read(status, &body).text());
            return Err(match status {
                reqwest::StatusCode::TOO_MANY_REQUESTS => CloudError::Throttled { retry_after: retry_after(&headers) },
                status if status.is_server_error() => CloudError::Outage { detail: text, may_have_worked: false },
                _ => CloudError::Denied(text),
            });
        }
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        let Some(text) = answer["access_token"].as_str() else {
            let detail = "the response of the token endpoint has no token".to_owned();
            return Err(CloudError::Outage { detail, may_have_worked: false });
        };
        let lifetime = answer["expires_in"].as_f64().unwrap_or_default().clamp(0.0, 86_400.0);
        let renewed_at = requested_at + Duration::from_secs_f64(lifetime * USED_PART);
        Ok(Token { text: text.to_owned(), renewed_at })
    }
}

/// The call that needs the token was not sent.
fn unanswered(error: CloudError) -> CloudError {
    match error {
        CloudError::Outage { detail, .. } => CloudError::Outage { detail, may_have_worked: false },
        error => error,
    }
}

fn container_token(files: &[String]) -> Result<String, CloudError> {
    let found = files.iter().find_map(|file| std::fs::read_to_string(file).ok());
    found.map(|text| text.trim().to_owned()).ok_or_else(|| {
        CloudError::Denied(format!("no token of the container: cannot read any of {}", files.join(", ")))
    })
}
