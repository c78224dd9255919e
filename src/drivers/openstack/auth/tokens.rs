//! Token requests and tokens, in the formats of Keystone's versions 2 and 3.

use chrono::{DateTime, FixedOffset, Utc};
use reqwest::Url;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::openstack::api_types::value_or_default;
use crate::openstack::discovery::Parts;
use openstack_clouds::{Auth, Credential, Domain, Identity, Interface, Scope, Secret, User};

/// A token that expires sooner than this is replaced before it is used.
const TOKEN_EXPIRY_MARGIN_S: i64 = 60;

#[derive(Clone)]
pub struct Token {
    pub value: Secret,
    pub expires_at: Option<DateTime<FixedOffset>>,
    pub catalog: Vec<CatalogEntry>,
    /// The id of the token's project.
    pub project: Option<String>,
}

/// One service of the catalogue. Clouds may omit any field.
#[derive(Clone, Debug, Deserialize)]
pub struct CatalogEntry {
    #[serde(rename = "type", default, deserialize_with = "value_or_default")]
    pub service_type: String,
    #[serde(default, deserialize_with = "value_or_default")]
    pub name: Option<String>,
    #[serde(default, deserialize_with = "value_or_default")]
    pub endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Endpoint {
    #[serde(default, deserialize_with = "value_or_default")]
    interface: String,
    #[serde(default, deserialize_with = "value_or_default")]
    region: Option<String>,
    #[serde(default, deserialize_with = "value_or_default")]
    region_id: Option<String>,
    #[serde(default, deserialize_with = "value_or_default")]
    pub url: String,
}

#[derive(Deserialize)]
struct RootV3 {
    token: BodyV3,
}

#[derive(Deserialize)]
struct BodyV3 {
    #[serde(default)]
    expires_at: Option<String>,
    #[serde(default, deserialize_with = "value_or_default")]
    catalog: Vec<CatalogEntry>,
    #[serde(default)]
    project: Option<Project>,
}

#[derive(Deserialize)]
struct Project {
    id: String,
}

#[derive(Deserialize)]
struct RootV2 {
    access: Access,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Access {
    token: TokenV2,
    #[serde(default, deserialize_with = "value_or_default")]
    service_catalog: Vec<ServiceV2>,
}

#[derive(Deserialize)]
struct TokenV2 {
    id: String,
    #[serde(default)]
    expires: Option<String>,
    #[serde(default)]
    tenant: Option<Project>,
}

#[derive(Deserialize)]
struct ServiceV2 {
    #[serde(rename = "type", default, deserialize_with = "value_or_default")]
    service_type: String,
    #[serde(default, deserialize_with = "value_or_default")]
    name: Option<String>,
    #[serde(default, deserialize_with = "value_or_default")]
    endpoints: Vec<EndpointV2>,
}

/// The addresses of a service in one region, by interface.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EndpointV2 {
    #[serde(default, deserialize_with = "value_or_default")]
    region: Option<String>,
    #[serde(default, rename = "publicURL", deserialize_with = "value_or_default")]
    public: String,
    #[serde(default, rename = "internalURL", deserialize_with = "value_or_default")]
    internal: String,
    #[serde(default, rename = "adminURL", deserialize_with = "value_or_default")]
    admin: String,
}

impl Token {
    /// A token of version 3, whose text is a header of the response.
    pub fn of_v3(value: Secret, body: &[u8]) -> serde_json::Result<Self> {
        let BodyV3 { expires_at, catalog, project } = serde_json::from_slice::<RootV3>(body)?.token;
        Ok(Self { value, expires_at: time(expires_at), catalog, project: project.map(|project| project.id) })
    }

    pub fn of_v2(body: &[u8]) -> serde_json::Result<Self> {
        let Access { token, service_catalog } = serde_json::from_slice::<RootV2>(body)?.access;
        let catalog = service_catalog.into_iter().map(CatalogEntry::from).collect();
        let project = token.tenant.map(|tenant| tenant.id);
        Ok(Self { value: Secret::new(token.id), expires_at: time(token.expires), catalog, project })
    }

