//! HTTP client of the Resource Manager, and of the blobs behind SAS URLs.

use std::path::Path;

use futures::StreamExt;
use futures::stream;
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::error::CloudError;
use reqwest::header::HeaderMap;
use reqwest::{Client, Method, StatusCode, Url, redirect};
use serde_json::value::RawValue;

use super::calls::{Answer, ArmRequest, Call, Link, OperationLink, Page, Reply, SasUrl};
use super::credentials::{Account, Credentials};
use super::errors::{ApiError, failed, retry_after, throttled, transport_error};

/// Pages of an image that are sent at a time.
const CONCURRENT_PAGES: usize = 10;

pub struct Connection {
    account: Account,
    http: Client,
    endpoint: Url,
}

/// A response, by what the caller does next.
enum Sent {
    Success(StatusCode, HeaderMap, Vec<u8>),
    Refused(ApiError),
}

impl Connection {
    pub fn new(credentials: Credentials) -> Result<Self, String> {
        // A redirected request would take its token to another host.
        let http = Client::builder().redirect(redirect::Policy::none()).build();
        let http = http.map_err(|error| format!("cannot set up TLS: {error}"))?;
        let endpoint = Url::parse(credentials.resource_manager());
        let endpoint = endpoint.map_err(|error| format!("resourceManagerEndpointUrl: {error}"))?;
        Ok(Self { account: Account::new(credentials, http.clone()), http, endpoint })
    }

    /// Requests a token, if there is none or it is about to expire.
    pub async fn prepare(&self) -> Result<(), CloudError> {
        self.account.token().await.map(drop)
    }

