//! API of the live page: the full state once, then patches and metrics as server-sent events.

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
use tokio::sync::{Notify, broadcast, mpsc};
use tokio::time::{Instant, MissedTickBehavior, timeout};

use super::api_call_stats::ApiCallStats;
use super::content_negotiation;
use super::live_view::{self, PageState, ProviderStats};
use super::peers::Peers;
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
use nodepool_zk::mirror::mirror::TransitionBatch;

/// Minimum interval between two patches; changes in between are combined.
const PATCH_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of the metrics event while streams are open.
const METRICS_INTERVAL: Duration = Duration::from_secs(5);
/// Interval of keep-alive comments on an idle stream.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Maximum number of open streams; each stream occupies a connection.
const MAX_STREAMS: usize = 512;
/// Number of events that a slow client may lag behind before it has to reload the state.
const MAX_BUFFERED_EVENTS: usize = 16;
/// Timeout of a query for the verdict of a pool.
const WHY_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of waiting requests whose reasons are collected for the list.
const MAX_REASONS: usize = 100;

pub struct LiveView {
    history: Mutex<EventHistory>,
    /// Notified when the history has another ended request.
    request_ended: Notify,
    call_stats: Mutex<ApiCallStats>,
    /// State after the last patch.
    last_sent: Mutex<PageState>,
    /// Cached full state with its revision, plain and compressed.
    full_update: tokio::sync::Mutex<Option<(u64, Bytes, Bytes)>>,
    /// Cached metrics, for requests within the interval.
    cached_metrics: tokio::sync::Mutex<Option<(Instant, Bytes)>>,
    events: broadcast::Sender<Bytes>,
    streams: AtomicUsize,
    peers: Peers,
}

impl Default for LiveView {
    fn default() -> Self {
        Self {
            history: Mutex::new(EventHistory::new(clock::now())),
            request_ended: Notify::new(),
            call_stats: Mutex::default(),
            last_sent: Mutex::default(),
            full_update: tokio::sync::Mutex::default(),
            cached_metrics: tokio::sync::Mutex::default(),
            events: broadcast::channel(MAX_BUFFERED_EVENTS).0,
            streams: AtomicUsize::new(0),
            peers: Peers::default(),
        }
    }
}

/// Follows the snapshots for the lifetime of the process. Recording, patches and metrics are independent: none of them
/// waits for another one, or for pools that do not respond.
pub async fn run(live: Arc<LiveView>, context: Arc<ProcessContext>, transitions: mpsc::Receiver<TransitionBatch>) {
    tokio::join!(
        record_history(&live, transitions),
        sample_counts(&live, &context),
        send_patches(&live, &context),
        send_metrics(&live, &context)
    );
}

async fn record_history(live: &LiveView, mut transitions: mpsc::Receiver<TransitionBatch>) {
    let mut last = Arc::<Snapshot>::default();
    while let Some(batch) = transitions.recv().await {
        let (mut history, now) = (lock(&live.history), clock::now());
        let ended_before = history.ended_count();
        match batch.transitions {
            Some(transitions) => transitions.into_iter().for_each(|transition| history.record(transition, now)),
            None => history.record_differences(&last, &batch.snapshot, now),
        }
        if history.ended_count() > ended_before {
            live.request_ended.notify_one();
        }
        last = batch.snapshot;
    }
}

async fn sample_counts(live: &LiveView, context: &ProcessContext) {
    let mut ticks = interval(COUNT_INTERVAL.to_duration());
    loop {
        ticks.tick().await;
        let (snapshot, now) = (lock(&live.last_sent).snapshot.clone(), clock::now());
        lock(&live.history).record_counts(&snapshot, now);
        if let Some(registry) = context.samples.metrics() {
            lock(&live.call_stats).record_sample(registry, now);
        }
    }
}

