//! Whether this process is ready to serve, and whether it is alive.

use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use futures::future::join_all;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::content_negotiation::Format;
use super::responses::{self, success, unavailable};
use crate::actors::process::context::ProcessContext;

/// A thread that does nothing else for so long is stuck.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// As the original says it: after the first complete pass, for good.
pub async fn ready(request: HttpRequest, context: Data<ProcessContext>) -> HttpResponse {
    if !*context.ready.borrow() {
        return unavailable(&request);
    }
    success(&request, Format::asked_for(request.headers()).content_type(), responses::now(), "OK".into())
}

/// Whether requests are served at the moment: the first pass is over and a ZooKeeper server answers.
pub async fn is_ready(context: Data<ProcessContext>) -> HttpResponse {
    let started = *context.ready.borrow();
    let connected = context.snapshot_feed.latest().is_some_and(|snapshot| snapshot.connected);
    answer(
        started && connected,
        &json!({"started": started, "zookeeper": if connected { "connected" } else { "not connected" }}),
    )
}

/// Whether every thread that works takes up new work.
pub async fn live(context: Data<ProcessContext>) -> HttpResponse {
    let asking = context.arbiters.all().map(|(name, arbiter)| async move {
        let (answer, answered) = oneshot::channel();
        let taken = arbiter.spawn(async move {
            let _ = answer.send(());
        });
        let answers = taken && timeout(PROBE_TIMEOUT, answered).await.is_ok_and(|answer| answer.is_ok());
        (!answers).then_some(name)
    });
    let stuck: Vec<&str> = join_all(asking).await.into_iter().flatten().collect();
    answer(stuck.is_empty(), &json!({"stuck_threads": stuck}))
}

fn answer(is_well: bool, details: &serde_json::Value) -> HttpResponse {
    let status = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    HttpResponse::build(status).insert_header(("Cache-Control", "no-store")).json(details)
}
