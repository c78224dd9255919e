//! What the live page asks for: everything once, then what changes, as server-sent events.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actix_web::http::header;
use actix_web::web::{self, Data, Path};
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use futures::future::join_all;
use futures::stream;
use serde_json::{Value, json};
use tokio::sync::{broadcast, mpsc};
use tokio::time::{Instant, MissedTickBehavior, timeout};

use super::api_call_stats::Calls;
use super::content_negotiation;
use super::live_view::{self, ProviderStats};
use super::peers::Neighbours;
use super::responses::{self, not_found, unavailable};
use crate::actors::process::context::{ProcessContext, VERSION};
use crate::actors::runtime::clock;
use crate::actors::runtime::messages::ExplainRequest;
use nodepool_model::metrics::prometheus_metrics::{self, Metric, MetricKind};
use nodepool_model::metrics::prometheus_text::Distribution;
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::node::NodeState;
use nodepool_model::report::event_history::{COUNT_INTERVAL, EventHistory};
use nodepool_model::report::list::Object;
use nodepool_model::report::status::{self, NODE_COLUMNS, PoolVerdict, REQUEST_COLUMNS};
use nodepool_model::snapshot::Snapshot;
use nodepool_zk::mirror::mirror::Frame;

/// Changes are told at most this often: what happens meanwhile is told together.
const BEAT: Duration = Duration::from_millis(500);
/// Figures are counted this often while somebody looks.
const FIGURES: Duration = Duration::from_secs(5);
/// A stream on which nothing happens says that it is alive.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);
/// Pages that may be open at a time; each holds a connection.
const MAX_STREAMS: usize = 512;
/// Patches that a slow client may be behind before it has to begin anew.
const MAX_BUFFERED_EVENTS: usize = 16;
/// How long a pool may take to say what it decided.
const WHY_DEADLINE: Duration = Duration::from_millis(500);
/// Requests whose reasons are gathered for the list.
const MAX_REASONS: usize = 100;

pub struct Live {
    history: Mutex<EventHistory>,
    calls: Mutex<Calls>,
    shown: Mutex<Shown>,
    /// What is shown as the page gets it, plain and packed.
    whole: tokio::sync::Mutex<Option<(u64, Bytes, Bytes)>>,
    /// What was gathered last, for whoever asks soon after.
    gathered: tokio::sync::Mutex<Option<(Instant, Bytes)>>,
    events: broadcast::Sender<Bytes>,
    streams: AtomicUsize,
    neighbours: Neighbours,
}

/// The picture to which the last patch leads, and how many led there: over all sessions, each of which counts anew.
#[derive(Clone, Default)]
struct Shown {
    revision: u64,
    snapshot: Arc<Snapshot>,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            history: Mutex::new(EventHistory::new(clock::now())),
            calls: Mutex::default(),
            shown: Mutex::default(),
            whole: tokio::sync::Mutex::default(),
            gathered: tokio::sync::Mutex::default(),
            events: broadcast::channel(MAX_BUFFERED_EVENTS).0,
            streams: AtomicUsize::new(0),
            neighbours: Neighbours::default(),
        }
    }
}

/// Follows what is seen of ZooKeeper as long as the process lives. Nobody waits for another: not who remembers for who tells,
/// and neither of them for pools that are asked.
pub async fn follow(live: Arc<Live>, context: Arc<ProcessContext>, film: mpsc::Receiver<Frame>) {
    tokio::join!(remember(&live, film), count(&live, &context), tell(&live, &context), tell_figures(&live, &context));
}

async fn remember(live: &Live, mut film: mpsc::Receiver<Frame>) {
    let mut last = Arc::<Snapshot>::default();
    while let Some(frame) = film.recv().await {
        let (mut history, now) = (lock(&live.history), clock::now());
        match frame.steps {
            Some(steps) => steps.into_iter().for_each(|step| history.record(step, now)),
            None => history.record_differences(&last, &frame.picture, now),
        }
        last = frame.picture;
    }
}

async fn count(live: &Live, context: &ProcessContext) {
    let mut ticks = every(COUNT_INTERVAL.to_duration());
    loop {
        ticks.tick().await;
        let (snapshot, now) = (lock(&live.shown).snapshot.clone(), clock::now());
        lock(&live.history).record_counts(&snapshot, now);
        if let Some(registry) = context.samples.metrics() {
            lock(&live.calls).read(registry, now);
        }
    }
}

async fn tell(live: &Live, context: &ProcessContext) {
    let mut snapshots = context.snapshot_feed.subscribe();
    loop {
        let snapshot = snapshots.next().await;
        let (older, revision) = {
            let mut shown = lock(&live.shown);
            shown.revision += 1;
            (std::mem::replace(&mut shown.snapshot, snapshot.clone()), shown.revision)
        };
        if live.is_watched() {
            live.send("patch", &live_view::patch(revision, &older, &snapshot));
        }
        tokio::time::sleep(BEAT).await;
    }
}

