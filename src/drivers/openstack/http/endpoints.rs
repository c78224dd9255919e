//! Addresses of services: the catalogue's, refined by version documents.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use openstack::ErrorKind;
use openstack::session::{ServiceType, Session};
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use tracing::warn;

use super::sending::{self, Repeatable};
use super::{Api, Connection};
use crate::openstack::discovery::{self, Parts, UsableVersions};
use crate::openstack::errors::{truncated, with_causes};
use openstack_clouds::Secret;

/// Timeout of one version document; without it the catalogue's address is used.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(15);

/// Results of earlier looks at the version documents of a service.
#[derive(Default)]
pub(super) struct DocumentHistory {
    /// The address in the catalogue, and what a document made of it.
    refined: Option<(Url, discovery::Endpoint)>,
    /// The last log line about useless documents.
    complaint: Option<String>,
}

impl Connection {
    /// The address of a service: that of the catalogue, refined by the service's version document.
    pub(super) async fn endpoint(
        &self,
        session: &Session,
        api: Api,
        token: &Secret,
    ) -> Result<discovery::Endpoint, openstack::Error> {
        let known = self
            .discovered()
            .as_ref()
            .filter(|known| known.token == *token)
            .and_then(|known| known.endpoints.get(&api).cloned());
        if let Some(known) = known {
            return Ok(known);
        }
        let listed = listed(session, api).await?;
        let endpoint = match api {
            _ if self.keystone.is_overridden(api.service_type()) => discovery::Endpoint::as_listed(listed),
            Api::Compute | Api::Image => self.discover_version(api, listed, token).await?,
            // Version 3 takes the project from the token. An address with a version carries the project.
            Api::BlockStorage if Parts::of(&listed).major().is_none() => {
                self.discover_version(api, listed, token).await?
            }
            // Like openstacksdk, because old versions of Neutron have no readable version document.
            Api::Network => discovery::Endpoint::as_listed(discovery::with_version(listed, "v2.0")),
            // Cinder's version documents leave the project out; Swift's address carries the account.
            Api::BlockStorage | Api::ObjectStore => discovery::Endpoint::as_listed(listed),
        };
        if let Some(known) = self.discovered().as_mut().filter(|known| known.token == *token) {
            known.endpoints.insert(api, endpoint.clone());
        }
        Ok(endpoint)
    }

    /// Reads the version documents of a service until one has a usable version. If none has, the catalogue's address is
    /// used.
    async fn discover_version(
        &self,
        api: Api,
        listed: Url,
        token: &Secret,
    ) -> Result<discovery::Endpoint, openstack::Error> {
        let (usable, mut useless) = (usable_versions(api), None);
        for document in discovery::documents(&listed, usable.majors[0]) {
            let found = match self.fetch_document(&document, token).await {
                Ok((status, _)) if matches!(status.as_u16(), 408 | 413 | 429) => {
                    let error = openstack::Error::new(ErrorKind::InvalidInput, format!("{document} answers {status}"));
                    return Err(error.with_status(status));
                }
                Ok((status, text)) => {
                    let refined = discovery::refine(&listed, &text, usable).filter(|_| has_versions(status));
                    if let Some(endpoint) = refined {
                        let refined = Some((listed, endpoint.clone()));
                        self.documents().insert(api, DocumentHistory { refined, complaint: None });
                        return Ok(endpoint);
                    }
                    (format!("{document} answers {status}: {}", truncated(&text)), status.is_server_error())
                }
                // Another address of the same server would not answer either.
                Err(error) if error.is_connect() => {
                    return Err(openstack::Error::new(ErrorKind::ProtocolError, with_causes(&error)));
                }
                Err(error) => (format!("{document}: {}", with_causes(&error)), true),
            };
            useless.get_or_insert(found);
        }
        let (complaint, is_temporary) = useless.unwrap_or_default();
        Ok(self.without_document(api, listed, complaint, is_temporary))
    }

    /// The address of a service without a useful version document: that of before if the documents only fail for a
    /// while, else the catalogue's.
    fn without_document(&self, api: Api, listed: Url, complaint: String, is_temporary: bool) -> discovery::Endpoint {
        let mut documents = self.documents();
        let history = documents.entry(api).or_default();
        let before = history.refined.as_ref().filter(|(address, _)| is_temporary && *address == listed);
        let endpoint = before.map_or_else(|| discovery::Endpoint::as_listed(listed), |(_, endpoint)| endpoint.clone());
        if history.complaint.as_ref() != Some(&complaint) {
            let text = self.with_cloud_name(&format!("no version document of the {} service", api.service_type()));
            warn!("{text}; {} is used ({complaint})", endpoint.url);
            history.complaint = Some(complaint);
        }
        endpoint
    }

    /// Version documents are public; a token is sent only where they are not.
    async fn fetch_document(&self, url: &Url, token: &Secret) -> reqwest::Result<(StatusCode, String)> {
        let request = || document_request(&self.client, url);
        let mut answer = sending::send(request(), Repeatable::Yes).await?;
        if answer.status() == StatusCode::UNAUTHORIZED {
            answer = sending::send(request().header("x-auth-token", token.expose()), Repeatable::Yes).await?;
        }
        Ok((answer.status(), answer.text().await?))
    }

    fn documents(&self) -> MutexGuard<'_, HashMap<Api, DocumentHistory>> {
        self.documents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn usable_versions(api: Api) -> UsableVersions {
    match api {
        Api::BlockStorage => UsableVersions { majors: &[3, 2], minor_in_path: false },
        Api::Compute => UsableVersions { majors: &[2], minor_in_path: true },
        Api::Image | Api::Network | Api::ObjectStore => UsableVersions { majors: &[2], minor_in_path: false },
    }
}

/// Whether a response with this status can be a version document.
pub fn has_versions(status: StatusCode) -> bool {
    status.is_success() || status == StatusCode::MULTIPLE_CHOICES
}

/// A request for a version document.
pub fn document_request(client: &Client, url: &Url) -> RequestBuilder {
    client.get(url.clone()).header("accept", "application/json").timeout(DOCUMENT_TIMEOUT)
}

/// The address of a service in the catalogue.
async fn listed(session: &Session, api: Api) -> Result<Url, openstack::Error> {
    // `openstack` panics on an address that paths cannot be added to, such as one without a scheme. The panic would end
    // the actor that all providers share.
    AssertUnwindSafe(session.get_endpoint(Listed(api), &[] as &[&str])).catch_unwind().await.unwrap_or_else(|_| {
        let text = format!("the catalogue's {} endpoint is not a URL (is its http:// missing?)", api.service_type());
        Err(openstack::Error::new(ErrorKind::InvalidResponse, text))
    })
}

impl Api {
    pub(super) fn service_type(self) -> &'static str {
        match self {
            Api::Compute => "compute",
            Api::Network => "network",
            Api::Image => "image",
            Api::BlockStorage => "block-storage",
            Api::ObjectStore => "object-store",
        }
    }
}

/// A service whose address `openstack` takes from the catalogue as it is: its own version discovery trusts the links of
/// version documents.
#[derive(Clone, Copy, Debug)]
struct Listed(Api);

impl ServiceType for Listed {
    fn catalog_type(&self) -> &'static str {
        self.0.service_type()
    }

    fn version_discovery_supported(&self) -> bool {
        false
    }
}
