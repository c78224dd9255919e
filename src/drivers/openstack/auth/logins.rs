//! Addresses for logins at Keystone. The version document at `auth_url` tells the versions, as for keystoneauth;
//! without one, the version in `auth_url` counts.

use reqwest::Url;

use crate::openstack::discovery::{self, Parts};
use openstack_clouds::{Auth, Domains, Identity, IdentityApi, Scope};

/// A version of Keystone's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V2,
    V3,
}

/// A version of Keystone, and its address for token requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Login {
    pub version: Version,
    pub url: Url,
}

/// The logins of a cloud.
#[derive(Debug)]
pub struct Logins {
    /// The best first. The next one is tried only if the address of the previous one does not exist.
    pub candidates: Vec<Login>,
    /// Keystone has a version 2, which the settings rule out because they name domains.
    pub excludes_v2: bool,
}

/// The version document at `auth_url`, and its address after redirects.
pub struct Document<'a> {
    pub url: &'a Url,
    pub text: &'a str,
}

/// The logins that these settings and the version document allow.
pub fn logins(identity: &Identity, auth_url: &Url, document: Option<Document<'_>>) -> Logins {
    let fixed = match identity.api {
        IdentityApi::V2 => Some(Version::V2),
        IdentityApi::V3 => Some(Version::V3),
        IdentityApi::Discovered => None,
    };
    if let Some(version) = fixed {
        return Logins { candidates: vec![version.login(&Parts::of(auth_url))], excludes_v2: false };
    }
    let found = document.map(|document| (document.url, versions(&document, identity.domains)));
    let (base, versions) = found.filter(|(_, versions)| !versions.is_empty()).unwrap_or_else(|| {
        let has_version_2 = Parts::of(auth_url).major() == Some(2);
        (auth_url, has_version_2.then_some((Version::V2, None)).into_iter().collect())
    });
    let parts = Parts::of(base);
    let (mut candidates, mut linked, mut excludes_v2) = (Vec::new(), Vec::new(), false);
    for (version, link) in versions {
        if version == Version::V2 && !allows_v2(identity) {
            excludes_v2 = true;
            continue;
        }
        candidates.push(version.login(&parts));
        linked.extend(link.and_then(|link| base.join(&link).ok()).map(|link| version.login(&Parts::of(&link))));
    }
    // A document may know less than the service: a proxy shows an old one, or auth_url ends with /v2.0.
    for login in [Version::V3.login(&parts)].into_iter().chain(linked) {
        if !candidates.contains(&login) {
            candidates.push(login);
        }
    }
    Logins { candidates, excludes_v2 }
}

/// The usable versions of a document with their links, in keystoneauth's order: the oldest first, because only it can
/// do without domains; the newest first if there is a default domain.
fn versions(document: &Document<'_>, domains: Domains) -> Vec<(Version, Option<String>)> {
    let mut versions = discovery::versions(document.text);
    versions.retain(|version| version.is_stable);
    versions.sort_by_key(|version| version.number);
    if domains == Domains::Default {
        versions.reverse();
    }
    let known = versions.into_iter().filter_map(|version| match version.number.0 {
        2 => Some((Version::V2, version.link)),
        3 => Some((Version::V3, version.link)),
        _ => None,
    });
    known.collect()
}

/// Whether version 2 can express the login: it has no domains, no system scope and no application credentials.
fn allows_v2(identity: &Identity) -> bool {
    identity.domains != Domains::Given
        && identity.scope != Scope::System
        && !matches!(identity.auth, Auth::ApplicationCredential { .. })
}

impl Version {
    fn login(self, parts: &Parts) -> Login {
        let mut url = parts.document(match self {
            Version::V2 => "v2.0",
            Version::V3 => "v3",
        });
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(match self {
                Version::V2 => ["tokens"].as_slice(),
                Version::V3 => &["auth", "tokens"],
            });
        }
        Login { version: self, url }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openstack::test_settings::cloud_with;
    use serde_json::{Value, json};

    fn version(id: &str, link: &str) -> Value {
        json!({"id": id, "status": "stable", "links": [{"rel": "self", "href": link}]})
    }

    /// The addresses of the logins, and whether version 2 is excluded.
    fn found(keys: &str, auth_url: &str, document: Option<(&str, Value)>) -> (Vec<String>, bool) {
        let settings = cloud_with(keys);
        let text = document.as_ref().map(|(_, text)| text.to_string()).unwrap_or_default();
        let url = document.map(|(url, _)| Url::parse(url).unwrap());
        let document = url.as_ref().map(|url| Document { url, text: &text });
        let found = logins(&settings.identity, &Url::parse(auth_url).unwrap(), document);
        (found.candidates.iter().map(|login| login.url.to_string()).collect(), found.excludes_v2)
    }

    const V2: &str = "https://k/identity/v2.0/tokens";
    const V3: &str = "https://k/identity/v3/auth/tokens";
    const DOMAINS: &str = "user_domain_name: Default\nproject_domain_name: Default";

    #[test]
    fn without_a_document_the_version_of_the_address_counts() {
        for url in ["https://k/identity", "https://k/identity/", "https://k/identity/v3", "https://k/identity/v3/"] {
            assert_eq!(found(DOMAINS, url, None).0, [V3], "{url}");
        }
        assert_eq!(found("", "https://k/identity/v2.0/", None).0, [V2, V3]);
        assert_eq!(found(DOMAINS, "https://k/identity/v2.0", None), (vec![V3.to_owned()], true));
        assert_eq!(found("", "https://k/identity", Some(("https://k/identity", json!("<html>")))).0, [V3]);
    }

    #[test]
    fn the_document_tells_the_versions_in_the_order_of_keystoneauth() {
        let url = "https://k/identity";
        let both = || {
            let versions = [version("v3.14", &format!("{url}/v3/")), version("v2.0", &format!("{url}/v2.0/"))];
            Some((url, json!({"versions": {"values": versions}})))
        };
        assert_eq!(found("", url, both()).0, [V2, V3]);
        assert_eq!(found("default_domain_name: Default", url, both()).0, [V3, V2]);
        assert_eq!(found(DOMAINS, url, both()), (vec![V3.to_owned()], true));
        let one = |id: &str| Some((url, json!({"version": version(id, url)})));
        assert_eq!(found("", url, one("v3.8")), (vec![V3.to_owned()], false));
        assert_eq!(found("default_domain_id: default", url, one("v2.0")).0, [V2, V3]);
        let experimental = json!({"version": {"id": "v2.0", "status": "experimental"}});
        assert_eq!(found("", url, Some((url, experimental))).0, [V3]);
    }

    #[test]
    fn an_auth_type_with_a_version_needs_no_document() {
        let domains = format!("auth_type: v3password\n{DOMAINS}");
        assert_eq!(found(&domains, "https://k/identity", None).0, [V3]);
        assert_eq!(found("auth_type: v2password", "https://k/identity/v2.0", None).0, [V2]);
    }

    #[test]
    fn a_link_to_elsewhere_is_the_last_resort() {
        let elsewhere = ["http://k:5000/v3", "http://k:5000/v3/"];
        for link in elsewhere {
            let document = json!({"version": version("v3.14", link)});
            let (urls, _) = found("", "https://k/identity", Some(("https://k/identity/v3/", document)));
            assert_eq!(urls, [V3, "http://k:5000/v3/auth/tokens"]);
        }
    }
}