async fn tell_figures(live: &Live, context: &ProcessContext) {
    let mut ticks = every(FIGURES);
    loop {
        ticks.tick().await;
        if live.is_watched() {
            let figures = live.figures(context).await;
            live.send("figures", &String::from_utf8_lossy(&figures));
        }
    }
}

/// Ticks that were missed are not made up for.
fn every(period: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl Live {
    /// Plain and packed.
    async fn whole(&self) -> Option<(Bytes, Bytes)> {
        let mut whole = self.whole.lock().await;
        let Shown { revision, snapshot } = lock(&self.shown).clone();
        if let Some((_, plain, packed)) = whole.as_ref().filter(|(made, ..)| *made == revision) {
            return Some((plain.clone(), packed.clone()));
        }
        let made = web::block(move || {
            let plain = responses::hold(live_view::whole(revision, &snapshot).into_bytes())?;
            let packed = responses::pack(&plain)?;
            Some((plain, packed))
        });
        let (plain, packed) = made.await.ok()??;
        *whole = Some((revision, plain.clone(), packed.clone()));
        Some((plain, packed))
    }

    fn is_watched(&self) -> bool {
        self.streams.load(Ordering::Relaxed) > 0
    }

    fn send(&self, event: &str, data: &str) {
        // Without anybody who listens there is nobody to miss it.
        let _ = self.events.send(Bytes::from(format!("event: {event}\ndata: {data}\n\n")));
    }

    fn own_providers(&self, context: &ProcessContext) -> Vec<ProviderStats> {
        let Some(loaded) = context.active_config() else { return Vec::new() };
        let (shown, now) = (lock(&self.shown).snapshot.clone(), clock::now());
        let calls = context.samples.metrics().map(|tally| lock(&self.calls).figures(tally, now)).unwrap_or_default();
        live_view::providers(&clock::inputs(&loaded.config, &shown, &context.snapshot_feed.facts()), &calls)
    }

    /// Gathered once for all who ask at the same time or soon after.
    async fn figures(&self, context: &ProcessContext) -> Bytes {
        let mut gathered = self.gathered.lock().await;
        if let Some((at, figures)) = &*gathered
            && at.elapsed() < FIGURES - BEAT
        {
            return figures.clone();
        }
        let figures = Bytes::from(self.gather(context).await.to_string());
        *gathered = Some((Instant::now(), figures.clone()));
        figures
    }

    async fn gather(&self, context: &ProcessContext) -> Value {
        let shown = lock(&self.shown).snapshot.clone();
        let asked = live_view::waiting(&shown, MAX_REASONS).into_iter().map(async |id| {
            let reasons = ask_why(context, &id).await;
            (id, reasons)
        });
        let (reasons, others) = tokio::join!(join_all(asked), self.neighbours.figures(context));
        let own =
            json!({"launcher": context.identity.hostname, "version": VERSION, "providers": self.own_providers(context)});
        let launchers: Vec<Value> = std::iter::once(own).chain(others).collect();
        json!({"now": clock::now(), "since": lock(&self.history).since(), "launchers": launchers,
            "reasons": live_view::reasons(&reasons.into_iter().collect()), "labels": labels(&shown)})
    }
}

/// Labels that registered pools serve.
fn labels(snapshot: &Snapshot) -> Vec<&str> {
    let labels = snapshot.pools().flat_map(|(_, pool)| pool.record.supported_labels.iter());
    labels.map(|label| label.as_str()).collect::<std::collections::BTreeSet<_>>().into_iter().collect()
}

async fn ask_why(context: &ProcessContext, id: &RequestId) -> Vec<PoolVerdict> {
    let answers = context.explain_registry.request_all(ExplainRequest(id.clone()), WHY_DEADLINE).await;
    answers.into_iter().filter_map(|(_, answer)| answer.ok().flatten()).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An open stream; it is counted as long as this is kept.
struct Place(Data<Live>);

impl Place {
    fn take(live: &Data<Live>) -> Option<Place> {
        let taken = live.streams.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |streams| {
            (streams < MAX_STREAMS).then_some(streams + 1)
        });
        taken.ok().map(|_| Place(live.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Server-sent events: patches, figures, and `reload` for who is too far behind.
pub async fn stream(request: HttpRequest, live: Data<Live>) -> HttpResponse {
    let Some(place) = Place::take(&live) else {
        let mut busy = unavailable(&request);
        busy.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("10"));
        return busy;
    };
    let heard = live.events.subscribe();
    let hello = Bytes::from_static(b"retry: 2000\nevent: hello\ndata: {}\n\n");
    let events = stream::unfold((Some(hello), heard, place), |(hello, mut heard, place)| async move {
        if let Some(hello) = hello {
            return Some((Ok::<_, actix_web::Error>(hello), (None, heard, place)));
        }
        let event = match timeout(SIGN_OF_LIFE, heard.recv()).await {
            Ok(Ok(event)) => event,
            Ok(Err(broadcast::error::RecvError::Lagged(_))) => Bytes::from_static(b"event: reload\ndata: {}\n\n"),
            Ok(Err(broadcast::error::RecvError::Closed)) => return None,
            Err(_) => Bytes::from_static(b": still here\n\n"),
        };
        Some((Ok(event), (None, heard, place)))
    });
    HttpResponse::Ok()
        .content_type("text/event-stream")
        .insert_header((header::CACHE_CONTROL, "no-store"))
        .insert_header(("X-Accel-Buffering", "no"))
        .streaming(Box::pin(events))
}

/// Everything, as of the last patch.
pub async fn state(request: HttpRequest, live: Data<Live>) -> HttpResponse {
    let made = responses::to_the_end(async move { live.whole().await }).await;
    let Some((plain, packed)) = made else { return unavailable(&request) };
    let mut response = HttpResponse::Ok();
    response.content_type("application/json").insert_header((header::CACHE_CONTROL, "no-store"));
    if content_negotiation::takes_gzip(request.headers()) {
        response.insert_header((header::CONTENT_ENCODING, "gzip"));
        return responses::with_body(response, packed);
    }
    responses::with_body(response, plain)
}

pub async fn figures(live: Data<Live>, context: Data<ProcessContext>) -> HttpResponse {
    fresh_text(live.figures(&context).await)
}

/// What other launchers fetch to show it.
pub async fn providers(live: Data<Live>, context: Data<ProcessContext>) -> HttpResponse {
    fresh(&json!({"launcher": context.identity.hostname, "version": VERSION, "providers": live.own_providers(&context)}),)
}

/// How many nodes were in which state over the last hours, and how long requests waited.
pub async fn plots(live: Data<Live>, context: Data<ProcessContext>) -> HttpResponse {
    let states: Vec<&str> = NodeState::ALL.iter().map(|state| state.as_str()).collect();
    let (waits, launches) =
        (all_of(&context, &prometheus_metrics::REQUEST_TIME), all_of(&context, &prometheus_metrics::LAUNCH_TIME),);
    let history = lock(&live.history);
    let counts: Vec<_> = history.counts().collect();
    fresh(
        &json!({"since": history.since(), "states": states, "counts": counts, "waits": waits, "launches": launches}),
    )
}

/// One distribution over all labels, as far as it says how long good ends took.
fn all_of(context: &ProcessContext, meter: &'static Metric) -> Value {
    let MetricKind::Histogram(bounds) = meter.kind else { return Value::Null };
    let mut sum = Distribution::new(bounds);
    for (labels, found) in context.samples.metrics().map(|tally| tally.distributions(meter)).unwrap_or_default() {
        if labels.iter().all(|label| !label.starts_with("error")) {
            sum.counts.iter_mut().zip(&found.counts).for_each(|(sum, count)| *sum += count);
            sum.sum += found.sum;
        }
    }
    json!({"bounds": bounds, "counts": sum.counts, "sum": sum.sum})
}

pub async fn node(request: HttpRequest, id: Path<String>, live: Data<Live>) -> HttpResponse {
    let Some(id) = element(&id).map(NodeId::from) else { return not_found(&request) };
    let shown = lock(&live.shown).snapshot.clone();
    let record = status::nodes(&shown, Some(&id), clock::now()).into_iter().next();
    let record = record.map(|row| json!(Object(NODE_COLUMNS, &row)));
    let history = lock(&live.history);
    fresh(&json!({"record": record, "since": history.since(), "events": history.of_node(&id)}))
}

pub async fn node_request(
    request: HttpRequest,
    id: Path<String>,
    live: Data<Live>,
    context: Data<ProcessContext>,
) -> HttpResponse {
    let Some(id) = element(&id).map(RequestId::from) else { return not_found(&request) };
    let whys = BTreeMap::from([(id.clone(), ask_why(&context, &id).await)]);
    let shown = lock(&live.shown).snapshot.clone();
    let record = shown.request(&id).map(|stored| {
        let row = status::RequestRow { id: id.clone(), request: stored.record.clone() };
        let mut record = json!(Object(REQUEST_COLUMNS, &row));
        record["tenant_name"] = json!(stored.record.tenant_name);
        record["created_time"] = json!(stored.record.created_time);
        record["state_time"] = json!(stored.record.state_time);
        record
    });
    let history = lock(&live.history);
    fresh(&json!({"record": record, "since": history.since(), "events": history.of_request(&id),
        "reasons": live_view::reasons(&whys)[id.as_str()]}))
}

/// Ids are digits, with a dash in those of requests; nothing else is looked for.
fn element(text: &str) -> Option<&str> {
    let fits = text.len() <= 32 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    (fits && !text.is_empty()).then_some(text)
}

fn fresh(document: &Value) -> HttpResponse {
    fresh_text(Bytes::from(document.to_string()))
}

fn fresh_text(document: Bytes) -> HttpResponse {
    let mut response = HttpResponse::Ok();
    response.content_type("application/json").insert_header((header::CACHE_CONTROL, "no-store"));
    responses::with_body(response, document)
}
