//! Keystone client: requests a token and its service catalogue, and renews the token before it expires.

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, FixedOffset, Utc};
use openstack::auth::AuthType;
use openstack::{EndpointFilters, Error, ErrorKind};
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::catalog::timings::Timings;
use super::errors::status_of;
use nodepool_model::records::time::Seconds;
use openstack_clouds::{Auth, CloudSettings, Credential, Domain, Identity, Interface, Scope, Secret, Service, User};

/// A token that expires sooner than this is replaced before it is used.
const TOKEN_EXPIRY_MARGIN_S: i64 = 60;
/// Timeout of a token request; all calls of a provider wait for it.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(60);
/// Back-off after rejected logins. The first one is short: a single rejection may be an error of Keystone, and all
/// calls fail during the back-off.
const BACKOFFS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(30), Duration::from_secs(60)];

/// Login to one cloud, shared by all calls, so that a new token is requested only once.
pub struct Keystone {
    settings: Arc<CloudSettings>,
    token_url: Url,
    state: Mutex<State>,
    /// Retry-After of the last response; the errors of `openstack` cannot carry it.
    retry_after: std::sync::Mutex<Option<Seconds>>,
    timings: Arc<Timings>,
}

/// The last results of Keystone.
#[derive(Default)]
struct State {
    token: Option<Token>,
    login_backoff: Option<LoginBackoff>,
    /// A new token is requested, because its catalogue may contain a service that the current one lacks.
    renewal_requested: bool,
}

/// Back-off after a rejected login: Keystone may lock the account after repeated failures.
struct LoginBackoff {
    error: Error,
    since: Instant,
    /// Number of consecutive rejections.
    failures: usize,
}

impl LoginBackoff {
    /// Time until the next login.
    fn backoff(&self) -> Duration {
        BACKOFFS[self.failures.clamp(1, BACKOFFS.len()) - 1]
    }
}

#[derive(Clone)]
struct Token {
    value: Secret,
    expires_at: Option<DateTime<FixedOffset>>,
    catalog: Vec<CatalogEntry>,
    project: Option<String>,
}

/// One service of the catalogue. Clouds may omit any field.
#[derive(Clone, Debug, Deserialize)]
struct CatalogEntry {
    #[serde(rename = "type", default)]
    service_type: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, Deserialize)]
struct Endpoint {
    #[serde(default)]
    interface: String,
    #[serde(default)]
    region: Option<String>,
    #[serde(default)]
    region_id: Option<String>,
    url: String,
}

#[derive(Deserialize)]
struct TokenRoot {
    token: TokenBody,
}

#[derive(Deserialize)]
struct TokenBody {
    #[serde(default)]
    expires_at: Option<String>,
    #[serde(default)]
    catalog: Vec<CatalogEntry>,
    #[serde(default)]
    project: Option<Project>,
}

#[derive(Deserialize)]
struct Project {
    id: String,
}

/// Adapter for `openstack`, which authenticates requests and looks up endpoints through it.
#[derive(Clone, Debug)]
pub struct KeystoneAuth(pub Arc<Keystone>);

impl Keystone {
    pub fn new(settings: Arc<CloudSettings>, timings: Arc<Timings>) -> Result<Self, String> {
        let url = settings.identity.auth_url.trim_end_matches('/');
        let base = if url.ends_with("/v3") { url.to_owned() } else { format!("{}/v3", url.trim_end_matches("/v2.0")) };
        let token_url = Url::parse(&format!("{base}/auth/tokens"))
            .map_err(|error| format!("auth_url {} is not a URL: {error}", settings.identity.auth_url))?;
        Ok(Self { settings, token_url, state: Mutex::default(), retry_after: std::sync::Mutex::new(None), timings })
    }

    /// Discards a token that was rejected before it expired: the next call requests another one.
    pub async fn invalidate_token(&self, refused: &Secret) {
        let mut state = self.state.lock().await;
        state.token.take_if(|token| token.value == *refused);
    }

    /// The next call requests another token, with the current catalogue.
    pub fn request_renewal(&self) {
        // The holder of the lock is already requesting a new token.
        if let Ok(mut state) = self.state.try_lock() {
            state.renewal_requested = true;
        }
    }

