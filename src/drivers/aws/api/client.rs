//! HTTP client of AWS: signs a request with the account's credentials, sends it and reads the response.

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings, UriPathNormalizationMode,
    sign,
};
use aws_sigv4::sign::v4;
use bytes::Bytes;
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::error::CloudError;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, StatusCode, redirect};

use super::calls::{Body, Call, HttpRequest, Reply, Service};
use super::credentials::{self, Access, Account};
use super::errors::{ApiError, failed, retry_after, transport_error};
use crate::common::object_store::{self, FilePart};

/// Connection to the services of one account and region.
pub struct Connection {
    account: Account,
    client: Client,
}

/// A response, by what the caller does next.
enum Sent {
    Success(HeaderMap, Bytes),
    Refused(ApiError),
}

impl Connection {
    pub fn new(account: Account) -> Result<Self, String> {
        // A redirected request would have another host than its signature.
        let client = Client::builder().redirect(redirect::Policy::none()).build();
        Ok(Self { account, client: client.map_err(|error| format!("cannot set up TLS: {error}"))? })
    }

    /// Reads the credentials before a call, if they are missing or about to expire.
    pub async fn prepare(&self) -> Result<(), CloudError> {
        self.account.access().await.map(drop)
    }

    pub async fn send(&self, call: &Call, request: &HttpRequest, guard: &CallGuard) -> Result<Reply, CloudError> {
        let access = self.account.access().await?;
        let may_change = call.changes;
        match self.send_renewing(request, access, guard).await {
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
        let access = self.account.access().await?;
        guard.wait_until_allowed().await;
        match self.send_renewing(request, access, guard).await? {
            Sent::Success(headers, _) => Ok(headers),
            Sent::Refused(error) if error.is_outage() => Err(failed(error.text())),
            Sent::Refused(error) => Err(error.into_error()),
        }
    }

    /// Sends a request. If its credentials have expired, they are read anew, once.
    async fn send_renewing(
        &self,
        request: &HttpRequest,
        access: Access,
        guard: &CallGuard,
    ) -> Result<Sent, CloudError> {
        match self.send_once(request, &access).await? {
            Sent::Refused(error) if error.is_expired() => {
                self.account.renew(&access.credentials).await;
                let access = self.account.access().await?;
                guard.wait_until_allowed().await;
                self.send_once(request, &access).await
            }
            sent => Ok(sent),
        }
    }

    async fn send_once(&self, request: &HttpRequest, access: &Access) -> Result<Sent, CloudError> {
        let url = self.url(request, access);
        let body = match &request.body {
            Body::None => Bytes::new(),
            Body::Text(text) => Bytes::from(text.clone()),
            Body::Bytes(bytes) => bytes.clone(),
            Body::File(part) => read_part(part).await?,
        };
        let mut headers = HeaderMap::new();
        for (name, value) in &request.headers {
            let value = HeaderValue::from_str(value).map_err(|_| failed(format!("{name} has an invalid value")))?;
            headers.insert(HeaderName::from_static(name), value);
        }
        let region = self.account.region();
        add_signature(&mut headers, request, &url, &body, &access.credentials, region)?;
        let sending = self.client.request(request.method.clone(), url).headers(headers).body(body).send();
        let response = sending.await.map_err(|error| transport_error(&error))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.bytes().await.map_err(|error| transport_error(&error))?;
        if status.is_success() && !object_store::is_late_error(&body) {
            return Ok(Sent::Success(headers, body));
        }
        let status = if status.is_success() { StatusCode::INTERNAL_SERVER_ERROR } else { status };
        let error = ApiError::read(status, &headers, &body);
        if error.is_throttled() {
            return Err(CloudError::Throttled { retry_after: retry_after(&headers) });
        }
        Ok(Sent::Refused(error))
    }

    fn url(&self, request: &HttpRequest, access: &Access) -> String {
        let endpoint = access.endpoint(request.service, self.account.region());
        let (base, path) = match &request.bucket {
            None => (endpoint.url, request.path.clone()),
            // Names with dots do not match the certificates of host names.
            Some(bucket) if endpoint.is_default && !bucket.contains('.') => {
                (endpoint.url.replacen("https://", &format!("https://{bucket}."), 1), request.path.clone())
            }
            Some(bucket) => (endpoint.url, format!("/{bucket}{}", request.path)),
        };
        if request.query.is_empty() {
            return format!("{base}{path}");
        }
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(&request.query);
        // The signature encodes blanks in this way.
        format!("{base}{path}?{}", query.finish().replace('+', "%20"))
    }
}

pub async fn read_part(part: &FilePart) -> Result<Bytes, CloudError> {
    use tokio::io::{AsyncReadExt, AsyncSeekExt};
    let read = async {
        let mut file = tokio::fs::File::open(&part.file).await?;
        file.seek(std::io::SeekFrom::Start(part.from)).await?;
        let mut content = vec![0; part.length as usize];
        file.read_exact(&mut content).await?;
        Ok::<_, std::io::Error>(content)
    };
    let read = read.await.map_err(|error| failed(format!("cannot read {}: {error}", part.file.display())));
    read.map(Bytes::from)
}

fn add_signature(
    headers: &mut HeaderMap,
    request: &HttpRequest,
    url: &str,
    body: &[u8],
    identity: &Credentials,
    region: &str,
) -> Result<(), CloudError> {
    let mut settings = SigningSettings::default();
    if request.service == Service::S3 {
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
    }
    let unsigned = |error: &dyn std::error::Error| failed(format!("cannot sign a request: {error}"));
    let identity = identity.clone().into();
    let parameters = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name(request.service.signing_name())
        .time(credentials::now())
        .settings(settings)
        .build()
        .map_err(|error| unsigned(&error))?
        .into();
    let own = headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
    let signable = SignableRequest::new(request.method.as_str(), url, own, SignableBody::Bytes(body))
        .map_err(|error| unsigned(&error))?;
    let (instructions, _) = sign(signable, &parameters).map_err(|error| unsigned(&error))?.into_parts();
    for (name, value) in instructions.headers() {
        let (name, value) = (HeaderName::try_from(name.to_owned()), HeaderValue::from_str(value));
        if let (Ok(name), Ok(mut value)) = (name, value) {
            value.set_sensitive(true);
            headers.insert(name, value);
        }
    }
    Ok(())
}
