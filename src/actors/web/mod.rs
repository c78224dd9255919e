//! The web port: the lists of the original, whether we are ready and well, and why a request waits. It reads pictures only.

pub(crate) mod api_call_stats;
pub(crate) mod assets;
pub(crate) mod content_negotiation;
pub(crate) mod live_stream;
pub mod live_view;
pub(crate) mod peer_credentials;
pub(crate) mod peers;
pub(crate) mod responses;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use actix::ArbiterHandle;
use actix_rt::net::TcpStream;
use actix_web::dev::Server;
use actix_web::http::header::{HeaderValue, X_CONTENT_TYPE_OPTIONS};
use actix_web::middleware::{DefaultHeaders, from_fn};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{KeepAlive, TcpKeepIdle, TcpUserTimeout};
use serde_json::json;
use tracing::warn;

use super::process::context::ProcessContext;
use super::runtime::messages::ExplainRequest;
use super::web::lists::{ListCache, ListKind};
use super::web::live_stream::LiveView;
use super::web::metrics::MetricsCache;
use super::web::peer_credentials::SocketPair;
use nodepool_model::config::WebappConfig;
use nodepool_model::records::ids::RequestId;
use nodepool_model::report::status::PoolVerdict;

mod dumps;
mod health;
mod lists;
mod metrics;

/// How long a pool worker may take to say what it decided.
const WHY_TIMEOUT: Duration = Duration::from_secs(1);
/// Ids are ten digits with a priority before them; twice that is no id.
const MAX_ID_LENGTH: usize = 32;
/// Connections at a time; further ones wait until one of these ends.
const MAX_CONNECTIONS: usize = 2048;
/// Of the files that the process may have open; the rest is for ZooKeeper, clouds and logs, however many look at pages.
const FD_SHARE_DIVISOR: u64 = 2;
/// A client that has said nothing for so many seconds is asked whether it is there. One that lost its power in the middle of a request
/// would have its connection for ever.
const KEEPALIVE_IDLE_S: u32 = 60;
/// How long a client may take to send the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// A client that takes nothing for so long, although there is something for it, is gone. Milliseconds.
const TCP_USER_TIMEOUT_MS: u32 = 30_000;

fn max_connections() -> usize {
    let (files, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((RLIM_INFINITY, RLIM_INFINITY));
    usize::try_from(files / FD_SHARE_DIVISOR).unwrap_or(MAX_CONNECTIONS).clamp(1, MAX_CONNECTIONS)
}

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
pub fn advertised_address(local_address: SocketAddr, hostname: &str) -> String {
    match local_address.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) | IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
            format!("{hostname}:{}", local_address.port())
        }
        _ => local_address.to_string(),
    }
}

/// Serves until the handle of the server stops it. One thread, which is not one of those that work.
///
/// What the live page shows is gathered on `viewers`, a thread that does nothing else.
pub fn serve(
    listener: TcpListener,
    context: Arc<ProcessContext>,
    live_view_arbiter: &ArbiterHandle,
) -> io::Result<Server> {
    let (context, lists) = (web::Data::from(context), web::Data::new(ListCache::default()));
    let metrics_cache = web::Data::new(MetricsCache::default());
    let live_view = Arc::new(LiveView::default());
    live_view_arbiter.spawn(live_stream::run(
        live_view.clone(),
        context.clone().into_inner(),
        context.snapshot_feed.subscribe_transitions(),
    ));
    let live_view = web::Data::from(live_view);
    let app = move || {
        let mut app = App::new()
            .app_data(context.clone())
            .app_data(lists.clone())
            .app_data(metrics_cache.clone())
            .app_data(live_view.clone())
            .wrap(from_fn(responses::strip_head_body))
            .wrap(DefaultHeaders::new().add((X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))))
            .route("/ready", web::route().to(health::ready))
            .route("/health/live", web::route().to(health::live))
            .route("/health/ready", web::route().to(health::is_ready))
            .route("/metrics", web::route().to(metrics::metrics))
            .route("/", web::route().to(assets::index))
            .route("/static/{name}", web::route().to(assets::asset))
            .route("/api/state", web::route().to(live_stream::state))
            .route("/api/stream", web::route().to(live_stream::stream))
            .route("/api/figures", web::route().to(live_stream::metrics))
            .route("/api/providers", web::route().to(live_stream::providers))
            .route("/api/plots", web::route().to(live_stream::timeseries))
            .route("/api/node/{id}", web::route().to(live_stream::node))
            .route("/api/request/{id}", web::route().to(live_stream::node_request))
            .route("/dump", web::route().to(dumps::dump))
            .route("/why/{request}", web::route().to(why))
            .default_service(web::route().to(not_found));
        for (path, subject) in ListKind::ALL {
            app = app.route(
                path,
                web::route().to(move |request, context, lists| lists::respond(subject, request, context, lists)),
            );
        }
        app
    };
    let server = HttpServer::new(app)
        .workers(1)
        .max_connections(max_connections())
        .on_connect(|stream, data| {
            // A connection that is gone already needs nothing.
            let Some(stream) = stream.downcast_ref::<TcpStream>() else { return };
            // Answers go out in pieces; the last one is not to wait until the ones before it are acknowledged.
            let _ = stream.set_nodelay(true);
            let _ = setsockopt(stream, TcpUserTimeout, &TCP_USER_TIMEOUT_MS);
            let _ = setsockopt(stream, TcpKeepIdle, &KEEPALIVE_IDLE_S);
            let _ = setsockopt(stream, KeepAlive, &true);
            if let (Ok(client), Ok(local)) = (stream.peer_addr(), stream.local_addr()) {
                data.insert(SocketPair::new(client, local));
            }
        })
        .client_request_timeout(HEADER_TIMEOUT)
        .disable_signals()
        .shutdown_timeout(1);
    Ok(server.listen(listener)?.run())
}

async fn not_found(request: HttpRequest) -> HttpResponse {
    responses::not_found(&request)
}

/// What every pool of this launcher last decided about a request; nothing where nobody has seen it.
async fn why(request: HttpRequest, id: web::Path<String>, context: web::Data<ProcessContext>) -> HttpResponse {
    let Some(id) = request_id(&id) else {
        let error = "a request id is digits, a dash and digits, such as 200-0000000042";
        return HttpResponse::BadRequest().json(json!({ "error": error }));
    };
    let answers = context.explain_registry.request_all(ExplainRequest(id.clone()), WHY_TIMEOUT).await;
    let mut verdicts: Vec<PoolVerdict> = Vec::new();
    for (actor, answer) in answers {
        match answer {
            Ok(verdict) => verdicts.extend(verdict),
            Err(reason) => warn!(actor = actor.actor, name = actor.name, ?reason, "no verdict to be had"),
        }
    }
    let body = serde_json::to_string(&verdicts).expect("verdicts are texts and a finite number");
    responses::success(&request, "application/json", responses::now(), body.into())
}

fn request_id(text: &str) -> Option<RequestId> {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let (priority, sequence) = text.split_once('-')?;
    (text.len() <= MAX_ID_LENGTH && digits(priority) && digits(sequence)).then(|| RequestId::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(advertised_address(listening.parse().unwrap(), "nl01"), expected);
        };
        check("0.0.0.0:8005", "nl01:8005");
        check("[::]:8005", "nl01:8005");
        check("127.0.0.1:8005", "127.0.0.1:8005");
        check("[::1]:8005", "[::1]:8005");
    }
}