    pub fn expires_soon(&self) -> bool {
        // The expiry is wall-clock time, so it is compared with the wall clock, not with a monotonic one.
        self.expires_at.is_some_and(|end| (end.with_timezone(&Utc) - Utc::now()).num_seconds() < TOKEN_EXPIRY_MARGIN_S)
    }
}

fn time(text: Option<String>) -> Option<DateTime<FixedOffset>> {
    DateTime::parse_from_rfc3339(&text?).ok()
}

impl From<ServiceV2> for CatalogEntry {
    fn from(ServiceV2 { service_type, name, endpoints }: ServiceV2) -> Self {
        let endpoints = endpoints.into_iter().flat_map(|EndpointV2 { region, public, internal, admin }| {
            [("public", public), ("internal", internal), ("admin", admin)].map(|(interface, url)| Endpoint {
                interface: interface.to_owned(),
                region: region.clone(),
                region_id: None,
                url,
            })
        });
        Self { service_type, name, endpoints: endpoints.collect() }
    }
}

impl Endpoint {
    pub fn region(&self) -> Option<&str> {
        self.region_id.as_deref().or(self.region.as_deref())
    }

    pub fn is_in(&self, region: &str) -> bool {
        [&self.region_id, &self.region].into_iter().any(|name| name.as_deref() == Some(region))
    }

    /// Whether the address is of version 1, which no service has had for ten years.
    pub fn is_of_version_1(&self) -> bool {
        Url::parse(&self.url).is_ok_and(|url| Parts::of(&url).major() == Some(1))
    }

