//! The authentication file of a service principal, and its tokens. Secrets are never shown.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::Client;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::common::error_text::{truncated, with_causes};
use nodepool_driver::error::CloudError;

/// A token is renewed this long before it expires.
const RENEWAL_MARGIN: Duration = Duration::from_secs(60);
const DEFAULT_LIFETIME: Duration = Duration::from_secs(3600);
const MAX_LIFETIME: Duration = Duration::from_secs(24 * 3600);
const DIRECTORY: &str = "https://login.microsoftonline.com";
const RESOURCE_MANAGER: &str = "https://management.azure.com";
/// The variable with the path of the file, if the section has none.
const VARIABLE: &str = "AZURE_AUTH_LOCATION";

/// Content of an authentication file, as `az ad sp create-for-rbac --sdk-auth` writes it.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    pub client_id: String,
    pub client_secret: String,
    pub tenant_id: String,
    pub subscription_id: String,
    /// Endpoints of another cloud than the public one.
    pub active_directory_endpoint_url: Option<String>,
    pub resource_manager_endpoint_url: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("client_id", &self.client_id).finish_non_exhaustive()
    }
}

/// The file of a section with this `auth-path`.
pub fn file(auth_path: Option<&str>) -> Option<PathBuf> {
    let given = auth_path.filter(|path| !path.is_empty()).map(PathBuf::from);
    given.or_else(|| std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from))
}

impl Credentials {
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let content: Value =
            serde_json::from_str(&text).map_err(|_| format!("{} is no JSON object", path.display()))?;
        Self::of(content).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// The error names the key, and repeats nothing of the content.
    pub fn of(content: Value) -> Result<Self, String> {
        for key in ["clientId", "clientSecret", "tenantId", "subscriptionId"] {
            if content[key].as_str().is_none_or(str::is_empty) {
                return Err(format!("{key} is missing"));
            }
        }
        serde_json::from_value(content).map_err(|_| "its endpoints are no texts".to_owned())
    }

    /// The endpoint of the Resource Manager, without a slash at its end.
    pub fn resource_manager(&self) -> &str {
        self.resource_manager_endpoint_url.as_deref().unwrap_or(RESOURCE_MANAGER).trim_end_matches('/')
    }

    fn token_url(&self) -> String {
        let directory = self.active_directory_endpoint_url.as_deref().unwrap_or(DIRECTORY).trim_end_matches('/');
        format!("{directory}/{}/oauth2/token", self.tenant_id)
    }
}

/// The account of a provider.
pub struct Account {
    credentials: Credentials,
    http: Client,
    token: Mutex<Option<Token>>,
}

struct Token {
    text: String,
    renewed_at: Instant,
}

impl Account {
    pub fn new(credentials: Credentials, http: Client) -> Self {
        Self { credentials, http, token: Mutex::default() }
    }

    /// A valid token; waits while it is requested.
    pub async fn token(&self) -> Result<String, CloudError> {
        let mut token = self.token.lock().await;
        if let Some(known) = token.as_ref().filter(|known| Instant::now() < known.renewed_at) {
            return Ok(known.text.clone());
        }
        let new = self.request().await?;
        Ok(token.insert(new).text.clone())
    }

    /// Azure has refused this token. Calls that were refused together lead to one new token.
    pub async fn renew(&self, refused: &str) {
        let mut token = self.token.lock().await;
        if token.as_ref().is_some_and(|token| token.text == refused) {
            *token = None;
        }
    }

    async fn request(&self) -> Result<Token, CloudError> {
        let Credentials { client_id, client_secret, .. } = &self.credentials;
        let resource = format!("{}/", self.credentials.resource_manager());
        let form = [
            ("grant_type", "client_credentials"),
            ("client_id", client_id),
            ("client_secret", client_secret),
            ("resource", &resource),
        ];
        let begun = Instant::now();
        let sent = self.http.post(self.credentials.token_url()).form(&form).send().await;
        let response = sent.map_err(|error| unanswered(with_causes(&error.without_url())))?;
        let status = response.status();
        let body = response.bytes().await.map_err(|error| unanswered(with_causes(&error.without_url())))?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let token = answer["access_token"].as_str().filter(|_| status.is_success());
        let Some(token) = token else {
            let reason = answer["error_description"].as_str().or(answer["error"].as_str()).unwrap_or_default();
            let text = format!("no token: {status} {}", truncated(reason)).trim_end().to_owned();
            let is_refusal = status.is_client_error() && status != reqwest::StatusCode::TOO_MANY_REQUESTS;
            return Err(if is_refusal { CloudError::Denied(text) } else { unanswered(text) });
        };
        let lifetime = seconds(&answer["expires_in"]).map_or(DEFAULT_LIFETIME, Duration::from_secs).min(MAX_LIFETIME);
        let text = token.to_owned();
        Ok(Token { text, renewed_at: begun + lifetime.saturating_sub(RENEWAL_MARGIN) })
    }
}

/// The old endpoint writes numbers as texts.
fn seconds(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

fn unanswered(detail: String) -> CloudError {
    CloudError::Outage { detail, may_have_worked: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_and_debug_texts_show_no_secret() {
        let content = json!({"clientId": "c", "clientSecret": "hunter2", "tenantId": "t", "subscriptionId": "s"});
        let credentials = Credentials::of(content.clone()).unwrap();
        assert!(!format!("{credentials:?}").contains("hunter2"));
        assert_eq!(credentials.resource_manager(), "https://management.azure.com");
        assert_eq!(credentials.token_url(), "https://login.microsoftonline.com/t/oauth2/token");
        let mut broken = content;
        broken["tenantId"] = json!(7);
        assert_eq!(Credentials::of(broken).unwrap_err(), "tenantId is missing");
    }

    #[test]
    fn lifetimes_are_numbers_or_texts() {
        assert_eq!((seconds(&json!("61")), seconds(&json!(61)), seconds(&json!("x"))), (Some(61), Some(61), None));
    }
}
