//! Web server: Nodepool 11's lists, health, metrics, the live page, dumps, and the reasons why a request waits. It
//! reads published snapshots; only `/why`, `/dump` and the live page's reasons query actors.

pub(crate) mod api_call_stats;
pub(crate) mod assets;
pub(crate) mod content_negotiation;
mod dumps;
mod health;
mod lists;
pub(crate) mod live_stream;
pub mod live_view;
mod metrics;
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

/// Timeout of a query for the verdict of a pool worker.
const WHY_TIMEOUT: Duration = Duration::from_secs(1);
/// A request id has a priority and ten digits; longer texts are rejected.
const MAX_ID_LENGTH: usize = 32;
/// Maximum number of connections; further ones wait until one is closed.
const MAX_CONNECTIONS: usize = 2048;
/// Connections may use the file descriptor limit divided by this; the rest is for ZooKeeper, clouds and logs.
const FD_SHARE_DIVISOR: u64 = 2;
/// Idle seconds before TCP keep-alive probes. Without them, a client that lost power in the middle of a request would
/// keep its connection forever.
const KEEPALIVE_IDLE_S: u32 = 60;
/// Timeout for receiving the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Milliseconds without an acknowledgement of sent data after which a connection is closed.
const TCP_USER_TIMEOUT_MS: u32 = 30_000;

fn max_connections() -> usize {
    let (files, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((RLIM_INFINITY, RLIM_INFINITY));
    usize::try_from(files / FD_SHARE_DIVISOR).unwrap_or(MAX_CONNECTIONS).clamp(1, MAX_CONNECTIONS)
}

/// Binds the configured port; the launcher does not start if the port is in use.
pub fn bind(config: &WebappConfig) -> io::Result<TcpListener> {
    TcpListener::bind((config.listen_address.trim_matches(['[', ']']), config.port))
}

/// Binds the first free port from `first_port` on.
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

/// `host:port` of the web server for other machines; a wildcard address is replaced by the host name.
pub fn advertised_address(local_address: SocketAddr, hostname: &str) -> String {
    match local_address.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) | IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
            format!("{hostname}:{}", local_address.port())
        }
        _ => local_address.to_string(),
    }
}

/// Starts the web server with one thread of its own; its handle stops it.
///
/// The data of the live page is collected on `live_view_arbiter`, a thread without other tasks.
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
            .route("/api/metrics", web::route().to(live_stream::metrics))
            .route("/api/providers", web::route().to(live_stream::providers))
            .route("/api/timeseries", web::route().to(live_stream::timeseries))
            .route("/api/node/{id}", web::route().to(live_stream::node))
            .route("/api/request/{id}", web::route().to(live_stream::node_request))
            .route("/dump", web::route().to(dumps::dump))
            .route("/why/{request}", web::route().to(why))
            .default_service(web::route().to(not_found));
        for (path, kind) in ListKind::ALL {
            app = app.route(
                path,
                web::route().to(move |request, context, lists| lists::respond(kind, request, context, lists)),
            );
        }
        app
    };
    let server = HttpServer::new(app)
        .workers(1)
        .max_connections(max_connections())
        .on_connect(|stream, data| {
            let Some(stream) = stream.downcast_ref::<TcpStream>() else { return };
            // Responses are sent in chunks; the last one must not wait for the acknowledgement of the others. These
            // calls fail only for a closed connection.
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

/// Last verdict of each pool of this launcher about a request; empty if no pool has one.
async fn why(request: HttpRequest, id: web::Path<String>, context: web::Data<ProcessContext>) -> HttpResponse {
    let Some(id) = request_id(&id) else {
        let error = "a request id is digits, a dash and digits, such as 200-0000000042";
        return HttpResponse::BadRequest().json(json!({ "error": error }));
    };
    let replies = context.explain_registry.request_all(ExplainRequest(id.clone()), WHY_TIMEOUT).await;
    let mut verdicts: Vec<PoolVerdict> = Vec::new();
    for (actor, reply) in replies {
        match reply {
            Ok(verdict) => verdicts.extend(verdict),
            Err(reason) => warn!(actor = actor.actor, name = actor.name, ?reason, "no verdict received"),
        }
    }
    let body = serde_json::to_string(&verdicts).expect("verdicts are strings and a finite number");
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
    fn invalid_request_ids_are_rejected() {
        assert_eq!(request_id("200-0000000042"), Some(RequestId::from("200-0000000042")));
        let long = format!("200-{}", "0".repeat(100));
        for text in ["", "-", "200", "200-", "-1", "200-00x", "200-0000000042/lock", "../etc", "٢-٢", &long] {
            assert_eq!(request_id(text), None, "{text}");
        }
    }

    #[test]
    fn wildcard_address_is_advertised_as_host_name() {
        let check = |listening: &str, expected: &str| {
            assert_eq!(advertised_address(listening.parse().unwrap(), "nl01"), expected);
        };
        check("0.0.0.0:8005", "nl01:8005");
        check("[::]:8005", "nl01:8005");
        check("127.0.0.1:8005", "127.0.0.1:8005");
        check("[::1]:8005", "[::1]:8005");
    }
}