    pub fn has(&self, interface: Interface) -> bool {
        let name = self.interface.trim_end_matches("URL");
        match interface {
            Interface::Public => name == "public",
            Interface::Internal => name == "internal",
            Interface::Admin => name == "admin",
        }
    }
}

/// The request for a token of version 2, which has no domains.
pub fn body_v2(identity: &Identity) -> Value {
    let mut auth = match &identity.auth {
        Auth::Password { user, password } => {
            let (key, user) = match user {
                User::Id(id) => ("userId", id),
                User::Name { name, .. } => ("username", name),
            };
            json!({"passwordCredentials": {key: user, "password": password.expose()}})
        }
        Auth::Token { token } => json!({"token": {"id": token.expose()}}),
        // Only version 3 has them, and the auth type names it.
        Auth::ApplicationCredential { .. } => json!({}),
    };
    match &identity.scope {
        Scope::ProjectId(id) => auth["tenantId"] = id.as_str().into(),
        Scope::ProjectName { name, .. } => auth["tenantName"] = name.as_str().into(),
        Scope::Trust(id) => auth["trust_id"] = id.as_str().into(),
        Scope::Default | Scope::Domain(_) | Scope::System => {}
    }
    json!({"auth": auth})
}

/// The request for a token of version 3.
pub fn body_v3(identity: &Identity) -> Value {
    let identity_part = match &identity.auth {
        Auth::Password { user: who, password } => {
            let mut user = user(who);
            user["password"] = password.expose().into();
            json!({"methods": ["password"], "password": {"user": user}})
        }
        Auth::Token { token } => json!({"methods": ["token"], "token": {"id": token.expose()}}),
        Auth::ApplicationCredential { credential, secret } => {
            let mut part = match credential {
                Credential::Id(id) => json!({"id": id}),
                Credential::Name { name, user: owner } => json!({"name": name, "user": user(owner)}),
            };
            part["secret"] = secret.expose().into();
            json!({"methods": ["application_credential"], "application_credential": part})
        }
    };
    let mut auth = json!({"identity": identity_part});
    let scope = match &identity.scope {
        Scope::Default => None,
        Scope::ProjectId(id) => Some(json!({"project": {"id": id}})),
        Scope::ProjectName { name, domain: of } => {
            let mut project = json!({"name": name});
            if let Some(of) = of {
                project["domain"] = domain(of);
            }
            Some(json!({"project": project}))
        }
        Scope::Domain(of) => Some(json!({"domain": domain(of)})),
        Scope::System => Some(json!({"system": {"all": true}})),
        Scope::Trust(id) => Some(json!({"OS-TRUST:trust": {"id": id}})),
    };
    // Keystone rejects a scope with application credentials, which have their own.
    if let Some(scope) = scope.filter(|_| !matches!(identity.auth, Auth::ApplicationCredential { .. })) {
        auth["scope"] = scope;
    }
    json!({"auth": auth})
}

fn user(user: &User) -> Value {
    match user {
        User::Id(id) => json!({"id": id}),
        User::Name { name, domain: None } => json!({"name": name}),
        User::Name { name, domain: Some(of) } => json!({"name": name, "domain": domain(of)}),
    }
}

fn domain(domain: &Domain) -> Value {
    match domain {
        Domain::Id(id) => json!({"id": id}),
        Domain::Name(name) => json!({"name": name}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openstack::test_settings::cloud_with;

    #[test]
    fn a_token_of_version_2_has_the_same_contents() {
        let endpoint = json!({"region": "RegionOne", "publicURL": "http://nova", "adminURL": "http://admin", "id": 1});
        let service = json!({"type": "compute", "name": "nova", "endpoints_links": [], "endpoints": [endpoint]});
        let token = json!({"id": "t", "expires": "2030-01-01T00:00:00Z", "tenant": {"id": "p", "name": "ci"}});
        let body = json!({"access": {"token": token, "serviceCatalog": [service], "user": {}}}).to_string();
        let token = Token::of_v2(body.as_bytes()).unwrap();
        assert_eq!((token.value.expose(), token.project.as_deref()), ("t", Some("p")));
        assert!(!token.expires_soon());
        let compute = &token.catalog[0];
        assert_eq!((&*compute.service_type, compute.name.as_deref()), ("compute", Some("nova")));
        let urls = compute.endpoints.iter().filter(|endpoint| endpoint.is_in("RegionOne") && !endpoint.url.is_empty());
        assert_eq!(urls.map(|endpoint| &*endpoint.url).collect::<Vec<_>>(), ["http://nova", "http://admin"]);
        assert!(compute.endpoints[0].has(Interface::Public) && !compute.endpoints[0].has(Interface::Admin));
    }

    #[test]
    fn malformed_parts_of_a_catalogue_hide_nothing_else() {
        let endpoints =
            json!([{"interface": null, "url": null, "region": 7}, {"interface": "public", "url": "http://n"}]);
        let catalog =
            json!([{"type": null, "endpoints": null}, {"type": "compute", "name": 1, "endpoints": endpoints}]);
        let body = json!({"token": {"catalog": catalog, "project": null, "expires_at": "soon"}}).to_string();
        let token = Token::of_v3(Secret::new("t"), body.as_bytes()).unwrap();
        assert_eq!((token.catalog[1].endpoints[1].url.as_str(), token.project), ("http://n", None));
    }

    #[test]
    fn a_request_of_version_2_names_no_domain() {
        let body = |keys: &str| body_v2(&cloud_with(keys).identity);
        let password = json!({"username": "zuul", "password": "hunter2"});
        assert_eq!(body(""), json!({"auth": {"passwordCredentials": password, "tenantName": "ci"}}));
        let default = body("default_domain_id: default\nproject_id: p");
        assert_eq!(default, json!({"auth": {"passwordCredentials": password, "tenantId": "p"}}));
        let mut identity = cloud_with("").identity;
        identity.auth = Auth::Token { token: Secret::new("t") };
        assert_eq!(body_v2(&identity), json!({"auth": {"token": {"id": "t"}, "tenantName": "ci"}}));
    }
}
