//! `/dump`: what SIGUSR2 writes, for who is on this machine.

use std::net::IpAddr;
use std::time::Duration;

use actix_web::web::{Data, Query};
use actix_web::{HttpRequest, HttpResponse};
use serde::Deserialize;
use serde_json::json;

use crate::actors::dump;
use crate::actors::profile::{self, Profile};
use crate::actors::shared::Shared;

#[derive(Deserialize)]
pub struct Wishes {
    /// Seconds of a profile.
    profile: Option<f64>,
}

/// The state of every actor, and a profile of so many seconds where one is asked for.
pub async fn dump(request: HttpRequest, shared: Data<Shared>, wishes: Option<Query<Wishes>>) -> HttpResponse {
    if !is_from_here(&request) {
        return HttpResponse::Forbidden()
            .json(json!({"error": "dumps are given to this machine's own loopback address only"}));
    }
    let Some(Query(wishes)) = wishes else {
        return HttpResponse::BadRequest().json(json!({"error": "`profile` is a number of seconds"}));
    };
    let mut lines = Vec::new();
    if let Some(seconds) = wishes.profile {
        let longest = profile::WINDOW.as_secs_f64();
        let Some(time) = Duration::try_from_secs_f64(seconds).ok().filter(|_| seconds > 0.0 && seconds <= longest)
        else {
            let error = format!("a profile takes more than 0 and at most {longest} seconds");
            return HttpResponse::BadRequest().json(json!({"error": error}));
        };
        let Some(profile) = Profile::start(shared.registry.clone()) else {
            return HttpResponse::Conflict().json(json!({"error": "somebody makes a profile already"}));
        };
        tokio::time::sleep(time).await;
        lines = profile.finish().await;
    }
    let actors = dump::collect(&shared.registry).await;
    let mut response = HttpResponse::Ok();
    response.insert_header(("Cache-Control", "no-store")).json(json!({"actors": actors, "profile": lines}))
}

/// Over a connection of this machine, and not through a proxy that others may use.
fn is_from_here(request: &HttpRequest) -> bool {
    let is_near = request.peer_addr().is_some_and(|peer| match peer.ip() {
        IpAddr::V4(address) => address.is_loopback(),
        IpAddr::V6(address) => address.is_loopback() || address.to_ipv4_mapped().is_some_and(|v4| v4.is_loopback()),
    });
    let is_forwarded = ["forwarded", "x-forwarded-for", "via"].iter().any(|name| request.headers().contains_key(*name));
    // A page from elsewhere that a browser on this machine runs names where it comes from.
    is_near && !is_forwarded && !request.headers().contains_key("origin")
}
