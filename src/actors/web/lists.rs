//! The lists of the original: nodes, requests, images and labels, from the picture that we have of ZooKeeper.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use actix_web::web::{self, Data};
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::content_negotiation::{self, Format};
use super::responses::{self, MAX_AGE, unavailable};
use crate::actors::process::context::ProcessContext;
use crate::actors::runtime::clock;
use nodepool_model::records::ids::NodeId;
use nodepool_model::records::time::Timestamp;
use nodepool_model::report::image_status::{self, AgeFormat, BUILD_COLUMNS, IMAGE_COLUMNS, UPLOAD_COLUMNS};
use nodepool_model::report::list::{self, Column};
use nodepool_model::report::status::{self, LABEL_COLUMNS, NODE_COLUMNS, REQUEST_COLUMNS};
use nodepool_model::snapshot::Snapshot;

/// Answers that are kept, at most: more than there are lists, and few enough whatever is asked.
const MOST_KEPT: usize = 32;
/// Bytes that are kept, at most.
const MAX_CACHE_BYTES: usize = 64 << 20;
/// Smaller answers, in bytes, are sent as they are.
const WORTH_PACKING: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    Uploads,
    Builds,
    Images,
    Nodes,
    Requests,
    Labels,
}

impl Subject {
    pub const ALL: [(&'static str, Subject); 6] = [
        ("/image-list", Subject::Uploads),
        ("/dib-image-list", Subject::Builds),
        ("/image-status", Subject::Images),
        ("/node-list", Subject::Nodes),
        ("/request-list", Subject::Requests),
        ("/label-list", Subject::Labels),
    ];
}

/// What is asked for. Parameters that mean nothing here are not part of it, or each of them would have a body of its own made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Question {
    subject: Subject,
    format: Format,
    /// Sorted by name.
    parameters: Vec<(String, String)>,
}

impl Question {
    /// Of a parameter that is given twice the last value counts.
    fn parameter(&self, name: &str) -> Option<&str> {
        let given = self.parameters.iter().rev().find(|(given, _)| given == name);
        given.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }
}

/// Answers of the last second.
#[derive(Default)]
pub struct Lists {
    /// Held while an answer is made: many who ask for the same cause one answer, and many who ask for different ones wait
    /// for each other.
    kept: Mutex<HashMap<Question, Kept>>,
}

#[derive(Clone)]
struct Kept {
    at: Instant,
    made: SystemTime,
    body: Bytes,
    packed: Option<Bytes>,
}

impl Lists {
    async fn answer(&self, question: Question, snapshot: Arc<Snapshot>, packed: bool) -> Option<Kept> {
        let mut kept = self.kept.lock().await;
        let fresh = kept.get(&question).filter(|kept| kept.at.elapsed() <= MAX_AGE).cloned();
        let (mut answer, is_new) = match fresh {
            Some(fresh) => (fresh, false),
            None => {
                let (at, made, now, asked) = (Instant::now(), responses::now(), clock::now(), question.clone());
                let body = web::block(move || responses::hold(body_of(&asked, &snapshot, now))).await.ok()??;
                (Kept { at, made, body, packed: None }, true)
            }
        };
        let is_packed_now = packed && answer.packed.is_none() && answer.body.len() >= WORTH_PACKING;
        if is_packed_now {
            let body = answer.body.clone();
            answer.packed = web::block(move || responses::pack(&body)).await.ok()?;
        }
        if is_new || is_packed_now {
            keep(&mut kept, question, answer.clone());
        }
        Some(answer)
    }
}

/// Where there is room.
fn keep(kept: &mut HashMap<Question, Kept>, question: Question, answer: Kept) {
    kept.retain(|_, kept| kept.at.elapsed() <= MAX_AGE);
    let bytes: usize = kept.values().map(Kept::size).sum();
    if kept.len() < MOST_KEPT && bytes + answer.size() <= MAX_CACHE_BYTES {
        kept.insert(question, answer);
    }
}

impl Kept {
    fn size(&self) -> usize {
        self.body.len() + self.packed.as_ref().map_or(0, Bytes::len)
    }
}

pub async fn answer(subject: Subject, request: HttpRequest, context: Data<ProcessContext>, lists: Data<Lists>) -> HttpResponse {
    let Some(snapshot) = context.snapshot_feed.latest() else { return unavailable(&request) };
    let format = Format::asked_for(request.headers());
    let query = web::Query::<Vec<(String, String)>>::from_query(request.query_string());
    // What is no query asks for nothing in particular.
    let mut parameters = query.map(web::Query::into_inner).unwrap_or_default();
    parameters.retain(|(name, _)| match (subject, format) {
        (Subject::Nodes, _) if name == "node_id" => true,
        (_, Format::Text) => name == "fields",
        (_, Format::Json) => false,
    });
    parameters.sort_by(|(one, _), (other, _)| one.cmp(other));
    let packed = content_negotiation::takes_gzip(request.headers());
    let question = Question { subject, format, parameters };
    match responses::to_the_end(async move { lists.answer(question, snapshot, packed).await }).await {
        Some(Kept { made, packed: Some(body), .. }) if packed => {
            responses::packed(&request, format.content_type(), made, body)
        }
        Some(Kept { made, body, .. }) => responses::success(&request, format.content_type(), made, body),
        None => unavailable(&request),
    }
}

fn body_of(question: &Question, snapshot: &Snapshot, now: Timestamp) -> Vec<u8> {
    let ages = match question.format {
        Format::Text => AgeFormat::Elapsed(now),
        Format::Json => AgeFormat::EpochSeconds,
    };
    match question.subject {
        Subject::Uploads => write(question, UPLOAD_COLUMNS, &image_status::uploads(&snapshot.images, ages)),
        Subject::Builds => write(question, BUILD_COLUMNS, &image_status::builds(&snapshot.images, ages)),
        Subject::Images => write(question, IMAGE_COLUMNS, &image_status::images(&snapshot.images, ages)),
        Subject::Nodes => {
            let id = question.parameter("node_id").map(NodeId::from);
            write(question, NODE_COLUMNS, &status::nodes(snapshot, id.as_ref(), now))
        }
        Subject::Requests => write(question, REQUEST_COLUMNS, &status::requests(snapshot)),
        Subject::Labels => {
            let pools = snapshot.pools().flat_map(|(_, pool)| pool.record.supported_labels.iter());
            let labels: BTreeSet<_> = pools.cloned().collect();
            write(question, LABEL_COLUMNS, &Vec::from_iter(labels))
        }
    }
}

fn write<R>(question: &Question, columns: &[Column<R>], rows: &[R]) -> Vec<u8> {
    match (question.format, question.parameter("fields")) {
        (Format::Json, _) => list::python_json(columns, rows),
        (Format::Text, None) => list::table(columns, rows).to_string().into_bytes(),
        (Format::Text, Some(fields)) => {
            let keys: Vec<&str> = fields.split(',').collect();
            list::table_with(columns, &keys, rows).to_string().into_bytes()
        }
    }
}
