//! HTTP client of IBM Cloud: adds the token and the version to a request, sends it and reads the response.

use bytes::Bytes;
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::error::CloudError;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, StatusCode, redirect};

use super::calls::{Body, Call, HttpRequest, Reply, Service};
use super::credentials::Account;
use super::errors::{ApiError, failed, retry_after, transport_error};
use super::properties::Properties;
use super::transfer::read_part;
use crate::common::object_store;

/// The version of the VPC API whose behaviour the driver expects. Each call names it.
const VERSION: &str = "2025-06-03";
const PUBLIC_DOMAIN: &str = "iaas.cloud.ibm.com";
const RESOURCE_MANAGER_URL: &str = "https://resource-controller.cloud.ibm.com";

/// Connection to the services of one account and region.
pub struct Connection {
    account: Account,
    http: Client,
    vpc: String,
    resources: String,
    /// The endpoint of Cloud Object Storage; empty without `object-storage`.
    storage: String,
}

/// A response, by what the caller does next.
enum Sent {
    Success(HeaderMap, Bytes),
    Refused(ApiError),
}

impl Connection {
    pub fn new(properties: &Properties, region: &str, storage: Option<&str>) -> Result<Self, String> {
        // A redirected request would send the token to another host.
        let http = Client::builder().redirect(redirect::Policy::none()).build();
        let http = http.map_err(|error| format!("cannot set up TLS: {error}"))?;
        let named = |name: &'static str| move |error: String| format!("{name}: {error}");
        let vpc = endpoint(&vpc_url(properties.vpc("URL"), region)).map_err(named("VPC_URL"))?;
        let resources = endpoint(properties.resource_manager_url().unwrap_or(RESOURCE_MANAGER_URL));
        let resources = resources.map_err(named("RESOURCE_MANAGER_URL"))?;
        let storage = storage.map(endpoint).transpose().map_err(named("object-storage"))?.unwrap_or_default();
        if let Some(url) = properties.vpc("AUTH_URL") {
            endpoint(url).map_err(named("VPC_AUTH_URL"))?;
        }
        Ok(Self { account: Account::new(properties, http.clone()), http, vpc, resources, storage })
    }

    /// Requests a token, if there is none or it is about to expire.
    pub async fn prepare(&self) -> Result<(), CloudError> {
        self.account.token().await.map(drop)
    }

    pub async fn send(&self, call: &Call, request: &HttpRequest, guard: &CallGuard) -> Result<Reply, CloudError> {
        let may_change = call.changes;
        match self.send_renewing(request, guard).await {
            Ok(Sent::Success(headers, body)) => match (call.read)(&headers, &body) {
                Ok(reply) => Ok(reply),
                Err(error) if may_change => Ok(Reply::Lost(format!("unreadable response: {error}"))),
                Err(error) => Err(failed(format!("cannot read the response to {}: {error}", call.name()))),
            },
            Ok(Sent::Refused(error)) if error.is_outage() && may_change => Ok(Reply::Lost(error.text())),
            Ok(Sent::Refused(error)) if error.is_outage() => {
                Err(CloudError::Outage { detail: error.text(), may_have_worked: true })
            }
            Ok(Sent::Refused(error)) => Ok(Reply::Refused(error)),
            Err(CloudError::Outage { detail, may_have_worked: true }) if may_change => Ok(Reply::Lost(detail)),
            Err(error) => Err(error),
        }
    }

    /// Stores a part of an image; returns the headers of the response.
    pub async fn store(&self, request: &HttpRequest, guard: &CallGuard) -> Result<HeaderMap, CloudError> {
        guard.wait_until_allowed().await;
        match self.send_renewing(request, guard).await? {
            Sent::Success(headers, _) => Ok(headers),
            Sent::Refused(error) if error.is_outage() => Err(failed(error.text())),
            Sent::Refused(error) => Err(error.into_error()),
        }
    }

