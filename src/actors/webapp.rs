//! The web port: whether we are ready, and why a request waits.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actix_web::dev::Server;
use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderMap, HeaderValue, HttpDate};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use serde_json::json;
use tracing::warn;

use super::clock;
use super::messages::AskWhy;
use super::shared::Shared;
use crate::model::config::WebappConfig;
use crate::model::ids::RequestId;
use crate::model::status::Why;

/// How long a pool worker may take to say what it decided.
const WHY_DEADLINE: Duration = Duration::from_secs(1);
/// Answers may be kept this long by whoever stands between.
const MAX_AGE: Duration = Duration::from_secs(1);
/// Ids are ten digits with a priority before them; twice that is no id.
const LONGEST_ID: usize = 32;

/// Binds the port of the configuration; a port that is taken is a reason not to start.
pub fn bind(config: &WebappConfig) -> io::Result<TcpListener> {
    TcpListener::bind((config.listen_address.trim_matches(['[', ']']), config.port))
}

/// The first free port from this one on.
pub fn bind_from(address: Ipv4Addr, first_port: u16) -> io::Result<TcpListener> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for port in first_port..=first_port.saturating_add(100) {
        match TcpListener::bind((address, port)) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// `host:port` by which other machines find what listens here: a wildcard is replaced by our name.
pub fn advertised(listening: SocketAddr, hostname: &str) -> String {
    match listening.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) | IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
            format!("{hostname}:{}", listening.port())
        }
        _ => listening.to_string(),
    }
}

/// Serves until the handle of the server stops it. One thread, which is not one of those that work.
pub fn serve(listener: TcpListener, shared: Arc<Shared>) -> io::Result<Server> {
    let shared = web::Data::from(shared);
    let app = move || {
        App::new()
            .app_data(shared.clone())
            .route("/ready", web::route().to(ready))
            .route("/why/{request}", web::route().to(why))
            .default_service(web::route().to(not_found))
    };
    Ok(HttpServer::new(app).workers(1).disable_signals().shutdown_timeout(1).listen(listener)?.run())
}

async fn ready(request: HttpRequest, shared: web::Data<Shared>) -> HttpResponse {
    if *shared.ready.borrow() {
        let format = Format::asked_for(request.headers());
        return success(&request, format.content_type(), "OK".to_owned());
    }
    failure(
        &request,
        StatusCode::SERVICE_UNAVAILABLE,
        "The server is currently unavailable. Please try again at a later time.",
    )
}

/// What every pool of this launcher last decided about a request; nothing where nobody has seen it.
async fn why(request: HttpRequest, id: web::Path<String>, shared: web::Data<Shared>) -> HttpResponse {
    let Some(id) = request_id(&id) else {
        let error = "a request id is digits, a dash and digits, such as 200-0000000042";
        return HttpResponse::BadRequest().json(json!({ "error": error }));
    };
    let answers = shared.why.ask_all(AskWhy(id.clone()), WHY_DEADLINE).await;
    let mut verdicts: Vec<Why> = Vec::new();
    for (asked, answer) in answers {
        match answer {
            Ok(verdict) => verdicts.extend(verdict),
            Err(reason) => warn!(actor = asked.actor, name = asked.name, ?reason, "no verdict to be had"),
        }
    }
    let body = serde_json::to_string(&verdicts).expect("verdicts are texts and a finite number");
    success(&request, "application/json", body)
}

async fn not_found(request: HttpRequest) -> HttpResponse {
    failure(&request, StatusCode::NOT_FOUND, "The resource could not be found.")
}

fn request_id(text: &str) -> Option<RequestId> {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let (priority, sequence) = text.split_once('-')?;
    (text.len() <= LONGEST_ID && digits(priority) && digits(sequence)).then(|| RequestId::from(text))
}

