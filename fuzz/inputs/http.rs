//! Arbitrary bytes on a connection to the web port of a launcher: responses are well formed, valid JSON and without a
//! secret.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use actix_rt::{Arbiter, System};
use bytes::Bytes;
use nodepool::actors::process::config_files::load;
use nodepool::actors::process::context::{
    ArbiterHandles, BUILT_IN_DRIVERS, ExplainRegistry, LauncherOptions, ProcessContext,
};
use nodepool::actors::process::files::ConfigFileSource;
use nodepool::actors::process::identity::Identity;
use nodepool::actors::runtime::dump;
use nodepool::actors::runtime::panics::PanicCounter;
use nodepool::actors::runtime::snapshot_feed::SnapshotFeed;
use nodepool::actors::telemetry::samples::SampleSink;
use nodepool::actors::web;
use nodepool_zk::Zk;
use nodepool_zk::locks::lock;
use nodepool_zk::memory::MemoryZooKeeper;
use nodepool_zk::mirror::mirror::Mirror;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::watch;
use zookeeper_server::types::CreateMode;

/// Part of the configuration and of a record; no response may contain it.
const SECRET: &str = "hunter2";
const CONFIG: &str = "zookeeper-servers: [{host: localhost, chroot: /hunter2}]\nlabels: [{name: a}]\nproviders: [{name: p, driver: static, \
    pools: [{name: main, nodes: [{name: h1, labels: [a], username: hunter2}]}]}]\n";
const RECORDS: [(&str, &str); 6] = [
    (
        "/nodepool/nodes/0000000001",
        r#"{"state": "ready", "provider": "p", "pool": "main", "type": ["a"], "connection_port": {"token": "hunter2"}}"#,
    ),
    (
        "/nodepool/nodes/0000000002",
        r#"{"state": "in-use", "provider": "<p>", "type": ["\u00e4\r\nX: y"], "hostname": "h\u2028"}"#,
    ),
    (
        "/nodepool/requests/200-0000000007",
        r#"{"state": "requested", "node_types": ["a", "b"], "requestor": "</script>"}"#,
    ),
    ("/nodepool/components/pool/h0000000000", r#"{"kind": "pool", "supported_labels": ["a", "b,c"]}"#),
    ("/nodepool/images/i/builds/0000000001", r#"{"state": "ready", "state_time": 1.6e9, "builder": "nb01"}"#),
    (
        "/nodepool/images/i/builds/0000000001/providers/p/images/0000000001",
        r#"{"state": "ready", "state_time": 1.6e9, "external_id": "e"}"#,
    ),
];
/// Headers of responses. No request and no record may add another one.
const HEADERS: [&str; 19] = [
    "access-control-allow-origin",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-security-policy",
    "content-type",
    "cross-origin-resource-policy",
    "date",
    "etag",
    "expires",
    "last-modified",
    "referrer-policy",
    "retry-after",
    "transfer-encoding",
    "vary",
    "x-accel-buffering",
    "x-content-type-options",
    "x-frame-options",
];
const STATUSES: [u16; 16] = [100, 200, 304, 400, 403, 404, 405, 408, 409, 411, 413, 414, 417, 431, 501, 503];
/// Only a hang takes longer.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// A stream has no end; its head and the first bytes suffice.
const STREAM: &[u8] = b"text/event-stream";

// Input: the bytes that a client sends before it closes its end.
pub fn check(data: &[u8]) {
    if is_slow(data) {
        return;
    }
    let answers = exchange(data);
    let is_written = data.windows(SECRET.len()).any(|part| part == SECRET.as_bytes());
    let text = String::from_utf8_lossy(&answers);
    assert!(is_written || !text.contains(SECRET), "{text}");
    // After a HEAD request, the content length does not show where the next response begins.
    let has_bodies = !data.windows(4).any(|part| part == b"HEAD");
    let mut rest = answers.as_slice();
    while !rest.is_empty() && has_bodies {
        match skip_response(rest) {
            Some(after) => rest = after,
            None => break,
        }
    }
}

/// Whether the request may record a profile, which takes too long for a fuzz run.
fn is_slow(data: &[u8]) -> bool {
    let mut parts = data.split(|byte| matches!(byte, b'?' | b'&'));
    let is_timed = |part: &[u8]| {
        part.strip_prefix(b"profile=").and_then(|value| value.first()).is_some_and(|first| !first.is_ascii_alphabetic())
    };
    parts.any(is_timed)
}

fn exchange(data: &[u8]) -> Vec<u8> {
    let mut client = TcpStream::connect(server()).expect("the server listens");
    client.set_read_timeout(Some(READ_TIMEOUT)).expect("the timeout is not zero");
    // The server may have closed the connection already.
    let _ = client.write_all(data).and_then(|()| client.shutdown(Shutdown::Write));
    let mut answers = Vec::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        match client.read(&mut buffer) {
            Ok(0) => return answers,
            Ok(read) => answers.extend_from_slice(&buffer[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("no end of the response within {READ_TIMEOUT:?}: {}", String::from_utf8_lossy(&answers))
            }
            Err(_) => return answers,
        }
        if answers.windows(STREAM.len()).any(|part| part == STREAM) {
            return answers;
        }
    }
}

/// The bytes after the first response; `None` if its end is unknown.
fn skip_response(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.windows(4).position(|part| part == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).expect("a head is text");
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok());
    let status: u16 = status.unwrap_or_else(|| panic!("no status in {head}"));
    assert!(STATUSES.contains(&status), "{head}");
    let headers: Vec<(String, &str)> = lines
        .map(|line| {
            let (name, value) = line.split_once(": ").unwrap_or_else(|| panic!("{line:?} in {head}"));
            (name.to_ascii_lowercase(), value)
        })
        .collect();
    let unknown = headers.iter().find(|(name, _)| !HEADERS.contains(&name.as_str()));
    assert!(unknown.is_none(), "{unknown:?} in {head}");
    let header = |wanted: &str| headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| *value);
    let body = &bytes[end + 4..];
    let length: usize = match (status, header("content-length")) {
        (304 | 100, _) => 0,
        (_, length) => length?.parse().expect("a length is a number"),
    };
    let (body, rest) = body.split_at_checked(length)?;
    // `/ready` responds OK with any content type, as in Nodepool.
    let is_json = body != b"OK" && length > 0;
    if header("content-type") == Some("application/json") && header("content-encoding").is_none() && is_json {
        assert!(serde_json::from_slice::<Value>(body).is_ok(), "{}", String::from_utf8_lossy(body));
    }
    Some(rest)
}

