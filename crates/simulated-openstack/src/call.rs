//! One parsed call: its service, its parameters, and its token.

use std::borrow::Cow;
use std::str::FromStr;

use actix_web::HttpRequest;
use serde::{Deserialize, Serialize};

/// The services, in the order of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Service {
    Identity,
    Compute,
    Image,
    Network,
    Volume,
}

impl Service {
    pub const ALL: [Self; 5] = [Self::Identity, Self::Compute, Self::Image, Self::Network, Self::Volume];

    pub fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Compute => "compute",
            Self::Image => "image",
            Self::Network => "network",
            Self::Volume => "volume",
        }
    }

    /// The name of the OpenStack project.
    pub fn project(self) -> &'static str {
        match self {
            Self::Identity => "keystone",
            Self::Compute => "nova",
            Self::Image => "glance",
            Self::Network => "neutron",
            Self::Volume => "cinder",
        }
    }
}

impl FromStr for Service {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|service| text == service.name() || text == service.project());
        found.ok_or_else(|| format!("{text} is not a service: expected identity, compute, image, network or volume"))
    }
}

/// A parsed request.
pub struct Call {
    /// `None` for a call to the simulation itself, or to an unknown path.
    pub service: Option<Service>,
    pub method: String,
    /// The whole requested path.
    pub path: String,
    /// The parts after the name of the service, without empty ones.
    pub parts: Vec<String>,
    /// Whether the path ends in a slash, which some services require.
    pub has_trailing_slash: bool,
    pub query: Vec<(String, String)>,
    pub query_string: String,
    pub token: String,
    pub subject_token: String,
    /// The requested microversion of the compute service, as minor number: 93 is 2.93.
    pub microversion: Microversion,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Microversion {
    Minor(u32),
    /// A microversion that the service does not support.
    Unsupported,
}

pub const MIN_MICROVERSION: u32 = 1;
pub const MAX_MICROVERSION: u32 = 93;
/// Nova's version without microversions.
pub const NOVA_V2: &str = "v2";

/// Path prefix of redirected calls.
pub const REDIRECT_PREFIX: &str = "/moved";

impl Call {
    pub fn from_request(request: &HttpRequest) -> Self {
        let path = request.path();
        let inner = path.strip_prefix(REDIRECT_PREFIX).unwrap_or(path);
        let mut parts = inner.split('/').filter(|part| !part.is_empty()).map(percent_decoded);
        let service = parts.next().and_then(|name| Service::ALL.into_iter().find(|service| service.name() == name));
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let parts: Vec<String> = parts.map(Cow::into_owned).collect();
        let ignores_microversions =
            service == Some(Service::Compute) && parts.first().is_some_and(|part| part == NOVA_V2);
        let microversion = match ignores_microversions {
            true => Microversion::Minor(MIN_MICROVERSION),
            false => microversion(header("openstack-api-version"), header("x-openstack-nova-api-version")),
        };
        Self {
            service,
            method: request.method().as_str().to_owned(),
            path: path.to_owned(),
            parts,
            has_trailing_slash: path.ends_with('/'),
            query: pairs(request.query_string()),
            query_string: request.query_string().to_owned(),
            token: header("x-auth-token").to_owned(),
            subject_token: header("x-subject-token").to_owned(),
            microversion,
        }
    }

    /// The first part, which is the version of the API; empty at the root of a service.
    pub fn version(&self) -> &str {
        self.parts.first().map_or("", String::as_str)
    }

    /// The parts after the version.
    pub fn below_version(&self) -> Vec<&str> {
        self.parts.iter().skip(1).map(String::as_str).collect()
    }

    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The kind of the call for the counters: method and path without ids.
    pub fn kind(&self) -> String {
        let mut kind = format!("{} ", self.method);
        for part in &self.parts {
            kind.push('/');
            kind.push_str(if is_id(part) { "{id}" } else { part });
        }
        if self.parts.is_empty() {
            kind.push('/');
        }
        kind
    }

    pub fn minor(&self) -> u32 {
        match self.microversion {
            Microversion::Minor(minor) => minor,
            Microversion::Unsupported => MIN_MICROVERSION,
        }
    }
}

/// Whether a part of a path is an id: 32 hexadecimal digits, with or without dashes.
pub fn is_id(part: &str) -> bool {
    matches!(part.len(), 32 | 36) && part.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

fn microversion(general: &str, of_nova: &str) -> Microversion {
    let general = general.split(',').find_map(|one| one.trim().strip_prefix("compute "));
    let wanted = general.unwrap_or(of_nova).trim();
    match wanted {
        "" => Microversion::Minor(MIN_MICROVERSION),
        "latest" => Microversion::Minor(MAX_MICROVERSION),
        wanted => match wanted.strip_prefix("2.").and_then(|minor| minor.parse().ok()) {
            Some(minor @ MIN_MICROVERSION..=MAX_MICROVERSION) => Microversion::Minor(minor),
            _ => Microversion::Unsupported,
        },
    }
}

fn pairs(query: &str) -> Vec<(String, String)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (percent_decoded(key).into_owned(), percent_decoded(&value.replace('+', " ")).into_owned())
    };
    pairs.map(pair).collect()
}

/// Decodes percent escapes (`%41`); returns the input if the result is not valid UTF-8.
fn percent_decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, others @ ..] = rest {
        let code = match rest {
            [b'%', high, low, ..] => (*high as char).to_digit(16).zip((*low as char).to_digit(16)),
            _ => None,
        };
        match code {
            Some((high, low)) => {
                bytes.push(u8::try_from(high * 16 + low).expect("two hexadecimal digits are a byte"));
                rest = &rest[3..];
            }
            None => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    String::from_utf8(bytes).map_or(Cow::Borrowed(text), Cow::Owned)
}