    /// The Retry-After of the last response, if it had one.
    pub fn take_retry_after(&self) -> Option<Seconds> {
        self.retry_after.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub async fn token(&self, client: &Client) -> Result<Secret, Error> {
        Ok(self.valid_token(client).await?.value)
    }

    /// The id of the token's project.
    pub async fn project(&self, client: &Client) -> Result<String, Error> {
        let none = || Error::new(ErrorKind::EndpointNotFound, "the token is not scoped to a project".to_owned());
        self.valid_token(client).await?.project.ok_or_else(none)
    }

    async fn valid_token(&self, client: &Client) -> Result<Token, Error> {
        let mut state = self.state.lock().await;
        let usable = state.token.clone().filter(|token| !token.expires_soon());
        if let Some(token) = usable.clone().filter(|_| !state.renewal_requested) {
            return Ok(token);
        }
        if let Some(login_backoff) =
            state.login_backoff.as_ref().filter(|login| login.since.elapsed() < login.backoff())
        {
            return usable.ok_or(login_backoff.error.clone());
        }
        let result = self.request_token(client).await;
        state.renewal_requested = false;
        match &result {
            Ok(new) => *state = State { token: Some(new.clone()), ..State::default() },
            Err(error) if matches!(status_of(error), Some(401 | 403)) => {
                let failures = state.login_backoff.as_ref().map_or(0, |before| before.failures) + 1;
                state.login_backoff = Some(LoginBackoff { error: error.clone(), since: Instant::now(), failures });
            }
            Err(_) => {}
        }
        // The existing token is used until it expires.
        match usable {
            Some(token) if result.is_err() => Ok(token),
            _ => result,
        }
    }

    async fn request_token(&self, client: &Client) -> Result<Token, Error> {
        let began = Instant::now();
        let limit =
            self.settings.api_timeout_s.map_or(TOKEN_TIMEOUT, |own| Seconds(own).to_duration().min(TOKEN_TIMEOUT));
        let request = client.post(self.token_url.clone()).json(&body(&self.settings.identity)).timeout(limit);
        let sent = crate::openstack::http::send_repeatable(request).await;
        let status_code = sent.as_ref().ok().map(|answer| answer.status().as_u16());
        self.timings.record("identity.POST.tokens", status_code, began.elapsed());
        let answer =
            sent.map_err(|error| Error::new(ErrorKind::ProtocolError, crate::openstack::errors::with_causes(&error)))?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        if status != StatusCode::CREATED && status != StatusCode::OK {
            let text = crate::openstack::errors::message(&answer.text().await.unwrap_or_default());
            let wait = crate::openstack::errors::retry_delay(status, &headers);
            let kind = match status.as_u16() {
                503 if wait.is_some() => ErrorKind::InvalidInput,
                400 | 401 | 403 | 404 => ErrorKind::AuthenticationFailed,
                // Temporary; the same kind that `openstack` uses for other requests.
                408 | 413 | 429 => ErrorKind::InvalidInput,
                _ => ErrorKind::InternalServerError,
            };
            *self.retry_after.lock().unwrap_or_else(PoisonError::into_inner) = wait;
            let url = &self.token_url;
            return Err(Error::new(kind, format!("Keystone at {url} answers {status}: {text}")).with_status(status));
        }
        let value = headers.get("x-subject-token").and_then(|value| value.to_str().ok()).map(Secret::new);
        let no_token = |what: &str| {
            Error::new(
                ErrorKind::InvalidResponse,
                format!("the response of {} has no {what}; is auth_url a Keystone URL?", self.token_url),
            )
        };
        let value = value.ok_or_else(|| no_token("X-Subject-Token"))?;
        let root: TokenRoot = answer.json().await.map_err(|_| no_token("readable token"))?;
        let expires_at = root.token.expires_at.and_then(|text| DateTime::parse_from_rfc3339(&text).ok());
        Ok(Token {
            value,
            expires_at,
            catalog: root.token.catalog,
            project: root.token.project.map(|project| project.id),
        })
    }

    /// The settings of a service and its type names in catalogues.
    fn service(&self, service_type: &str) -> Option<(&Service, Vec<&str>)> {
        let services = &self.settings.services;
        let (service, default_types): (&Service, &[&str]) = match service_type {
            "compute" => (&services.compute, &["compute"]),
            "network" => (&services.network, &["network"]),
            "image" => (&services.image, &["image"]),
            // In the order of os-service-types.
            "block-storage" => {
                (&services.block_storage, &["block-storage", "volumev3", "volumev2", "volume", "block-store"])
            }
            "object-store" => (&services.object_store, &["object-store"]),
            "identity" => (&services.identity, &["identity"]),
            _ => return None,
        };
        let types = service.service_type.as_deref().map_or_else(|| default_types.to_vec(), |own| vec![own]);
        Some((service, types))
    }

    /// Whether the settings have the address of a service.
    pub fn is_overridden(&self, service_type: &str) -> bool {
        self.service(service_type).is_some_and(|(service, _)| service.endpoint.is_some())
    }

    fn find_endpoint(&self, token: &Token, service_type: &str) -> Result<Url, Error> {
        let not_found = |reason: String| Error::new(ErrorKind::EndpointNotFound, reason);
        let (service, types) =
            self.service(service_type).ok_or_else(|| not_found(format!("unknown service {service_type}")))?;
        let region = service.region.as_deref().or(self.settings.region.as_deref());
        let is_named = |entry: &&CatalogEntry| service.service_name.is_none() || service.service_name == entry.name;
        let of_type = |wanted: &str| {
            let entries = token.catalog.iter().filter(move |entry| entry.service_type == wanted).filter(is_named);
            entries.flat_map(|entry| &entry.endpoints).filter(|endpoint| !endpoint.url.is_empty()).collect::<Vec<_>>()
        };
        // The region and the interface are compared first, as keystoneauth does: an alias may have the only endpoint.
        let found = types.iter().find_map(|wanted| {
            let mut here = of_type(wanted);
            here.retain(|endpoint| region.is_none_or(|region| endpoint.is_in(region)));
            let mut interfaces = service.interfaces.iter();
            interfaces.find_map(|interface| here.iter().copied().find(|endpoint| endpoint.has(*interface)))
        });
        let Some(found) = found else {
            let endpoints: Vec<&Endpoint> = types.iter().flat_map(|wanted| of_type(wanted)).collect();
            if endpoints.is_empty() {
                return Err(not_found(format!("the catalogue has no service of type {}", types.join(" or "))));
            }
            let mut regions: Vec<&str> = endpoints.iter().filter_map(|endpoint| endpoint.region()).collect();
            regions.sort_unstable();
            regions.dedup();
            return Err(not_found(format!(
                "the catalogue has no {service_type} endpoint for region {} and interface {:?}; regions with one: {}",
                region.unwrap_or("(any)"),
                service.interfaces,
                regions.join(", ")
            )));
        };
        Url::parse(&found.url).map_err(|_| {
            let text = format!("the catalogue's {service_type} endpoint {} is not a URL", found.url);
            Error::new(ErrorKind::InvalidResponse, text)
        })
    }
}

impl Token {
    fn expires_soon(&self) -> bool {
        // The expiry is wall-clock time, so it is compared with the wall clock, not with a monotonic one.
        self.expires_at.is_some_and(|end| (end.with_timezone(&Utc) - Utc::now()).num_seconds() < TOKEN_EXPIRY_MARGIN_S)
    }
}

impl Endpoint {
    fn region(&self) -> Option<&str> {
        self.region_id.as_deref().or(self.region.as_deref())
    }

