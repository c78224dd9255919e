//! `/metrics`: all figures for Prometheus.

use std::time::Duration;

use actix_web::web::{self, Data};
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::answers::{self, unavailable};
use crate::actors::shared::Shared;
use crate::actors::{clock, footprint};
use crate::model::exposition::{CONTENT_TYPE, Exposition};
use crate::model::meters;
use crate::model::moment;

/// Figures are counted at most this often, however many ask.
const PAUSE: Duration = Duration::from_secs(1);

/// The last answer.
#[derive(Default)]
pub struct Figures(Mutex<Option<(Instant, Bytes)>>);

impl Figures {
    async fn text(&self, shared: Data<Shared>) -> Option<Bytes> {
        let mut last = self.0.lock().await;
        if let Some((_, text)) = last.as_ref().filter(|(at, _)| at.elapsed() <= PAUSE) {
            return Some(text.clone());
        }
        let text = web::block(move || Bytes::from(collect(&shared))).await.ok()?;
        *last = Some((Instant::now(), text.clone()));
        Some(text)
    }
}

pub async fn metrics(request: HttpRequest, shared: Data<Shared>, figures: Data<Figures>) -> HttpResponse {
    let Some(text) = answers::to_the_end(async move { figures.text(shared).await }).await else {
        return unavailable(&request);
    };
    let mut response = HttpResponse::Ok();
    response.content_type(CONTENT_TYPE).insert_header(("Cache-Control", "no-store"));
    answers::with_body(response, text)
}

fn collect(shared: &Shared) -> String {
    let mut out = Exposition::default();
    if let Some(tally) = shared.samples.tally() {
        tally.show(&mut out);
    }
    if let Some(loaded) = shared.in_force() {
        let snapshot = shared.pictures.latest().unwrap_or_default();
        moment::show(&clock::world(&loaded.config, &snapshot, &shared.pictures.facts()), &mut out);
    }
    out.plain(&meters::READY, f64::from(u8::from(*shared.ready.borrow())));
    out.plain(&meters::PANICS, shared.panics.total() as f64);
    out.plain(&meters::SAMPLES_DROPPED, shared.samples.dropped() as f64);
    for (actor, number) in shared.registry.by_actor() {
        out.number(&meters::ACTORS, [actor], number as f64);
    }
    footprint::show(&mut out);
    out.text()
}
