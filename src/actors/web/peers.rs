//! Peers: metrics of the other launchers on the same ZooKeeper, fetched from their web ports. A launcher without
//! metrics is listed with the reason.

use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use actix_web::http::uri::Authority;
use futures::{StreamExt, stream};
use serde::Deserialize;
use serde_json::{Value, json};

use super::live_view::ProviderStats;
use crate::actors::process::context::ProcessContext;
use nodepool_model::records::component::{Component, ComponentKind};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of a reply; sufficient for more than a hundred providers.
const MAX_REPLY_BYTES: usize = 1 << 20;
/// Maximum number of launchers that are queried; further ones are only listed.
const MAX_PEERS: usize = 32;
const MAX_CONCURRENT_REQUESTS: usize = 8;

#[derive(Default)]
pub struct Peers {
    client: OnceLock<reqwest::Client>,
}

/// Reply of a peer. Other fields of the reply are not passed on.
#[derive(Deserialize)]
struct PeerReply {
    launcher: String,
    #[serde(default)]
    version: Option<String>,
    providers: Vec<ProviderStats>,
}

impl Peers {
    /// Queries all peers. The entry of a peer that does not respond has the reason.
    pub async fn metrics(&self, context: &ProcessContext) -> Vec<Value> {
        let Some(snapshot) = context.snapshot_feed.latest() else { return Vec::new() };
        let launchers = snapshot.components().filter(|((kind, _), _)| *kind == ComponentKind::Launcher);
        let mut peers: Vec<Component> = launchers.map(|(_, stored)| (*stored.record).clone()).collect();
        let own =
            peers.iter().position(|one| one.hostname == context.identity.hostname && one.webapp == context.webapp);
        own.into_iter().for_each(|own| drop(peers.remove(own)));
        let client = self.client.get_or_init(client);
        let requests = peers.into_iter().enumerate().map(async |(number, launcher)| {
            let reply = match address(&launcher, context) {
                Ok(_) if number >= MAX_PEERS => Err(format!("only {MAX_PEERS} launchers are queried")),
                Ok(address) => fetch_metrics(client, &address).await,
                Err(error) => Err(error),
            };
            match reply {
                Ok(peer) => {
                    json!({"launcher": peer.launcher, "version": peer.version, "providers": peer.providers})
                }
                Err(error) => json!({"launcher": launcher.hostname, "error": error}),
            }
        });
        stream::iter(requests).buffered(MAX_CONCURRENT_REQUESTS).collect().await
    }
}

fn client() -> reqwest::Client {
    let client =
        reqwest::Client::builder().timeout(REQUEST_TIMEOUT).redirect(reqwest::redirect::Policy::none()).no_proxy();
    client.build().expect("a client without TLS files and proxies can be built")
}

/// Host and port of a launcher's web server. A record in ZooKeeper may contain any text, so only host and port are
/// used. Addresses with another meaning on this machine, such as loopback ones, are rejected.
fn address(launcher: &Component, context: &ProcessContext) -> Result<String, String> {
    let Some(advertised) = &launcher.webapp else { return Err("the launcher has no web port".to_owned()) };
    let authority: Option<Authority> = advertised.parse().ok();
    let Some(authority) = authority.filter(|authority| authority.port().is_some() && !authority.as_str().contains('@'))
    else {
        return Err("the advertised web address is invalid".to_owned());
    };
    let is_other_host = launcher.hostname != context.identity.hostname;
    if let Ok(ip) = authority.host().trim_matches(['[', ']']).parse::<IpAddr>() {
        let is_link_local = match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        if is_link_local || ip.is_unspecified() || ip.is_multicast() {
            return Err("the advertised web address is invalid".to_owned());
        }
        if ip.is_loopback() && is_other_host {
            return Err("the launcher listens on its loopback address only".to_owned());
        }
    }
    Ok(authority.to_string())
}

/// Fetches the metrics of a peer. The error is a text for the live page.
async fn fetch_metrics(client: &reqwest::Client, address: &str) -> Result<PeerReply, String> {
    let request = client.get(format!("http://{address}/api/providers")).send();
    let mut response = request.await.map_err(|_| format!("http://{address} does not respond"))?;
    if response.status() == reqwest::StatusCode::NOT_FOUND {
        return Err(format!("http://{address} provides no metrics; it may run Nodepool 11"));
    }
    if !response.status().is_success() {
        return Err(format!("http://{address} responds with {}", response.status()));
    }
    let mut body = Vec::new();
    while let Some(chunk) =
        response.chunk().await.map_err(|_| format!("http://{address} closed the connection early"))?
    {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_REPLY_BYTES {
            return Err(format!("http://{address} sent a reply that is too large"));
        }
    }
    serde_json::from_slice(&body).map_err(|_| format!("http://{address} sent an unexpected reply"))
}
