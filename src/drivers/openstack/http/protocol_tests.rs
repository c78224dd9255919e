//! Tests of the connection against a scripted cloud with one fault per case.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::openstack::calls::{self, CallKind};

/// A response: its status, further header lines, its body.
struct ScriptedReply(u16, &'static str, String);

/// Used as a status: the cloud sends no response.
const NO_RESPONSE: u16 = 0;

/// Replaces the usual reply to a call such as `GET /compute/`.
type ReplyOverride = dyn Fn(&str) -> Option<ScriptedReply> + Send + Sync;

struct ScriptedCloud {
    base: String,
    received: Mutex<Vec<String>>,
    /// Services in the catalogue.
    services: Mutex<Vec<&'static str>>,
    /// The version in Nova's path.
    nova: Mutex<&'static str>,
    /// Keeps each connection until the next request, and closes it then.
    closes_kept_connections: AtomicBool,
    reply_override: Box<ReplyOverride>,
}

impl ScriptedCloud {
    async fn start(reply_override: impl Fn(&str) -> Option<ScriptedReply> + Send + Sync + 'static) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let cloud = Arc::new(Self {
            base,
            received: Mutex::default(),
            services: Mutex::new(vec!["compute", "network"]),
            nova: Mutex::new("v2.1"),
            closes_kept_connections: AtomicBool::new(false),
            reply_override: Box::new(reply_override),
        });
        let serving = cloud.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        cloud
    }

    fn connection(&self) -> Connection {
        let mut settings = crate::openstack::test_settings::cloud_with("");
        settings.identity.auth_url = format!("{}/identity/v3", self.base);
        let timings = Arc::new(Timings::new(&settings));
        Connection::new(Arc::new(settings), timings).unwrap()
    }

    /// Number of received calls with this prefix.
    fn count(&self, call: &str) -> usize {
        self.received.lock().unwrap().iter().filter(|received| received.starts_with(call)).count()
    }

    async fn serve(self: Arc<Self>, mut stream: TcpStream) {
        let Some(call) = receive(&mut stream).await else { return };
        self.received.lock().unwrap().push(call.clone());
        let ScriptedReply(status, lines, body) =
            (self.reply_override)(&call).unwrap_or_else(|| self.default_reply(&call));
        if status == NO_RESPONSE {
            return std::future::pending().await;
        }
        let closes_later = self.closes_kept_connections.load(Ordering::Relaxed);
        let (length, close) = (body.len(), if closes_later { "" } else { "connection: close\r\n" });
        let text = format!("HTTP/1.1 {status} x\r\n{lines}{close}content-length: {length}\r\n\r\n{body}");
        let _ = stream.write_all(text.as_bytes()).await;
        if closes_later {
            receive(&mut stream).await;
        }
    }

    fn default_reply(&self, call: &str) -> ScriptedReply {
        let base = &self.base;
        let versions = |id: &str, path: &str| {
            let links = json!([{"rel": "self", "href": format!("{base}{path}")}]);
            json!({"versions": [{"id": id, "status": "CURRENT", "version": "2.93", "min_version": "2.1", "links": links}]})
        };
        match call {
            "POST /identity/v3/auth/tokens" => {
                let service = |kind: &str| {
                    let url = format!("{base}/{kind}/");
                    json!({"type": kind, "endpoints": [{"interface": "public", "url": url}]})
                };
                let catalogue: Vec<_> = self.services.lock().unwrap().iter().map(|kind| service(kind)).collect();
                let token = json!({"token": {"catalog": catalogue, "project": {"id": "p"}}});
                let secrets = ["x-subject-token: secret-1\r\n", "x-subject-token: secret-2\r\n"];
                ScriptedReply(201, secrets[self.count(call) % 2], token.to_string())
            }
            "GET /compute/" => ScriptedReply(
                200,
                "",
                versions("v2.1", &format!("/compute/{}/", self.nova.lock().unwrap())).to_string(),
            ),
            "GET /image/" => ScriptedReply(200, "", versions("v2.15", "/image/v2/").to_string()),
            "GET /network/" => ScriptedReply(200, "", versions("v2.0", "/network/v2.0/").to_string()),
            _ => ScriptedReply(200, "", "{}".to_owned()),
        }
    }
}

/// The next call on this connection.
async fn receive(stream: &mut TcpStream) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).await.ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    stream.read_exact(&mut vec![0; length.unwrap_or(0)]).await.ok()?;
    let call: Vec<&str> = head.split(' ').take(2).collect();
    Some(call.join(" "))
}

