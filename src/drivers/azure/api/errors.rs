//! Errors of the Resource Manager, by what the caller does next: those of calls, and those with which operations end.

use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde::Deserialize;
use serde_json::Value;

use crate::common::error_text::truncated;
pub use crate::common::error_text::{failed, transport_error};
use crate::common::{retry_after, tolerant_json};
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_model::records::time::Seconds;

/// Pause after a throttled call, unless Azure says another; and the longest that Azure has been seen to say.
const DEFAULT_RETRY_DELAY: Seconds = Seconds(5.0);
const MAX_RETRY_DELAY: f64 = 1200.0;

const THROTTLED: &[&str] = &["TooManyRequests", "SubscriptionRequestsThrottled", "ResourceRequestsThrottled"];
const CAPACITY: &[&str] = &[
    "SkuNotAvailable",
    "AllocationFailed",
    "ZonalAllocationFailed",
    "OverconstrainedAllocationRequest",
    "OverconstrainedZonalAllocationRequest",
];
const DENIED: &[&str] = &[
    "AuthorizationFailed",
    "InvalidParameter",
    "ImageNotFound",
    "PlatformImageNotFound",
    "ResourceGroupNotFound",
    "InvalidResourceReference",
];
const CONFLICTS: &[&str] = &["Conflict", "OperationPreempted", "AnotherOperationInProgress"];

/// A refused call, or the error of an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    pub status: StatusCode,
    /// Such as `SkuNotAvailable`; empty if the answer has none.
    pub code: String,
    pub message: String,
}

/// The `error` of an answer or of an operation.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Detail {
    code: String,
    message: String,
    details: Vec<Detail>,
}

impl ApiError {
    /// The error may have an envelope. Without code and message, such as that of a proxy, its whole text is shown.
    pub fn read(status: StatusCode, body: &[u8]) -> Self {
        let value: Value = serde_json::from_slice(body).unwrap_or_default();
        let detail = value.get("error").filter(|error| error.is_object()).unwrap_or(&value);
        let detail: Detail = tolerant_json::read_value(detail.clone()).unwrap_or_default();
        match detail.code.is_empty() && detail.message.is_empty() {
            true => Self { status, code: String::new(), message: truncated(&String::from_utf8_lossy(body)) },
            false => Self::of(status, detail),
        }
    }

    pub fn of(status: StatusCode, error: Detail) -> Self {
        let Detail { mut code, mut message, details } = error;
        // The outer error may say only that there is an inner one.
        for detail in details.into_iter().filter(|detail| !detail.message.is_empty()) {
            if is_known(&detail.code) && !is_known(&code) {
                code.clone_from(&detail.code);
            }
            if !message.contains(&detail.message) {
                message = format!("{message} {}: {}", detail.code, detail.message);
            }
        }
        Self { status, code, message: truncated(&message) }
    }

    /// The error of an operation or of a machine, without a status of its own.
    pub fn ended(code: &str, message: &str) -> Self {
        let status = StatusCode::CONFLICT;
        Self { status, code: code.to_owned(), message: truncated(message) }
    }

    pub fn text(&self) -> String {
        match (self.code.as_str(), self.message.as_str()) {
            ("", message) => format!("{}: {message}", self.status),
            (code, "") => code.to_owned(),
            (code, message) => format!("{code}: {message}"),
        }
    }

    pub fn is_throttled(&self) -> bool {
        let by_text = self.code == "OperationNotAllowed" && self.message.to_lowercase().contains("throttl");
        self.status == StatusCode::TOO_MANY_REQUESTS || THROTTLED.contains(&self.code.as_str()) || by_text
    }

    pub fn is_capacity(&self) -> bool {
        CAPACITY.contains(&self.code.as_str())
    }

    fn is_quota(&self) -> bool {
        let message = self.message.to_lowercase();
        let by_text = message.contains("quota") || message.contains("exceeding approved");
        match self.code.as_str() {
            "QuotaExceeded" => true,
            "OperationNotAllowed" => by_text,
            code => code.ends_with("LimitReached"),
        }
    }

    /// Whether the call is to be repeated: another operation on the same resource has not ended yet.
    pub fn is_conflict(&self) -> bool {
        self.status == StatusCode::CONFLICT && CONFLICTS.contains(&self.code.as_str())
    }

    /// An interface is reserved for 180 s for a machine that does not exist any more.
    pub fn is_reserved(&self) -> bool {
        self.code == "NicReservedForAnotherVm"
    }

    pub fn is_not_found(&self) -> bool {
        self.status == StatusCode::NOT_FOUND
    }

    /// Whether a look at an operation was refused, rather than answered with the error of the operation.
    pub fn is_refused_look(&self) -> bool {
        matches!(self.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND)
    }

