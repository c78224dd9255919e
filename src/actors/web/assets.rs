//! Static assets of the live page, embedded in the program, so that the page needs no other server.

use actix_web::http::header::{self, HeaderValue};
use actix_web::web::Path;
use actix_web::{HttpRequest, HttpResponse};
use rust_embed::RustEmbed;

use super::responses::{self, not_found};

#[derive(RustEmbed)]
#[folder = "web/"]
struct Assets;

/// Content security policy: only files of this server and no inline scripts or styles, so that the content of a record
/// is never executed.
const CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub async fn index(request: HttpRequest) -> HttpResponse {
    file(&request, "index.html")
}

pub async fn asset(request: HttpRequest, name: Path<String>) -> HttpResponse {
    file(&request, &name)
}

fn file(request: &HttpRequest, name: &str) -> HttpResponse {
    let content_type = match name.rsplit_once('.').map(|(_, suffix)| suffix) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => return not_found(request),
    };
    let Some(file) = Assets::get(name) else { return not_found(request) };
    let hash: String = file.metadata.sha256_hash()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let tag = format!("\"{hash}\"");
    let mut response = HttpResponse::Ok();
    response
        .content_type(content_type)
        .insert_header((header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CSP)))
        .insert_header((header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")))
        .insert_header((header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")))
        .insert_header(("Cross-Origin-Resource-Policy", "same-origin"))
        .insert_header((header::CACHE_CONTROL, HeaderValue::from_static("no-cache")))
        .insert_header((header::ETAG, tag.clone()));
    let client_tag = request.headers().get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    if client_tag == Some(tag.as_str()) {
        return response.status(actix_web::http::StatusCode::NOT_MODIFIED).finish();
    }
    responses::with_body(response, file.data.into_owned().into())
}