fn servers() -> Request {
    Request::new(Api::Compute, Method::GET, &["servers"])
}

fn text_of(failure: &Failure) -> String {
    failure.error.to_string()
}

#[tokio::test]
async fn a_link_in_a_version_document_names_only_the_version() {
    for link in ["cloud.example.com:8774/v2.1/", "http://internal:8774/v2.1/", "/v2.1/", "v2.1"] {
        let cloud = ScriptedCloud::start(move |call| {
            let links = json!([{"rel": "self", "href": link}]);
            let versions = json!({"versions": [{"id": "v2.1", "status": "CURRENT", "links": links}]});
            (call == "GET /compute/").then(|| ScriptedReply(200, "", versions.to_string()))
        })
        .await;
        let connection = cloud.connection();
        assert_eq!(connection.discover().await.unwrap().microversion, None);
        connection.send(&servers(), &CallGuard::none()).await.unwrap();
        assert_eq!(cloud.count("GET /compute/v2.1/servers"), 1, "{link}");
    }
}

/// The request to create a server.
fn creation() -> Request {
    let CallKind::Send(request, _) = calls::create_server(json!({}), None).kind else {
        panic!("the call is a request")
    };
    *request
}

#[tokio::test]
async fn redirects_keep_the_method() {
    let moved = |status, line| Some(ScriptedReply(status, line, String::new()));
    let cloud = ScriptedCloud::start(move |call| {
        let version = json!({"version": {"id": "v3.14", "status": "stable", "links": []}});
        match call {
            "GET /identity/v3" => moved(301, "location: /moved/v3/\r\n"),
            "GET /moved/v3/" => Some(ScriptedReply(200, "", version.to_string())),
            "POST /moved/v3/auth/tokens" => moved(302, "location: /identity/v3/auth/tokens\r\n"),
            "POST /compute/v2.1/servers" => moved(303, "location: servers/new\r\n"),
            "GET /compute/v2.1/servers" => moved(308, "location: /compute/all\r\n"),
            "GET /compute/all" => moved(307, "location: /compute/all\r\n"),
            _ => None,
        }
    })
    .await;
    let connection = cloud.connection();
    connection.send(&creation(), &CallGuard::none()).await.unwrap();
    assert_eq!((cloud.count("POST /moved"), cloud.count("POST /compute/v2.1/servers/new")), (1, 1));
    let endless = connection.send(&servers(), &CallGuard::none()).await.unwrap_err();
    assert!(text_of(&endless).contains("307") && cloud.count("GET /compute/all") == 30, "{endless:?}");
}

#[tokio::test]
async fn a_login_whose_address_is_gone_is_looked_for_again() {
    let cloud = ScriptedCloud::start(|call| {
        let gone = call.starts_with("POST /identity/v2.0/") || call == "POST /identity/v3/auth/tokens";
        gone.then(|| ScriptedReply(404, "", "not here".to_owned()))
    })
    .await;
    let connection = cloud.connection();
    let failure = connection.send(&servers(), &CallGuard::none()).await.unwrap_err();
    let url = format!("Keystone has no login at {}/identity/v3/auth/tokens (404)", cloud.base);
    assert!(text_of(&failure).contains(&url), "{failure:?}");
    assert_eq!(cloud.count("GET /identity/v3"), 1);
    connection.send(&servers(), &CallGuard::none()).await.unwrap_err();
    assert_eq!(cloud.count("GET /identity/v3"), 2);
}

#[tokio::test]
async fn an_unversioned_address_of_cinder_is_refined_to_its_newest_version() {
    let cloud = ScriptedCloud::start(|call| {
        let version = |id: &str| json!({"id": id, "status": "CURRENT", "links": []});
        let versions = json!({"versions": [version("v2.0"), version("v3.0")]});
        (call == "GET /block-storage/").then(|| ScriptedReply(300, "", versions.to_string()))
    })
    .await;
    cloud.services.lock().unwrap().push("block-storage");
    let limits = Request::new(Api::BlockStorage, Method::GET, &["limits"]);
    cloud.connection().send(&limits, &CallGuard::none()).await.unwrap();
    assert_eq!(cloud.count("GET /block-storage/v3/limits"), 1);
}

