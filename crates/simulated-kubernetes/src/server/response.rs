//! Responses, with errors as Status objects in the words of kube-apiserver.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::cluster::resources::Resource;

pub struct Response {
    pub status: u16,
    pub content_type: &'static str,
    pub headers: Vec<(&'static str, String)>,
    pub body: Bytes,
}

/// A result whose error is the response to the client.
pub type ApiResult<T> = Result<T, Response>;

/// One reason of a refusal, with the field that it is about.
pub struct Cause {
    pub reason: &'static str,
    pub message: String,
    pub field: String,
}

impl Cause {
    pub fn invalid(field: &str, value: &str, text: &str) -> Self {
        Self::new("FieldValueInvalid", field, format!("Invalid value: \"{value}\": {text}"))
    }

    pub fn required(field: &str, text: &str) -> Self {
        let text = if text.is_empty() { String::new() } else { format!(": {text}") };
        Self::new("FieldValueRequired", field, format!("Required value{text}"))
    }

    pub fn new(reason: &'static str, field: &str, message: String) -> Self {
        Self { reason, message, field: field.to_owned() }
    }

    fn json(&self) -> Value {
        json!({"reason": self.reason, "message": self.message, "field": self.field})
    }
}

impl Response {
    pub fn json(status: u16, body: &Value) -> Self {
        Self::rendered(status, body.to_string())
    }

    pub fn ok(body: &Value) -> Self {
        Self::json(200, body)
    }

    /// JSON that is rendered already.
    pub fn rendered(status: u16, body: impl Into<Bytes>) -> Self {
        Self { status, content_type: "application/json", headers: Vec::new(), body: body.into() }
    }

    pub fn text(status: u16, text: &str) -> Self {
        let body = Bytes::copy_from_slice(text.as_bytes());
        Self { status, content_type: "text/plain; charset=utf-8", headers: Vec::new(), body }
    }

