//! `/dump`: the state dump of SIGUSR2, for local users.

use std::net::IpAddr;
use std::time::Duration;

use actix_web::http::header::HeaderName;
use actix_web::web::{Data, Query};
use actix_web::{HttpRequest, HttpResponse};
use nix::unistd::geteuid;
use serde::Deserialize;
use serde_json::json;

use super::peer_credentials::{self, SocketPair};
use crate::actors::process::context::ProcessContext;
use crate::actors::runtime::dump;
use crate::actors::runtime::profile::{self, Profile};

#[derive(Deserialize)]
pub struct DumpQuery {
    /// Duration of the profile in seconds.
    profile: Option<f64>,
}

/// Returns the state of every actor, and a profile if requested.
pub async fn dump(
    request: HttpRequest,
    context: Data<ProcessContext>,
    query: Option<Query<DumpQuery>>,
) -> HttpResponse {
    if !is_local_user(&request) {
        return HttpResponse::Forbidden().json(
            json!({"error": "dumps are only available from this machine, to root and the user running this process"}),
        );
    }
    let Some(Query(query)) = query else {
        return HttpResponse::BadRequest().json(json!({"error": "`profile` must be a number of seconds"}));
    };
    let mut lines = Vec::new();
    if let Some(seconds) = query.profile {
        let max_seconds = profile::MAX_DURATION.as_secs_f64();
        let Some(time) = Duration::try_from_secs_f64(seconds).ok().filter(|_| seconds > 0.0 && seconds <= max_seconds)
        else {
            let error = format!("the duration of a profile must be above 0 and at most {max_seconds} seconds");
            return HttpResponse::BadRequest().json(json!({"error": error}));
        };
        let Some(profile) = Profile::start(context.registry.clone()) else {
            return HttpResponse::Conflict().json(json!({"error": "a profile is already being recorded"}));
        };
        tokio::time::sleep(time).await;
        lines = profile.finish().await;
    }
    let actors = dump::collect(&context.registry).await;
    let mut response = HttpResponse::Ok();
    response.insert_header(("Cache-Control", "no-store")).json(json!({"actors": actors, "profile": lines}))
}

/// Whether root or the user of this process opened the connection on this machine, and not for a page in a browser or
/// through a proxy, which other users may control.
fn is_local_user(request: &HttpRequest) -> bool {
    let Some(sockets) = request.conn_data::<SocketPair>() else { return false };
    let is_local = sockets.client.ip().is_loopback() || sockets.client.ip() == sockets.local.ip();
    let is_proxy_or_browser_header = |name: &HeaderName| {
        let name = name.as_str();
        ["forwarded", "via", "origin", "referer", "x-real-ip"].contains(&name)
            || name.starts_with("x-forwarded")
            || name.starts_with("sec-fetch")
    };
    is_local
        && !request.headers().keys().any(is_proxy_or_browser_header)
        && is_own_address(request.connection_info().host(), sockets.local.ip())
        && peer_credentials::user_of(sockets.client, sockets.local)
            .is_some_and(|user| user.is_root() || user == geteuid())
}

/// Whether a host names this server by address or as localhost. Other names may be under foreign control:
/// <https://en.wikipedia.org/wiki/DNS_rebinding>.
fn is_own_address(host: &str, local: IpAddr) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_matches(['[', ']']).parse::<IpAddr>().ok().map(|address| address.to_canonical());
    name == "localhost" || address.is_some_and(|address| address.is_loopback() || address == local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_addresses_and_localhost_are_accepted() {
        let local: IpAddr = "192.0.2.7".parse().unwrap();
        for host in ["localhost", "localhost:8005", "127.0.0.1:8005", "[::1]:8005", "[::1]", "192.0.2.7:8005"] {
            assert!(is_own_address(host, local), "{host}");
        }
        for host in ["", "evil.example", "evil.example:8005", "127.0.0.1.evil.example", "192.0.2.8:8005", "[::2]:80"] {
            assert!(!is_own_address(host, local), "{host}");
        }
    }
}
