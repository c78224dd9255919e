//! What the live page asks for: everything once, then what changes, as server-sent events.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actix_web::http::header;
use actix_web::web::{self, Data, Path};
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use futures::stream;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::time::timeout;

use super::accept;
use super::answers::{self, not_found, unavailable};
use super::calls::Calls;
use super::neighbours::Neighbours;
use crate::actors::clock;
use crate::actors::messages::AskWhy;
use crate::actors::shared::{Shared, VERSION};
use crate::model::chronicle::{COUNT_EVERY, Chronicle};
use crate::model::exposition::Distribution;
use crate::model::ids::{NodeId, RequestId};
use crate::model::list::Object;
use crate::model::live::{self, ProviderFigures};
use crate::model::meters::{self, Meter, MeterKind};
use crate::model::node::NodeState;
use crate::model::snapshot::Snapshot;
use crate::model::status::{self, NODE_COLUMNS, REQUEST_COLUMNS, Why};
use crate::model::world::World;

/// Changes are told at most this often: what happens meanwhile is told together.
const BEAT: Duration = Duration::from_millis(500);
/// Figures are counted this often while somebody looks.
const FIGURES: Duration = Duration::from_secs(5);
/// A stream on which nothing happens says that it is alive.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);
/// Pages that may be open at a time; each holds a connection.
const MOST_STREAMS: usize = 512;
/// Patches that a slow client may be behind before it has to begin anew.
const MOST_BEHIND: usize = 16;
/// How long a pool may take to say what it decided.
const WHY_DEADLINE: Duration = Duration::from_millis(500);
/// Requests whose reasons are gathered for the list.
const MOST_REASONS: usize = 50;

pub struct Live {
    chronicle: Mutex<Chronicle>,
    calls: Mutex<Calls>,
    /// The picture to which the last patch leads.
    shown: Mutex<Arc<Snapshot>>,
    /// `shown` as the page gets it, plain and packed.
    whole: tokio::sync::Mutex<Option<(u64, Bytes, Bytes)>>,
    events: broadcast::Sender<Bytes>,
    streams: AtomicUsize,
    neighbours: Neighbours,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            chronicle: Mutex::new(Chronicle::new(clock::now())),
            calls: Mutex::default(),
            shown: Mutex::default(),
            whole: tokio::sync::Mutex::default(),
            events: broadcast::channel(MOST_BEHIND).0,
            streams: AtomicUsize::new(0),
            neighbours: Neighbours::default(),
        }
    }
}

/// Follows what is seen of ZooKeeper as long as the process lives.
pub async fn follow(live: Arc<Live>, shared: Arc<Shared>) {
    let mut pictures = shared.pictures.follow();
    let mut counting = tokio::time::interval(COUNT_EVERY.to_duration());
    let mut figures = tokio::time::interval(FIGURES);
    loop {
        tokio::select! {
            picture = pictures.next() => {
                live.take(picture);
                tokio::time::sleep(BEAT).await;
            }
            _ = counting.tick() => live.count(&shared),
            _ = figures.tick() => {
                if live.is_watched() {
                    live.neighbours.look_around(&shared);
                    let figures = live.figures(&shared).await;
                    live.send("figures", &figures.to_string());
                }
            }
        }
    }
}

impl Live {
    fn take(&self, picture: Arc<Snapshot>) {
        let older = std::mem::replace(&mut *lock(&self.shown), picture.clone());
        lock(&self.chronicle).note(&older, &picture, clock::now());
        if self.is_watched() {
            self.send("patch", &live::patch(&older, &picture));
        }
    }

    fn count(&self, shared: &Shared) {
        let (shown, now) = (lock(&self.shown).clone(), clock::now());
        lock(&self.chronicle).count(&shown, now);
        if let Some(tally) = shared.samples.tally() {
            lock(&self.calls).read(tally, now);
        }
    }

    fn is_watched(&self) -> bool {
        self.streams.load(Ordering::Relaxed) > 0
    }

    fn send(&self, event: &str, data: &str) {
        // Without anybody who listens there is nobody to miss it.
        let _ = self.events.send(Bytes::from(format!("event: {event}\ndata: {data}\n\n")));
    }

    fn own_providers(&self, shared: &Shared) -> Vec<ProviderFigures> {
        let Some(loaded) = shared.in_force() else { return Vec::new() };
        let (shown, now) = (lock(&self.shown).clone(), clock::now());
        let calls = shared.samples.tally().map(|tally| lock(&self.calls).figures(tally, now)).unwrap_or_default();
        let world = World { config: &loaded.config, snapshot: &shown, facts: &shared.pictures.facts(), now };
        live::providers(&world, &calls)
    }

    async fn figures(&self, shared: &Shared) -> Value {
        let shown = lock(&self.shown).clone();
        let mut reasons = BTreeMap::new();
        for id in live::waiting(&shown, MOST_REASONS) {
            reasons.insert(id.clone(), ask_why(shared, &id).await);
        }
        let own =
            json!({"launcher": shared.identity.hostname, "version": VERSION, "providers": self.own_providers(shared)});
        let mut launchers = vec![own];
        launchers.extend(self.neighbours.figures());
        json!({"now": clock::now(), "since": lock(&self.chronicle).since(), "launchers": launchers,
            "reasons": live::reasons(&reasons), "labels": labels(&shown)})
    }
}

