//! Errors of the API, by what the caller does next. The API describes each in a `Status` object.

use crate::common::error_text::truncated;
pub use crate::common::error_text::{failed, with_causes};
use crate::common::retry_after::retry_after;
use http::StatusCode;
use http::header::HeaderMap;
use serde::Deserialize;

use nodepool_driver::error::CloudError;
use nodepool_model::records::time::Seconds;

/// Used if the API sends no Retry-After.
const DEFAULT_RETRY_DELAY: Seconds = Seconds(1.0);
const ACCOUNT_DELAY: Seconds = Seconds(0.1);

/// The response to a request that was not fulfilled.
#[derive(Clone, Debug, PartialEq)]
pub enum Rejection {
    /// The object exists already; `is_being_deleted` says that it is about to go.
    Exists {
        is_being_deleted: bool,
    },
    /// The version of a watch is too old.
    Gone,
    /// The namespace of the object is being deleted.
    NamespaceTerminating,
    /// The same request may succeed after this time: an object that it needs is not complete yet.
    NotYet(Seconds),
    /// A project that does not exist, or that OpenShift hides from this account.
    Hidden(String),
    /// The credentials are not accepted.
    Unauthorized(String),
    Error(CloudError),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    message: String,
    reason: String,
    details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    causes: Vec<Cause>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: String,
}

/// Classifies a response that is no success.
pub fn rejection(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Rejection {
    let described: Status = serde_json::from_slice(body).unwrap_or_default();
    let message = match described.message.as_str() {
        "" => truncated(&String::from_utf8_lossy(body)),
        text => truncated(text),
    };
    let delay = retry_after(headers);
    let has_cause =
        |reason: &str| described.details.iter().flat_map(|details| &details.causes).any(|cause| cause.reason == reason);
    match (status.as_u16(), described.reason.as_str()) {
        (401, _) => Rejection::Unauthorized(message),
        (403, _) if has_cause("NamespaceTerminating") => Rejection::NamespaceTerminating,
        // A new namespace gets its account `default` a moment later.
        (403, _) if message.contains("error looking up service account") => {
            Rejection::NotYet(delay.unwrap_or(ACCOUNT_DELAY))
        }
        (403, _) if message.contains("exceeded quota") || is_limit_of_projects(&message) => {
            Rejection::Error(CloudError::Quota(message))
        }
        (410, _) => Rejection::Gone,
        (404, _) => Rejection::Error(CloudError::NotFound(message)),
        (409, "AlreadyExists") => Rejection::Exists { is_being_deleted: message.contains("is being deleted") },
        // Two changes of one object met, for example of a ResourceQuota.
        (409, _) => Rejection::NotYet(delay.unwrap_or(Seconds(0.1))),
        (500, "ServerTimeout") => Rejection::NotYet(delay.unwrap_or(DEFAULT_RETRY_DELAY)),
        (429, _) => Rejection::Error(CloudError::Throttled { retry_after: delay.unwrap_or(DEFAULT_RETRY_DELAY) }),
        (503, _) if delay.is_some() => {
            Rejection::Error(CloudError::Throttled { retry_after: delay.unwrap_or(DEFAULT_RETRY_DELAY) })
        }
        // Invalid objects and missing permissions are errors of the configuration.
        (400 | 403 | 405 | 422, _) => Rejection::Error(CloudError::Denied(message)),
        (500..=599, _) => {
            let detail = format!("{status}: {message}");
            Rejection::Error(CloudError::Outage { detail, may_have_worked: true })
        }
        _ => Rejection::Error(failed(format!("{status}: {message}"))),
    }
}

/// Whether OpenShift refuses a project because its user has too many.
fn is_limit_of_projects(message: &str) -> bool {
    message.contains("cannot create more than") && message.contains("project(s)")
}

/// The error of a request without a response, or with an unreadable one.
pub fn transport_error(error: &kube::Error) -> CloudError {
    let detail = with_causes(error);
    match error {
        // An exec plugin, a token file or a certificate cannot be used.
        kube::Error::Auth(_) => CloudError::Denied(format!("credentials: {detail}")),
        _ => CloudError::Outage { detail, may_have_worked: !is_connect_error(error) },
    }
}

/// Whether there was no connection, so that the request was not sent.
fn is_connect_error(error: &kube::Error) -> bool {
    let mut cause = Some(error as &(dyn std::error::Error + 'static));
    while let Some(error) = cause {
        if error.downcast_ref::<hyper_util::client::legacy::Error>().is_some_and(|error| error.is_connect()) {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::RETRY_AFTER;
    use serde_json::{Value, json};

    fn meaning(status: u16, body: &Value) -> Rejection {
        rejection(StatusCode::from_u16(status).unwrap(), &HeaderMap::new(), body.to_string().as_bytes())
    }

    #[test]
    fn the_quota_of_a_namespace_waits_and_a_missing_request_does_not() {
        let quota = "exceeded quota: rq, requested: requests.cpu=9, used: requests.cpu=1, limited: requests.cpu=4";
        let status = |message: &str| json!({"kind": "Status", "reason": "Forbidden", "message": message});
        assert_eq!(meaning(403, &status(quota)), Rejection::Error(CloudError::Quota(quota.to_owned())));
        let missing = "failed quota: rq: must specify requests.cpu";
        assert_eq!(meaning(403, &status(missing)), Rejection::Error(CloudError::Denied(missing.to_owned())));
        assert!(matches!(meaning(409, &json!({"reason": "Conflict"})), Rejection::NotYet(_)));
    }

    #[test]
    fn an_existing_namespace_may_be_about_to_go() {
        let exists = |message: &str| meaning(409, &json!({"reason": "AlreadyExists", "message": message}));
        assert_eq!(exists("namespaces \"x\" already exists"), Rejection::Exists { is_being_deleted: false });
        let going = "object is being deleted: namespaces \"x\" already exists";
        assert_eq!(exists(going), Rejection::Exists { is_being_deleted: true });
        let causes = json!({"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]});
        assert_eq!(meaning(403, &json!({"reason": "Forbidden", "details": causes})), Rejection::NamespaceTerminating);
    }

    #[test]
    fn other_responses_are_outages_or_errors_of_the_configuration() {
        let timeout = json!({"reason": "ServerTimeout", "message": "No API token found"});
        assert_eq!(meaning(500, &timeout), Rejection::NotYet(Seconds(1.0)));
        assert!(matches!(meaning(500, &json!({})), Rejection::Error(CloudError::Outage { .. })));
        assert!(matches!(meaning(422, &json!({"reason": "Invalid"})), Rejection::Error(CloudError::Denied(_))));
        assert!(matches!(meaning(401, &json!({})), Rejection::Unauthorized(_)));
        assert!(matches!(meaning(404, &json!({})), Rejection::Error(CloudError::NotFound(_))));
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, "7".parse().unwrap());
        let busy = rejection(StatusCode::SERVICE_UNAVAILABLE, &headers, b"<html>");
        assert_eq!(busy, Rejection::Error(CloudError::Throttled { retry_after: Seconds(7.0) }));
    }
}
