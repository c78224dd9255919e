//! Answers with the headers and bodies of the original.

use std::convert::Infallible;
use std::io::Write;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use actix_web::body::{BodySize, BoxBody, MessageBody, SizedStream};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{self, HeaderMap, HeaderValue, HttpDate};
use actix_web::http::{Method, StatusCode};
use actix_web::middleware::Next;
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::stream;

use super::content_negotiation::ErrorFormat;
use crate::actors::runtime::clock;

/// Answers may be kept this long, by us and by whoever stands between.
pub const MAX_AGE: Duration = Duration::from_secs(1);
/// What is written at once.
const CHUNK_SIZE: usize = 32 * 1024;
/// Bytes of large bodies that may be in memory at a time, in the cache and for clients that read slowly.
const MAX_BODY_BYTES_IN_MEMORY: usize = 256 << 20;

static BODY_BYTES_IN_MEMORY: AtomicUsize = AtomicUsize::new(0);

/// A body that counts for as long as anybody has a part of it.
struct CountedBody(Vec<u8>);

impl AsRef<[u8]> for CountedBody {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        BODY_BYTES_IN_MEMORY.fetch_sub(self.0.len(), Ordering::Relaxed);
    }
}

/// Takes the room for a body; `None` while clients that do not read what they asked for have it all.
pub fn count_body(body: Vec<u8>) -> Option<Bytes> {
    let size = body.len();
    let taken = BODY_BYTES_IN_MEMORY.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
        Some(held + size).filter(|sum| *sum <= MAX_BODY_BYTES_IN_MEMORY)
    });
    taken.ok().map(|_| Bytes::from_owner(CountedBody(body)))
}

/// Now, by the clock that everybody else goes by.
pub fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::try_from_secs_f64(clock::now().0).unwrap_or_default()
}

/// Makes an answer to the end, also for a client that has gone meanwhile: the work goes on all the same, and whoever asks next is to
/// find that it is under way.
pub async fn run_to_completion<T: 'static>(work: impl Future<Output = Option<T>> + 'static) -> Option<T> {
    actix_rt::spawn(work).await.ok().flatten()
}

/// With the headers that every good answer has; nothing is sent again to who has it already.
pub fn success(request: &HttpRequest, content_type: &'static str, created: SystemTime, body: Bytes) -> HttpResponse {
    let (mut response, is_not_modified) = response_with_dates(request, created);
    if is_not_modified {
        return response.status(StatusCode::NOT_MODIFIED).finish();
    }
    response.insert_header((header::CONTENT_TYPE, HeaderValue::from_static(content_type)));
    with_body(response, body)
}

/// The same, packed: intermediaries are told that others may want it otherwise.
pub fn compressed(request: &HttpRequest, content_type: &'static str, created: SystemTime, body: Bytes) -> HttpResponse {
    let (mut response, is_not_modified) = response_with_dates(request, created);
    if is_not_modified {
        return response.status(StatusCode::NOT_MODIFIED).finish();
    }
    response
        .insert_header((header::CONTENT_TYPE, HeaderValue::from_static(content_type)))
        .insert_header((header::CONTENT_ENCODING, HeaderValue::from_static("gzip")))
        .insert_header((header::VARY, HeaderValue::from_static("Accept-Encoding")));
    with_body(response, body)
}

/// Its dates, and whether the client has it. Dates have whole seconds, so an answer made within the second that a client names
/// is the one that it has.
fn response_with_dates(request: &HttpRequest, created: SystemTime) -> (HttpResponseBuilder, bool) {
    let since_epoch = created.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(since_epoch.as_secs());
    let mut response = HttpResponse::Ok();
    response
        .insert_header((header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*")))
        .insert_header((header::CACHE_CONTROL, HeaderValue::from_static("max-age=1, public")))
        .insert_header((header::LAST_MODIFIED, HttpDate::from(modified)))
        .insert_header((header::EXPIRES, HttpDate::from(modified + MAX_AGE)));
    (response, is_not_modified_since(request.headers(), modified))
}

/// A body in pieces, of which the next one is taken when the one before has been sent.
pub fn with_body(mut response: HttpResponseBuilder, body: Bytes) -> HttpResponse {
    if body.len() <= CHUNK_SIZE {
        return response.body(body);
    }
    let length = body.len() as u64;
    let chunks = stream::unfold(body, |mut rest| async move {
        let chunk = rest.split_to(CHUNK_SIZE.min(rest.len()));
        (!chunk.is_empty()).then_some((Ok::<_, actix_web::Error>(chunk), rest))
    });
    response.body(SizedStream::new(length, Box::pin(chunks)))
}

/// The length of a body and nothing of it: what is asked for with HEAD.
struct HeadBody(u64);

impl MessageBody for HeadBody {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.0)
    }

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Infallible>>> {
        Poll::Ready(None)
    }
}

/// actix-http forgets which of two requests in one packet was HEAD, and would send the body of the first.
pub async fn strip_head_body(
    request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
    let is_head = request.method() == Method::HEAD;
    let response = next.call(request).await?;
    Ok(match response.response().body().size() {
        BodySize::Sized(length) if is_head => response.map_body(|_, _| BoxBody::new(HeadBody(length))),
        _ => response,
    })
}

/// As gzip, where there is room for it.
pub fn compress(body: &Bytes) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 8), Compression::fast());
    encoder.write_all(body).expect("memory takes what is written");
    count_body(encoder.finish().expect("memory takes what is written"))
}

fn is_not_modified_since(headers: &HeaderMap, modified: SystemTime) -> bool {
    let given = headers.get(header::IF_MODIFIED_SINCE).and_then(|value| value.to_str().ok());
    let given = given.and_then(|text| text.parse::<HttpDate>().ok());
    given.is_some_and(|since| SystemTime::from(since) >= modified)
}

pub fn not_found(request: &HttpRequest) -> HttpResponse {
    error_response(request, StatusCode::NOT_FOUND, "The resource could not be found.")
}

pub fn unavailable(request: &HttpRequest) -> HttpResponse {
    error_response(
        request,
        StatusCode::SERVICE_UNAVAILABLE,
        "The server is currently unavailable. Please try again at a later time.",
    )
}

/// The bytes are those of WebOb, which the original uses; the explanation is one of ours and needs no escapes.
fn error_response(request: &HttpRequest, status: StatusCode, explanation: &str) -> HttpResponse {
    let title = status.canonical_reason().unwrap_or("Error");
    let code = format!("{} {title}", status.as_u16());
    let (content_type, body) = match ErrorFormat::from_headers(request.headers()) {
        ErrorFormat::Html => (
            "text/html; charset=UTF-8",
            format!(
                "<html>\n <head>\n  <title>{code}</title>\n </head>\n <body>\n  <h1>{code}</h1>\n  {explanation}<br /><br />\n\n\n\n </body>\n</html>"
            ),
        ),
        ErrorFormat::Json => (
            "application/json",
            format!(r#"{{"message": "{explanation}<br /><br />\n\n\n", "code": "{code}", "title": "{title}"}}"#),
        ),
        ErrorFormat::Text => ("text/plain; charset=UTF-8", format!("{code}\n\n{explanation}\n\n   ")),
    };
    HttpResponse::build(status).content_type(content_type).body(body)
}
