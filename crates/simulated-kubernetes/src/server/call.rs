//! One parsed call: its route, its parameters, and its token.

use hyper::Request;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};

/// A parsed request.
pub struct Call {
    pub method: String,
    /// The whole requested path.
    pub path: String,
    pub query: Vec<(String, String)>,
    /// The bearer token.
    pub token: Option<String>,
    pub content_type: String,
    /// `None` for discovery, `/version`, `/sim` and unknown paths.
    pub route: Option<Route>,
}

/// The object or collection that a path names.
#[derive(Clone, Debug)]
pub struct Route {
    /// Empty for the core group.
    pub group: String,
    pub version: String,
    /// Empty for the cluster scope. Access to a namespace itself has the namespace as scope.
    pub namespace: String,
    /// The plural, for example `pods`.
    pub resource: String,
    /// Empty for a collection.
    pub name: String,
    pub subresource: String,
    pub verb: &'static str,
}

impl Call {
    pub fn from_request<B>(request: &Request<B>) -> Self {
        let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let query: Vec<(String, String)> =
            form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes()).into_owned().collect();
        let method = request.method().as_str().to_owned();
        let path = request.uri().path().to_owned();
        let is_watch = query.iter().any(|(key, value)| key == "watch" && is_true(value));
        let route = Route::parse(&method, &path, is_watch);
        let token = header(AUTHORIZATION).strip_prefix("Bearer ").map(|token| token.trim().to_owned());
        let content_type = header(CONTENT_TYPE).split(';').next().unwrap_or_default().trim().to_owned();
        Self { method, path, query, token, content_type, route }
    }

    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }

    pub fn flag(&self, name: &str) -> bool {
        self.parameter(name).is_some_and(is_true)
    }

    /// The parts of the path, without empty ones.
    pub fn parts(&self) -> Vec<&str> {
        self.path.split('/').filter(|part| !part.is_empty()).collect()
    }

    /// The kind of the call for the counters, for example `create pods`.
    pub fn kind(&self) -> String {
        match &self.route {
            Some(route) if route.subresource.is_empty() => format!("{} {}", route.verb, route.resource),
            Some(route) => format!("{} {}/{}", route.verb, route.resource, route.subresource),
            None => format!("{} {}", self.method, self.path),
        }
    }
}

fn is_true(value: &str) -> bool {
    matches!(value, "1" | "true" | "True")
}

impl Route {
    fn parse(method: &str, path: &str, is_watch: bool) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            [] => return None,
            // Subresources of the namespace itself.
            ["namespaces", name, "status" | "finalize"] => (*name, rest),
            ["namespaces", name, rest @ ..] if !rest.is_empty() => (*name, rest),
            ["namespaces" | "projects", name] => (*name, rest),
            _ => ("", rest),
        };
        let name = rest.get(1).copied().unwrap_or_default();
        let verb = match method {
            "GET" | "HEAD" if !name.is_empty() => "get",
            "GET" | "HEAD" if is_watch => "watch",
            "GET" | "HEAD" => "list",
            "POST" => "create",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" if name.is_empty() => "deletecollection",
            "DELETE" => "delete",
            _ => "unknown",
        };
        Some(Self {
            group: group.to_owned(),
            version: version.to_owned(),
            namespace: namespace.to_owned(),
            resource: rest[0].to_owned(),
            name: name.to_owned(),
            subresource: rest.get(2..).unwrap_or_default().join("/"),
            verb,
        })
    }
}
