//! Comparison of the web port with that of Nodepool 11, as real processes on one Apache ZooKeeper: every list,
//! parameter and format.

use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use nodepool_model::records::json;
use nodepool_zk::client::{ConnectOptions, RealConnection, connect};
use nodepool_zk::locks::lock::{self, Lock};
use nodepool_zk::{Connection, Zk};
use serde_json::Value;
use testkit::daemon_process::{Daemon, WorkDir};
use testkit::real::nodepool_process::NodepoolProcess;
use testkit::real::zookeeper::{Options, Server};
use testkit::real::{nodepool11, ports};
use testkit::wait;
use zookeeper_server::types::CreateMode;

/// The Python program needs seconds to start, more on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);
const LISTS: [&str; 6] = ["image-list", "dib-image-list", "image-status", "node-list", "request-list", "label-list"];
const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

struct WebReferenceHarness {
    zk: Arc<RealConnection>,
    client: reqwest::Client,
    work_dir: WorkDir,
    python: ports::Port,
    _running: (Daemon, NodepoolProcess),
    _zookeeper: Server,
}

/// The parts of a reply that a client evaluates.
#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    content_type: Option<String>,
    cors: Option<String>,
    cache_control: Option<String>,
    /// Seconds from `Last-Modified` to `Expires`.
    lifetime: Option<i64>,
    body: Vec<String>,
}

impl WebReferenceHarness {
    async fn start() -> WebReferenceHarness {
        let zookeeper = Server::start(Options::tls()).await;
        let plain = zookeeper.plain_address();
        let (host, port) = plain.rsplit_once(':').unwrap();
        let zk = connect(ConnectOptions::plain(host, port.parse().unwrap())).await.unwrap();
        fill(&zk).await;
        let rest = format!("{}labels: []\nproviders: []\n", nodepool11::zookeeper_section(&zookeeper));
        let (work_dir, python) = (WorkDir::new(&rest), ports::reserve());
        let webapp = format!("webapp: {{port: {}, listen_address: 127.0.0.1}}\n", python.number);
        let running = (work_dir.launcher(&["-f"]), nodepool11::launcher_with_web(&(webapp + &rest)));
        let both = WebReferenceHarness {
            zk,
            client: reqwest::Client::new(),
            work_dir,
            python,
            _running: running,
            _zookeeper: zookeeper,
        };
        for port in both.ports() {
            let ready = format!("http://127.0.0.1:{port}/ready");
            wait::until("both web ports to be ready", TIMEOUT, async || {
                both.client.get(&ready).send().await.is_ok_and(|answer| answer.status() == 200)
            })
            .await;
        }
        both
    }

    /// Our port, then that of Nodepool 11.
    fn ports(&self) -> [u16; 2] {
        [self.work_dir.web_port.number, self.python.number]
    }