/// Sends a patch after a new snapshot, and after an ended request, because the history may record the request later
/// than the snapshot.
async fn send_patches(live: &LiveView, context: &ProcessContext) {
    let mut snapshots = context.snapshot_feed.subscribe();
    loop {
        let snapshot = tokio::select! {
            snapshot = snapshots.next() => Some(snapshot),
            () = live.request_ended.notified() => None,
        };
        let (before, after) = live.next_state(snapshot);
        if live.has_streams() {
            live.send("patch", &live_view::patch(&before, &after));
        }
        tokio::time::sleep(PATCH_INTERVAL).await;
    }
}

async fn send_metrics(live: &LiveView, context: &ProcessContext) {
    let mut ticks = interval(METRICS_INTERVAL);
    loop {
        ticks.tick().await;
        if live.has_streams() {
            let metrics = live.metrics(context).await;
            live.send("metrics", &String::from_utf8_lossy(&metrics));
        }
    }
}

/// Returns an interval that skips missed ticks.
fn interval(period: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl LiveView {
    /// Advances to the next revision; returns the states before and after. Without a new snapshot the last one remains.
    fn next_state(&self, snapshot: Option<Arc<Snapshot>>) -> (PageState, PageState) {
        let ended = lock(&self.history).ended_requests();
        let mut last_sent = lock(&self.last_sent);
        let before = last_sent.clone();
        last_sent.revision += 1;
        last_sent.ended = ended;
        if let Some(snapshot) = snapshot {
            last_sent.snapshot = snapshot;
        }
        (before, last_sent.clone())
    }

    /// The full state, plain and compressed.
    async fn full_update(&self) -> Option<(Bytes, Bytes)> {
        let mut cached = self.full_update.lock().await;
        let state = lock(&self.last_sent).clone();
        let revision = state.revision;
        if let Some((_, plain, compressed)) =
            cached.as_ref().filter(|(cached_revision, ..)| *cached_revision == revision)
        {
            return Some((plain.clone(), compressed.clone()));
        }
        let rendered = web::block(move || {
            let plain = responses::count_body(live_view::full_update(&state).into_bytes())?;
            let compressed = responses::compress(&plain)?;
            Some((plain, compressed))
        });
        let (plain, compressed) = rendered.await.ok()??;
        *cached = Some((revision, plain.clone(), compressed.clone()));
        Some((plain, compressed))
    }

    fn has_streams(&self) -> bool {
        self.streams.load(Ordering::Relaxed) > 0
    }

    fn send(&self, event: &str, data: &str) {
        // Sending fails only without open streams, which is not an error.
        let _ = self.events.send(Bytes::from(format!("event: {event}\ndata: {data}\n\n")));
    }

    fn own_provider_metrics(&self, context: &ProcessContext) -> Vec<ProviderStats> {
        let Some(loaded) = context.active_config() else { return Vec::new() };
        let (snapshot, now) = (lock(&self.last_sent).snapshot.clone(), clock::now());
        let call_stats =
            context.samples.metrics().map(|registry| lock(&self.call_stats).metrics(registry, now)).unwrap_or_default();
        let (facts, backing_nodes) = (context.snapshot_feed.facts(), context.snapshot_feed.backing_nodes());
        let inputs = clock::inputs(&loaded.config, &snapshot, &facts);
        let mut stats = live_view::providers(&inputs, &call_stats, backing_nodes);
        live_view::add_slow_deletions(&mut stats, context.snapshot_feed.slow_deletions());
        stats
    }

    /// Metrics of all launchers, collected once for concurrent requests and those within the interval.
    async fn metrics(&self, context: &ProcessContext) -> Bytes {
        let mut cached = self.cached_metrics.lock().await;
        if let Some((at, metrics)) = &*cached
            && at.elapsed() < METRICS_INTERVAL - PATCH_INTERVAL
        {
            return metrics.clone();
        }
        let metrics = Bytes::from(self.collect_metrics(context).await.to_string());
        *cached = Some((Instant::now(), metrics.clone()));
        metrics
    }

    async fn collect_metrics(&self, context: &ProcessContext) -> Value {
        let snapshot = lock(&self.last_sent).snapshot.clone();
        let explanations = live_view::waiting(&snapshot, MAX_REASONS).into_iter().map(async |id| {
            let reasons = explain(context, &id).await;
            (id, reasons)
        });
        let (reasons, others) = tokio::join!(join_all(explanations), self.peers.metrics(context));
        let own = json!({"launcher": context.identity.hostname, "version": VERSION, "providers": self.own_provider_metrics(context)});
        let launchers: Vec<Value> = std::iter::once(own).chain(others).collect();
        json!({"now": clock::now(), "since": lock(&self.history).since(), "launchers": launchers,
            "reasons": live_view::reasons(&reasons.into_iter().collect()), "max_reasons": MAX_REASONS,
            "labels": labels(&snapshot)})
    }
}

/// Labels that registered pools serve.
fn labels(snapshot: &Snapshot) -> Vec<&str> {
    let labels = snapshot.pools().flat_map(|(_, pool)| pool.record.supported_labels.iter());
    labels.map(|label| label.as_str()).collect::<std::collections::BTreeSet<_>>().into_iter().collect()
}

async fn explain(context: &ProcessContext, id: &RequestId) -> Vec<PoolVerdict> {
    let replies = context.explain_registry.request_all(ExplainRequest(id.clone()), WHY_TIMEOUT).await;
    replies.into_iter().filter_map(|(_, reply)| reply.ok().flatten()).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An open stream; counted until it is dropped.
struct StreamGuard(Data<LiveView>);

impl StreamGuard {
    fn acquire(live: &Data<LiveView>) -> Option<StreamGuard> {
        let updated = live.streams.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |streams| {
            (streams < MAX_STREAMS).then_some(streams + 1)
        });
        updated.ok().map(|_| StreamGuard(live.clone()))
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Server-sent events: `patch`, `metrics`, and `reload` for a client that lags too far behind.
pub async fn stream(request: HttpRequest, live: Data<LiveView>) -> HttpResponse {
    let Some(guard) = StreamGuard::acquire(&live) else {
        let mut busy = unavailable(&request);
        busy.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("10"));
        return busy;
    };
    let subscription = live.events.subscribe();
    let hello = Bytes::from_static(b"retry: 2000\nevent: hello\ndata: {}\n\n");
    let events = stream::unfold((Some(hello), subscription, guard), |(hello, mut subscription, guard)| async move {
        if let Some(hello) = hello {
            return Some((Ok::<_, actix_web::Error>(hello), (None, subscription, guard)));
        }
        let event = match timeout(KEEPALIVE_INTERVAL, subscription.recv()).await {
            Ok(Ok(event)) => event,
            Ok(Err(broadcast::error::RecvError::Lagged(_))) => Bytes::from_static(b"event: reload\ndata: {}\n\n"),
            Ok(Err(broadcast::error::RecvError::Closed)) => return None,
            Err(_) => Bytes::from_static(b": keep-alive\n\n"),
        };
        Some((Ok(event), (None, subscription, guard)))
    });
    HttpResponse::Ok()
        .content_type("text/event-stream")
        .insert_header((header::CACHE_CONTROL, "no-store"))
        .insert_header(("X-Accel-Buffering", "no"))
        .streaming(Box::pin(events))
}

/// The full state as of the last patch.
pub async fn state(request: HttpRequest, live: Data<LiveView>) -> HttpResponse {
    let update = responses::run_to_completion(async move { live.full_update().await }).await;
    let Some((plain, compressed)) = update else { return unavailable(&request) };
    let mut response = HttpResponse::Ok();
    response.content_type("application/json").insert_header((header::CACHE_CONTROL, "no-store"));
    if content_negotiation::accepts_gzip(&request) {
        response.insert_header((header::CONTENT_ENCODING, "gzip"));
        return responses::with_body(response, compressed);
    }
    responses::with_body(response, plain)
}

pub async fn metrics(live: Data<LiveView>, context: Data<ProcessContext>) -> HttpResponse {
    uncached_response(live.metrics(&context).await)
}

/// Providers of this launcher, for the live pages of other launchers.
pub async fn providers(live: Data<LiveView>, context: Data<ProcessContext>) -> HttpResponse {
    uncached_json(
        &json!({"launcher": context.identity.hostname, "version": VERSION, "providers": live.own_provider_metrics(&context)}),
    )
}

/// Nodes by state over the last hours, and distributions of waiting times and launch durations.
pub async fn timeseries(live: Data<LiveView>, context: Data<ProcessContext>) -> HttpResponse {
    let states: Vec<&str> = NodeState::ALL.iter().map(|state| state.as_str()).collect();
    let (waits, launches) = (
        total_distribution(&context, &prometheus_metrics::REQUEST_TIME),
        total_distribution(&context, &prometheus_metrics::LAUNCH_TIME),
    );
    let history = lock(&live.history);
    let counts: Vec<_> = history.counts().collect();
    uncached_json(
        &json!({"since": history.since(), "states": states, "counts": counts, "waits": waits, "launches": launches}),
    )
}

/// Distribution of a metric over all labels, except those of failures.
fn total_distribution(context: &ProcessContext, metric: &'static Metric) -> Value {
    let MetricKind::Histogram(bounds) = metric.kind else { return Value::Null };
    let mut sum = Distribution::new(bounds);
    let distributions = context.samples.metrics().map(|registry| registry.distributions(metric)).unwrap_or_default();
    for (labels, distribution) in distributions {
        if labels.iter().all(|label| !label.starts_with("error")) {
            sum.counts.iter_mut().zip(&distribution.counts).for_each(|(sum, count)| *sum += count);
            sum.sum += distribution.sum;
        }
    }
    json!({"bounds": bounds, "counts": sum.counts, "sum": sum.sum})
}

pub async fn node(request: HttpRequest, id: Path<String>, live: Data<LiveView>) -> HttpResponse {
    let Some(id) = valid_id(&id).map(NodeId::from) else { return not_found(&request) };
    let snapshot = lock(&live.last_sent).snapshot.clone();
    let record = status::nodes(&snapshot, Some(&id), clock::now()).into_iter().next();
    let record = record.map(|row| json!(Object(NODE_COLUMNS, &row)));
    let history = lock(&live.history);
    uncached_json(&json!({"record": record, "since": history.since(), "events": history.of_node(&id)}))
}

pub async fn node_request(
    request: HttpRequest,
    id: Path<String>,
    live: Data<LiveView>,
    context: Data<ProcessContext>,
) -> HttpResponse {
    let Some(id) = valid_id(&id).map(RequestId::from) else { return not_found(&request) };
    let reasons = BTreeMap::from([(id.clone(), explain(&context, &id).await)]);
    let snapshot = lock(&live.last_sent).snapshot.clone();
    let record = snapshot.request(&id).map(|stored| {
        let row = status::RequestRow { id: id.clone(), request: stored.record.clone() };
        let mut record = json!(Object(REQUEST_COLUMNS, &row));
        record["tenant_name"] = json!(stored.record.tenant_name);
        record["created_time"] = json!(stored.record.created_time);
        record["state_time"] = json!(stored.record.state_time);
        record
    });
    let history = lock(&live.history);
    uncached_json(&json!({"record": record, "since": history.since(), "events": history.of_request(&id),
        "reasons": live_view::reasons(&reasons)[id.as_str()]}))
}

/// Ids consist of digits, and of a dash in request ids; other ids are rejected.
fn valid_id(text: &str) -> Option<&str> {
    let is_valid = text.len() <= 32 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    (is_valid && !text.is_empty()).then_some(text)
}

fn uncached_json(document: &Value) -> HttpResponse {
    uncached_response(Bytes::from(document.to_string()))
}

fn uncached_response(document: Bytes) -> HttpResponse {
    let mut response = HttpResponse::Ok();
    response.content_type("application/json").insert_header((header::CACHE_CONTROL, "no-store"));
    responses::with_body(response, document)
}
