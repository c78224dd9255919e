//! Errors of AWS's services: their codes in XML and JSON, and what a caller does next.

use crate::common::error_text::truncated;
pub use crate::common::error_text::{failed, with_causes};
use crate::common::retry_after;
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_model::records::time::Seconds;
use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde::Deserialize;
use serde_json::Value;

/// Pause after a throttled call, unless the service says another.
const DEFAULT_RETRY_DELAY: Seconds = Seconds(1.0);

/// The codes for which AWS's own clients repeat a call, as throttling.
const THROTTLED: &[&str] = &[
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottled",
    "RequestThrottledException",
    "TooManyRequestsException",
    "RequestLimitExceeded",
    "BandwidthLimitExceeded",
    "LimitExceededException",
    "SlowDown",
    "PriorRequestNotComplete",
    "EC2ThrottledException",
    "ProvisionedThroughputExceededException",
    "TransactionInProgressException",
];

/// A limit of the account, or a full subnet: it passes when instances end.
const QUOTA: &[&str] = &[
    "VolumeLimitExceeded",
    "HostLimitExceeded",
    "InstanceLimitExceeded",
    "VcpuLimitExceeded",
    "MaxSpotInstanceCountExceeded",
    "AddressLimitExceeded",
    "NetworkInterfaceLimitExceeded",
    "InsufficientFreeAddressesInSubnet",
    "ResourceCountLimitExceeded",
];

/// The place is full, or has no instances of the type.
const CAPACITY: &[&str] = &[
    "InsufficientInstanceCapacity",
    "InsufficientHostCapacity",
    "InsufficientReservedInstanceCapacity",
    "InsufficientCapacity",
    "InsufficientAddressCapacity",
    "UnfulfillableCapacity",
    "SpotMaxPriceTooLow",
    "Unsupported",
];

/// The configuration or the account's permissions are wrong.
const DENIED: &[&str] = &[
    "InvalidAMIID.Malformed",
    "InvalidAMIID.NotFound",
    "InvalidAMIID.Unavailable",
    "InvalidKeyPair.NotFound",
    "InvalidSubnetID.NotFound",
    "InvalidGroup.NotFound",
    "InvalidInstanceType",
    "InvalidInstanceType.NotFound",
    "OptInRequired",
    "UnauthorizedOperation",
    "AccessDenied",
    "AccessDeniedException",
    "AuthFailure",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "SignatureDoesNotMatch",
    "InvalidAccessKeyId",
];

/// The credentials have expired meanwhile.
const EXPIRED: &[&str] = &["ExpiredToken", "ExpiredTokenException", "RequestExpired"];

/// The object does not exist.
const NOT_FOUND: &[&str] = &[
    "InvalidInstanceID.NotFound",
    "InvalidVolume.NotFound",
    "InvalidSnapshot.NotFound",
    "InvalidHostID.NotFound",
    "InvalidLaunchTemplateName.NotFoundException",
    "InvalidLaunchTemplateId.NotFound",
    "InvalidConversionTaskId.Malformed",
    "NoSuchKey",
    "NoSuchUpload",
    "ResourceNotFoundException",
];

/// An error as a service reports it.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    pub status: StatusCode,
    /// Such as `InsufficientInstanceCapacity`; empty if the body has none.
    pub code: String,
    pub message: String,
}

impl ApiError {
    pub fn read(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let (code, message) = from_xml(body).or_else(|| from_json(headers, body)).unwrap_or_default();
        Self { status, code, message: truncated(&message) }
    }

    pub fn is_throttled(&self) -> bool {
        THROTTLED.contains(&self.code.as_str()) || self.status == StatusCode::TOO_MANY_REQUESTS
    }

    pub fn is_expired(&self) -> bool {
        EXPIRED.contains(&self.code.as_str())
    }

    pub fn is_capacity(&self) -> bool {
        CAPACITY.contains(&self.code.as_str())
    }

    /// Whether the service failed, so that the call may have been executed.
    pub fn is_outage(&self) -> bool {
        self.status.is_server_error() && !self.is_capacity() && !QUOTA.contains(&self.code.as_str())
    }

    /// The text for logs and records.
    pub fn text(&self) -> String {
        match (self.code.as_str(), self.message.as_str()) {
            ("", _) => format!("{}: no error code in the response", self.status),
            (code, "") => code.to_owned(),
            (code, message) => format!("{code}: {message}"),
        }
    }

    pub fn into_error(self) -> CloudError {
        let (code, text) = (self.code.as_str(), self.text());
        let is = |codes: &[&str]| codes.contains(&code);
        if is(QUOTA) {
            CloudError::Quota(text)
        } else if is(CAPACITY) {
            CloudError::Capacity(text)
        } else if is(DENIED) || is(EXPIRED) || code.starts_with("InvalidParameter") {
            CloudError::Denied(text)
        } else if is(NOT_FOUND) || (code.is_empty() && self.status == StatusCode::NOT_FOUND) {
            CloudError::NotFound(text)
        } else {
            failed(text)
        }
    }
}