    /// The error page of a proxy.
    pub fn html() -> Self {
        let body = "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>";
        Self { status: 502, content_type: "text/html", headers: Vec::new(), body: body.into() }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// A Status object that reports a failure.
    pub fn failure(code: u16, reason: &str, message: impl Into<String>, details: Value) -> Self {
        Self::json(code, &failure_object(code, reason, message, details))
    }

    pub fn unauthorized() -> Self {
        Self::failure(401, "Unauthorized", "Unauthorized", Value::Null)
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::failure(400, "BadRequest", message, Value::Null)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::failure(500, "", message, Value::Null)
    }

    pub fn page_not_found() -> Self {
        Self::text(404, "404 page not found\n")
    }

    pub fn no_such_resource() -> Self {
        Self::failure(404, "NotFound", "the server could not find the requested resource", json!({}))
    }

    pub fn method_not_allowed() -> Self {
        let text = "the server does not allow this method on the requested resource";
        Self::failure(405, "MethodNotAllowed", text, json!({}))
    }

    pub fn unsupported_media_type() -> Self {
        Self::failure(415, "UnsupportedMediaType", "415: Unsupported Media Type", json!({}))
    }

    pub fn too_many_requests(retry_after_s: u64) -> Self {
        let text = "Too many requests, please try again later.";
        Self::retry_later(429, "TooManyRequests", text, retry_after_s)
    }

    pub fn retry_later(code: u16, reason: &str, message: &str, retry_after_s: u64) -> Self {
        let details = json!({"retryAfterSeconds": retry_after_s});
        Self::failure(code, reason, message, details).with("Retry-After", retry_after_s.to_string())
    }

    /// The admission of service accounts refuses a pod whose account has no token yet.
    pub fn no_token(account: &str) -> Self {
        let text = format!(
            "No API token found for service account \"{account}\", retry after the token is automatically created and \
             added to the service account"
        );
        let details = json!({"name": "create pod", "kind": "serviceaccounts", "retryAfterSeconds": 1});
        Self::failure(500, "ServerTimeout", text, details).with("Retry-After", "1")
    }

    /// A ResourceQuota leaves no room for a pod.
    pub fn exceeded_quota() -> Self {
        let text = "pods \"pod\" is forbidden: exceeded quota: quota, requested: pods=1, used: pods=1, limited: pods=1";
        Self::failure(403, "Forbidden", text, json!({"name": "pod", "kind": "pods"}))
    }

    /// A resource version, or a `continue`, of which nothing is known anymore.
    pub fn gone(message: impl Into<String>) -> Self {
        Self::failure(410, "Expired", message, Value::Null)
    }

    pub fn not_found(resource: &Resource, name: &str) -> Self {
        let text = format!("{} \"{name}\" not found", resource.qualified());
        Self::failure(404, "NotFound", text, details(resource, name, resource.plural))
    }

    pub fn already_exists(resource: &Resource, name: &str, is_deleted: bool) -> Self {
        let prefix = if is_deleted { "object is being deleted: " } else { "" };
        let text = format!("{prefix}{} \"{name}\" already exists", resource.qualified());
        Self::failure(409, "AlreadyExists", text, details(resource, name, resource.plural))
    }

    pub fn conflict(resource: &Resource, name: &str) -> Self {
        let text = format!(
            "Operation cannot be fulfilled on {} \"{name}\": the object has been modified; please apply your changes to \
             the latest version and try again",
            resource.qualified()
        );
        Self::failure(409, "Conflict", text, details(resource, name, resource.plural))
    }

    pub fn other_uid(resource: &Resource, name: &str, wanted: &str, uid: &str) -> Self {
        let text = format!(
            "Operation cannot be fulfilled on {} \"{name}\": the UID in the precondition ({wanted}) does not match the \
             UID in record ({uid}). The object might have been deleted and then recreated",
            resource.kind_name
        );
        Self::failure(409, "Conflict", text, details(resource, name, resource.kind_name))
    }

    pub fn forbidden(resource: &Resource, name: &str, text: &str) -> Self {
        let text = format!("{} \"{name}\" is forbidden: {text}", resource.qualified());
        Self::failure(403, "Forbidden", text, details(resource, name, resource.plural))
    }

    pub fn namespace_terminating(resource: &Resource, name: &str, namespace: &str) -> Self {
        let text = format!(
            "{} \"{name}\" is forbidden: unable to create new content in namespace {namespace} because it is being \
             terminated",
            resource.qualified()
        );
        let message = format!("namespace {namespace} is being terminated");
        let cause = Cause::new("NamespaceTerminating", "metadata.namespace", message);
        let mut details = details(resource, name, resource.plural);
        details["causes"] = json!([cause.json()]);
        Self::failure(403, "Forbidden", text, details)
    }

    pub fn invalid(resource: &Resource, name: &str, causes: &[Cause]) -> Self {
        let texts: Vec<String> = causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        let texts = if texts.len() == 1 { texts[0].clone() } else { format!("[{}]", texts.join(", ")) };
        let kind = match resource.group {
            "" => resource.kind_name.to_owned(),
            group => format!("{}.{group}", resource.kind_name),
        };
        let mut details = details(resource, name, resource.kind_name);
        details["causes"] = causes.iter().map(Cause::json).collect();
        Self::failure(422, "Invalid", format!("{kind} \"{name}\" is invalid: {texts}"), details)
    }
}

pub fn failure_object(code: u16, reason: &str, message: impl Into<String>, details: Value) -> Value {
    let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"});
    status["message"] = json!(message.into());
    if !reason.is_empty() {
        status["reason"] = json!(reason);
    }
    if !details.is_null() {
        status["details"] = details;
    }
    status["code"] = json!(code);
    status
}

/// Name, group and kind; absent where they are empty.
fn details(resource: &Resource, name: &str, kind: &str) -> Value {
    let mut details = json!({});
    for (key, value) in [("name", name), ("group", resource.group), ("kind", kind)] {
        if !value.is_empty() {
            details[key] = json!(value);
        }
    }
    details
}

/// The Status object of a deletion that is complete.
pub fn deleted_status(resource: &Resource, name: &str, uid: &str) -> Value {
    let mut details = details(resource, name, resource.plural);
    details["uid"] = json!(uid);
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}