    fn is_in(&self, region: &str) -> bool {
        [&self.region_id, &self.region].into_iter().any(|name| name.as_deref() == Some(region))
    }

    fn has(&self, interface: Interface) -> bool {
        let name = self.interface.trim_end_matches("URL");
        match interface {
            Interface::Public => name == "public",
            Interface::Internal => name == "internal",
            Interface::Admin => name == "admin",
        }
    }
}

#[async_trait]
impl AuthType for KeystoneAuth {
    async fn authenticate(&self, client: &Client, request: RequestBuilder) -> Result<RequestBuilder, Error> {
        let token = self.0.token(client).await?;
        Ok(request.header("x-auth-token", token.expose()))
    }

    async fn get_endpoint(&self, client: &Client, service: &str, _: &EndpointFilters) -> Result<Url, Error> {
        if let Some(own) = self.0.service(service).and_then(|(service, _)| service.endpoint.as_deref()) {
            return Url::parse(own).map_err(|_| {
                Error::new(ErrorKind::InvalidConfig, format!("{service}_endpoint_override is not a URL"))
            });
        }
        let token = self.0.valid_token(client).await?;
        self.0.find_endpoint(&token, service)
    }

    async fn refresh(&self, client: &Client) -> Result<(), Error> {
        self.0.valid_token(client).await.map(drop)
    }
}

impl fmt::Debug for Keystone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keystone({})", self.token_url)
    }
}

