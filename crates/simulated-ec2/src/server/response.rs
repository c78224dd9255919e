//! Responses, with errors in the envelope of their service.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::api::xml::Xml;
use crate::faults::codes;
use crate::server::call::{Call, Service};

pub struct Response {
    pub status: u16,
    pub content_type: Cow<'static, str>,
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
}

pub type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { status: codes::status(code), code: code.to_owned(), message: message.into() }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new("InvalidParameterValue", message)
    }
}

impl Response {
    pub fn new(status: u16, content_type: impl Into<Cow<'static, str>>, body: impl Into<Bytes>) -> Self {
        let content_type = content_type.into();
        Self { status, content_type, headers: Vec::new(), body: body.into(), code: None }
    }

    pub fn xml(body: String) -> Self {
        Self::new(200, "text/xml;charset=UTF-8", body)
    }

    pub fn json(status: u16, body: &Value) -> Self {
        Self::new(status, "application/json", body.to_string())
    }

    pub fn empty(status: u16) -> Self {
        Self::new(status, "application/xml", Bytes::new())
    }

    pub fn text(status: u16, text: impl Into<String>) -> Self {
        Self::new(status, "text/plain", text.into())
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

    /// An error in the envelope of the call's service.
    pub fn error(call: &Call, error: &ApiError, request_id: &str) -> Self {
        let ApiError { status, code, message } = error;
        let mut response = match call.service {
            Service::Ec2 => {
                let mut xml = Xml::document();
                xml.within("Response", |xml| {
                    xml.open("Errors");
                    xml.within("Error", |xml| xml.text("Code", code).text("Message", message));
                    xml.close("Errors").text("RequestID", request_id)
                });
                Self::xml(xml.finish())
            }
            Service::Sts => {
                let mut xml = Xml::document();
                xml.open_with("ErrorResponse", "xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"");
                xml.within("Error", |xml| xml.text("Type", "Sender").text("Code", code).text("Message", message));
                xml.text("RequestId", request_id).close("ErrorResponse");
                Self::xml(xml.finish())
            }
            Service::S3 => {
                let mut xml = Xml::document();
                xml.within("Error", |xml| {
                    xml.text("Code", code).text("Message", message).text("Resource", &call.path);
                    xml.text("RequestId", request_id)
                });
                Self::new(200, "application/xml", xml.finish())
            }
            Service::Quotas => {
                let body = json!({"__type": code, "message": message});
                Self::new(200, "application/x-amz-json-1.1", body.to_string()).with("x-amzn-ErrorType", code)
            }
            Service::Ebs => {
                let body = json!({"Message": message, "Reason": code});
                Self::new(200, "application/json", body.to_string()).with("x-amzn-ErrorType", code)
            }
            Service::Metadata | Service::Control => Self::json(200, &json!({"code": code, "message": message})),
        };
        if call.method == "HEAD" {
            response.body = Bytes::new();
        }
        (response.status, response.code) = (*status, Some(code.clone()));
        response
    }
}
