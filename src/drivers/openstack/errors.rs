//! What an answer that is no success, or none at all, means for the caller.

use chrono::{DateTime, Utc};
use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, DATE, HeaderMap, HeaderName, RETRY_AFTER};
use serde_json::Value;

use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_model::records::time::Seconds;

/// Where the cloud does not say how long to wait.
pub const DEFAULT_RETRY_DELAY: Seconds = Seconds(1.0);
/// What is out of order says it of one service, and all calls of the provider wait.
const MAX_OUTAGE_WAIT: Seconds = Seconds(60.0);
/// Of an error's text in our messages.
const MAX_MESSAGE_CHARS: usize = 300;

/// What went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    pub error: CloudError,
    /// The request may have been carried out all the same.
    pub may_have_worked: bool,
    /// Of the answer, where there was one.
    pub status: Option<u16>,
}

impl Failure {
    pub fn not_executed(error: CloudError) -> Self {
        Self { error, may_have_worked: false, status: None }
    }
}

/// The causes of an error say what it was, a name or a certificate, and no part of them is a secret.
pub fn with_causes(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

/// The status of an answer that `openstack` has made an error of. It shows it only where it is written out for debugging.
pub fn status_of(error: &openstack::Error) -> Option<u16> {
    let debug_text = format!("{error:?}");
    debug_text.rsplit_once("status: Some(")?.1.strip_suffix(") }")?.parse().ok()
}

/// What an answer that is no success means.
pub fn error_response(is_creation: bool, status: StatusCode, headers: &HeaderMap, body: &str) -> Failure {
    let is_html = headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    let message_text = if is_html { "a page instead of an answer".to_owned() } else { message(body) };
    let text = format!("{status}: {message_text}");
    let lower = message_text.to_lowercase();
    let over_quota = ["quota exceeded", "exceeds quota", "number of ports exceeded", "quotaexceeded"];
    let is_quota = over_quota.iter().any(|words| lower.contains(words));
    let delay = retry_delay(status, headers);
    // 413 is Nova's word of old for too many requests; without that word, and a time to wait, the request is too large.
    let is_throttle = match status.as_u16() {
        429 => true,
        413 => delay.is_some() || body.contains("overLimit"),
        // A gateway says so too, of what it may have passed on: a creation is not sent again on that.
        503 => delay.is_some() && !is_creation,
        _ => false,
    };
    let error = match status.as_u16() {
        403 | 409 if is_quota => CloudError::Quota(message_text),
        413 if lower.contains("quota") => CloudError::Quota(message_text),
        _ if is_throttle => CloudError::Throttled { retry_after: delay.unwrap_or(DEFAULT_RETRY_DELAY) },
        403 => CloudError::Denied(text),
        404 => CloudError::NotFound,
        409 if lower.contains("no more ip addresses") => CloudError::Capacity(message_text),
        _ => failed(text),
    };
    // A gateway that gave up says nothing about what is behind it.
    let may_have_worked = status.is_server_error() && !matches!(error, CloudError::Throttled { .. });
    Failure { error, may_have_worked, status: Some(status.as_u16()) }
}

/// How long the cloud wants us to wait: a number of seconds, or the time from its own date to another one.
pub fn retry_delay(status: StatusCode, headers: &HeaderMap) -> Option<Seconds> {
    let retry_after = retry_after(headers)?;
    Some(if status == StatusCode::SERVICE_UNAVAILABLE {
        Seconds(retry_after.0.min(MAX_OUTAGE_WAIT.0))
    } else {
        retry_after
    })
}

fn retry_after(headers: &HeaderMap) -> Option<Seconds> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let header = text(RETRY_AFTER)?;
    if let Ok(seconds) = header.parse::<f64>() {
        return (seconds.is_finite() && seconds >= 0.0).then_some(Seconds(seconds));
    }
    let until = DateTime::parse_from_rfc2822(header).ok()?;
    let now = text(DATE).and_then(|date| DateTime::parse_from_rfc2822(date).ok());
    let now = now.map_or_else(Utc::now, |now| now.with_timezone(&Utc));
    Some(Seconds((until.with_timezone(&Utc) - now).num_seconds().max(0) as f64))
}

pub fn failed(detail: String) -> CloudError {
    CloudError::Failed { kind: FailureKind::Unknown, detail }
}

/// The words of an OpenStack error: `{"forbidden": {"message": …}}` and its relatives; else the text itself.
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

/// One line of bearable length.
pub fn truncated(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let parsed = lines.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()));
        parsed.collect()
    }

    #[test]
    fn a_time_to_wait_is_a_number_or_a_date() {
        let asked = |lines: &[(&str, &str)]| retry_after(&headers(lines)).map(|wait| wait.0);
        let date = ("date", "Wed, 21 Oct 2015 07:28:00 GMT");
        assert_eq!(asked(&[("retry-after", "120")]), Some(120.0));
        assert_eq!(asked(&[date, ("retry-after", "Wed, 21 Oct 2015 07:29:30 GMT")]), Some(90.0));
        // Long past by this host's clock.
        assert_eq!(asked(&[("retry-after", "Wed, 21 Oct 2015 07:29:30 GMT")]), Some(0.0));
        assert_eq!(asked(&[("retry-after", "soon")]), None);
        assert_eq!(asked(&[("retry-after", "-5")]), None);
        assert_eq!(asked(&[date]), None);
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
        assert!(matches!(meant(503, &[], ""), CloudError::Failed { .. }));
        assert!(matches!(meant(413, &[], "<html>Request Entity Too Large</html>"), CloudError::Failed { .. }));
        let full = "Maximum number of volumes allowed (10) exceeded for quota 'volumes'.";
        assert!(matches!(meant(413, &later, full), CloudError::Quota(_)));
    }

    #[test]
    fn a_creation_is_sent_again_only_where_it_was_refused_for_coming_too_soon() {
        let meant = |status: StatusCode| error_response(true, status, &headers(&[("retry-after", "7")]), "");
        let busy = meant(StatusCode::SERVICE_UNAVAILABLE);
        assert!(busy.may_have_worked && matches!(busy.error, CloudError::Failed { .. }), "{busy:?}");
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
    fn an_outage_is_waited_for_for_a_minute_and_a_limit_for_as_long_as_it_lasts() {
        let meant = |status: StatusCode| retry_delay(status, &headers(&[("retry-after", "3600")])).map(|wait| wait.0);
        assert_eq!(meant(StatusCode::SERVICE_UNAVAILABLE), Some(60.0));
        assert_eq!(meant(StatusCode::TOO_MANY_REQUESTS), Some(3600.0));
        assert_eq!(meant(StatusCode::PAYLOAD_TOO_LARGE), Some(3600.0));
    }
}