/// The request for a token.
fn body(identity: &Identity) -> Value {
    let identity_part = match &identity.auth {
        Auth::Password { user: who, password } => {
            let mut user = user(who);
            user["password"] = password.expose().into();
            json!({"methods": ["password"], "password": {"user": user}})
        }
        Auth::Token { token } => json!({"methods": ["token"], "token": {"id": token.expose()}}),
        Auth::ApplicationCredential { credential, secret } => {
            let mut part = match credential {
                Credential::Id(id) => json!({"id": id}),
                Credential::Name { name, user: owner } => json!({"name": name, "user": user(owner)}),
            };
            part["secret"] = secret.expose().into();
            json!({"methods": ["application_credential"], "application_credential": part})
        }
    };
    let mut auth = json!({"identity": identity_part});
    let scope = match &identity.scope {
        Scope::Default => None,
        Scope::ProjectId(id) => Some(json!({"project": {"id": id}})),
        Scope::ProjectName { name, domain: of } => {
            let mut project = json!({"name": name});
            if let Some(of) = of {
                project["domain"] = domain(of);
            }
            Some(json!({"project": project}))
        }
        Scope::Domain(of) => Some(json!({"domain": domain(of)})),
        Scope::System => Some(json!({"system": {"all": true}})),
        Scope::Trust(id) => Some(json!({"OS-TRUST:trust": {"id": id}})),
    };
    // Keystone rejects a scope with application credentials, which have their own.
    if let Some(scope) = scope.filter(|_| !matches!(identity.auth, Auth::ApplicationCredential { .. })) {
        auth["scope"] = scope;
    }
    json!({"auth": auth})
}

fn user(user: &User) -> Value {
    match user {
        User::Id(id) => json!({"id": id}),
        User::Name { name, domain: None } => json!({"name": name}),
        User::Name { name, domain: Some(of) } => json!({"name": name, "domain": domain(of)}),
    }
}

fn domain(domain: &Domain) -> Value {
    match domain {
        Domain::Id(id) => json!({"id": id}),
        Domain::Name(name) => json!({"name": name}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openstack::test_settings::cloud_with;

    /// The address of Cinder in a catalogue with endpoints of these types, regions and addresses.
    fn cinder(keys: &str, endpoints: &[(&str, &str, &str)]) -> Result<String, String> {
        let settings = Arc::new(cloud_with(keys));
        let keystone = Keystone::new(settings.clone(), Arc::new(Timings::new(&settings))).unwrap();
        let entry = |(kind, region, url): &(&str, &str, &str)| json!({"type": kind, "endpoints": [{"interface": "public", "region": region, "url": url}]});
        let catalog = serde_json::from_value(endpoints.iter().map(entry).collect()).unwrap();
        let token = Token { value: Secret::new("token"), expires_at: None, catalog, project: None };
        let found = keystone.find_endpoint(&token, "block-storage");
        found.map(|url| url.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_service_is_found_by_its_aliases_in_the_order_of_openstacksdk() {
        let all = [
            ("volume", "here", "https://cinder/v1/p"),
            ("volumev2", "here", "https://cinder/v2/p"),
            ("volumev3", "there", "https://cinder/v3/p"),
            ("block-storage", "there", ""),
        ];
        assert_eq!(cinder("region_name: here", &all).unwrap(), "https://cinder/v2/p");
        assert_eq!(cinder("", &all).unwrap(), "https://cinder/v3/p");
        assert_eq!(cinder("block_storage_service_type: volume", &all).unwrap(), "https://cinder/v1/p");
        assert_eq!(cinder("", &all[..1]).unwrap(), "https://cinder/v1/p");
        let elsewhere = cinder("region_name: nowhere", &all).unwrap_err();
        assert!(
            elsewhere.contains("region nowhere") && elsewhere.contains("regions with one: here, there"),
            "{elsewhere}"
        );
        let none = cinder("", &all[3..]).unwrap_err();
        assert!(none.contains("no service of type block-storage or volumev3 or volumev2 or volume"), "{none}");
    }
}
