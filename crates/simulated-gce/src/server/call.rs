//! One parsed call: its service, its method of the API, and the resource that its path names.

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::http::request::Parts;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Compute,
    /// The token endpoint.
    Token,
    Metadata,
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
    /// The method of the API, such as `instances.insert`; empty if there is none.
    pub action: &'static str,
    pub project: String,
    /// The zone or region.
    pub location: String,
    /// The last resource that the path names.
    pub name: String,
}

impl Call {
    pub fn new(parts: Parts, body: Bytes) -> Self {
        let raw_query = parts.uri.query().unwrap_or_default().to_owned();
        let query = form_urlencoded::parse(raw_query.as_bytes()).into_owned().collect();
        let (method, path) = (parts.method.as_str().to_owned(), parts.uri.path().to_owned());
        let names: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(decoded).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (service, (action, [project, location, name])) = classify(&method, &names);
        let [project, location, name] = [project, location, name].map(str::to_owned);
        let headers = parts.headers;
        Self { method, path, raw_query, query, headers, body, service, action, project, location, name }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// A parameter of the query that is not empty.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        found.filter(|value| !value.is_empty())
    }

    /// The parts of the path, without empty ones.
    pub fn parts(&self) -> Vec<&str> {
        self.path.split('/').filter(|part| !part.is_empty()).collect()
    }
}

/// A part of a path without percent encoding. Names contain neither `&`, `=` nor `+`, so the decoder of forms does it.
fn decoded(part: &str) -> String {
    match part.contains('%') {
        true => form_urlencoded::parse(part.as_bytes()).next().map(|(name, _)| name.into_owned()).unwrap_or_default(),
        false => part.to_owned(),
    }
}

/// A method of the API with project, location and name.
type Target<'a> = (&'static str, [&'a str; 3]);

fn classify<'a>(method: &str, parts: &[&'a str]) -> (Service, Target<'a>) {
    let none = ("", [""; 3]);
    match parts {
        ["sim", ..] => (Service::Control, none),
        ["token"] => (Service::Token, ("token", [""; 3])),
        [] | ["computeMetadata", ..] => (Service::Metadata, ("metadata", [""; 3])),
        ["compute", "v1", "projects", resource @ ..] => (Service::Compute, target(method, resource).unwrap_or(none)),
        _ => (Service::Compute, none),
    }
}

fn target<'a>(method: &str, resource: &[&'a str]) -> Option<Target<'a>> {
    Some(match (method, resource) {
        ("GET", [project]) => ("projects.get", [project, "", ""]),
        ("GET", [project, "aggregated", "instances"]) => ("instances.aggregatedList", [project, "", ""]),
        ("GET", [project, "regions"]) => ("regions.list", [project, "", ""]),
        ("GET", [project, "regions", region]) => ("regions.get", [project, region, ""]),
        ("GET", [project, "zones"]) => ("zones.list", [project, "", ""]),
        ("GET", [project, "zones", zone]) => ("zones.get", [project, zone, ""]),
        (_, [project, "global", "images", rest @ ..]) => match (method, rest) {
            ("GET", []) => ("images.list", [project, "", ""]),
            ("GET", [image]) => ("images.get", [project, "", image]),
            ("GET", ["family", family]) => ("images.getFromFamily", [project, "", family]),
            _ => return None,
        },
        (_, [project, "zones", zone, kind, rest @ ..]) => {
            let (action, name) = zonal(method, kind, rest)?;
            (action, [project, zone, name])
        }
        _ => return None,
    })
}

fn zonal<'a>(method: &str, kind: &str, rest: &[&'a str]) -> Option<(&'static str, &'a str)> {
    Some(match (method, kind, rest) {
        ("GET", "instances", []) => ("instances.list", ""),
        ("POST", "instances", []) => ("instances.insert", ""),
        ("GET", "instances", [name]) => ("instances.get", name),
        ("DELETE", "instances", [name]) => ("instances.delete", name),
        ("GET", "instances", [name, "serialPort"]) => ("instances.getSerialPortOutput", name),
        ("GET", "machineTypes", []) => ("machineTypes.list", ""),
        ("GET", "machineTypes", [name]) => ("machineTypes.get", name),
        ("GET", "diskTypes", [name]) => ("diskTypes.get", name),
        ("GET", "operations", []) => ("zoneOperations.list", ""),
        ("GET", "operations", [name]) => ("zoneOperations.get", name),
        ("POST", "operations", [name, "wait"]) => ("zoneOperations.wait", name),
        _ => return None,
    })
}
