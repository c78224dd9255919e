//! Responses, and errors in the form of Google's APIs.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::faults::codes;
use crate::server::call::{Call, Service};

pub struct Response {
    pub status: u16,
    pub content_type: &'static str,
    pub headers: Vec<(&'static str, String)>,
    pub body: Bytes,
    /// The reason of the error that it reports.
    pub reason: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    pub status: u16,
    pub reason: String,
    pub message: String,
}

pub type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    /// An error with the status that Google uses most with the reason.
    pub fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { status: codes::status(reason), reason: reason.to_owned(), message: message.into() }
    }

    /// The error for a value that a field or parameter must not have.
    pub fn invalid(field: &str, value: &str, why: &str) -> Self {
        Self::new("invalid", format!("Invalid value for field '{field}': '{value}'. {why}"))
    }

    /// The error for a resource, named by its path from `projects`, that does not exist.
    pub fn not_found(resource: &str) -> Self {
        Self::new("notFound", format!("The resource '{resource}' was not found"))
    }

    fn body(&self) -> Value {
        let Self { status, reason, message } = self;
        let is_credential = *status == 401;
        let mut detail = json!({
            "message": if is_credential { "Invalid Credentials" } else { message }, "domain": codes::domain(reason),
            "reason": reason,
        });
        if is_credential {
            detail["location"] = json!("Authorization");
            detail["locationType"] = json!("header");
        }
        let mut error = json!({"code": status, "message": message, "errors": [detail]});
        if let Some(status) = codes::rpc_status(*status, reason) {
            error["status"] = json!(status);
        }
        json!({"error": error})
    }
}

impl Response {
    pub fn new(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self { status, content_type, headers: Vec::new(), body: body.into(), reason: None }
    }

    pub fn json(status: u16, body: &Value) -> Self {
        Self::json_text(status, body.to_string())
    }

    /// JSON that is text already.
    pub fn json_text(status: u16, body: String) -> Self {
        Self::new(status, "application/json; charset=UTF-8", body)
    }

    pub fn text(status: u16, text: impl Into<String>) -> Self {
        Self::new(status, "text/plain", text.into())
    }

    /// The error page of a proxy.
    pub fn html() -> Self {
        let body = "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>";
        Self { reason: Some("html".to_owned()), ..Self::new(502, "text/html", body) }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// An error in the form of the call's service.
    pub fn error(call: &Call, error: &ApiError) -> Self {
        let ApiError { status, reason, message } = error;
        let mut response = match call.service {
            Service::Compute => Self::json(*status, &error.body()),
            Service::Token => Self::json(*status, &json!({"error": reason, "error_description": message})),
            Service::Metadata => Self::text(*status, message.as_str()),
            Service::Control => Self::json(*status, &json!({"error": message})),
        };
        if *status == 401 {
            let error = if reason == "authError" { ", error=\"invalid_token\"" } else { "" };
            let challenge = format!("Bearer realm=\"https://accounts.google.com/\"{error}");
            response = response.with("www-authenticate", challenge);
        }
        response.reason = Some(reason.clone());
        response
    }
}
