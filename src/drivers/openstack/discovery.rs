//! Version discovery. The catalogue is the truth about scheme, host and path of a service; version documents refine it
//! and never take a service away. The order of the addresses is that of `keystoneauth1.discover`. It also follows links
//! that lack the prefix of the catalogue's path; here a link names only the version.

use reqwest::Url;
use serde_json::Value;

/// Address of a service.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    pub url: Url,
    /// Newest microversion; `None` if the service has none, or its version document says nothing useful.
    pub microversion: Option<(u16, u16)>,
}

impl Endpoint {
    /// The address in the catalogue as it is.
    pub fn as_listed(url: Url) -> Self {
        Self { url, microversion: None }
    }
}

/// The address with this version at its end.
pub fn with_version(listed: Url, version: &str) -> Url {
    match listed.path().trim_end_matches('/').ends_with(version) {
        true => listed,
        false => extended(&listed, version),
    }
}

/// The address with one more segment in its path, and a slash at its end.
fn extended(url: &Url, segment: &str) -> Url {
    let mut longer = url.clone();
    longer.set_path(&format!("{}/{segment}/", url.path().trim_end_matches('/')));
    longer
}

/// Parts of an address in the catalogue, such as `https://host/prefix/v2.1/PROJECT`.
#[derive(Debug, PartialEq)]
pub struct Parts {
    /// The address without version and project, with a slash at its end.
    root: Url,
    version: Option<String>,
    project: Option<String>,
}

impl Parts {
    pub fn of(listed: &Url) -> Self {
        let path = listed.path().trim_end_matches('/').to_owned();
        let mut segments: Vec<&str> = path.split('/').collect();
        let has_project = matches!(segments.as_slice(), [.., version, _] if major_of(version).is_some());
        let project = segments.pop_if(|_| has_project).map(str::to_owned);
        let version = segments.pop_if(|last| major_of(last).is_some()).map(str::to_owned);
        let mut root = listed.clone();
        root.set_path(&format!("{}/", segments.join("/")));
        root.set_query(None);
        Self { root, version, project }
    }

    /// The major version in the address.
    pub fn major(&self) -> Option<u32> {
        self.version.as_deref().and_then(major_of)
    }

    /// The address of this version's document.
    pub fn document(&self, version: &str) -> Url {
        extended(&self.root, version)
    }

    /// The address of this version, with the project of the catalogue.
    fn versioned(&self, version: &str) -> Url {
        let document = self.document(version);
        self.project.as_ref().map_or_else(|| document.clone(), |project| extended(&document, project))
    }
}

/// Addresses of version documents, the best first: that of the catalogue's version if it is this major one, that of all
/// versions, and the address in the catalogue.
pub fn documents(listed: &Url, major: u32) -> Vec<Url> {
    let parts = Parts::of(listed);
    let mut found = Vec::new();
    if let Some(version) = parts.version.as_ref().filter(|_| parts.major() == Some(major)) {
        found.push(parts.document(version));
    }
    for url in [parts.root, listed.clone()] {
        if !found.contains(&url) {
            found.push(url);
        }
    }
    found
}

/// Versions of a service that the driver can use.
#[derive(Clone, Copy)]
pub struct UsableVersions {
    /// Major versions, the best first.
    pub majors: &'static [u32],
    /// Whether the minor number is in the path, as in `v2.1`.
    pub minor_in_path: bool,
}

/// The service's address, as far as this version document refines it; `None` if it says nothing about the versions.
pub fn refine(listed: &Url, document: &str, usable: UsableVersions) -> Option<Endpoint> {
    usable.majors.iter().find_map(|major| refine_major(listed, document, *major, usable.minor_in_path))
}

fn refine_major(listed: &Url, document: &str, major: u32, minor_in_path: bool) -> Option<Endpoint> {
    let fitting = versions(document).into_iter().filter(|version| version.number.0 == major);
    let chosen = fitting.max_by_key(|version| (version.is_stable, version.number))?;
    let parts = Parts::of(listed);
    let listed_version = parts.version.clone().filter(|_| parts.major() == Some(major));
    let version = chosen.linked_version().or(listed_version).unwrap_or_else(|| match chosen.number {
        (major, minor) if minor_in_path => format!("v{major}.{minor}"),
        (major, _) => format!("v{major}"),
    });
    Some(Endpoint { url: parts.versioned(&version), microversion: chosen.microversion })
}

/// One version of a service, as its version document describes it.
pub struct Version {
    /// Major and minor number.
    pub number: (u32, u32),
    pub is_stable: bool,
    /// The address that the service believes to have, which a proxy may have changed.
    pub link: Option<String>,
    microversion: Option<(u16, u16)>,
}

impl Version {
    fn of(value: &Value) -> Option<Self> {
        let links = value.get("links").and_then(Value::as_array);
        let is_own = |link: &&Value| text(link, "rel").is_some_and(|rel| rel.eq_ignore_ascii_case("self"));
        let own = links.and_then(|links| links.iter().find(is_own));
        let known = ["current", "stable", "supported", "deprecated"];
        Some(Self {
            number: text(value, "id").and_then(version_of)?,
            is_stable: text(value, "status").is_some_and(|status| known.contains(&status.to_lowercase().as_str())),
            link: own.and_then(|link| text(link, "href")).map(str::to_owned),
            microversion: text(value, "max_version").or_else(|| text(value, "version")).and_then(numbers),
        })
    }

