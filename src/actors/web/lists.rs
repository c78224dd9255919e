//! Nodepool 11's lists of nodes, requests, images and labels, from the newest snapshot.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use actix_web::web::{self, Data};
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::content_negotiation::{self, ListFormat};
use super::responses::{self, MAX_AGE, unavailable};
use crate::actors::process::context::ProcessContext;
use crate::actors::runtime::clock;
use nodepool_model::records::ids::NodeId;
use nodepool_model::records::time::Timestamp;
use nodepool_model::report::image_status::{self, AgeFormat, BUILD_COLUMNS, IMAGE_COLUMNS, UPLOAD_COLUMNS};
use nodepool_model::report::list::{self, Column};
use nodepool_model::report::status::{self, LABEL_COLUMNS, NODE_COLUMNS, REQUEST_COLUMNS};
use nodepool_model::snapshot::Snapshot;

/// Maximum number of cached responses: more than there are lists, and a bound for arbitrary parameters.
const MAX_CACHED: usize = 32;
/// Maximum size of the cache in bytes.
const MAX_CACHE_BYTES: usize = 64 << 20;
/// Minimum size of a compressed response in bytes.
const MIN_SIZE_TO_COMPRESS: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListKind {
    Uploads,
    Builds,
    Images,
    Nodes,
    Requests,
    Labels,
}

impl ListKind {
    pub const ALL: [(&'static str, ListKind); 6] = [
        ("/image-list", ListKind::Uploads),
        ("/dib-image-list", ListKind::Builds),
        ("/image-status", ListKind::Images),
        ("/node-list", ListKind::Nodes),
        ("/request-list", ListKind::Requests),
        ("/label-list", ListKind::Labels),
    ];
}

/// Cache key of a list. The key omits parameters without effect, because each of their values would cause another
/// response.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ListKey {
    kind: ListKind,
    format: ListFormat,
    /// Sorted by name.
    parameters: Vec<(String, String)>,
}

impl ListKey {
    /// Value of a parameter; the last one if it is given twice.
    fn parameter(&self, name: &str) -> Option<&str> {
        let parameter = self.parameters.iter().rev().find(|(key, _)| key == name);
        parameter.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }
}

/// Responses of the last second.
#[derive(Default)]
pub struct ListCache {
    /// Locked while a response is rendered: concurrent requests for the same list share one response, and requests for
    /// different lists are rendered one after the other.
    responses: Mutex<HashMap<ListKey, CachedResponse>>,
}

#[derive(Clone)]
struct CachedResponse {
    cached_at: Instant,
    created: SystemTime,
    body: Bytes,
    compressed: Option<Bytes>,
}

impl ListCache {
    async fn get(&self, key: ListKey, snapshot: Arc<Snapshot>, wants_compressed: bool) -> Option<CachedResponse> {
        let mut responses = self.responses.lock().await;
        let fresh = responses.get(&key).filter(|cached| cached.cached_at.elapsed() <= MAX_AGE).cloned();
        let (mut response, is_new) = match fresh {
            Some(fresh) => (fresh, false),
            None => {
                let (cached_at, created, now, block_key) =
                    (Instant::now(), responses::now(), clock::now(), key.clone());
                let body =
                    web::block(move || responses::count_body(render(&block_key, &snapshot, now))).await.ok()??;
                (CachedResponse { cached_at, created, body, compressed: None }, true)
            }
        };
        let is_newly_compressed =
            wants_compressed && response.compressed.is_none() && response.body.len() >= MIN_SIZE_TO_COMPRESS;
        if is_newly_compressed {
            let body = response.body.clone();
            response.compressed = web::block(move || responses::compress(&body)).await.ok()?;
        }
        if is_new || is_newly_compressed {
            store(&mut responses, key, response.clone());
        }
        Some(response)
    }
}

/// Stores a response if the cache has capacity for it.
fn store(responses: &mut HashMap<ListKey, CachedResponse>, key: ListKey, response: CachedResponse) {
    responses.retain(|_, cached| cached.cached_at.elapsed() <= MAX_AGE);
    let bytes: usize = responses.values().map(CachedResponse::size).sum();
    if responses.len() < MAX_CACHED && bytes + response.size() <= MAX_CACHE_BYTES {
        responses.insert(key, response);
    }
}

impl CachedResponse {
    fn size(&self) -> usize {
        self.body.len() + self.compressed.as_ref().map_or(0, Bytes::len)
    }
}

pub async fn respond(
    kind: ListKind,
    request: HttpRequest,
    context: Data<ProcessContext>,
    lists: Data<ListCache>,
) -> HttpResponse {
    let Some(snapshot) = context.snapshot_feed.latest() else { return unavailable(&request) };
    let format = ListFormat::of(&request);
    let query = web::Query::<Vec<(String, String)>>::from_query(request.query_string());
    // An invalid query counts as one without parameters.
    let mut parameters = query.map(web::Query::into_inner).unwrap_or_default();
    parameters.retain(|(name, _)| match (kind, format) {
        (ListKind::Nodes, _) if name == "node_id" => true,
        (_, ListFormat::Text) => name == "fields",
        (_, ListFormat::Json) => false,
    });
    parameters.sort_by(|(one, _), (other, _)| one.cmp(other));
    let wants_compressed = content_negotiation::accepts_gzip(&request);
    let key = ListKey { kind, format, parameters };
    match responses::run_to_completion(async move { lists.get(key, snapshot, wants_compressed).await }).await {
        Some(CachedResponse { created, compressed: Some(body), .. }) if wants_compressed => {
            responses::compressed(&request, format.content_type(), created, body)
        }
        Some(CachedResponse { created, body, .. }) => {
            responses::success(&request, format.content_type(), created, body)
        }
        None => unavailable(&request),
    }
}

fn render(key: &ListKey, snapshot: &Snapshot, now: Timestamp) -> Vec<u8> {
    let ages = match key.format {
        ListFormat::Text => AgeFormat::Elapsed(now),
        ListFormat::Json => AgeFormat::EpochSeconds,
    };
    match key.kind {
        ListKind::Uploads => render_rows(key, UPLOAD_COLUMNS, &image_status::uploads(&snapshot.images, ages)),
        ListKind::Builds => render_rows(key, BUILD_COLUMNS, &image_status::builds(&snapshot.images, ages)),
        ListKind::Images => render_rows(key, IMAGE_COLUMNS, &image_status::images(&snapshot.images, ages)),
        ListKind::Nodes => {
            let id = key.parameter("node_id").map(NodeId::from);
            render_rows(key, NODE_COLUMNS, &status::nodes(snapshot, id.as_ref(), now))
        }
        ListKind::Requests => render_rows(key, REQUEST_COLUMNS, &status::requests(snapshot)),
        ListKind::Labels => {
            let pools = snapshot.pools().flat_map(|(_, pool)| pool.record.supported_labels.iter());
            let labels: BTreeSet<_> = pools.cloned().collect();
            render_rows(key, LABEL_COLUMNS, &Vec::from_iter(labels))
        }
    }
}

fn render_rows<R>(key: &ListKey, columns: &[Column<R>], rows: &[R]) -> Vec<u8> {
    match (key.format, key.parameter("fields")) {
        (ListFormat::Json, _) => list::python_json(columns, rows),
        (ListFormat::Text, None) => list::table(columns, rows).to_string().into_bytes(),
        (ListFormat::Text, Some(fields)) => {
            let keys: Vec<&str> = fields.split(',').collect();
            list::table_with(columns, &keys, rows).to_string().into_bytes()
        }
    }
}