    pub async fn send(&self, call: &Call, request: &ArmRequest, guard: &CallGuard) -> Result<Reply, CloudError> {
        let may_change = call.changes;
        match self.send_renewing(request, guard).await {
            Ok(Sent::Success(status, headers, body)) => match read_body(&body) {
                Ok(value) => Ok(Reply::Answer(answer(status, &headers, value))),
                Err(error) if may_change => Ok(Reply::Lost(format!("unreadable response: {error}"))),
                Err(error) => Err(failed(format!("cannot read the response to {request:?}: {error}"))),
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

    /// Sends a request. A refused token is replaced once.
    async fn send_renewing(&self, request: &ArmRequest, guard: &CallGuard) -> Result<Sent, CloudError> {
        let token = self.account.token().await?;
        match self.send_once(request, &token).await? {
            Sent::Refused(error) if error.status == StatusCode::UNAUTHORIZED => {
                self.account.renew(&token).await;
                let token = self.account.token().await?;
                guard.wait_until_allowed().await;
                self.send_once(request, &token).await
            }
            sent => Ok(sent),
        }
    }

    async fn send_once(&self, request: &ArmRequest, token: &str) -> Result<Sent, CloudError> {
        let url = self.url(&request.link)?;
        let mut sending = self.http.request(request.method.clone(), url).query(&request.query).bearer_auth(token);
        if request.creates {
            // A machine of this name that belongs to others is not changed.
            sending = sending.header("if-none-match", "*");
        }
        sending = match &request.body {
            Some(body) => sending.json(body),
            None if request.method == Method::POST => sending.header("content-length", 0),
            None => sending,
        };
        let response = sending.send().await.map_err(transport_error)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.bytes().await.map_err(transport_error)?;
        if status.is_success() {
            return Ok(Sent::Success(status, headers, body.to_vec()));
        }
        let error = ApiError::read(status, &body);
        let asks_to_wait = status == StatusCode::SERVICE_UNAVAILABLE && retry_after(&headers).is_some();
        if error.is_throttled() || (asks_to_wait && !error.is_capacity()) {
            return Err(throttled(&headers));
        }
        Ok(Sent::Refused(error))
    }

    /// Links in answers lead to the same host, which alone receives the token.
    fn url(&self, link: &Link) -> Result<Url, CloudError> {
        match link {
            Link::Path(path) => {
                let url = Url::parse(&format!("{}{path}", self.endpoint.as_str().trim_end_matches('/')));
                url.map_err(|error| failed(format!("no URL: {error}")))
            }
            Link::Whole(text) => Url::parse(text)
                .ok()
                .filter(|url| is_same_host(url, &self.endpoint))
                .ok_or_else(|| failed("a link of an answer leads to another host than resourceManagerEndpointUrl")),
        }
    }

    /// Writes pages of a blob; returns those that were written, and the first error of the others.
    pub async fn send_pages(
        &self,
        sas: &SasUrl,
        file: &Path,
        pages: &[Page],
        guard: &CallGuard,
    ) -> Result<Reply, CloudError> {
        let send = async |page: Page| {
            guard.wait_until_allowed().await;
            (page, self.send_page(sas, file, page).await)
        };
        let sending = stream::iter(pages).map(|page| send(*page));
        let results: Vec<_> = sending.buffer_unordered(CONCURRENT_PAGES).collect().await;
        let (mut sent, mut first_error) = (Vec::new(), None);
        for (page, result) in results {
            match result {
                Ok(()) => sent.push(page.from),
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        match first_error {
            Some(error) if sent.is_empty() => Err(error),
            error => Ok(Reply::Sent(sent, error.map(|error| error.to_string()))),
        }
    }

    async fn send_page(&self, sas: &SasUrl, file: &Path, page: Page) -> Result<(), CloudError> {
        let content = read_page(file, page).await?;
        let range = format!("bytes={}-{}", page.from, page.from + page.length - 1);
        let request = self.http.put(sas.for_pages());
        let request = request.header("x-ms-blob-type", "PageBlob").header("x-ms-page-write", "Update");
        let sent = request.header("range", range).body(content).send().await;
        // The blob of a failed upload is never read, so a lost answer is a failure like others.
        let response = sent.map_err(|error| failed(transport_error(error).to_string()))?;
        match response.status() {
            status if status.is_success() => Ok(()),
            status => Err(failed(format!("a page was refused: {status}"))),
        }
    }
}

fn is_same_host(url: &Url, endpoint: &Url) -> bool {
    url.origin() == endpoint.origin() && url.username().is_empty() && url.password().is_none()
}

fn read_body(body: &[u8]) -> Result<Box<RawValue>, serde_json::Error> {
    serde_json::from_slice(if body.is_empty() { b"null" } else { body })
}

fn answer(status: StatusCode, headers: &HeaderMap, body: Box<RawValue>) -> Answer {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let status_link = header("azure-asyncoperation").map(OperationLink::Status);
    let operation = status_link.or_else(|| header("location").map(OperationLink::Location));
    Answer { status, body, operation, retry_after: retry_after(headers) }
}

async fn read_page(file: &Path, page: Page) -> Result<Vec<u8>, CloudError> {
    use tokio::io::{AsyncReadExt, AsyncSeekExt};
    let read = async {
        let mut file = tokio::fs::File::open(file).await?;
        file.seek(std::io::SeekFrom::Start(page.from)).await?;
        let mut content = vec![0; page.length as usize];
        file.read_exact(&mut content).await?;
        Ok::<_, std::io::Error>(content)
    };
    read.await.map_err(|error| failed(format!("cannot read {}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_links_to_the_endpoint_are_followed() {
        let endpoint = Url::parse("https://management.azure.com").unwrap();
        let is_own = |link: &str| is_same_host(&Url::parse(link).unwrap(), &endpoint);
        assert!(is_own("https://management.azure.com/x?y=z") && is_own("https://MANAGEMENT.azure.com:443/x"));
        for link in [
            "https://management.azure.com:x@example.com/x",
            "https://management.azure.com.example.com/",
            "http://management.azure.com/x",
            "https://user@management.azure.com/x",
        ] {
            assert!(!is_own(link), "{link}");
        }
    }
}
