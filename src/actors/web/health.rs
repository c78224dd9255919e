//! Readiness and liveness endpoints.

use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use futures::future::join_all;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::content_negotiation::ListFormat;
use super::responses::{self, success, unavailable};
use crate::actors::process::context::ProcessContext;

/// Time after which a thread that does not run a new task counts as stuck.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// `/ready` as in Nodepool 11: ready once the actors have started on a complete snapshot.
pub async fn ready(request: HttpRequest, context: Data<ProcessContext>) -> HttpResponse {
    if !*context.ready.borrow() {
        return unavailable(&request);
    }
    success(&request, ListFormat::of(&request).content_type(), responses::now(), "OK".into())
}

/// `/health/ready`: the actors have started and ZooKeeper is connected.
pub async fn is_ready(context: Data<ProcessContext>) -> HttpResponse {
    let started = *context.ready.borrow();
    let connected = context.snapshot_feed.latest().is_some_and(|snapshot| snapshot.connected);
    health_response(
        started && connected,
        &json!({"started": started, "zookeeper": if connected { "connected" } else { "not connected" }}),
    )
}

/// `/health/live`: every thread with actors runs new tasks.
pub async fn live(context: Data<ProcessContext>) -> HttpResponse {
    let probes = context.arbiters.all().map(|(name, arbiter)| async move {
        let (sender, reply) = oneshot::channel();
        let is_spawned = arbiter.spawn(async move {
            let _ = sender.send(());
        });
        let is_responsive = is_spawned && timeout(PROBE_TIMEOUT, reply).await.is_ok_and(|answer| answer.is_ok());
        (!is_responsive).then_some(name)
    });
    let stuck: Vec<&str> = join_all(probes).await.into_iter().flatten().collect();
    health_response(stuck.is_empty(), &json!({"stuck_threads": stuck}))
}

fn health_response(is_healthy: bool, details: &serde_json::Value) -> HttpResponse {
    let status = if is_healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    HttpResponse::build(status).insert_header(("Cache-Control", "no-store")).json(details)
}