    async fn get(&self, port: u16, path: &str, headers: &[(&str, &str)]) -> (Answer, Option<String>) {
        let mut request = self.client.get(format!("http://127.0.0.1:{port}/{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.unwrap();
        let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let date = |name: &str| header(name).map(|text| DateTime::parse_from_rfc2822(&text).unwrap());
        let modified = header("last-modified");
        let lifetime = date("last-modified").zip(date("expires")).map(|(from, to)| (to - from).num_seconds());
        let mut answer = Answer {
            status: response.status().as_u16(),
            content_type: header("content-type"),
            cors: header("access-control-allow-origin"),
            cache_control: header("cache-control"),
            lifetime,
            body: Vec::new(),
        };
        let is_json = answer.content_type.as_deref() == Some("application/json");
        let body = response.text().await.unwrap();
        answer.body = if is_json && body.starts_with('[') { elements(&body) } else { lines(&body) };
        (answer, modified)
    }

    async fn assert_same(&self, path: &str, headers: &[(&str, &str)]) {
        let [ours, python] = self.ports();
        let (ours, _) = self.get(ours, path, headers).await;
        let (python, _) = self.get(python, path, headers).await;
        assert_eq!(ours, python, "{path} {headers:?}");
    }
}

/// The lines of a body. Rows of a table are sorted, as the order of nodes and labels is arbitrary.
fn lines(body: &str) -> Vec<String> {
    let mut lines: Vec<String> = body.split('\n').map(without_ages).collect();
    if body.starts_with('+') {
        lines.sort();
    }
    lines
}

/// The elements of a JSON list as they are written; the body must be what Python's json.dumps writes.
fn elements(body: &str) -> Vec<String> {
    let list: Value = serde_json::from_str(body).unwrap();
    assert_eq!(String::from_utf8(json::to_bytes(&list)).unwrap(), body, "as json.dumps writes it");
    let element = |value: &Value| without_ages(&String::from_utf8(json::to_bytes(value)).unwrap());
    let mut elements: Vec<String> = list.as_array().unwrap().iter().map(element).collect();
    elements.sort();
    elements
}

/// Masks minutes and seconds of ages: `DD:HH:MM:SS` becomes `DD:HH:**:**`.
fn without_ages(line: &str) -> String {
    let is_age =
        |word: &str| word.split(':').count() == 4 && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b':');
    let mut masked = String::new();
    for word in line.split_inclusive([' ', '"', ',']) {
        let end = word.len() - usize::from(word.ends_with([' ', '"', ',']));
        match is_age(&word[..end]) {
            true => masked.push_str(&format!("{}**:**{}", &word[..end - 5], &word[end..])),
            false => masked.push_str(word),
        }
    }
    masked
}

async fn put(zk: &RealConnection, path: &str, data: &str) {
    for (slash, _) in path.match_indices('/').skip(1) {
        let _ = zk.create(&path[..slash], Vec::new().into(), CreateMode::Persistent).await;
    }
    zk.create(path, data.as_bytes().to_vec().into(), CreateMode::Persistent).await.unwrap();
}

/// Records in many states, with unusual values: missing, several labels, other alphabets, markup, line breaks, and
/// credentials instead of a port. No launcher owns them, so both leave them unchanged.
async fn fill(zk: &RealConnection) {
    let common = r#""state_time": 1700000000.5, "created_time": 1700000000.0, "provider": "elsewhere", "pool": "main""#;
    for (number, rest) in [
        r#""state": "ready", "type": ["a", "标签"], "external_id": "x-1", "connection_port": 22, "comment": "<b>é\ntwo</b>""#,
        r#""state": "in-use", "type": ["a"], "external_id": {"pod": "x'y", "n": [1, 2.5, null, true]}, "connection_port": {"token": "secret"}, "username": "zuul", "az": "z1""#,
        r#""state": "hold", "type": [], "connection_port": "22", "hold_job": "a b c", "user_data": {"zuul_system": "z"}, "driver_data": "{\"x\": 1}", "public_ipv6": "::1""#,
        r#""state": "building", "type": ["b"], "allocated_to": "200-0000000000", "launcher": "l-1", "hostname": "h", "private_ipv4": "127.0.0.9", "public_ipv4": "127.0.0.8""#,
    ]
    .into_iter()
    .enumerate()
    {
        put(zk, &format!("/nodepool/nodes/{number:010}"), &format!("{{{common}, {rest}}}")).await;
    }
    for (id, rest) in [
        ("200-0000000000", r#""state": "fulfilled", "nodes": ["0000000003"], "relative_priority": 3, "event_id": "e"#),
        ("050-0000000001", r#""state": "failed", "nodes": [], "declined_by": ["one", "two"], "event_id": "é"#),
    ] {
        let record = format!(r#"{{{rest}", "node_types": ["a", "b"], "requestor": "z", "state_time": 1700000000.0}}"#);
        put(zk, &format!("/nodepool/requests/{id}"), &record).await;
    }
    let pool = r#"{"hostname": "h", "state": "running", "kind": "pool", "version": "11.0.0", "id": "l-1", "name": "main", "provider_name": "elsewhere", "supported_labels": ["a", "b", "标签"], "priority": 100}"#;
    put(zk, "/nodepool/components/pool/h0000000009", pool).await;
    let build = |state: &str, formats: &str| {
        format!(
            r#"{{"state": "{state}", "state_time": 1700000000.9, "builder": "nb01", "builder_id": "x", "formats": {formats}}}"#
        )
    };
    let (first, second) = ("0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210");
    put(zk, &format!("/nodepool/images/debian/builds/{first}"), &build("ready", r#""qcow2,raw""#)).await;
    put(zk, &format!("/nodepool/images/debian/builds/{second}"), &build("building", "null")).await;
    put(zk, &format!("/nodepool/images/fedora/builds/{first}"), &build("failed", r#""raw""#)).await;
    put(zk, "/nodepool/images/debian/request-build", "").await;
    put(zk, "/nodepool/images/nothing", "").await;
    let upload = r#"{"state": "ready", "state_time": 1700000000.9, "external_id": "i-1", "external_name": "debian-1"}"#;
    for (number, record) in [(1, upload), (12, r#"{"state": "uploading", "state_time": 1700000001.0}"#)] {
        put(zk, &format!("/nodepool/images/debian/builds/{first}/providers/p/images/{number:010}"), record).await;
    }
}

async fn locked(zk: &Arc<RealConnection>) -> Lock {
    let session: Zk = zk.clone();
    lock::try_lock(&session, "/nodepool/nodes/0000000001/lock", "").await.unwrap().unwrap()
}

#[tokio::test]
async fn every_list_matches_the_python_reply() {
    if testkit::real::skipped() {
        return;
    }
    let both = WebReferenceHarness::start().await;
    let held = locked(&both.zk).await;
    let locked = |body: Vec<String>| body.iter().any(|line| line.contains("| locked"));
    let [ours, _] = both.ports();
    wait::until("the lock to be listed", TIMEOUT, async || locked(both.get(ours, "node-list", &[]).await.0.body)).await;
    let accepts: [&[(&str, &str)]; 7] = [
        &[],
        &[("accept", "text/plain")],
        &[("accept", BROWSER)],
        &[("accept", "application/json")],
        &[("accept", "application/json, text/plain, */*")],
        &[("accept", "application/json, text/plain;q=0.9")],
        &[("accept", "*/*"), ("accept-encoding", "gzip")],
    ];
    for accept in accepts {
        for list in LISTS {
            both.assert_same(list, accept).await;
        }
        for path in ["ready", "", "node-list/", "nodes", "NODE-LIST", "node-list/0000000000"] {
            // Nodepool 11 has no page at `/`.
            if !path.is_empty() {
                both.assert_same(path, accept).await;
            }
        }
    }
    let queries = [
        "node-list?node_id=0000000000",
        "node-list?node_id=0000000002",
        "node-list?node_id=0000000009",
        "node-list?node_id=",
        "node-list?node_id=0000000009&node_id=0000000003",
        "node-list?fields=state,id,label",
        "node-list?fields=nothing",
        "node-list?fields=nothing,age",
        "node-list?fields=",
        "node-list?fields=id&fields=state",
        "node-list?fields=%20id,state",
        "node-list?x=y&fields=id",
        "image-list?fields=id,image,state",
        "dib-image-list?fields=age,formats",
        "image-status?fields=build_request_age,image",
        "request-list?fields=declined_by,node_types",
        "label-list?fields=label",
    ];
    for query in queries {
        for accept in [&[][..], &[("accept", "application/json")]] {
            both.assert_same(query, accept).await;
        }
    }
    held.release().await.unwrap();
    // A pause is in the list of builds, as on the command line; Nodepool 11 omits it in the web list.
    put(&both.zk, "/nodepool/images/fedora/pause", "").await;
    wait::until("the pause to be listed", TIMEOUT, async || {
        both.get(ours, "dib-image-list", &[]).await.0.body.iter().any(|line| line.contains("| paused"))
    })
    .await;
    for port in both.ports() {
        wait::until("the pause to be in the status", TIMEOUT, async || {
            both.get(port, "image-status", &[]).await.0.body.iter().any(|line| line.contains("| True "))
        })
        .await;
    }
}

// Both servers treat all methods alike.
#[tokio::test]
async fn unchanged_lists_are_answered_with_not_modified() {
    if testkit::real::skipped() {
        return;
    }
    let both = WebReferenceHarness::start().await;
    for port in both.ports() {
        for path in ["node-list", "image-list", "ready"] {
            let (first, modified) = both.get(port, path, &[]).await;
            let modified = modified.unwrap();
            let (again, _) = both.get(port, path, &[("if-modified-since", "Sun, 06 Nov 1994 08:49:37 GMT")]).await;
            assert_eq!((first.status, again.status), (200, 200), "{path}");
            let (later, _) = both.get(port, path, &[("if-modified-since", "Fri, 06 Nov 2099 08:49:37 GMT")]).await;
            assert_eq!((later.status, later.body.concat().as_str()), (304, ""), "{path}");
            assert_eq!((later.cors, later.cache_control), (first.cors, first.cache_control), "{path}");
            let (unparsable, _) = both.get(port, path, &[("if-modified-since", "yesterday")]).await;
            assert_eq!(unparsable.status, 200, "{path} {modified}");
        }
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "WONDER"] {
            let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
            let url = format!("http://127.0.0.1:{port}/label-list");
            let answer = both.client.request(method.clone(), &url).send().await.unwrap();
            assert_eq!(answer.status(), 200, "{method}");
            assert!(answer.text().await.unwrap().contains("| Label |"), "{method}");
            let head = both.client.head(&url).send().await.unwrap();
            assert_eq!(head.status(), 200);
            assert_eq!(head.bytes().await.unwrap().len(), 0);
        }
    }
}

// Replies need no request to ZooKeeper.
#[tokio::test]
async fn lists_stay_during_an_outage_and_readiness_reports_it() {
    if testkit::real::skipped() {
        return;
    }
    let mut zookeeper = Server::start(Options::default()).await;
    let work_dir = WorkDir::new(&format!(
        "zookeeper-servers: [{{host: 127.0.0.1, port: {}}}]\nlabels: []\nproviders: []\n",
        port_of(&zookeeper)
    ));
    let _launcher = work_dir.launcher(&["-f"]);
    work_dir.wait_until_ready().await;
    assert_eq!(work_dir.get("/health/ready").await.unwrap().0, 200);
    assert_eq!(work_dir.get("/health/live").await.unwrap(), (200, r#"{"stuck_threads":[]}"#.to_owned()));
    zookeeper.stop().await;
    wait::until("the outage to be reported", TIMEOUT, async || work_dir.get("/health/ready").await.unwrap().0 == 503)
        .await;
    let (status, text) = work_dir.get("/node-list").await.unwrap();
    assert!(status == 200 && text.contains("| Server ID |"), "{text}");
    assert_eq!(work_dir.get("/ready").await.unwrap().0, 200);
    assert_eq!(work_dir.get("/health/live").await.unwrap().0, 200);
}

fn port_of(server: &Server) -> String {
    server.address().rsplit_once(':').unwrap().1.to_owned()
}
