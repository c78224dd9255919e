//! Keystone client: requests a token and its service catalogue, and renews the token before it expires.

mod logins;
mod tokens;

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use openstack::auth::AuthType;
use openstack::{EndpointFilters, Error, ErrorKind};
use reqwest::header::{ACCEPT, HeaderMap};
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::catalog::timings::Timings;
use super::errors::{self, status_of, with_causes};
use super::http::endpoints::{document_request, has_versions};
use super::http::sending::{self, Repeatable};
use logins::{Document, Login, Logins, Version};
use nodepool_model::records::time::Seconds;
use openstack_clouds::{Auth, CloudSettings, IdentityApi, Secret, Service};
use tokens::{CatalogEntry, Endpoint, Token};

/// Timeout of a token request; all calls of a provider wait for it.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(60);
/// Back-off after rejected logins. The first one is short: a single rejection may be an error of Keystone, and all
/// calls fail during the back-off.
const BACKOFFS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(30), Duration::from_secs(60)];

/// Remedy for a Keystone of version 2 only.
const NO_DOMAINS: &str = "it has a version 2, which has no domains: remove user_domain_… and project_domain_… from its \
                          entry in clouds.yaml, or set auth_url to a Keystone of version 3";

/// Login to one cloud, shared by all calls, so that a new token is requested only once.
pub struct Keystone {
    settings: Arc<CloudSettings>,
    auth_url: Url,
    state: Mutex<State>,
    /// Retry-After of the last response; the errors of `openstack` cannot carry it.
    retry_after: std::sync::Mutex<Option<Seconds>>,
    timings: Arc<Timings>,
}

