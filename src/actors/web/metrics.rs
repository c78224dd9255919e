//! `/metrics`: all metrics in the Prometheus text format.

use std::time::Duration;

use actix_web::web::{self, Data};
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::responses::{self, unavailable};
use crate::actors::process::context::ProcessContext;
use crate::actors::runtime::clock;
use crate::actors::telemetry::{gauges, process_metrics};
use nodepool_model::metrics::prometheus_metrics;
use nodepool_model::metrics::prometheus_text::{CONTENT_TYPE, PrometheusText};

/// Minimum interval between two collections; requests in between get the cached text.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// The last response.
#[derive(Default)]
pub struct MetricsCache(Mutex<Option<(Instant, Bytes)>>);

impl MetricsCache {
    async fn rendered(&self, context: Data<ProcessContext>) -> Option<Bytes> {
        let mut last = self.0.lock().await;
        if let Some((_, text)) = last.as_ref().filter(|(at, _)| at.elapsed() <= MIN_INTERVAL) {
            return Some(text.clone());
        }
        let text = web::block(move || Bytes::from(collect(&context))).await.ok()?;
        *last = Some((Instant::now(), text.clone()));
        Some(text)
    }
}

pub async fn metrics(request: HttpRequest, context: Data<ProcessContext>, cache: Data<MetricsCache>) -> HttpResponse {
    let Some(text) = responses::run_to_completion(async move { cache.rendered(context).await }).await else {
        return unavailable(&request);
    };
    let mut response = HttpResponse::Ok();
    response.content_type(CONTENT_TYPE).insert_header(("Cache-Control", "no-store"));
    responses::with_body(response, text)
}

fn collect(context: &ProcessContext) -> String {
    let mut out = PrometheusText::default();
    if let Some(registry) = context.samples.metrics() {
        registry.export(&mut out);
    }
    if let Some(loaded) = context.active_config() {
        let snapshot = context.snapshot_feed.latest().unwrap_or_default();
        gauges::write_gauges(&clock::inputs(&loaded.config, &snapshot, &context.snapshot_feed.facts()), &mut out);
    }
    out.unlabeled(&prometheus_metrics::READY, f64::from(u8::from(*context.ready.borrow())));
    out.unlabeled(&prometheus_metrics::PANICS, context.panics.total() as f64);
    out.unlabeled(&prometheus_metrics::SAMPLES_DROPPED, context.samples.dropped() as f64);
    for (actor, number) in context.registry.by_actor() {
        out.number(&prometheus_metrics::ACTORS, [actor], number as f64);
    }
    process_metrics::export(&mut out);
    out.text()
}
