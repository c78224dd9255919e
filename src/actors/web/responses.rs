//! HTTP responses with the headers and bodies of Nodepool 11.

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

/// Time for which responses may be cached, by this process and by proxies.
pub const MAX_AGE: Duration = Duration::from_secs(1);
/// Size of the chunks of a body.
const CHUNK_SIZE: usize = 32 * 1024;
/// Limit for bodies in memory, in caches and for slow clients together.
const MAX_BODY_BYTES_IN_MEMORY: usize = 256 << 20;

static BODY_BYTES_IN_MEMORY: AtomicUsize = AtomicUsize::new(0);

/// A body that counts towards the limit until its last part is dropped.
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

/// Counts a body towards the limit; `None` if slow clients have exhausted it.
pub fn count_body(body: Vec<u8>) -> Option<Bytes> {
    let size = body.len();
    let updated = BODY_BYTES_IN_MEMORY.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
        Some(used + size).filter(|sum| *sum <= MAX_BODY_BYTES_IN_MEMORY)
    });
    updated.ok().map(|_| Bytes::from_owner(CountedBody(body)))
}

/// Current time by the clock of the actors, which a simulation controls.
pub fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::try_from_secs_f64(clock::now().0).unwrap_or_default()
}

/// Completes a response even if the client disconnects. The blocking work continues anyway, and the next request can
/// use its result.
pub async fn run_to_completion<T: 'static>(work: impl Future<Output = Option<T>> + 'static) -> Option<T> {
    actix_rt::spawn(work).await.ok().flatten()
}

/// Success response with the common headers; 304 if the client already has it.
pub fn success(request: &HttpRequest, content_type: &'static str, created: SystemTime, body: Bytes) -> HttpResponse {
    let (mut response, is_not_modified) = response_with_dates(request, created);
    if is_not_modified {
        return response.status(StatusCode::NOT_MODIFIED).finish();
    }
    response.insert_header((header::CONTENT_TYPE, HeaderValue::from_static(content_type)));
    with_body(response, body)
}

/// Success response with a compressed body, and with `Vary` for proxies.
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

/// Response with its dates, and whether the client already has it. HTTP dates have whole seconds, so a response created
/// within the second that the client names counts as the same one.
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

/// Sends a body in chunks; the next chunk is taken when the previous one is sent.
pub fn with_body(mut response: HttpResponseBuilder, body: Bytes) -> HttpResponse {
    if body.len() <= CHUNK_SIZE {
        return response.body(body);
    }
    let length = body.len() as u64;
    let chunks = stream::unfold(body, |mut remaining| async move {
        let chunk = remaining.split_to(CHUNK_SIZE.min(remaining.len()));
        (!chunk.is_empty()).then_some((Ok::<_, actix_web::Error>(chunk), remaining))
    });
    response.body(SizedStream::new(length, Box::pin(chunks)))
}

/// Body of a response to HEAD: a length without data.
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

/// Workaround: for two pipelined requests, actix-http loses the information that the first one was HEAD, and would send
/// its body.
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

/// Compresses a body with gzip; `None` if the limit for bodies is exhausted.
pub fn compress(body: &Bytes) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 8), Compression::fast());
    encoder.write_all(body).expect("writing to memory cannot fail");
    count_body(encoder.finish().expect("writing to memory cannot fail"))
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

/// Error response with the bytes of WebOb, which Nodepool 11 uses. The explanation is a constant and needs no escaping.
fn error_response(request: &HttpRequest, status: StatusCode, explanation: &str) -> HttpResponse {
    let title = status.canonical_reason().unwrap_or("Error");
    let code = format!("{} {title}", status.as_u16());
    let (content_type, body) = match ErrorFormat::of(request) {
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