    /// The version in the path of the link.
    fn linked_version(&self) -> Option<String> {
        let mut segments = self.link.as_ref()?.rsplit('/');
        segments.find(|segment| major_of(segment) == Some(self.number.0)).map(str::to_owned)
    }
}

/// The versions in a version document, in its order; none if it is something else.
pub fn versions(document: &str) -> Vec<Version> {
    let document: Value = serde_json::from_str(document).unwrap_or_default();
    let versions = document.pointer("/versions/values").or_else(|| document.get("versions")).and_then(Value::as_array);
    let one = document.get("version");
    versions.into_iter().flatten().chain(one).filter_map(Version::of).collect()
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// The major version of a segment such as `v2.1` or `v3`.
fn major_of(segment: &str) -> Option<u32> {
    version_of(segment).map(|(major, _)| major)
}

fn version_of(segment: &str) -> Option<(u32, u32)> {
    let mut numbers = segment.strip_prefix(['v', 'V'])?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next().unwrap_or(Ok(0)).ok()?))
}

/// A microversion such as `2.93`.
fn numbers(text: &str) -> Option<(u16, u16)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOVA: UsableVersions = UsableVersions { majors: &[2], minor_in_path: true };

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    fn refined(listed: &str, document: &Value) -> Option<(String, Option<(u16, u16)>)> {
        let found = refine(&url(listed), &document.to_string(), NOVA)?;
        Some((found.url.to_string(), found.microversion))
    }

    /// A document with Nova's version 2.1 and this link to itself.
    fn nova(href: Option<&str>) -> Value {
        let links: Vec<Value> = href.into_iter().map(|href| json!({"rel": "self", "href": href})).collect();
        let old = json!({"id": "v2.0", "status": "SUPPORTED", "version": "", "links": []});
        json!({"versions": [{"id": "v2.1", "status": "CURRENT", "version": "2.93", "links": links}, old]})
    }

    #[test]
    fn documents_are_looked_for_as_keystoneauth_does() {
        let found =
            |listed: &str| -> Vec<String> { documents(&url(listed), 2).iter().map(|url| url.to_string()).collect() };
        assert_eq!(
            found("https://h/compute/v2.1/p1"),
            ["https://h/compute/v2.1/", "https://h/compute/", "https://h/compute/v2.1/p1"]
        );
        assert_eq!(found("https://h:9292"), ["https://h:9292/"]);
        assert_eq!(found("https://h/image/v1"), ["https://h/image/", "https://h/image/v1"]);
    }

    #[test]
    fn scheme_host_prefix_and_project_are_those_of_the_catalogue() {
        let links = [
            "https://h/compute/v2.1/",
            "http://h/compute/v2.1/",
            "http://internal:8774/v2.1/",
            "https://h/v2.1",
            "/v2.1/",
            "v2.1",
            "h:8774/v2.1/",
        ];
        for link in links {
            let found = refined("https://h/compute", &nova(Some(link)));
            assert_eq!(found, Some(("https://h/compute/v2.1/".to_owned(), Some((2, 93)))), "{link}");
        }
        for document in [nova(None), nova(Some(""))] {
            assert_eq!(refined("https://h/compute/v2.1/p", &document).unwrap().0, "https://h/compute/v2.1/p/");
            assert_eq!(refined("https://h/compute", &document).unwrap().0, "https://h/compute/v2.1/");
        }
        let project = refined("https://h/compute/v2/p1", &nova(Some("http://other/v2.1/"))).unwrap();
        assert_eq!(project.0, "https://h/compute/v2.1/p1/");
    }

    #[test]
    fn a_single_version_and_nested_values_are_understood() {
        let link = json!([{"rel": "SELF", "href": "http://h/v2.1/"}]);
        let version = json!({"id": "v2.1", "status": "stable", "max_version": "2.60", "links": link});
        let with_patch = json!({"id": "v2.1.5", "status": "CURRENT", "max_version": "2.60", "links": link});
        for document in
            [json!({"version": version}), json!({"versions": {"values": [version]}}), json!({"versions": [with_patch]})]
        {
            assert_eq!(refined("https://h/", &document), Some(("https://h/v2.1/".to_owned(), Some((2, 60)))));
        }
    }

    #[test]
    fn without_links_the_path_has_the_numbers_that_are_usual_for_the_service() {
        let version = |id: &str| json!({"id": id, "status": "CURRENT", "links": []});
        let document = json!({"versions": [version("v2.15"), version("v2.9"), version("v3.0"), version("v1")]});
        let found = |majors, minor_in_path| {
            let usable = UsableVersions { majors, minor_in_path };
            refine(&url("https://h/x"), &document.to_string(), usable).map(|found| found.url.to_string())
        };
        assert_eq!(found(&[2], false).unwrap(), "https://h/x/v2/");
        assert_eq!(found(&[2], true).unwrap(), "https://h/x/v2.15/");
        assert_eq!(found(&[3, 2], false).unwrap(), "https://h/x/v3/");
        assert_eq!(found(&[4, 2], false).unwrap(), "https://h/x/v2/");
        assert_eq!(found(&[4], false), None);
    }

    #[test]
    fn a_document_without_the_version_is_useless() {
        assert_eq!(refine(&url("https://h/"), "<html>", NOVA), None);
        for document in [json!({}), json!([]), json!({"versions": [{"id": "v3.0"}, {"id": 7}, {}]})] {
            assert_eq!(refined("https://h/", &document), None, "{document}");
        }
    }
}
