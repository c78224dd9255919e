//! Error mapping: classifies error responses, and missing responses, by what the caller does next.

pub use crate::common::error_text::{failed, truncated, with_causes};
use crate::common::retry_after::retry_after;
use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use serde_json::Value;

use nodepool_driver::error::CloudError;
use nodepool_model::records::time::Seconds;

/// Used if the cloud sends no Retry-After.
pub const DEFAULT_RETRY_DELAY: Seconds = Seconds(1.0);
/// The Retry-After of an outage is limited to this: it concerns one service, but all calls of the provider wait.
const MAX_OUTAGE_WAIT: Seconds = Seconds(60.0);

/// A failed request.
#[derive(Clone, Debug)]
pub struct Failure {
    pub error: CloudError,
    /// The request may have been executed nevertheless.
    pub may_have_worked: bool,
    /// Status of the response, if there was one.
    pub status: Option<u16>,
}

impl Failure {
    pub fn not_executed(error: CloudError) -> Self {
        Self { error, may_have_worked: false, status: None }
    }
}

/// The HTTP status of an error of the `openstack` crate, which exposes it only in its `Debug` output.
pub fn status_of(error: &openstack::Error) -> Option<u16> {
    let debug_text = format!("{error:?}");
    debug_text.rsplit_once("status: Some(")?.1.strip_suffix(") }")?.parse().ok()
}

/// Classifies an error response.
pub fn error_response(is_creation: bool, status: StatusCode, headers: &HeaderMap, body: &str) -> Failure {
    let is_html = headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    let message_text = if is_html { "an HTML page instead of JSON".to_owned() } else { message(body) };
    let text = format!("{status}: {message_text}");
    let lower = message_text.to_lowercase();
    let over_quota = [
        "quota exceeded",
        "exceeds quota",
        "over quota",
        "number of ports exceeded",
        "quotaexceeded",
        // Unified limits of Keystone.
        "is over a limit for",
    ];
    let is_quota = over_quota.iter().any(|words| lower.contains(words));
    let delay = retry_delay(status, headers);
    // 413 is Nova's old status for too many requests. Without `overLimit` and Retry-After, the request is too large.
    let is_throttle = match status.as_u16() {
        429 => true,
        413 => delay.is_some() || body.contains("overLimit"),
        // A gateway may respond with 503 although it has forwarded the request, so a creation is not repeated.
        503 => delay.is_some() && !is_creation,
        _ => false,
    };
    let error = match status.as_u16() {
        403 | 409 if is_quota => CloudError::Quota(message_text),
        413 if lower.contains("quota") => CloudError::Quota(message_text),
        _ if is_throttle => CloudError::Throttled { retry_after: delay.unwrap_or(DEFAULT_RETRY_DELAY) },
        403 => CloudError::Denied(text),
        404 => CloudError::NotFound(message_text),
        409 if lower.contains("no more ip addresses") => CloudError::Capacity(message_text),
        500..=599 => CloudError::Outage { detail: text, may_have_worked: true },
        _ => failed(text),
    };
    // A 5xx response of a gateway does not show whether the service has executed the request.
    let may_have_worked = status.is_server_error() && !matches!(error, CloudError::Throttled { .. });
    Failure { error, may_have_worked, status: Some(status.as_u16()) }
}

/// The delay that the cloud requests.
pub fn retry_delay(status: StatusCode, headers: &HeaderMap) -> Option<Seconds> {
    let retry_after = retry_after(headers)?;
    Some(if status == StatusCode::SERVICE_UNAVAILABLE {
        Seconds(retry_after.0.min(MAX_OUTAGE_WAIT.0))
    } else {
        retry_after
    })
}

/// The message of an OpenStack error such as `{"forbidden": {"message": …}}`; else the whole text.
pub fn message(body: &str) -> String {
    let found = serde_json::from_str::<Value>(body).ok().and_then(|value| message_in(&value, 0));
    truncated(&found.unwrap_or_else(|| body.to_owned()))
}

fn message_in(value: &Value, depth: u8) -> Option<String> {
    let object = value.as_object().filter(|_| depth < 3)?;
    for key in ["message", "faultstring", "title", "detail"] {
        if let Some(text) = object.get(key).and_then(Value::as_str) {
            return Some(text.to_owned());
        }
    }
    object.values().find_map(|value| message_in(value, depth + 1))
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderName;

    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let parsed = lines.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()));
        parsed.collect()
    }

    #[test]
    fn too_many_requests_too_large_and_over_quota_are_distinguished() {
        let meant = |status: u16, lines: &[(&str, &str)], body: &str| {
            error_response(false, StatusCode::from_u16(status).unwrap(), &headers(lines), body).error
        };
        let throttled = |seconds: f64| CloudError::Throttled { retry_after: Seconds(seconds) };
        let later = [("retry-after", "7")];
        assert_eq!(meant(429, &[], "{}"), throttled(1.0));
        assert_eq!(meant(429, &later, "{}"), throttled(7.0));
        assert_eq!(meant(413, &later, "{}"), throttled(7.0));
        assert_eq!(meant(413, &[], r#"{"overLimit": {"message": "This request was rate-limited."}}"#), throttled(1.0));
        assert_eq!(meant(503, &later, ""), throttled(7.0));
        assert!(matches!(meant(503, &[], ""), CloudError::Outage { .. }));
        assert!(matches!(meant(413, &[], "<html>Request Entity Too Large</html>"), CloudError::Failed { .. }));
        let full = "Maximum number of volumes allowed (10) exceeded for quota 'volumes'.";
        assert!(matches!(meant(413, &later, full), CloudError::Quota(_)));
    }

    #[test]
    fn a_creation_is_repeated_only_after_a_rate_limit_rejection() {
        let meant = |status: StatusCode| error_response(true, status, &headers(&[("retry-after", "7")]), "");
        let busy = meant(StatusCode::SERVICE_UNAVAILABLE);
        assert!(busy.may_have_worked && matches!(busy.error, CloudError::Outage { .. }), "{busy:?}");
        for status in [StatusCode::TOO_MANY_REQUESTS, StatusCode::PAYLOAD_TOO_LARGE] {
            let refused = meant(status);
            assert!(!refused.may_have_worked && matches!(refused.error, CloudError::Throttled { .. }), "{refused:?}");
        }
    }

    #[test]
    fn the_status_in_an_error_is_found() {
        let error = openstack::Error::new(openstack::ErrorKind::InvalidInput, "no status: Some(500) }");
        assert_eq!(status_of(&error), None);
        assert_eq!(status_of(&error.with_status(StatusCode::GONE)), Some(410));
    }

    #[test]
    fn an_outage_delays_at_most_a_minute_and_a_rate_limit_as_told() {
        let meant = |status: StatusCode| retry_delay(status, &headers(&[("retry-after", "3600")])).map(|wait| wait.0);
        assert_eq!(meant(StatusCode::SERVICE_UNAVAILABLE), Some(60.0));
        assert_eq!(meant(StatusCode::TOO_MANY_REQUESTS), Some(3600.0));
        assert_eq!(meant(StatusCode::PAYLOAD_TOO_LARGE), Some(3600.0));
    }
}
