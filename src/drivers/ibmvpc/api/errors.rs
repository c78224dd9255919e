//! Errors of IBM's services: their codes, and what a caller does next.

use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_model::records::time::Seconds;
use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde_json::Value;

use super::api_types::StatusReason;
use crate::common::error_text::truncated;
pub use crate::common::error_text::{failed, transport_error};
use crate::common::retry_after;

/// Pause after a throttled call, unless the service says another.
const DEFAULT_RETRY_DELAY: Seconds = Seconds(1.0);

/// Codes with which a configuration cannot be used.
const DENIED: &[&str] =
    &["bad_field", "invalid_zone", "invalid_request_field", "validation_invalid_name", "operating_system_restricted"];

/// Reasons of instances that a zone had no room for.
const NO_CAPACITY: &[&str] = &["cannot_start_capacity", "cannot_start_reservation_capacity", "cannot_start_compute"];

/// An error as a service reports it.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    pub status: StatusCode,
    /// Such as `over_quota`; empty if the body has none.
    pub code: String,
    pub message: String,
}

impl ApiError {
    pub fn read(status: StatusCode, body: &[u8]) -> Self {
        let (code, message) = from_json(body).or_else(|| from_xml(body)).unwrap_or_else(|| {
            // A proxy's page, for example.
            (String::new(), String::from_utf8_lossy(body).into_owned())
        });
        Self { status, code, message: truncated(&message) }
    }

    pub fn is_quota(&self) -> bool {
        self.code.contains("quota") || self.code == "subnet_out_of_ip_addresses"
    }

    pub fn is_capacity(&self) -> bool {
        self.code.contains("capacity")
    }

    /// Another resource has the name.
    pub fn is_taken_name(&self) -> bool {
        self.code == "validation_unique_failed" || self.code == "name_conflict"
    }

    /// The resource is in a state that does not allow the call. It passes.
    pub fn is_wrong_state(&self) -> bool {
        self.status == StatusCode::CONFLICT && !self.is_taken_name()
    }

    /// Whether the request may name a resource that does not exist.
    pub fn is_unknown_reference(&self) -> bool {
        self.status == StatusCode::NOT_FOUND || self.code == "bad_field"
    }

    /// Whether the account may not make the call.
    pub fn is_denied(&self) -> bool {
        matches!(self.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
    }

    /// Whether the service failed, so that the call may have been executed.
    pub fn is_outage(&self) -> bool {
        self.status.is_server_error() && !self.is_capacity() && !self.is_quota()
    }

    /// The text for logs and records.
    pub fn text(&self) -> String {
        match (self.code.as_str(), self.message.as_str()) {
            ("", message) => format!("{}: {message}", self.status),
            (code, "") => code.to_owned(),
            (code, message) => format!("{code}: {message}"),
        }
    }

    pub fn into_error(self) -> CloudError {
        let text = self.text();
        match self.status {
            _ if self.is_quota() => CloudError::Quota(text),
            _ if self.is_capacity() => CloudError::Capacity(text),
            StatusCode::NOT_FOUND => CloudError::NotFound(text),
            _ if self.is_denied() || DENIED.contains(&self.code.as_str()) => CloudError::Denied(text),
            _ => failed(text),
        }
    }
}

/// The error of a launch whose instance failed or stopped, by its reasons.
pub fn ended(status: &str, reasons: &[StatusReason]) -> CloudError {
    let texts: Vec<String> = reasons.iter().map(|reason| format!("{}: {}", reason.code, reason.message)).collect();
    let text = match texts.is_empty() {
        true => format!("the instance is {status}"),
        false => format!("the instance is {status}: {}", truncated(&texts.join("; "))),
    };
    match reasons.iter().any(|reason| NO_CAPACITY.contains(&reason.code.as_str())) {
        true => CloudError::Capacity(text),
        false => CloudError::Failed { kind: FailureKind::Status, detail: text },
    }
}

/// The pause that a response asks for.
pub fn retry_after(headers: &HeaderMap) -> Seconds {
    retry_after::retry_after(headers).unwrap_or(DEFAULT_RETRY_DELAY)
}

/// The error of the VPC API, of the token endpoint, or of the resource groups.
fn from_json(body: &[u8]) -> Option<(String, String)> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let forms = [
        (&body["errors"][0]["code"], &body["errors"][0]["message"]),
        (&body["errorCode"], &body["errorMessage"]),
        (&body["error_code"], &body["message"]),
    ];
    let (code, message) = forms.into_iter().find(|(code, _)| code.is_string())?;
    Some((code.as_str()?.to_owned(), message.as_str().unwrap_or_default().to_owned()))
}

/// The error of Cloud Object Storage.
fn from_xml(body: &[u8]) -> Option<(String, String)> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Envelope {
        code: String,
        #[serde(default)]
        message: String,
    }
    let envelope: Envelope = quick_xml::de::from_reader(body).ok()?;
    Some((envelope.code, envelope.message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn kind(status: u16, code: &str) -> &'static str {
        let body = json!({"errors": [{"code": code, "message": "text"}], "trace": "t"});
        ApiError::read(StatusCode::from_u16(status).unwrap(), body.to_string().as_bytes()).into_error().kind()
    }

    #[test]
    fn refused_calls_are_told_apart_by_their_codes() {
        assert_eq!(kind(403, "over_quota"), "quota");
        assert_eq!(kind(400, "vcpu_quota_exceeded"), "quota");
        assert_eq!(kind(503, "insufficient_capacity"), "capacity");
        assert_eq!(kind(403, "forbidden"), "denied");
        assert_eq!(kind(400, "bad_field"), "denied");
        assert_eq!(kind(404, "not_found"), "not-found");
        assert_eq!(kind(409, "invalid_state"), "failed");
    }

    #[test]
    fn errors_of_all_services_are_read() {
        let text = |body: &str| ApiError::read(StatusCode::BAD_REQUEST, body.as_bytes()).text();
        let iam = r#"{"errorCode": "BXNIM0415E", "errorMessage": "no such key"}"#;
        assert_eq!(text(iam), "BXNIM0415E: no such key");
        assert_eq!(text(r#"{"error_code": "name_conflict", "message": "m"}"#), "name_conflict: m");
        assert_eq!(text("<Error><Code>NoSuchBucket</Code><Message>m</Message></Error>"), "NoSuchBucket: m");
        assert_eq!(text("<html>bad\n gateway</html>"), "400 Bad Request: <html>bad gateway</html>");
    }

    #[test]
    fn only_reasons_of_full_zones_mean_a_lack_of_capacity() {
        let reason = |code: &str| StatusReason { code: code.to_owned(), message: "m".to_owned() };
        assert_eq!(ended("failed", &[reason("cannot_start_capacity")]).kind(), "capacity");
        assert_eq!(ended("stopped", &[reason("cannot_start_compute")]).kind(), "capacity");
        assert_eq!(ended("failed", &[reason("cannot_start_storage")]).kind(), "failed");
        assert_eq!(ended("failed", &[]).to_string(), "the instance is failed");
    }
}
