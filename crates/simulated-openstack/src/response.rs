//! Responses, with errors in the format of each service.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::call::Service;

pub struct Response {
    pub status: u16,
    pub content_type: &'static str,
    pub headers: Vec<(&'static str, String)>,
    pub body: Bytes,
}

const JSON: &str = "application/json";

impl Response {
    pub fn json(status: u16, body: &Value) -> Self {
        Self::rendered(status, body.to_string())
    }

    pub fn ok(body: &Value) -> Self {
        Self::json(200, body)
    }

    /// JSON that is rendered already.
    pub fn rendered(status: u16, body: impl Into<Bytes>) -> Self {
        Self { status, content_type: JSON, headers: Vec::new(), body: body.into() }
    }

    pub fn empty(status: u16) -> Self {
        Self::rendered(status, Bytes::new())
    }

    /// An HTML error page of a web framework.
    pub fn html(status: u16, text: &str) -> Self {
        let reason = status_reason(status);
        let body = format!(
            "<html>\n <head>\n  <title>{status} {reason}</title>\n </head>\n <body>\n  <h1>{status} {reason}</h1>\n  \
             {text}<br /><br />\n </body>\n</html>"
        );
        Self { status, content_type: "text/html; charset=UTF-8", headers: Vec::new(), body: body.into() }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub fn value(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }

    /// An error in the format of this service.
    pub fn error(service: Service, status: u16, message: &str) -> Self {
        let body = match service {
            Service::Compute | Service::Volume => {
                json!({fault_name(status): {"code": status, "message": message}})
            }
            Service::Network => json!({"NeutronError": {"type": "HTTPError", "message": message, "detail": ""}}),
            Service::Identity => {
                json!({"error": {"code": status, "message": message, "title": status_reason(status)}})
            }
            Service::Image => return Self::html(status, message),
        };
        Self::json(status, &body)
    }

    /// An error of the network service, whose errors have types.
    pub fn neutron(status: u16, kind: &str, message: &str) -> Self {
        Self::json(status, &json!({"NeutronError": {"type": kind, "message": message, "detail": ""}}))
    }

    pub fn not_found(service: Service) -> Self {
        let text = "The resource could not be found.";
        match service {
            Service::Network => Self::neutron(404, "HTTPNotFound", text),
            Service::Identity => Self::error(service, 404, text),
            Service::Compute | Service::Image | Service::Volume => Self::html(404, text),
        }
    }

    pub fn unauthorized(service: Service, auth_url: &str) -> Self {
        let text = "The request you have made requires authentication.";
        let answer = match service {
            Service::Image => Self::html(401, "This server could not verify that you are authorized."),
            _ => Self::json(401, &json!({"error": {"code": 401, "title": "Unauthorized", "message": text}})),
        };
        answer.with("WWW-Authenticate", format!("Keystone uri=\"{auth_url}\""))
    }
}

fn fault_name(status: u16) -> &'static str {
    match status {
        400 => "badRequest",
        401 => "unauthorized",
        403 => "forbidden",
        404 => "itemNotFound",
        409 => "conflictingRequest",
        413 | 429 => "overLimit",
        503 => "serviceUnavailable",
        _ => "computeFault",
    }
}

fn status_reason(status: u16) -> &'static str {
    actix_web::http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or("Error")
}
