//! Credentials and endpoints of an account, as AWS's own clients find them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_smithy_http_client::tls;
use aws_types::service_config::ServiceConfigKey;
use tokio::sync::Mutex;

use super::calls::Service;
use super::errors::with_causes;
use nodepool_driver::error::CloudError;

/// Temporary credentials are renewed this long before they expire, or after three quarters of their lifetime.
const RENEWAL_MARGIN: Duration = Duration::from_secs(300);

/// Where the credentials of a provider are found.
#[derive(Clone)]
pub enum Source {
    /// Environment, profiles, web identity, container and instance metadata.
    Chain { profile: Option<String> },
    /// For tests and other callers.
    Fixed { credentials: Credentials, endpoint: String },
}

/// Credentials of one provider. They are read at the first call, and again before they expire.
pub struct Account {
    source: Source,
    region: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    config: Option<Arc<SdkConfig>>,
    current: Option<Current>,
}

struct Current {
    credentials: Credentials,
    renew_at: Option<SystemTime>,
}

/// Credentials and endpoints for one request.
pub struct Access {
    pub credentials: Credentials,
    config: Option<Arc<SdkConfig>>,
    endpoint: Option<String>,
}

impl Account {
    pub fn new(source: Source, region: String) -> Self {
        Self { source, region, state: Mutex::default() }
    }

    pub fn region(&self) -> &str {
        &self.region
    }

    /// Valid credentials; waits while they are being read or renewed.
    pub async fn access(&self) -> Result<Access, CloudError> {
        let profile = match &self.source {
            Source::Fixed { credentials, endpoint } => {
                let (credentials, endpoint) = (credentials.clone(), Some(endpoint.clone()));
                return Ok(Access { credentials, config: None, endpoint });
            }
            Source::Chain { profile } => profile,
        };
        let mut state = self.state.lock().await;
        let config = match &state.config {
            Some(config) => config.clone(),
            None => state.config.insert(Arc::new(self.load(profile.as_deref()).await)).clone(),
        };
        let is_due = |current: &Current| current.renew_at.is_some_and(|at| now() >= at);
        if state.current.as_ref().is_none_or(is_due) {
            match credentials(&config).await {
                Ok(credentials) => state.current = Some(Current::new(credentials)),
                // Until they expire, the old ones serve.
                Err(error) => {
                    let expires = state.current.as_ref().and_then(|current| current.credentials.expiry());
                    if expires.is_none_or(|at| now() >= at) {
                        return Err(error);
                    }
                }
            }
        }
        let current = state.current.as_ref().expect("credentials were read");
        Ok(Access { credentials: current.credentials.clone(), config: Some(config), endpoint: None })
    }

    /// Reads the credentials again at the next call, unless they have been renewed meanwhile.
    pub async fn renew(&self, used: &Credentials) {
        let mut state = self.state.lock().await;
        state.current.take_if(|current| current.credentials.access_key_id() == used.access_key_id());
    }

    async fn load(&self, profile: Option<&str>) -> SdkConfig {
        let client = aws_smithy_http_client::Builder::new()
            .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring))
            .build_https();
        let region = Region::new(self.region.clone());
        let mut loader =
            aws_config::defaults(BehaviorVersion::latest()).http_client(client.clone()).region(region.clone());
        // A profile that the configuration names precedes the environment.
        if let Some(profile) = profile {
            let settings = ProviderConfig::default().with_http_client(client).with_region(Some(region));
            let of_profile = ProfileFileCredentialsProvider::builder().profile_name(profile).configure(&settings);
            loader = loader.profile_name(profile).credentials_provider(of_profile.build());
        }
        loader.load().await
    }
}

/// The time of the wall clock, in which credentials expire and requests are signed.
pub fn now() -> SystemTime {
    chrono::Utc::now().into()
}

impl Current {
    fn new(credentials: Credentials) -> Self {
        let renew_at = credentials.expiry().map(|expiry| {
            let lifetime = expiry.duration_since(now()).unwrap_or_default();
            expiry - RENEWAL_MARGIN.min(lifetime / 4)
        });
        Self { credentials, renew_at }
    }
}