/// The web server of a launcher with a few records; it runs until the process ends.
fn server() -> SocketAddr {
    static SERVER: OnceLock<SocketAddr> = OnceLock::new();
    *SERVER.get_or_init(|| {
        let (sender, address) = mpsc::channel();
        std::thread::spawn(move || System::new().block_on(serve(sender)));
        address.recv().expect("the server starts")
    })
}

async fn serve(sender: mpsc::Sender<SocketAddr>) {
    let zookeeper: Zk = MemoryZooKeeper::new().connect();
    for (path, record) in RECORDS {
        let (parent, _) = path.rsplit_once('/').expect("paths are absolute");
        lock::make_path(&zookeeper, parent).await.expect("memory accepts writes");
        zookeeper.create(path, Bytes::from(record), CreateMode::Persistent).await.expect("memory accepts writes");
    }
    let mirror = Mirror::start(zookeeper, &Handle::current()).await.expect("memory is read");
    let here = Arbiter::current();
    let mut options = LauncherOptions::new("np.yaml");
    options.files = ConfigFileSource::InMemory(Arc::new(Mutex::new([("np.yaml".into(), CONFIG.to_owned())].into())));
    let loaded = load(&options.files, &options.config, None, BUILT_IN_DRIVERS).await.expect("this configuration loads");
    let (_stop, shutdown) = watch::channel(None);
    let context = Arc::new(ProcessContext {
        options,
        registry: dump::DumpRegistry::default(),
        explain_registry: ExplainRegistry::default(),
        samples: SampleSink::discard().with_metrics(Default::default()),
        snapshot_feed: SnapshotFeed::default(),
        tracer: Default::default(),
        ready: watch::Sender::new(true),
        shutdown,
        panics: PanicCounter::default(),
        webapp: None,
        arbiters: ArbiterHandles {
            roots: here.clone(),
            pools: here.clone(),
            runtime: Handle::current(),
            clouds: here.clone(),
        },
        identity: Identity::named("host"),
        drivers: None,
        servers: watch::Sender::new(Vec::new()),
        active_config: Mutex::new(Some(loaded)),
    });
    context.snapshot_feed.attach_session(&mirror);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let server = web::serve(listener, context, &here).expect("the server starts");
    sender.send(address).expect("the receiver waits for the address");
    server.await.expect("the server does not end");
}
