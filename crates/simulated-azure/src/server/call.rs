//! One parsed call: its target, its action, its parameters and its body.

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::http::request::Parts;
use serde_json::Value;

use crate::server::target::Target;

/// A received request.
pub struct Call {
    pub method: String,
    pub path: String,
    pub query: Vec<(String, String)>,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The body of a call to the Resource Manager, if it is JSON.
    pub json: Option<Value>,
    pub target: Target,
    pub subscription: Option<String>,
    /// Such as `vm.create`.
    pub action: String,
}

impl Call {
    pub fn new(parts: Parts, body: Bytes) -> Self {
        let query = parts.uri.query().unwrap_or_default();
        let query: Vec<_> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let path = percent_decoded(parts.uri.path());
        let segments: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (target, subscription) = Target::of(&segments);
        let method = parts.method.as_str().to_owned();
        let action = target.action(&method);
        let is_json = subscription.is_some() && !body.is_empty();
        let json = if is_json { serde_json::from_slice(&body).ok() } else { None };
        Self { method, path, query, headers: parts.headers, body, json, target, subscription, action }
    }

    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn version(&self) -> &str {
        self.parameter("api-version").unwrap_or_default()
    }

    /// The text of a header, or nothing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    pub fn parts(&self) -> Vec<&str> {
        self.path.split('/').filter(|part| !part.is_empty()).collect()
    }
}

fn percent_decoded(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    // A form has "+" for spaces, which a path does not.
    let form = format!("p={}", text.replace('+', "%2B").replace('&', "%26"));
    form_urlencoded::parse(form.as_bytes()).next().map(|(_, value)| value.into_owned()).unwrap_or_default()
}