async fn credentials(config: &SdkConfig) -> Result<Credentials, CloudError> {
    let Some(provider) = config.credentials_provider() else {
        return Err(CloudError::Denied("no AWS credentials are configured".to_owned()));
    };
    provider.provide_credentials().await.map_err(|error| {
        let text = format!("AWS credentials: {}", with_causes(&error));
        match error {
            CredentialsError::CredentialsNotLoaded(_) | CredentialsError::InvalidConfiguration(_) => {
                CloudError::Denied(format!("{text}; set profile-name, AWS_ACCESS_KEY_ID or an instance role"))
            }
            _ => CloudError::Outage { detail: text, may_have_worked: false },
        }
    })
}

impl Access {
    /// The address of a service without a path.
    pub fn endpoint(&self, service: Service, region: &str) -> Endpoint {
        let configured =
            self.endpoint.clone().or_else(|| self.config.as_ref().and_then(|config| configured(config, service)));
        match configured {
            Some(url) => Endpoint { url: url.trim_end_matches('/').to_owned(), is_default: false },
            None => {
                let url = format!("https://{}.{region}.{}", service.name(), domain(region));
                Endpoint { url, is_default: true }
            }
        }
    }
}

/// The address of a service.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    pub url: String,
    /// Whether it is AWS's own. Then buckets are parts of host names.
    pub is_default: bool,
}

/// The endpoint that the environment or the profile names for a service, or for all.
fn configured(config: &SdkConfig, service: Service) -> Option<String> {
    let key = ServiceConfigKey::builder()
        .service_id(service.id())
        .env("AWS_ENDPOINT_URL")
        .profile("endpoint_url")
        .build()
        .expect("all parts of the key are given");
    let of_service = config.service_config().and_then(|settings| settings.load_config(key));
    of_service.or_else(|| config.endpoint_url().map(str::to_owned))
}

/// The domain of a region's partition.
fn domain(region: &str) -> &'static str {
    let partitions = [
        ("cn-", "amazonaws.com.cn"),
        ("us-isob-", "sc2s.sgov.gov"),
        ("us-isof-", "csp.hci.ic.gov"),
        ("us-iso-", "c2s.ic.gov"),
        ("eu-isoe-", "cloud.adc-e.uk"),
        ("eusc-", "amazonaws.eu"),
    ];
    partitions.iter().find(|(prefix, _)| region.starts_with(prefix)).map_or("amazonaws.com", |(_, domain)| domain)
}

/// The files of profiles, which the providers read besides their sections.
pub fn files() -> Vec<PathBuf> {
    let of_variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let of_home = |file: &str| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".aws").join(file));
    let file = |variable: &str, name: &str| of_variable(variable).or_else(|| of_home(name));
    let config = file("AWS_CONFIG_FILE", "config");
    let credentials = file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    config.into_iter().chain(credentials).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(endpoint: Option<&str>) -> Access {
        let credentials = Credentials::new("AKID", "secret", None, None, "test");
        Access { credentials, config: None, endpoint: endpoint.map(str::to_owned) }
    }

    #[test]
    fn regions_have_endpoints_in_their_partitions() {
        let url = |service: Service, region: &str| access(None).endpoint(service, region).url;
        assert_eq!(url(Service::Ec2, "eu-central-1"), "https://ec2.eu-central-1.amazonaws.com");
        assert_eq!(url(Service::Quotas, "cn-north-1"), "https://servicequotas.cn-north-1.amazonaws.com.cn");
        assert_eq!(url(Service::S3, "us-isob-east-1"), "https://s3.us-isob-east-1.sc2s.sgov.gov");
        let own = access(Some("http://127.0.0.1:5000/")).endpoint(Service::Ebs, "us-east-1");
        assert_eq!(own, Endpoint { url: "http://127.0.0.1:5000".to_owned(), is_default: false });
    }

    #[test]
    fn temporary_credentials_are_renewed_before_they_expire() {
        let current = |lifetime_s: u64| {
            let expiry = now() + Duration::from_secs(lifetime_s);
            let renew_at = Current::new(Credentials::new("a", "b", None, Some(expiry), "test")).renew_at.unwrap();
            expiry.duration_since(renew_at).unwrap().as_secs_f64().round() as u64
        };
        assert_eq!((current(3600), current(60)), (300, 15));
        assert!(Current::new(Credentials::new("a", "b", None, None, "test")).renew_at.is_none());
    }
}