/// Labels that registered pools serve.
fn labels(snapshot: &Snapshot) -> Vec<&str> {
    let labels = snapshot.pools().flat_map(|(_, pool)| pool.record.supported_labels.iter());
    labels.map(|label| label.as_str()).collect::<std::collections::BTreeSet<_>>().into_iter().collect()
}

async fn ask_why(shared: &Shared, id: &RequestId) -> Vec<Why> {
    let answers = shared.why.ask_all(AskWhy(id.clone()), WHY_DEADLINE).await;
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
            (streams < MOST_STREAMS).then_some(streams + 1)
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
    let mut whole = live.whole.lock().await;
    let shown = lock(&live.shown).clone();
    let kept = whole.as_ref().filter(|(revision, ..)| *revision == shown.revision).cloned();
    let (_, plain, packed) = match kept {
        Some(kept) => kept,
        None => {
            let made = web::block(move || {
                let plain = Bytes::from(live::whole(&shown));
                let packed = answers::pack(&plain);
                (shown.revision, plain, packed)
            });
            let Ok(made) = made.await else { return unavailable(&request) };
            whole.insert(made).clone()
        }
    };
    drop(whole);
    let mut response = HttpResponse::Ok();
    response.content_type("application/json").insert_header((header::CACHE_CONTROL, "no-store"));
    if accept::takes_gzip(request.headers()) {
        response.insert_header((header::CONTENT_ENCODING, "gzip"));
        return answers::with_body(response, packed);
    }
    answers::with_body(response, plain)
}

pub async fn figures(live: Data<Live>, shared: Data<Shared>) -> HttpResponse {
    live.neighbours.look_around(&shared);
    fresh(&live.figures(&shared).await)
}

/// What other launchers fetch to show it.
pub async fn providers(live: Data<Live>, shared: Data<Shared>) -> HttpResponse {
    fresh(&json!({"launcher": shared.identity.hostname, "version": VERSION, "providers": live.own_providers(&shared)}))
}

/// How many nodes were in which state over the last hours, and how long requests waited.
pub async fn plots(live: Data<Live>, shared: Data<Shared>) -> HttpResponse {
    let states: Vec<&str> = NodeState::ALL.iter().map(|state| state.as_str()).collect();
    let (waits, launches) = (all_of(&shared, &meters::REQUEST_TIME), all_of(&shared, &meters::LAUNCH_TIME));
    let chronicle = lock(&live.chronicle);
    let counts: Vec<_> = chronicle.counts().collect();
    fresh(
        &json!({"since": chronicle.since(), "states": states, "counts": counts, "waits": waits, "launches": launches}),
    )
}

/// One distribution over all labels, as far as it says how long good ends took.
fn all_of(shared: &Shared, meter: &'static Meter) -> Value {
    let MeterKind::Histogram(bounds) = meter.kind else { return Value::Null };
    let mut sum = Distribution::new(bounds);
    for (labels, found) in shared.samples.tally().map(|tally| tally.distributions(meter)).unwrap_or_default() {
        if labels.iter().all(|label| !label.starts_with("error")) {
            sum.counts.iter_mut().zip(&found.counts).for_each(|(sum, count)| *sum += count);
            sum.sum += found.sum;
        }
    }
    json!({"bounds": bounds, "counts": sum.counts, "sum": sum.sum})
}

pub async fn node(request: HttpRequest, id: Path<String>, live: Data<Live>) -> HttpResponse {
    let Some(id) = element(&id).map(NodeId::from) else { return not_found(&request) };
    let shown = lock(&live.shown).clone();
    let record = status::nodes(&shown, Some(&id), clock::now()).into_iter().next();
    let record = record.map(|row| json!(Object(NODE_COLUMNS, &row)));
    let chronicle = lock(&live.chronicle);
    fresh(&json!({"record": record, "since": chronicle.since(), "events": chronicle.of_node(&id)}))
}

pub async fn node_request(
    request: HttpRequest,
    id: Path<String>,
    live: Data<Live>,
    shared: Data<Shared>,
) -> HttpResponse {
    let Some(id) = element(&id).map(RequestId::from) else { return not_found(&request) };
    let whys = BTreeMap::from([(id.clone(), ask_why(&shared, &id).await)]);
    let shown = lock(&live.shown).clone();
    let record = shown.request(&id).map(|stored| {
        let row = status::RequestRow { id: id.clone(), request: stored.record.clone() };
        let mut record = json!(Object(REQUEST_COLUMNS, &row));
        record["tenant_name"] = json!(stored.record.tenant_name);
        record["created_time"] = json!(stored.record.created_time);
        record["state_time"] = json!(stored.record.state_time);
        record
    });
    let chronicle = lock(&live.chronicle);
    fresh(&json!({"record": record, "since": chronicle.since(), "events": chronicle.of_request(&id),
        "reasons": live::reasons(&whys)[id.as_str()]}))
}

/// Ids are digits, with a dash in those of requests; nothing else is looked for.
fn element(text: &str) -> Option<&str> {
    let fits = text.len() <= 32 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    (fits && !text.is_empty()).then_some(text)
}

fn fresh(document: &Value) -> HttpResponse {
    let mut response = HttpResponse::Ok();
    response.content_type("application/json").insert_header((header::CACHE_CONTROL, "no-store"));
    answers::with_body(response, Bytes::from(document.to_string()))
}
