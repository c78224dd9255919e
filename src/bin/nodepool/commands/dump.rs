//! `dump`: the state of every actor of the launcher on this machine, read from its web port.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use nodepool_model::config::Config;
use serde_json::Value;

use crate::output::Output;

/// Timeout of the request, in addition to the time of a profile.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

pub async fn dump(config: &Config, output: &mut Output<'_>, profile: Option<Duration>) -> anyhow::Result<()> {
    let url = address(config, profile);
    let limit = REQUEST_TIMEOUT + profile.unwrap_or_default();
    let client = reqwest::Client::builder().timeout(limit).tls_built_in_root_certs(false).no_proxy().build()?;
    let response = client.get(&url).send().await;
    let response = response.with_context(|| format!("no launcher on this machine responds at {url}"))?;
    let status = response.status();
    let document: Value = match response.json().await {
        Ok(document) => document,
        Err(_) if status.as_u16() == 404 => bail!("{url} not found; the launcher may run Nodepool 11"),
        Err(error) => bail!("{url} returned {status} and an invalid dump: {error}"),
    };
    if !status.is_success() {
        bail!("{url} returned {status}: {}", document["error"].as_str().unwrap_or("no reason given"));
    }
    for actor in document["actors"].as_array().into_iter().flatten() {
        output.print(actor)?;
    }
    for line in document["profile"].as_array().into_iter().flatten() {
        output.print(line.as_str().unwrap_or_default())?;
    }
    Ok(output.outcome(document)?)
}

/// URL of the dump: the loopback address, or the only address that the launcher listens on. The launcher allows dumps
/// from its own machine.
fn address(config: &Config, profile: Option<Duration>) -> String {
    let listening = config.webapp.listen_address.trim_matches(['[', ']']);
    let host = match listening.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() => "127.0.0.1".to_owned(),
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        Ok(IpAddr::V4(address)) => address.to_string(),
        Err(_) => "localhost".to_owned(),
    };
    let query = profile.map(|time| format!("?profile={}", time.as_secs_f64())).unwrap_or_default();
    format!("http://{host}:{}/dump{query}", config.webapp.port)
}
