//! Responses: JSON of the Resource Manager, XML of the storage, and errors of both.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::faults::codes;
use crate::server::call::Call;
use crate::server::target::Target;

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
    /// The property that the error is about.
    pub target: Option<String>,
}

pub type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { status: codes::status(code), code: code.to_owned(), message: message.into(), target: None }
    }

    /// An invalid value of a property.
    pub fn invalid(target: &str, message: impl Into<String>) -> Self {
        Self { target: Some(target.to_owned()), ..Self::new("InvalidParameter", message) }
    }

    pub fn json(&self) -> Value {
        let mut json = json!({"code": self.code, "message": self.message});
        if let Some(target) = &self.target {
            json["target"] = json!(target);
        }
        if self.code == "InvalidRequestContent" {
            json["details"] = json!([]);
        }
        json
    }
}

impl Response {
    pub fn new(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self { status, content_type, headers: Vec::new(), body: body.into(), code: None }
    }

    pub fn json(status: u16, body: &Value) -> Self {
        Self::new(status, "application/json; charset=utf-8", body.to_string())
    }

    pub fn empty(status: u16) -> Self {
        Self::new(status, "", Bytes::new())
    }

    pub fn text(status: u16, text: &'static str) -> Self {
        Self::new(status, "text/plain", text)
    }

    /// The error page of a proxy.
    pub fn html() -> Self {
        let body = "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>";
        Self { code: Some("html".to_owned()), ..Self::new(502, "text/html", body) }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// An error in the form of the call's target.
    pub fn error(call: &Call, error: &ApiError) -> Self {
        let ApiError { status, code, message, .. } = error;
        let mut response = match call.target {
            Target::Token { .. } => Self::json(*status, &json!({"error": code, "error_description": message})),
            Target::Pages { .. } => {
                let xml = format!(
                    "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><Error><Code>{code}</Code><Message>{message}\
                     </Message></Error>"
                );
                Self::new(*status, "application/xml", xml).with("x-ms-error-code", code.clone())
            }
            _ => Self::json(*status, &json!({"error": error.json()})),
        };
        response.code = Some(code.clone());
        response
    }
}