#[tokio::test]
async fn a_new_token_that_a_service_rejects_is_no_configuration_error() {
    let cloud = ScriptedCloud::start(|call| {
        (call == "GET /compute/v2.1/servers").then(|| ScriptedReply(401, "", String::new()))
    })
    .await;
    let failure = cloud.connection().send(&servers(), &CallGuard::none()).await.unwrap_err();
    assert!(!failure.may_have_worked && matches!(failure.error, CloudError::Outage { .. }), "{failure:?}");
    assert_eq!(cloud.count("POST /identity"), 2);
}

#[tokio::test]
async fn a_creation_that_a_busy_gateway_rejects_may_have_worked() {
    let cloud = ScriptedCloud::start(|call| {
        (call == "POST /compute/v2.1/servers").then(|| ScriptedReply(503, "retry-after: 7\r\n", String::new()))
    })
    .await;
    let failure = cloud.connection().send(&creation(), &CallGuard::none()).await.unwrap_err();
    assert!(failure.may_have_worked && matches!(failure.error, CloudError::Outage { .. }), "{failure:?}");
}

/// Waits in real time until this many calls with this prefix were received; then switches to virtual time.
async fn wait_until_received(cloud: &ScriptedCloud, call: &str, times: usize) {
    while cloud.count(call) < times {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::pause();
}

#[tokio::test]
async fn a_missing_token_fails_within_a_minute() {
    let silent = "POST /identity/v3/auth/tokens";
    let cloud =
        ScriptedCloud::start(move |call| (call == silent).then(|| ScriptedReply(NO_RESPONSE, "", String::new()))).await;
    let (connection, request, guard) = (cloud.connection(), servers(), CallGuard::none());
    let sending = tokio::time::timeout(Duration::from_secs(3600), connection.send(&request, &guard));
    let received = async {
        wait_until_received(&cloud, silent, 1).await;
        tokio::time::Instant::now()
    };
    let (ended, began) = tokio::join!(sending, received);
    let failure = ended.expect("the call ends").unwrap_err();
    assert!(!failure.may_have_worked && text_of(&failure).starts_with("cloud c: "), "{failure:?}");
    assert!(began.elapsed() <= PREPARE_TIMEOUT + Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_silent_keystone_does_not_block_the_next_call() {
    let cloud =
        ScriptedCloud::start(|call| call.starts_with("POST").then(|| ScriptedReply(NO_RESPONSE, "", String::new())))
            .await;
    let connection = cloud.connection();
    let asking = connection.keystone.token(&connection.client);
    let ended = async {
        wait_until_received(&cloud, "POST", 1).await;
        tokio::time::sleep(Duration::from_secs(3600)).await;
    };
    tokio::select! {
        answer = asking => assert_eq!(answer.unwrap_err().kind(), ErrorKind::ProtocolError),
        () = ended => panic!("the token lock is held forever"),
    }
}

/// A cloud whose version document of Nova is this response.
async fn cloud_with_document(status: u16, lines: &'static str, body: &'static str) -> Arc<ScriptedCloud> {
    ScriptedCloud::start(move |call| (call == "GET /compute/").then(|| ScriptedReply(status, lines, body.to_owned())))
        .await
}

#[tokio::test]
async fn without_a_useful_version_document_the_address_of_the_catalog_is_used() {
    let html = "content-type: text/html\r\n";
    let useless = [
        (200, html, "<html>Welcome</html>"),
        (200, "", ""),
        (200, "", "[]"),
        (400, "", "no"),
        (401, "", ""),
        (403, "", ""),
        (404, "", ""),
        (405, "", ""),
        (410, "", ""),
        (500, "", ""),
        (502, html, "<html>"),
        (503, "", ""),
    ];
    for (status, lines, body) in useless {
        let cloud = cloud_with_document(status, lines, body).await;
        let connection = cloud.connection();
        assert_eq!(connection.discover().await.unwrap().microversion, None, "{status} {body}");
        connection.send(&servers(), &CallGuard::none()).await.unwrap();
        assert_eq!(cloud.count("GET /compute/servers"), 1, "{status} {body}");
    }
}

#[tokio::test]
async fn a_silent_version_document_delays_the_service_only() {
    let cloud = cloud_with_document(NO_RESPONSE, "", "").await;
    let (connection, request, guard) = (cloud.connection(), servers(), CallGuard::none());
    let (sent, ()) = tokio::join!(connection.send(&request, &guard), wait_until_received(&cloud, "GET /compute/", 1));
    sent.unwrap();
    assert_eq!(cloud.count("GET /compute/servers"), 1);
}

#[tokio::test]
async fn a_version_document_that_is_throttled_is_retried() {
    for status in [408, 413, 429] {
        let cloud = cloud_with_document(status, "", "").await;
        let failure = cloud.connection().discover().await.unwrap_err();
        assert!(matches!(failure.error, CloudError::Throttled { .. }), "{status}: {failure:?}");
    }
}

#[tokio::test]
async fn a_version_document_that_fails_for_a_while_is_remembered() {
    let is_down = Arc::new(Mutex::new(false));
    let down = is_down.clone();
    let nova = move |call: &str| {
        (call == "GET /compute/" && *down.lock().unwrap()).then(|| ScriptedReply(502, "", String::new()))
    };
    let cloud = ScriptedCloud::start(nova).await;
    let connection = cloud.connection();
    let before = connection.discover().await.unwrap();
    *is_down.lock().unwrap() = true;
    assert_eq!(connection.discover().await.unwrap(), before);
    connection.send(&servers(), &CallGuard::none()).await.unwrap();
    assert_eq!((before.microversion, cloud.count("GET /compute/v2.1/servers")), (Some((2, 93)), 1));
}

#[tokio::test]
async fn each_discovery_reads_the_current_endpoints() {
    let cloud = ScriptedCloud::start(|_| None).await;
    let connection = cloud.connection();
    for path in ["v2.1", "v2.9"] {
        *cloud.nova.lock().unwrap() = path;
        assert_eq!(connection.discover().await.unwrap().microversion, Some((2, 93)));
        connection.send(&servers(), &CallGuard::none()).await.unwrap();
        assert_eq!(cloud.count(&format!("GET /compute/{path}/servers")), 1);
    }
}

#[tokio::test]
async fn a_service_added_to_the_catalog_is_discovered() {
    let cloud = ScriptedCloud::start(|_| None).await;
    let connection = cloud.connection();
    *cloud.services.lock().unwrap() = vec!["compute"];
    assert!(!connection.discover().await.unwrap().network);
    *cloud.services.lock().unwrap() = vec!["compute", "network", "volume"];
    let services = connection.discover().await.unwrap();
    assert!(services.network && services.block_storage, "{services:?}");

    let images = Request::new(Api::Image, Method::GET, &["images"]);
    let failure = connection.send(&images, &CallGuard::none()).await.unwrap_err();
    assert!(matches!(failure.error, CloudError::Denied(_)), "{failure:?}");
    cloud.services.lock().unwrap().push("image");
    connection.send(&images, &CallGuard::none()).await.unwrap();

    // No service is missing, so the token is kept.
    let tokens = cloud.count("POST");
    connection.discover().await.unwrap();
    connection.discover().await.unwrap();
    assert_eq!(cloud.count("POST"), tokens);
}

#[tokio::test]
async fn a_token_is_used_until_it_is_replaced() {
    let is_down = Arc::new(Mutex::new(false));
    let down = is_down.clone();
    let keystone = move |call: &str| {
        (call.starts_with("POST") && *down.lock().unwrap()).then(|| ScriptedReply(500, "", String::new()))
    };
    let cloud = ScriptedCloud::start(keystone).await;
    let connection = cloud.connection();
    *cloud.services.lock().unwrap() = vec!["compute"];
    connection.discover().await.unwrap();
    *is_down.lock().unwrap() = true;
    let tokens = cloud.count("POST");
    assert!(!connection.discover().await.unwrap().network);
    assert_eq!(cloud.count("POST"), tokens + 1, "a new token was requested because a service was missing");
    connection.send(&servers(), &CallGuard::none()).await.unwrap();
}

#[tokio::test]
async fn neutron_is_used_without_its_version_document() {
    let cloud = ScriptedCloud::start(|_| None).await;
    let connection = cloud.connection();
    assert!(connection.discover().await.unwrap().network);
    connection.send(&Request::new(Api::Network, Method::GET, &["ports"]), &CallGuard::none()).await.unwrap();
    assert_eq!((cloud.count("GET /network/v2.0/ports"), cloud.count("GET /network/")), (1, 1));
}

#[tokio::test]
async fn a_service_that_changed_its_versions_is_discovered_again() {
    let cloud = ScriptedCloud::start(|call| {
        (call == "GET /compute/v2.1/servers").then(|| ScriptedReply(406, "", String::new()))
    })
    .await;
    let connection = cloud.connection();
    connection.send(&servers(), &CallGuard::none()).await.unwrap_err();
    *cloud.nova.lock().unwrap() = "v2.9";
    connection.send(&servers(), &CallGuard::none()).await.unwrap();
}

#[tokio::test]
async fn a_version_document_that_wants_a_token_gets_one() {
    let is_first = Mutex::new(true);
    let cloud = ScriptedCloud::start(move |call| {
        let is_refused = call == "GET /compute/" && std::mem::take(&mut *is_first.lock().unwrap());
        is_refused.then(|| ScriptedReply(401, "", String::new()))
    })
    .await;
    assert_eq!(cloud.connection().discover().await.unwrap().microversion, Some((2, 93)));
}

/// Advances virtual time.
async fn advance_time(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(seconds)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_refused_login_is_retried_after_a_backoff() {
    for status in [401, 403] {
        let is_wrong = Arc::new(Mutex::new(true));
        let wrong = is_wrong.clone();
        let cloud = ScriptedCloud::start(move |call| {
            let is_refused = call.starts_with("POST") && *wrong.lock().unwrap();
            is_refused
                .then(|| ScriptedReply(status, "", r#"{"error": {"message": "The password is wrong."}}"#.to_owned()))
        })
        .await;
        let connection = cloud.connection();
        // A single rejection may be an error of Keystone.
        connection.send(&servers(), &CallGuard::none()).await.unwrap_err();
        advance_time(1).await;
        let mut tries = 1;
        for backoff_s in [30, 60, 60] {
            tries += 1;
            for _ in 0..3 {
                let failure = connection.send(&servers(), &CallGuard::none()).await.unwrap_err();
                assert!(matches!(failure.error, CloudError::Denied(_)), "{failure:?}");
                assert!(text_of(&failure).contains("The password is wrong."), "{failure:?}");
                connection.discover().await.unwrap_err();
                assert_eq!(cloud.count("POST"), tries);
            }
            advance_time(backoff_s - 5).await;
            connection.send(&servers(), &CallGuard::none()).await.unwrap_err();
            assert_eq!(cloud.count("POST"), tries);
            advance_time(5).await;
        }
        *is_wrong.lock().unwrap() = false;
        connection.send(&servers(), &CallGuard::none()).await.unwrap();
    }
}

#[tokio::test]
async fn a_prepared_request_is_sent_without_further_calls() {
    let cloud = ScriptedCloud::start(|_| None).await;
    let connection = cloud.connection();
    connection.prepare(&servers()).await.unwrap();
    assert_eq!(cloud.count("GET /compute/v2.1/"), 0);
    let before = cloud.count("");
    connection.send(&servers(), &CallGuard::none()).await.unwrap();
    assert_eq!((cloud.count(""), cloud.count("GET /compute/v2.1/servers")), (before + 1, 1));
}

#[tokio::test]
async fn a_repeated_change_waits_for_the_call_guard_with_its_new_token() {
    let cloud = ScriptedCloud::start({
        let first = Mutex::new(true);
        move |call| {
            let is_refused = call.starts_with("DELETE") && std::mem::take(&mut *first.lock().unwrap());
            is_refused.then(|| ScriptedReply(401, "", String::new()))
        }
    })
    .await;
    let connection = cloud.connection();
    let counts = Arc::new(Mutex::new(Vec::new()));
    let (recorded, scripted) = (counts.clone(), cloud.clone());
    let guard = CallGuard::new(move || {
        recorded.lock().unwrap().push((scripted.count("POST"), scripted.count("DELETE")));
        futures::future::ready(()).boxed()
    });
    let deletion = Request::new(Api::Compute, Method::DELETE, &["servers", "s"]);
    connection.prepare(&deletion).await.unwrap();
    connection.send(&deletion, &guard).await.unwrap();
    assert_eq!(*counts.lock().unwrap(), [(2, 1)], "there is a new token, and the old one was rejected once");
    assert_eq!(cloud.count("DELETE"), 2);
}

#[tokio::test]
async fn a_get_on_a_connection_that_the_server_has_closed_is_sent_again() {
    let cloud = ScriptedCloud::start(|_| None).await;
    cloud.closes_kept_connections.store(true, Ordering::Relaxed);
    let connection = cloud.connection();
    for _ in 0..3 {
        connection.send(&servers(), &CallGuard::none()).await.unwrap();
    }
    assert_eq!(cloud.count("GET /compute/v2.1/servers"), 3);
    // A creation is not: it may have been executed.
    let creation = Request { creates: true, ..Request::new(Api::Compute, Method::POST, &["servers"]) };
    let failure = connection.send(&creation, &CallGuard::none()).await.unwrap_err();
    assert!(failure.may_have_worked && failure.error.suggests_outage(), "{failure:?}");
}