    /// Sends a request. A refused token is replaced once.
    async fn send_renewing(&self, request: &HttpRequest, guard: &CallGuard) -> Result<Sent, CloudError> {
        let token = self.account.token().await?;
        match self.send_once(request, token.as_deref()).await? {
            Sent::Refused(error) if error.status == StatusCode::UNAUTHORIZED => {
                self.account.renew(token.as_deref()).await;
                let token = self.account.token().await?;
                guard.wait_until_allowed().await;
                self.send_once(request, token.as_deref()).await
            }
            sent => Ok(sent),
        }
    }

    async fn send_once(&self, request: &HttpRequest, token: Option<&str>) -> Result<Sent, CloudError> {
        let body = match &request.body {
            Body::None => Bytes::new(),
            Body::Json(value) => Bytes::from(value.to_string()),
            Body::Text(text) => Bytes::from(text.clone()),
            Body::File(part) => read_part(part).await?,
        };
        let mut headers = HeaderMap::new();
        for (name, value) in &request.headers {
            let value = HeaderValue::from_str(value).map_err(|_| failed(format!("{name} has an invalid value")))?;
            headers.insert(HeaderName::from_static(name), value);
        }
        if matches!(request.body, Body::Json(_)) {
            headers.insert(reqwest::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let mut sending = self.http.request(request.method.clone(), self.url(request)).headers(headers).body(body);
        if let Some(token) = token {
            sending = sending.bearer_auth(token);
        }
        let response = sending.send().await.map_err(transport_error)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.bytes().await.map_err(transport_error)?;
        let is_late_error = request.service == Service::Storage && object_store::is_late_error(&body);
        if status.is_success() && !is_late_error {
            return Ok(Sent::Success(headers, body));
        }
        let status = if status.is_success() { StatusCode::INTERNAL_SERVER_ERROR } else { status };
        let error = ApiError::read(status, &body);
        // Cloud Object Storage throttles with 503, or in a late error.
        let is_throttled = request.service == Service::Storage && error.code == "SlowDown";
        if status == StatusCode::TOO_MANY_REQUESTS || is_throttled {
            return Err(CloudError::Throttled { retry_after: retry_after(&headers) });
        }
        Ok(Sent::Refused(error))
    }

    fn url(&self, request: &HttpRequest) -> String {
        let base = match request.service {
            Service::Vpc => &self.vpc,
            Service::Resources => &self.resources,
            Service::Storage => &self.storage,
        };
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(&request.query);
        if request.service == Service::Vpc {
            query.append_pair("version", VERSION).append_pair("generation", "2");
        }
        match query.finish() {
            query if query.is_empty() => format!("{base}{}", request.path),
            query => format!("{base}{}?{query}", request.path),
        }
    }
}

/// The address of the VPC API. Providers of several regions may share a credentials file, so one of another region does
/// not count, as in Nodepool 11.
fn vpc_url(given: Option<&str>, region: &str) -> String {
    let is_usable = |url: &&str| !url.contains(PUBLIC_DOMAIN) || url.contains(&format!("{region}."));
    match given.filter(is_usable) {
        Some(url) => url.to_owned(),
        None => format!("https://{region}.{PUBLIC_DOMAIN}/v1"),
    }
}

/// An endpoint without a slash at its end. That of an S3 service may lack its scheme.
fn endpoint(text: &str) -> Result<String, String> {
    let text = text.trim_end_matches('/');
    let text = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    reqwest::Url::parse(&text).map_err(|error| format!("the endpoint {text} is no URL: {error}"))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_region_of_the_provider_counts() {
        let own = "https://us-south.iaas.cloud.ibm.com/v1";
        assert_eq!(vpc_url(None, "us-south"), own);
        assert_eq!(vpc_url(Some("https://eu-de.iaas.cloud.ibm.com/v1"), "us-south"), own);
        let private = "https://us-south.private.iaas.cloud.ibm.com/v1";
        assert_eq!(vpc_url(Some("http://127.0.0.1:1/v1"), "us-south"), "http://127.0.0.1:1/v1");
        assert_eq!(vpc_url(Some(private), "us-south"), private);
    }
}
