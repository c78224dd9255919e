//! Queries of running launchers over their web ports.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use nodepool_model::records::component::PoolComponent;
use nodepool_zk::Connection;
use nodepool_zk::tools::scan;
use serde::de::DeserializeOwned;

/// Timeout for a launcher's reply, which is short; a slow launcher is reported.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum size of a reply: a hundred times the reply of a busy launcher.
pub const MAX_REPLY_BYTES: usize = 1 << 20;
const MAX_CONCURRENT_REQUESTS: usize = 16;

/// Web addresses with their hosts, and launchers without a web address, with the reason.
pub type LauncherAddresses = (BTreeMap<String, String>, Vec<(String, String)>);

/// The first version whose launchers report verdicts.
const FIRST_VERSION_WITH_VERDICTS: u64 = 12;

pub async fn addresses(zk: &dyn Connection, pools: &[PoolComponent]) -> anyhow::Result<LauncherAddresses> {
    let launchers = scan::launchers(zk).await?.found;
    let mut addresses: BTreeMap<String, String> = BTreeMap::new();
    let mut unanswered = Vec::new();
    for launcher in &launchers {
        match &launcher.record.webapp {
            Some(address) => drop(addresses.insert(address.clone(), launcher.record.hostname.clone())),
            None => {
                let version = launcher.record.version.as_deref().unwrap_or("unknown");
                let is_ours =
                    version.split('.').next().and_then(|major| major.parse().ok()) >= Some(FIRST_VERSION_WITH_VERDICTS);
                let reason = match is_ours {
                    true => "it has no web port to query".to_owned(),
                    false => format!("version {version} does not report verdicts"),
                };
                unanswered.push((launcher.record.hostname.clone(), reason));
            }
        }
    }
    for pool in pools {
        if let Some(address) = &pool.webapp {
            addresses.entry(address.clone()).or_insert_with(|| pool.hostname.clone());
        }
    }
    Ok((addresses, unanswered))
}

/// Queries all launchers at these addresses; returns each launcher's name with its reply, or why there is none.
pub async fn query<T: DeserializeOwned>(
    addresses: BTreeMap<String, String>,
    path: &str,
) -> anyhow::Result<Vec<(String, Result<T, String>)>> {
    // Launchers are queried directly by plain HTTP, so neither certificates nor proxies matter.
    let client = reqwest::Client::builder()
        .timeout(REQUEST_TIMEOUT)
        .connect_timeout(CONNECT_TIMEOUT)
        .tls_built_in_root_certs(false)
        .no_proxy()
        .build()?;
    let requests = stream::iter(addresses).map(|(address, name)| {
        let reply = fetch(client.clone(), address.clone(), path.to_owned());
        async move { (format!("{name} ({address})"), reply.await) }
    });
    Ok(requests.buffered(MAX_CONCURRENT_REQUESTS).collect().await)
}

async fn fetch<T: DeserializeOwned>(client: reqwest::Client, address: String, path: String) -> Result<T, String> {
    if address.contains(|c: char| matches!(c, '/' | '@' | '?' | '#' | '\\') || c.is_whitespace() || c.is_control()) {
        return Err("its record names no usable web address".to_owned());
    }
    let response = client.get(format!("http://{address}{path}")).send().await;
    let mut response = response.map_err(|error| describe(&error))?;
    if !response.status().is_success() {
        return Err(format!("returned status {}", response.status()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| describe(&error))? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_REPLY_BYTES {
            return Err("reply too large".to_owned());
        }
    }
    serde_json::from_slice(&body).map_err(|error| format!("invalid reply: {error}"))
}

/// The innermost cause, which is the most specific one.
fn describe(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "does not respond in time".to_owned();
    }
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    format!("does not respond: {innermost}")
}
