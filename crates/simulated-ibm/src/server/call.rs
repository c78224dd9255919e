//! One parsed call: its service, its operation, and the ids that its path names.

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::http::request::Parts;

use crate::server::routes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// The VPC API, below `/v1`.
    Vpc,
    /// The token endpoint.
    Iam,
    /// Resource manager and resource controller, below `/v2`.
    Resources,
    /// `/sim`.
    Control,
}

/// A received request.
pub struct Call {
    pub method: String,
    /// The path as it was sent, percent-encoded.
    pub path: String,
    pub raw_query: String,
    query: Vec<(String, String)>,
    headers: HeaderMap,
    pub body: Bytes,
    pub service: Service,
    /// The id of the operation in IBM's API, such as `create_instance`; empty if there is none.
    pub action: &'static str,
    ids: Vec<String>,
}

impl Call {
    pub fn new(parts: Parts, body: Bytes) -> Self {
        let raw_query = parts.uri.query().unwrap_or_default().to_owned();
        let query = form_urlencoded::parse(raw_query.as_bytes()).into_owned().collect();
        let (method, path) = (parts.method.as_str().to_owned(), parts.uri.path().to_owned());
        let names: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(decoded).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let service = service(&names);
        let (action, ids) = routes::find(&method, &names).unwrap_or_default();
        let ids = ids.into_iter().map(str::to_owned).collect();
        Self { method, path, raw_query, query, headers: parts.headers, body, service, action, ids }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// A parameter of the query that is not empty.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        found.filter(|value| !value.is_empty())
    }

    /// All parameters of the query.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &str)> {
        self.query.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// The id with this number in the path, from 0; empty if there is none.
    pub fn id(&self, number: usize) -> &str {
        self.ids.get(number).map_or("", String::as_str)
    }

    /// The parts of the path, without empty ones.
    pub fn parts(&self) -> Vec<&str> {
        self.path.split('/').filter(|part| !part.is_empty()).collect()
    }
}

/// A part of a path without percent encoding. Ids contain neither `&`, `=` nor `+`, so the decoder of forms does it.
fn decoded(part: &str) -> String {
    match part.contains('%') {
        true => form_urlencoded::parse(part.as_bytes()).next().map(|(name, _)| name.into_owned()).unwrap_or_default(),
        false => part.to_owned(),
    }
}

fn service(parts: &[&str]) -> Service {
    match parts {
        ["sim", ..] => Service::Control,
        ["identity", ..] => Service::Iam,
        ["v2", ..] => Service::Resources,
        _ => Service::Vpc,
    }
}