    pub fn is_outage(&self) -> bool {
        self.status.is_server_error() && !self.is_capacity() && !self.is_quota()
    }

    pub fn into_error(self) -> CloudError {
        let text = self.text();
        if self.is_quota() {
            CloudError::Quota(text)
        } else if self.is_capacity() {
            CloudError::Capacity(text)
        } else if DENIED.contains(&self.code.as_str())
            || matches!(self.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        {
            CloudError::Denied(text)
        } else if self.is_not_found() {
            CloudError::NotFound(text)
        } else {
            failed(text)
        }
    }

    /// The error of a launch. Something that it refers to does not exist if the answer is 404.
    pub fn into_launch_error(self) -> CloudError {
        match self.into_error() {
            CloudError::NotFound(text) => CloudError::Denied(text),
            error => error,
        }
    }

    /// The error of a launch whose creation was accepted and then failed.
    pub fn into_status_error(self) -> CloudError {
        match self.into_launch_error() {
            CloudError::Failed { detail, .. } => CloudError::Failed { kind: FailureKind::Status, detail },
            error => error,
        }
    }
}

fn is_known(code: &str) -> bool {
    [CAPACITY, DENIED, THROTTLED].iter().any(|codes| codes.contains(&code))
        || ["OperationNotAllowed", "QuotaExceeded"].contains(&code)
        || code.ends_with("LimitReached")
}

/// The pause that an answer asks for, if it does.
pub fn retry_after(headers: &HeaderMap) -> Option<Seconds> {
    retry_after::retry_after(headers).map(|pause| Seconds(pause.0.min(MAX_RETRY_DELAY)))
}

pub fn throttled(headers: &HeaderMap) -> CloudError {
    CloudError::Throttled { retry_after: retry_after(headers).unwrap_or(DEFAULT_RETRY_DELAY) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(status: u16, code: &str, message: &str) -> ApiError {
        let body = json!({"error": {"code": code, "message": message}});
        ApiError::read(StatusCode::from_u16(status).unwrap(), body.to_string().as_bytes())
    }

    #[test]
    fn codes_say_what_a_launch_does_next() {
        let kind = |status, code, message| refused(status, code, message).into_launch_error().kind();
        let family =
            "Operation could not be completed as it results in exceeding approved standardDSv3Family Cores quota.";
        assert_eq!(kind(409, "OperationNotAllowed", family), "quota");
        assert_eq!(kind(409, "OperationNotAllowed", "the disk is attached"), "failed");
        assert_eq!(kind(400, "PublicIPCountLimitReached", "m"), "quota");
        assert_eq!(kind(409, "SkuNotAvailable", "m"), "capacity");
        assert_eq!(kind(500, "ZonalAllocationFailed", "m"), "capacity");
        assert_eq!(kind(403, "AuthorizationFailed", "m"), "denied");
        assert_eq!(kind(404, "ResourceNotFound", "image"), "denied");
        assert_eq!(kind(400, "InvalidParameter", "m"), "denied");
        assert!(refused(409, "AnotherOperationInProgress", "m").is_conflict());
        assert!(refused(409, "OperationNotAllowed", "throttled by the service").is_throttled());
        assert!(refused(500, "InternalServerError", "m").is_outage());
        assert!(!refused(500, "AllocationFailed", "m").is_outage());
    }

    #[test]
    fn the_inner_error_names_the_cause() {
        let body = json!({"error": {"code": "DeploymentFailed", "message": "see details", "details": [
            {"code": "AllocationFailed", "message": "no room"}]}});
        let error = ApiError::read(StatusCode::CONFLICT, body.to_string().as_bytes());
        assert_eq!(error.text(), "AllocationFailed: see details AllocationFailed: no room");
        assert!(error.is_capacity());
    }

    #[test]
    fn errors_that_are_no_json_keep_their_text() {
        let error = ApiError::read(StatusCode::BAD_GATEWAY, b"<html>bad\n gateway</html>");
        assert_eq!(error.text(), "502 Bad Gateway: <html>bad gateway</html>");
        assert!(error.is_outage());
        let error = ApiError::read(StatusCode::CONFLICT, br#"{"Message": "busy"}"#);
        assert_eq!(error.text(), r#"409 Conflict: {"Message": "busy"}"#);
    }

    #[test]
    fn errors_without_envelope_or_with_nulls_keep_their_code() {
        let read = |body: serde_json::Value| ApiError::read(StatusCode::CONFLICT, body.to_string().as_bytes());
        let error = read(json!({"error": {"code": "SkuNotAvailable", "message": null, "details": null}}));
        assert!(error.is_capacity());
        assert_eq!(read(json!({"code": "QuotaExceeded", "message": "m"})).into_error().kind(), "quota");
    }
}
