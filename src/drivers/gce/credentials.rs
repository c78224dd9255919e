//! Tokens for Google's APIs, from the application default credentials: as Google's own clients find them.
//!
//! <https://cloud.google.com/docs/authentication/application-default-credentials>

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gcp_auth::{CustomServiceAccount, MetadataServiceAccount, TokenProvider};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::common::error_text::with_causes;
use nodepool_driver::error::CloudError;

const SCOPES: &[&str] = &["https://www.googleapis.com/auth/cloud-platform"];
/// A token of an authorized user is renewed this long before it expires.
const RENEWAL_MARGIN: Duration = Duration::from_secs(60);
/// Google's token endpoint, unless the file names another.
const TOKEN_URI: &str = "https://oauth2.googleapis.com/token";

/// Where the tokens of a provider come from.
pub enum Source {
    /// The application default credentials.
    Default,
    /// One token, for tests and other callers; without one, calls are sent without.
    Fixed(Option<String>),
}

/// The account of a provider. Its credentials are read at the first call.
pub struct Account {
    source: Source,
    http: reqwest::Client,
    state: Mutex<Option<Tokens>>,
}

enum Tokens {
    OfProvider(Arc<dyn TokenProvider>),
    OfUser(User),
}

/// Credentials that `gcloud auth application-default login` has stored.
#[derive(Deserialize)]
struct UserFile {
    client_id: String,
    client_secret: String,
    refresh_token: String,
    token_uri: Option<String>,
}

struct User {
    file: UserFile,
    token: Option<(String, Instant)>,
}

/// The files in which credentials may be: that of the environment, or the one of gcloud.
pub fn files() -> Vec<PathBuf> {
    let home = std::env::home_dir().map(|home| home.join(".config/gcloud"));
    let directory = std::env::var_os("CLOUDSDK_CONFIG").map(PathBuf::from).or(home);
    let named = std::env::var_os("GOOGLE_APPLICATION_CREDENTIALS").filter(|name| !name.is_empty());
    let stored = || directory.map(|directory| directory.join("application_default_credentials.json"));
    named.map(PathBuf::from).or_else(stored).into_iter().collect()
}

impl Account {
    pub fn new(source: Source, http: reqwest::Client) -> Self {
        Self { source, http, state: Mutex::default() }
    }

    /// A valid token; waits while it is requested.
    pub async fn token(&self) -> Result<Option<String>, CloudError> {
        if let Source::Fixed(token) = &self.source {
            return Ok(token.clone());
        }
        let mut state = self.state.lock().await;
        let tokens = match &mut *state {
            Some(tokens) => tokens,
            None => state.insert(find().await?),
        };
        match tokens {
            Tokens::OfProvider(provider) => {
                let token = provider.token(SCOPES).await.map_err(|error| unanswered(with_causes(&error)))?;
                Ok(Some(token.as_str().to_owned()))
            }
            Tokens::OfUser(user) => user.token(&self.http).await.map(Some),
        }
    }

    /// Google has refused the token: the next one comes from credentials that are read anew.
    pub async fn renew(&self) {
        *self.state.lock().await = None;
    }
}

impl User {
    async fn token(&mut self, http: &reqwest::Client) -> Result<String, CloudError> {
        if let Some((token, until)) = &self.token
            && Instant::now() < *until
        {
            return Ok(token.clone());
        }
        let UserFile { client_id, client_secret, refresh_token, token_uri } = &self.file;
        let body = [
            ("grant_type", "refresh_token"),
            ("client_id", client_id),
            ("client_secret", client_secret),
            ("refresh_token", refresh_token),
        ];
        let sending = http.post(token_uri.as_deref().unwrap_or(TOKEN_URI)).form(&body).send();
        let response = sending.await.map_err(|error| unanswered(with_causes(&error.without_url())))?;
        let status = response.status();
        let answer: Value = response.json().await.map_err(|error| unanswered(with_causes(&error.without_url())))?;
        let Some(token) = answer["access_token"].as_str().filter(|_| status.is_success()) else {
            let reason = answer["error_description"].as_str().or(answer["error"].as_str()).unwrap_or_default();
            let text = format!("Google refuses a token to the authorized user: {status} {reason}");
            return Err(if status.is_server_error() { unanswered(text) } else { CloudError::Denied(text) });
        };
        let lifetime = Duration::from_secs(answer["expires_in"].as_u64().unwrap_or_default());
        self.token = Some((token.to_owned(), Instant::now() + lifetime.saturating_sub(RENEWAL_MARGIN)));
        Ok(token.to_owned())
    }
}

async fn find() -> Result<Tokens, CloudError> {
    for file in files() {
        match std::fs::read_to_string(&file) {
            Ok(text) => return read(&file, &text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(CloudError::Denied(format!("cannot read {}: {error}", file.display()))),
        }
    }
    if let Some(file) = std::env::var_os("GOOGLE_APPLICATION_CREDENTIALS").filter(|name| !name.is_empty()) {
        let file = Path::new(&file).display();
        return Err(CloudError::Denied(format!("{file} of GOOGLE_APPLICATION_CREDENTIALS does not exist")));
    }
    match MetadataServiceAccount::new().await {
        Ok(account) => Ok(Tokens::OfProvider(Arc::new(account))),
        Err(error) => Err(unanswered(format!(
            "no Google credentials: GOOGLE_APPLICATION_CREDENTIALS names no file, and the metadata server has none: {}",
            with_causes(&error)
        ))),
    }
}

/// Credentials of a file. Its content is secret and is never repeated.
fn read(file: &Path, text: &str) -> Result<Tokens, CloudError> {
    let denied = |why: &str| CloudError::Denied(format!("{}: {why}", file.display()));
    let content: Value = serde_json::from_str(text).map_err(|_| denied("it is no JSON"))?;
    match content["type"].as_str() {
        Some("service_account") => {
            // The library panics at such an address.
            if content["token_uri"].as_str().is_none_or(|uri| reqwest::Url::parse(uri).is_err()) {
                return Err(denied("its token_uri is no URL"));
            }
            let account = CustomServiceAccount::from_json(text);
            let account = account.map_err(|_| denied("it is no key of a service account"))?;
            Ok(Tokens::OfProvider(Arc::new(account)))
        }
        Some("authorized_user") => {
            let file = serde_json::from_value(content);
            let file = file.map_err(|_| denied("it lacks client_id, client_secret or refresh_token"))?;
            Ok(Tokens::OfUser(User { file, token: None }))
        }
        Some(kind) => Err(denied(&format!(
            "credentials of the type {kind} are not supported; use a service account's key, \
             or run on Google's machines with a service account"
        ))),
        None => Err(denied("it has no type")),
    }
}

fn unanswered(detail: String) -> CloudError {
    CloudError::Outage { detail, may_have_worked: false }
}
