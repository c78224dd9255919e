//! Other launchers on the same ZooKeeper: their figures come from their web ports; what is not to be had is said.

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
/// More than the figures of a hundred providers.
const MAX_REPLY_BYTES: usize = 1 << 20;
/// Launchers that are asked; of more it is only said that they are there.
const MAX_PEERS: usize = 32;
const MAX_CONCURRENT_REQUESTS: usize = 8;

#[derive(Default)]
pub struct Peers {
    client: OnceLock<reqwest::Client>,
}

/// What one tells of itself. Nothing else of its answer is passed on.
#[derive(Deserialize)]
struct PeerReply {
    launcher: String,
    #[serde(default)]
    version: Option<String>,
    providers: Vec<ProviderStats>,
}

impl Peers {
    /// All of them, asked now; each in the place of one that does not answer says why.
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
                Ok(_) if number >= MAX_PEERS => Err(format!("only {MAX_PEERS} launchers are asked")),
                Ok(address) => fetch_metrics(client, &address).await,
                Err(missing) => Err(missing),
            };
            match reply {
                Ok(answer) => {
                    json!({"launcher": answer.launcher, "version": answer.version, "providers": answer.providers})
                }
                Err(missing) => json!({"launcher": launcher.hostname, "missing": missing}),
            }
        });
        stream::iter(requests).buffered(MAX_CONCURRENT_REQUESTS).collect().await
    }
}

fn client() -> reqwest::Client {
    let client =
        reqwest::Client::builder().timeout(REQUEST_TIMEOUT).redirect(reqwest::redirect::Policy::none()).no_proxy();
    client.build().expect("nothing of this depends on the machine")
}

/// Host and port where it can be asked. Whoever may write to ZooKeeper could name any place, so names of hosts and their ports
/// are all that counts, and nothing that means this machine to us and another one to who wrote it.
fn address(launcher: &Component, context: &ProcessContext) -> Result<String, String> {
    let Some(advertised) = &launcher.webapp else { return Err("it has no web port".to_owned()) };
    let authority: Option<Authority> = advertised.parse().ok();
    let Some(authority) = authority.filter(|it| it.port().is_some() && !it.as_str().contains('@')) else {
        return Err("what it announces is no address of a web port".to_owned());
    };
    let is_other_host = launcher.hostname != context.identity.hostname;
    if let Ok(ip) = authority.host().trim_matches(['[', ']']).parse::<IpAddr>() {
        let is_link_local = match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        if is_link_local || ip.is_unspecified() || ip.is_multicast() {
            return Err("what it announces is no address of a web port".to_owned());
        }
        if ip.is_loopback() && is_other_host {
            return Err("it listens on its own loopback address only".to_owned());
        }
    }
    Ok(authority.to_string())
}

/// The reason for there being no figures is for people.
async fn fetch_metrics(client: &reqwest::Client, address: &str) -> Result<PeerReply, String> {
    let request = client.get(format!("http://{address}/api/providers")).send();
    let mut response = request.await.map_err(|_| format!("http://{address} does not answer"))?;
    if response.status() == reqwest::StatusCode::NOT_FOUND {
        return Err(format!("http://{address} has no such figures; it may be a Nodepool 11"));
    }
    if !response.status().is_success() {
        return Err(format!("http://{address} answers {}", response.status()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|_| format!("http://{address} breaks off"))? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_REPLY_BYTES {
            return Err(format!("http://{address} answers too much"));
        }
    }
    serde_json::from_slice(&body).map_err(|_| format!("http://{address} answers something else"))
}
