//! Errors of Compute Engine, by what the caller does next: those of calls, and those with which operations end.
//!
//! <https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-operations>

use crate::common::error_text::{failed, truncated};
use nodepool_driver::error::CloudError;
use nodepool_model::records::time::Seconds;
use reqwest::StatusCode;
use serde::Deserialize;

/// Pause after a throttled call, unless Google says another.
const DEFAULT_RETRY_DELAY: Seconds = Seconds(1.0);

/// A refused call.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    pub status: StatusCode,
    pub reason: String,
    message: String,
}

/// An error of an operation.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct OperationError {
    pub code: String,
    pub message: String,
}

#[derive(Deserialize)]
struct ErrorBody {
    error: ErrorDetails,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorDetails {
    message: String,
    status: String,
    errors: Vec<Cause>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: String,
}

impl ApiError {
    pub fn read(status: StatusCode, body: &[u8]) -> Self {
        match serde_json::from_slice::<ErrorBody>(body) {
            Ok(ErrorBody { error }) => {
                let reason = error.errors.into_iter().next().map(|cause| cause.reason);
                let reason = reason.filter(|reason| !reason.is_empty()).unwrap_or(error.status);
                Self { status, reason, message: truncated(&error.message) }
            }
            // A proxy's, for example.
            Err(_) => Self { status, reason: String::new(), message: truncated(&String::from_utf8_lossy(body)) },
        }
    }

    pub fn text(&self) -> String {
        match self.reason.as_str() {
            "" => format!("{}: {}", self.status, self.message),
            reason => format!("{} {reason}: {}", self.status.as_u16(), self.message),
        }
    }

    /// The texts of throttled calls speak of quotas, too, so only the reason counts.
    pub fn into_error(self, retry_after: Option<Seconds>) -> CloudError {
        let text = self.text();
        match (self.status, self.reason.as_str()) {
            (_, "rateLimitExceeded" | "userRateLimitExceeded") | (StatusCode::TOO_MANY_REQUESTS, _) => {
                CloudError::Throttled { retry_after: retry_after.unwrap_or(DEFAULT_RETRY_DELAY) }
            }
            (_, "quotaExceeded") => CloudError::Quota(text),
            (StatusCode::NOT_FOUND, _) => CloudError::NotFound(text),
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => CloudError::Denied(text),
            (status, _) if status.is_server_error() => CloudError::Outage { detail: text, may_have_worked: true },
            _ => failed(text),
        }
    }
}

impl OperationError {
    /// An object that a creation needs is a matter of the configuration; a deletion whose instance is missing is one
    /// that has ended.
    pub fn into_error(self, is_deletion: bool) -> CloudError {
        let text = format!("{}: {}", self.code, truncated(&self.message));
        match self.code.as_str() {
            "QUOTA_EXCEEDED" => CloudError::Quota(text),
            "ZONE_RESOURCE_POOL_EXHAUSTED"
            | "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
            | "RESOURCE_POOL_EXHAUSTED"
            | "STOCKOUT" => CloudError::Capacity(text),
            "UNSUPPORTED_OPERATION" if self.message.contains("not available in zone") => CloudError::Capacity(text),
            "RESOURCE_NOT_FOUND" if is_deletion => CloudError::NotFound(text),
            "RESOURCE_NOT_FOUND" => CloudError::Denied(text),
            _ => failed(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(status: u16, reason: &str, message: &str) -> &'static str {
        let body = json!({"error": {"code": status, "message": message, "errors": [{"reason": reason}]}});
        let error = ApiError::read(StatusCode::from_u16(status).unwrap(), body.to_string().as_bytes());
        error.into_error(None).kind()
    }

    #[test]
    fn refused_calls_are_told_apart_by_their_reasons() {
        let rate = "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute'";
        assert_eq!(refused(403, "rateLimitExceeded", rate), "throttled");
        assert_eq!(refused(403, "userRateLimitExceeded", rate), "throttled");
        assert_eq!(refused(429, "", rate), "throttled");
        assert_eq!(refused(403, "quotaExceeded", "Quota 'CPUS' exceeded. Limit: 24.0 in region r."), "quota");
        assert_eq!(refused(403, "forbidden", "Required 'compute.instances.create' permission"), "denied");
        assert_eq!(refused(403, "accessNotConfigured", "Compute Engine API has not been used"), "denied");
        assert_eq!(refused(404, "notFound", "The resource was not found"), "not-found");
        assert_eq!(refused(503, "backendError", "try again"), "outage");
        assert_eq!(refused(400, "invalid", "Invalid value for field"), "failed");
    }

    #[test]
    fn errors_that_are_no_json_keep_their_text() {
        let error = ApiError::read(StatusCode::BAD_GATEWAY, b"<html>bad\n gateway</html>");
        assert_eq!(error.text(), "502 Bad Gateway: <html>bad gateway</html>");
    }

    #[test]
    fn operations_end_with_errors_by_code() {
        let kind = |code: &str, message: &str| {
            OperationError { code: code.to_owned(), message: message.to_owned() }.into_error(false).kind()
        };
        assert_eq!(kind("QUOTA_EXCEEDED", "Quota 'CPUS' exceeded."), "quota");
        assert_eq!(kind("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "no quota problem"), "capacity");
        assert_eq!(kind("UNSUPPORTED_OPERATION", "Machine type is not available in zone z"), "capacity");
        assert_eq!(kind("UNSUPPORTED_OPERATION", "Shielded VM"), "failed");
        assert_eq!(kind("RESOURCE_NOT_FOUND", "image"), "denied");
        assert_eq!(kind("RESOURCE_OPERATION_RATE_EXCEEDED", "Operation rate exceeded"), "failed");
    }
}