/// The last results of Keystone.
#[derive(Default)]
struct State {
    token: Option<Token>,
    /// The login of the last response that was more than "not found".
    login: Option<Login>,
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

/// Adapter for `openstack`, which authenticates requests and looks up endpoints through it.
#[derive(Clone, Debug)]
pub struct KeystoneAuth(pub Arc<Keystone>);

impl Keystone {
    pub fn new(settings: Arc<CloudSettings>, timings: Arc<Timings>) -> Result<Self, String> {
        let auth_url = Url::parse(&settings.identity.auth_url)
            .map_err(|error| format!("auth_url {} is not a URL: {error}", settings.identity.auth_url))?;
        Ok(Self { settings, auth_url, state: Mutex::default(), retry_after: std::sync::Mutex::new(None), timings })
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
        let result = self.request_token(client, &mut state.login).await;
        state.renewal_requested = false;
        match &result {
            Ok(new) => (state.token, state.login_backoff) = (Some(new.clone()), None),
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

    /// Requests a token at the login of before, or else at the first one that exists.
    async fn request_token(&self, client: &Client, known: &mut Option<Login>) -> Result<Token, Error> {
        if let Some(login) = known.take()
            && let Some(result) = self.log_in_where_it_exists(client, login, known).await
        {
            return result;
        }
        let Logins { candidates, excludes_v2 } = self.find_logins(client).await?;
        let tried: Vec<String> = candidates.iter().map(|login| login.url.to_string()).collect();
        for login in candidates {
            if let Some(result) = self.log_in_where_it_exists(client, login, known).await {
                return result;
            }
        }
        let remedy = if excludes_v2 { NO_DOMAINS } else { "is auth_url a Keystone URL?" };
        let text = format!("Keystone has no login at {} (404); {remedy}", tried.join(" or "));
        Err(Error::new(ErrorKind::AuthenticationFailed, text).with_status(StatusCode::NOT_FOUND))
    }

    /// Logs in and, if a Keystone has responded, remembers the login; `None` if its address does not exist.
    async fn log_in_where_it_exists(
        &self,
        client: &Client,
        login: Login,
        known: &mut Option<Login>,
    ) -> Option<Result<Token, Error>> {
        let result = self.log_in(client, &login).await;
        let status = result.as_ref().err().map(status_of);
        *known = Some(login).filter(|_| !matches!(status, Some(None | Some(404))));
        (status != Some(Some(404))).then_some(result)
    }

    /// Reads the version document at `auth_url`. A useless one is ignored, since the login itself will tell.
    async fn find_logins(&self, client: &Client) -> Result<Logins, Error> {
        let identity = &self.settings.identity;
        if identity.api != IdentityApi::Discovered {
            return Ok(logins::logins(identity, &self.auth_url, None));
        }
        let answer = match sending::send(document_request(client, &self.auth_url), Repeatable::Yes).await {
            Err(error) if error.is_connect() => return Err(transport_error(&error)),
            answer => answer.ok().filter(|answer| has_versions(answer.status())),
        };
        let Some(answer) = answer else { return Ok(logins::logins(identity, &self.auth_url, None)) };
        let (url, text) = (answer.url().clone(), answer.text().await.unwrap_or_default());
        Ok(logins::logins(identity, &self.auth_url, Some(Document { url: &url, text: &text })))
    }

    async fn log_in(&self, client: &Client, login: &Login) -> Result<Token, Error> {
        let (began, url) = (Instant::now(), &login.url);
        let limit =
            self.settings.api_timeout_s.map_or(TOKEN_TIMEOUT, |own| Seconds(own).to_duration().min(TOKEN_TIMEOUT));
        let identity = &self.settings.identity;
        let body = match login.version {
            Version::V2 => tokens::body_v2(identity),
            Version::V3 => tokens::body_v3(identity),
        };
        let mut request = client.post(url.clone()).json(&body).header(ACCEPT, "application/json").timeout(limit);
        if let (Version::V2, Auth::Token { token }) = (login.version, &identity.auth) {
            request = request.header("x-auth-token", token.expose());
        }
        let sent = sending::send(request, Repeatable::Yes).await;
        let status_code = sent.as_ref().ok().map(|answer| answer.status().as_u16());
        self.timings.record("identity.POST.tokens", status_code, began.elapsed());
        let answer = sent.map_err(|error| transport_error(&error))?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let body = answer.bytes().await.map_err(|error| transport_error(&error))?;
        if status != StatusCode::CREATED && status != StatusCode::OK {
            return Err(self.rejection(url, status, &headers, &String::from_utf8_lossy(&body)));
        }
        let unusable = |what: &str| {
            let text = format!("the response of {url} has no {what}; is auth_url a Keystone URL?");
            Error::new(ErrorKind::InvalidResponse, text)
        };
        if login.version == Version::V2 {
            return Token::of_v2(&body).map_err(|_| unusable("readable token"));
        }
        let value = headers.get("x-subject-token").and_then(|value| value.to_str().ok()).map(Secret::new);
        Token::of_v3(value.ok_or_else(|| unusable("X-Subject-Token"))?, &body).map_err(|_| unusable("readable token"))
    }

    /// The error of a refused login.
    fn rejection(&self, url: &Url, status: StatusCode, headers: &HeaderMap, body: &str) -> Error {
        let text = errors::message(body);
        let wait = errors::retry_delay(status, headers);
        let kind = match status.as_u16() {
            503 if wait.is_some() => ErrorKind::InvalidInput,
            400 | 401 | 403 | 404 => ErrorKind::AuthenticationFailed,
            // Temporary; the same kind that `openstack` uses for other requests.
            408 | 413 | 429 => ErrorKind::InvalidInput,
            _ => ErrorKind::InternalServerError,
        };
        *self.retry_after.lock().unwrap_or_else(PoisonError::into_inner) = wait;
        Error::new(kind, format!("Keystone at {url} answers {status}: {text}")).with_status(status)
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

    /// Whether the settings let a service be used.
    pub fn is_enabled(&self, service_type: &str) -> bool {
        self.service(service_type).is_some_and(|(service, _)| service.is_enabled)
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
        let chosen = types.iter().filter_map(|wanted| {
            let mut here = of_type(wanted);
            here.retain(|endpoint| region.is_none_or(|region| endpoint.is_in(region)));
            let mut interfaces = service.interfaces.iter();
            interfaces.find_map(|interface| here.iter().copied().find(|endpoint| endpoint.has(*interface)))
        });
        let chosen: Vec<&Endpoint> = chosen.collect();
        let found = chosen.iter().find(|endpoint| !endpoint.is_of_version_1()).or(chosen.first()).copied();
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

fn transport_error(error: &reqwest::Error) -> Error {
    Error::new(ErrorKind::ProtocolError, with_causes(error))
}

impl fmt::Debug for Keystone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keystone({})", self.auth_url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openstack::test_settings::cloud_with;
    use serde_json::json;

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
        let only_old = [("volume", "here", "https://cinder/v1/p"), ("block-store", "here", "https://cinder/v3/p")];
        assert_eq!(cinder("", &only_old).unwrap(), "https://cinder/v3/p");
        let elsewhere = cinder("region_name: nowhere", &all).unwrap_err();
        assert!(
            elsewhere.contains("region nowhere") && elsewhere.contains("regions with one: here, there"),
            "{elsewhere}"
        );
        let none = cinder("", &all[3..]).unwrap_err();
        assert!(none.contains("no service of type block-storage or volumev3 or volumev2 or volume"), "{none}");
    }
}
