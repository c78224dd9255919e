//! HTTP client of Compute Engine: requests below one project.

use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::error::CloudError;
use nodepool_model::records::time::Seconds;
use reqwest::header::HeaderMap;
use reqwest::{Client, Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::credentials::{Account, Source};
use super::errors::ApiError;
use crate::common::error_text::{failed, transport_error};
use crate::common::retry_after::retry_after;

/// Address of the API, and the variable with which gcloud replaces it.
const ENDPOINT: &str = "https://compute.googleapis.com/compute/v1/";
const ENDPOINT_VARIABLE: &str = "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE";

/// Connection to Compute Engine.
pub struct Connection {
    account: Account,
    http: Client,
    /// Ends with a slash.
    endpoint: String,
}

/// A refused call, or one that failed otherwise.
pub enum Refusal {
    ByGoogle(ApiError, Option<Seconds>),
    Otherwise(CloudError),
}

impl From<Refusal> for CloudError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::ByGoogle(error, retry_after) => error.into_error(retry_after),
            Refusal::Otherwise(error) => error,
        }
    }
}

impl Connection {
    pub fn new(source: Source, endpoint: Option<&str>) -> Result<Self, String> {
        let given = std::env::var(ENDPOINT_VARIABLE).ok().filter(|text| !text.is_empty());
        let endpoint = endpoint.map(str::to_owned).or(given).unwrap_or_else(|| ENDPOINT.to_owned());
        let endpoint = format!("{}/", endpoint.trim_end_matches('/'));
        reqwest::Url::parse(&endpoint).map_err(|error| format!("{ENDPOINT_VARIABLE}={endpoint}: {error}"))?;
        let http = Client::builder().build().map_err(|error| format!("cannot set up TLS: {error}"))?;
        Ok(Self { account: Account::new(source, http.clone()), http, endpoint })
    }

    /// Requests a token, if there is none or it is about to expire.
    pub async fn prepare(&self) -> Result<(), CloudError> {
        self.account.token().await.map(drop)
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> Result<T, CloudError> {
        Ok(self.send(Method::GET, path, query, None, &CallGuard::none()).await?)
    }

    /// Sends one request, `path` being below `projects/`, once the guard allows it. A refused token is replaced once.
    pub async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        body: Option<&Value>,
        guard: &CallGuard,
    ) -> Result<T, Refusal> {
        let (mut status, mut headers, mut text) = self.send_once(&method, path, query, body, guard).await?;
        if status == StatusCode::UNAUTHORIZED {
            self.account.renew().await;
            (status, headers, text) = self.send_once(&method, path, query, body, guard).await?;
        }
        if !status.is_success() {
            return Err(Refusal::ByGoogle(ApiError::read(status, &text), retry_after(&headers)));
        }
        let unreadable = |error: serde_json::Error| format!("cannot read the response to {method} {path}: {error}");
        serde_json::from_slice(&text).map_err(|error| Refusal::Otherwise(failed(unreadable(error))))
    }

    async fn send_once(
        &self,
        method: &Method,
        path: &str,
        query: &[(&str, &str)],
        body: Option<&Value>,
        guard: &CallGuard,
    ) -> Result<(StatusCode, HeaderMap, Vec<u8>), Refusal> {
        let token = self.account.token().await.map_err(Refusal::Otherwise)?;
        let mut request = self.http.request(method.clone(), format!("{}projects/{path}", self.endpoint)).query(query);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        request = match body {
            Some(body) => request.json(body),
            // Google refuses a POST without a length.
            None if *method == Method::POST => request.header("content-length", 0),
            None => request,
        };
        guard.wait_until_allowed().await;
        let response = request.send().await.map_err(unanswered)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let text = response.bytes().await.map_err(unanswered)?;
        Ok((status, headers, text.to_vec()))
    }
}

fn unanswered(error: reqwest::Error) -> Refusal {
    Refusal::Otherwise(transport_error(error))
}
