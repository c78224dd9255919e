//! Responses, and errors in the form of each of IBM's services.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::faults::codes;
use crate::server::call::{Call, Service};

pub struct Response {
    pub status: u16,
    pub content_type: &'static str,
    pub headers: Vec<(&'static str, String)>,
    pub body: Bytes,
    /// The code of the error that it reports.
    pub code: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    pub status: u16,
    pub code: String,
    pub message: String,
    pub target: Option<Box<ErrorTarget>>,
    /// The header `Retry-After` in seconds.
    pub retry_after: Option<u64>,
}

/// The field, parameter or header that an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorTarget {
    kind: &'static str,
    name: String,
    value: String,
}

pub type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    /// An error with the status and the message of its code.
    pub fn new(code: &str) -> Self {
        Self::with_message(code, codes::message(code))
    }

    pub fn with_message(code: &str, message: impl Into<String>) -> Self {
        let (code, status) = (code.to_owned(), codes::status(code));
        Self { status, code, message: message.into(), target: None, retry_after: None }
    }

    /// The error for a value that a field must not have.
    pub fn field(code: &str, name: &str, value: &str, message: impl Into<String>) -> Self {
        let target = ErrorTarget { kind: "field", name: name.to_owned(), value: value.to_owned() };
        Self { target: Some(Box::new(target)), ..Self::with_message(code, message) }
    }

    /// The error for a value that a parameter must not have.
    pub fn parameter(code: &str, name: &str, value: &str) -> Self {
        let target = ErrorTarget { kind: "parameter", name: name.to_owned(), value: value.to_owned() };
        let message = match codes::message(code) {
            message if message.starts_with("injected") => format!("The value of the parameter {name} is not valid."),
            message => message,
        };
        Self { target: Some(Box::new(target)), ..Self::with_message(code, message) }
    }

    /// The error for a resource that does not exist.
    pub fn not_found(kind: &str, id: &str) -> Self {
        let target = ErrorTarget { kind: "parameter", name: "id".to_owned(), value: id.to_owned() };
        let message = format!("The {kind} {id} was not found. {}", codes::message("not_found"));
        Self { target: Some(Box::new(target)), ..Self::with_message("not_found", message) }
    }

    fn vpc_body(&self, trace: &str) -> Value {
        let anchor = self.code.replace('_', "-");
        let mut error = json!({
            "code": self.code, "message": self.message,
            "more_info": format!("https://cloud.ibm.com/docs/vpc?topic=vpc-rias-error-messages#{anchor}"),
        });
        if let Some(target) = &self.target {
            let ErrorTarget { kind, name, value } = &**target;
            error["target"] = json!({"name": name, "type": kind, "value": value});
        }
        json!({"errors": [error], "trace": trace})
    }

    fn iam_body(&self, trace: &str) -> Value {
        json!({
            "errorCode": self.code, "errorMessage": self.message,
            "context": {
                "requestId": trace, "requestType": "incoming.Identity_Token", "url": "https://iam.cloud.ibm.com",
                "locale": "en_US",
            },
        })
    }

    fn resources_body(&self, trace: &str) -> Value {
        json!({
            "error_code": self.code, "message": self.message, "status_code": self.status, "transaction_id": trace,
        })
    }
}

impl Response {
    pub fn new(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self { status, content_type, headers: Vec::new(), body: body.into(), code: None }
    }

    pub fn json(status: u16, body: &Value) -> Self {
        Self::json_text(status, body.to_string())
    }

    /// JSON that is text already.
    pub fn json_text(status: u16, body: String) -> Self {
        Self::new(status, "application/json; charset=utf-8", body)
    }

    pub fn text(status: u16, text: impl Into<String>) -> Self {
        Self::new(status, "text/plain", text.into())
    }

    /// A response without a body.
    pub fn empty(status: u16) -> Self {
        Self::new(status, "", "")
    }

    /// The error page of a proxy.
    pub fn html() -> Self {
        let body = "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>";
        Self { code: Some("html".to_owned()), ..Self::new(502, "text/html", body) }
    }

    /// An error in the form of the call's service.
    pub fn error(call: &Call, error: &ApiError, trace: &str) -> Self {
        let body = match call.service {
            Service::Vpc => error.vpc_body(trace),
            Service::Iam => error.iam_body(trace),
            Service::Resources => error.resources_body(trace),
            Service::Control => json!({"error": error.message}),
        };
        let mut response = Self::json(error.status, &body);
        if let Some(seconds) = error.retry_after {
            response.headers.push(("retry-after", seconds.to_string()));
        }
        response.code = Some(error.code.clone());
        response
    }
}