/// With the headers that every good answer has; nothing is sent again to who has it already.
fn success(request: &HttpRequest, content_type: &'static str, body: String) -> HttpResponse {
    let now = Duration::try_from_secs_f64(clock::now().0.floor()).unwrap_or_default();
    let modified = SystemTime::UNIX_EPOCH + now;
    let mut response = HttpResponse::Ok();
    response
        .insert_header((header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*")))
        .insert_header((header::CACHE_CONTROL, HeaderValue::from_static("max-age=1, public")))
        .insert_header((header::LAST_MODIFIED, HttpDate::from(modified)))
        .insert_header((header::EXPIRES, HttpDate::from(modified + MAX_AGE)));
    if is_known_since(request.headers(), modified) {
        return response.status(StatusCode::NOT_MODIFIED).finish();
    }
    response.insert_header((header::CONTENT_TYPE, HeaderValue::from_static(content_type))).body(body)
}

fn is_known_since(headers: &HeaderMap, modified: SystemTime) -> bool {
    let given = headers.get(header::IF_MODIFIED_SINCE).and_then(|value| value.to_str().ok());
    let given = given.and_then(|text| text.parse::<HttpDate>().ok());
    given.is_some_and(|since| SystemTime::from(since) >= modified)
}

fn failure(request: &HttpRequest, status: StatusCode, explanation: &str) -> HttpResponse {
    let title = status.canonical_reason().unwrap_or("Error");
    let code = format!("{} {title}", status.as_u16());
    let mut response = HttpResponse::build(status);
    match Format::asked_for(request.headers()) {
        Format::Json => response.json(json!({ "message": explanation, "code": code, "title": title })),
        Format::Text => response.content_type("text/plain; charset=UTF-8").body(format!("{code}\n\n{explanation}\n")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    Json,
}

impl Format {
    fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; charset=UTF-8",
            Format::Json => "application/json",
        }
    }

    /// JSON only for who prefers it to both kinds of text; whoever accepts none of the three gets text.
    fn asked_for(headers: &HeaderMap) -> Self {
        let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("*/*");
        let json = quality(accepted, "application", "json");
        let text = quality(accepted, "text", "html").max(quality(accepted, "text", "plain"));
        if json > text { Format::Json } else { Format::Text }
    }
}

/// How welcome a type is, in thousandths: the most specific entry of the `Accept` header counts.
fn quality(accepted: &str, kind: &str, subtype: &str) -> u32 {
    let entries = accepted.split(',').filter_map(|entry| {
        let mut parts = entry.split(';').map(str::trim);
        let (entry_kind, entry_subtype) = parts.next()?.split_once('/')?;
        let is = |given: &str, wanted: &str| given.eq_ignore_ascii_case(wanted);
        let specificity = match (entry_kind, entry_subtype) {
            (left, right) if is(left, kind) && is(right, subtype) => 2,
            (left, "*") if is(left, kind) => 1,
            ("*", "*") => 0,
            _ => return None,
        };
        let weight = parts.find_map(|parameter| parameter.strip_prefix("q=")).map_or(1.0, |text| {
            let weight: f64 = text.trim().parse().unwrap_or(0.0);
            weight.clamp(0.0, 1.0)
        });
        Some((specificity, (weight * 1000.0) as u32))
    });
    entries.max_by_key(|(specificity, _)| *specificity).map_or(0, |(_, weight)| weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(accept: &str) -> Format {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_str(accept).unwrap());
        Format::asked_for(&headers)
    }

    // operations.md 3.3
    #[test]
    fn json_is_for_who_prefers_it_to_both_texts() {
        let json = ["application/json", "application/json, text/plain;q=0.9", "APPLICATION/JSON;q=0.5, image/png"];
        let text = [
            "application/json, text/plain, */*",
            "text/html,application/xhtml+xml,*/*;q=0.8",
            "*/*",
            "application/json;q=0, */*",
            "image/png",
            "application/json;q=nonsense",
            ",;/,,",
        ];
        for accept in json {
            assert_eq!(format(accept), Format::Json, "{accept}");
        }
        for accept in text {
            assert_eq!(format(accept), Format::Text, "{accept}");
        }
    }

    #[test]
    fn only_what_looks_like_a_request_id_is_one() {
        assert_eq!(request_id("200-0000000042"), Some(RequestId::from("200-0000000042")));
        let long = format!("200-{}", "0".repeat(100));
        for text in ["", "-", "200", "200-", "-1", "200-00x", "200-0000000042/lock", "../etc", "٢-٢", &long] {
            assert_eq!(request_id(text), None, "{text}");
        }
    }

    #[test]
    fn a_wildcard_is_advertised_by_our_name() {
        let check = |listening: &str, expected: &str| {
            assert_eq!(advertised(listening.parse().unwrap(), "nl01"), expected);
        };
        check("0.0.0.0:8005", "nl01:8005");
        check("[::]:8005", "nl01:8005");
        check("127.0.0.1:8005", "127.0.0.1:8005");
        check("[::1]:8005", "[::1]:8005");
    }
}