/// The error of a launch whose instance ended, by the code of its state.
pub fn ended(code: &str, message: &str) -> CloudError {
    let text = if message.is_empty() { code.to_owned() } else { truncated(message) };
    match code {
        "Client.VolumeLimitExceeded" => CloudError::Quota(text),
        "Server.InsufficientInstanceCapacity" | "Server.SpotInstanceTermination" | "Server.SpotInstanceShutdown" => {
            CloudError::Capacity(text)
        }
        _ => CloudError::Failed { kind: FailureKind::Status, detail: text },
    }
}

/// The pause that a response asks for.
pub fn retry_after(headers: &HeaderMap) -> Seconds {
    retry_after::retry_after(headers).unwrap_or(DEFAULT_RETRY_DELAY)
}

/// Error of a request without a response, or with an incomplete one.
pub fn transport_error(error: &reqwest::Error) -> CloudError {
    CloudError::Outage { detail: with_causes(error), may_have_worked: !error.is_connect() && !error.is_builder() }
}

/// The error of EC2's envelope, or of S3's.
fn from_xml(body: &[u8]) -> Option<(String, String)> {
    #[derive(Deserialize)]
    struct Envelope {
        #[serde(rename = "Errors")]
        errors: Option<Errors>,
        #[serde(rename = "Error")]
        error: Option<Detail>,
        #[serde(rename = "Code", default)]
        code: String,
        #[serde(rename = "Message", default)]
        message: String,
    }
    #[derive(Deserialize)]
    struct Errors {
        #[serde(rename = "Error", default)]
        errors: Vec<Detail>,
    }
    #[derive(Deserialize)]
    struct Detail {
        #[serde(rename = "Code", default)]
        code: String,
        #[serde(rename = "Message", default)]
        message: String,
    }
    let envelope: Envelope = quick_xml::de::from_reader(body).ok()?;
    let nested = envelope.errors.and_then(|errors| errors.errors.into_iter().next()).or(envelope.error);
    let (code, message) = match nested {
        Some(detail) => (detail.code, detail.message),
        None => (envelope.code, envelope.message),
    };
    (!code.is_empty()).then_some((code, message))
}

fn from_json(headers: &HeaderMap, body: &[u8]) -> Option<(String, String)> {
    let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let text = |keys: [&str; 2]| keys.iter().find_map(|key| body.get(*key)?.as_str()).map(str::to_owned);
    let header = headers.get("x-amzn-errortype").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let kind = header.or_else(|| text(["__type", "Code"]))?;
    // Such as `com.amazonaws.ebs#ResourceNotFoundException:http://…`.
    let code = kind.rsplit('#').next().and_then(|code| code.split(':').next()).unwrap_or_default().to_owned();
    Some((code, text(["message", "Message"]).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ec2(status: u16, code: &str) -> ApiError {
        let body = format!(
            "<?xml version=\"1.0\"?><Response><Errors><Error><Code>{code}</Code><Message>a &lt;b&gt;</Message></Error></Errors>\
             <RequestID>r</RequestID></Response>"
        );
        ApiError::read(StatusCode::from_u16(status).unwrap(), &HeaderMap::new(), body.as_bytes())
    }

    #[test]
    fn codes_say_what_a_launch_does_next() {
        let error = |code: &str| ec2(400, code).into_error();
        for code in ["VcpuLimitExceeded", "InsufficientFreeAddressesInSubnet", "MaxSpotInstanceCountExceeded"] {
            assert_eq!(error(code), CloudError::Quota(format!("{code}: a <b>")));
        }
        assert!(matches!(error("Unsupported"), CloudError::Capacity(_)));
        assert!(matches!(error("InvalidAMIID.NotFound"), CloudError::Denied(_)));
        assert!(matches!(error("InvalidParameterValue"), CloudError::Denied(_)));
        assert!(matches!(error("InvalidInstanceID.NotFound"), CloudError::NotFound(_)));
        assert!(matches!(error("IdempotentParameterMismatch"), CloudError::Failed { .. }));
    }

    #[test]
    fn a_full_zone_is_no_outage_although_its_status_is_500() {
        assert!(!ec2(500, "InsufficientInstanceCapacity").is_outage());
        assert!(ec2(500, "InternalError").is_outage() && ec2(503, "Unavailable").is_outage());
        assert!(ec2(503, "RequestLimitExceeded").is_throttled());
    }

    #[test]
    fn errors_of_all_services_are_read() {
        let read = |body: &str| ApiError::read(StatusCode::BAD_REQUEST, &HeaderMap::new(), body.as_bytes());
        assert_eq!(read("<Error><Code>NoSuchKey</Code><Message>m</Message></Error>").text(), "NoSuchKey: m");
        assert_eq!(
            read(r#"{"__type": "a.b#AccessDeniedException", "Message": "m"}"#).text(),
            "AccessDeniedException: m"
        );
        assert_eq!(read("<html>").text(), "400 Bad Request: no error code in the response");
        let mut headers = HeaderMap::new();
        headers.insert("x-amzn-errortype", "ValidationException:http://x".parse().unwrap());
        assert_eq!(ApiError::read(StatusCode::BAD_REQUEST, &headers, b"{}").code, "ValidationException");
    }
}
