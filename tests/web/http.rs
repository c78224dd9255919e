//! Web port with hostile clients: malformed requests, slow clients, hundreds of streams. Also metrics of peers, dumps,
//! and secrets that no reply contains.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use nodepool_zk::Connection;
use serde_json::Value;
use testkit::daemon_process::{Coordinator, Daemon, WorkDir};
use testkit::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zookeeper_server::types::CreateMode;

const TIMEOUT: Duration = Duration::from_secs(60);

async fn launcher(rest: &str) -> (WorkDir, Coordinator, Daemon) {
    let work_dir = WorkDir::new("");
    let coordinator = Coordinator::start(&work_dir.path("coordinator")).await;
    let servers = format!("zookeeper-servers: [{{host: 127.0.0.1, port: {}}}]\n", coordinator.port);
    work_dir.configure(&(servers + rest));
    let daemon = work_dir.launcher(&["-f"]);
    work_dir.wait_until_ready().await;
    (work_dir, coordinator, daemon)
}

/// Sends these bytes, and returns up to 4 KiB of the reply.
async fn raw(work_dir: &WorkDir, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", work_dir.web_port.number)).await.unwrap();
    // The server may close the connection before it has read everything.
    let _ = stream.write_all(bytes).await;
    let mut answer = vec![0; 4096];
    let mut read = 0;
    let reading = async {
        while read < answer.len() {
            match stream.read(&mut answer[read..]).await {
                Ok(0) | Err(_) => break,
                Ok(more) => read += more,
            }
        }
    };
    tokio::time::timeout(TIMEOUT, reading).await.expect("the server replies or closes the connection");
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

fn resident(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

#[tokio::test]
async fn malformed_http_requests_get_clear_errors() {
    let (work_dir, _coordinator, launcher) = launcher("labels: []\nproviders: []\n").await;
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let long = "a".repeat(20_000);
    let cases = [
        (get("/../../etc/passwd"), "404"),
        (get("/static/../Cargo.toml"), "404"),
        (get("/static/%2e%2e%2fCargo.toml"), "404"),
        (get("/static/index.html%00.js"), "404"),
        (get("/%ff%fe%00"), "404"),
        (get(&format!("/{long}")), "404"),
        (get("/api/node/%3Cscript%3E"), "404"),
        (get("/api/node/0000000000"), "200"),
        (get("/api/request/200-..%2f"), "404"),
        (get("/why/%27%3b--"), "400"),
        (get("/node-list?fields=%ff&node_id=%00&&&=&=%zz"), "200"),
        (get(&format!("/node-list?fields={long}")), "200"),
        ("GARBAGE\r\n\r\n".to_owned(), "400"),
        (format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "a".repeat(2_000_000)), ""),
        (
            format!(
                "GET /node-list HTTP/1.1\r\nHost: x\r\nAccept: {}\r\nConnection: close\r\n\r\n",
                "a/b,".repeat(5000)
            ),
            "200",
        ),
        (
            "POST /node-list HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\nConnection: close\r\n\r\nx"
                .to_owned(),
            "200",
        ),
    ];
    for (request, expected) in cases {
        let answer = raw(&work_dir, request.as_bytes()).await;
        let status = answer.split(' ').nth(1).unwrap_or_default();
        let shown: String = request.chars().take(80).collect();
        assert!(
            status == expected || (expected.is_empty() && ["", "400", "431"].contains(&status)),
            "{shown}: {answer}"
        );
        assert!(!answer.contains("root:") && !answer.contains("[package]"), "{shown}");
    }
    assert_eq!(work_dir.get("/ready").await.unwrap().0, 200);
    assert!(!launcher.log().contains("panicked"), "{}", launcher.log());
}

#[tokio::test]
async fn pages_carry_security_headers() {
    let (work_dir, _coordinator, _launcher) = launcher("labels: []\nproviders: []\n").await;
    let page = reqwest::get(format!("http://127.0.0.1:{}/", work_dir.web_port.number)).await.unwrap();
    let header = |name: &str| page.headers().get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
    let policy = header("content-security-policy");
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(
        (header("x-content-type-options"), header("access-control-allow-origin")),
        ("nosniff".into(), String::new())
    );
    let etag = header("etag");
    let client = reqwest::Client::new();
    for path in ["api/state", "api/metrics", "api/timeseries", "metrics", "static/app.js"] {
        let url = format!("http://127.0.0.1:{}/{path}", work_dir.web_port.number);
        let answer = client.get(url).header("origin", "http://evil.example").send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        assert!(answer.headers().get("access-control-allow-origin").is_none(), "{path}");
    }
    let url = format!("http://127.0.0.1:{}/", work_dir.web_port.number);
    let again = client.get(url).header("if-none-match", etag).send().await.unwrap();
    assert_eq!(again.status(), 304);
}

#[tokio::test]
async fn slow_clients_and_many_streams_use_little_memory() {
    let (work_dir, coordinator, launcher) = launcher("labels: []\nproviders: []\n").await;
    let zk = coordinator.session().await;
    // One long comment makes the column wide for all nodes.
    for number in 0..2000 {
        let comment = "x".repeat(if number == 0 { 12_000 } else { 1 });
        let record = format!(
            r#"{{"state": "ready", "state_time": 1.0, "provider": "elsewhere", "type": ["a"], "comment": "{comment}"}}"#
        );
        zk.create(&format!("/nodepool/nodes/{number:010}"), Bytes::from(record), CreateMode::Persistent).await.unwrap();
    }
    wait::until("all nodes to be listed", TIMEOUT, async || {
        work_dir.get("/node-list?fields=id").await.unwrap().1.contains("| 0000001999 |")
    })
    .await;
    // Each of these replies is a different body of more than 24 MB, and the clients do not read them. Most of it is
    // padding, which is quickly written: a client that reads nothing for 30 s is disconnected, and its body freed.
    let before = resident(&launcher);
    let mut slow = Vec::new();
    let keys = ["provider", "state", "label", "server_id", "hostname"];
    for number in 0..32_usize {
        let mut stream = TcpStream::connect(("127.0.0.1", work_dir.web_port.number)).await.unwrap();
        let more: Vec<&str> = (0..5).filter(|bit| number >> bit & 1 == 1).map(|bit| keys[bit]).collect();
        let fields = format!("id,comment,{}", more.join(","));
        let request = format!("GET /node-list?fields={fields} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    // The accepted replies are bounded in size; further requests are rejected with 503.
    let mut statuses: BTreeMap<String, usize> = BTreeMap::new();
    for stream in &mut slow {
        let mut head = [0; 12];
        tokio::time::timeout(TIMEOUT, stream.read_exact(&mut head)).await.unwrap().unwrap();
        *statuses.entry(String::from_utf8_lossy(&head[9..12]).into_owned()).or_default() += 1;
    }
    assert_eq!(statuses.keys().collect::<Vec<_>>(), ["200", "503"], "{statuses:?}");
    let mut streams = Vec::new();
    let (mut served, mut refused) = (0, 0);
    for _ in 0..600 {
        let mut stream = TcpStream::connect(("127.0.0.1", work_dir.web_port.number)).await.unwrap();
        stream.write_all(b"GET /api/stream HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut head = [0; 15];
        tokio::time::timeout(TIMEOUT, stream.read_exact(&mut head)).await.unwrap().unwrap();
        match &head[9..12] {
            b"200" => served += 1,
            b"503" => refused += 1,
            other => panic!("{other:?}"),
        }
        streams.push(stream);
    }
    assert_eq!((served, refused), (512, 88));
    // All streams fall behind, as their clients read none of these updates.
    let comment = "x".repeat(2000);
    for round in 0..40 {
        for number in 0..20 {
            let record = format!(
                r#"{{"state": "in-use", "state_time": {round}.0, "provider": "elsewhere", "type": ["a"], "comment": "{comment}"}}"#
            );
            zk.set(&format!("/nodepool/nodes/{number:010}"), Bytes::from(record), -1).await.unwrap();
        }
    }
    assert_eq!(work_dir.get("/ready").await.unwrap().0, 200);
    let after = resident(&launcher);
    assert!(after < before + 450_000, "{before} kB, then {after} kB");
    // Closed connections free their capacity.
    drop(streams);
    drop(slow);
    wait::until("another stream to be accepted", TIMEOUT, async || {
        let mut stream = TcpStream::connect(("127.0.0.1", work_dir.web_port.number)).await.unwrap();
        stream.write_all(b"GET /api/stream HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut head = [0; 15];
        stream.read_exact(&mut head).await.is_ok() && &head[9..12] == b"200"
    })
    .await;
}

/// Starts a web port whose metrics lack keys and have unknown ones, as those of another version may.
async fn misbehaving_peer() -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let body = r#"{"launcher": "misbehaving", "providers": [{"name": "incomplete", "extra": 1}], "extra": {}}"#;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all((head + body).as_bytes()).await;
        }
    });
    address
}

#[tokio::test]
async fn providers_of_peers_are_shown_or_reported_missing() {
    let section =
        |name: &str| format!("labels: [{{name: a}}]\nproviders: [{{name: {name}, driver: static, pools: []}}]\n");
    let (work_dir, coordinator, _launcher) = launcher(&section("here")).await;
    let other = WorkDir::new("");
    let servers = format!("zookeeper-servers: [{{host: 127.0.0.1, port: {}}}]\n", coordinator.port);
    other.configure(&(servers + &section("there")));
    let mut second = other.launcher(&["-f"]);
    other.wait_until_ready().await;
    let zk = coordinator.session().await;
    let python = r#"{"hostname": "old", "state": "running", "kind": "launcher", "version": "11.0.0"}"#;
    zk.create("/nodepool/components/launcher/old0000000099", Bytes::from(python), CreateMode::Persistent)
        .await
        .unwrap();
    let peer_metrics = async || {
        let (_, text) = work_dir.get("/api/metrics").await.unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["launchers"].clone()
    };
    // Malicious or broken peers: no port, foreign addresses, a port without listener, and one with unexpected content.
    let unused = testkit::real::ports::reserve();
    let misbehaving = misbehaving_peer().await;
    let own = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let announced = [
        ("elsewhere", "127.0.0.1:8005".to_owned()),
        ("metadata", "169.254.169.254:80".to_owned()),
        ("path", "192.0.2.1:80/latest/meta-data?x=".to_owned()),
        (&*own, format!("127.0.0.1:{}", unused.number)),
        (&*own, misbehaving.to_string()),
    ];
    for (number, (hostname, webapp)) in announced.into_iter().enumerate() {
        let record =
            serde_json::json!({"hostname": hostname, "state": "running", "kind": "launcher", "webapp": webapp});
        let path = format!("/nodepool/components/launcher/bad{number:010}");
        zk.create(&path, Bytes::from(record.to_string()), CreateMode::Persistent).await.unwrap();
    }
    let expected = [
        "\"here\"",
        "\"there\"",
        "the launcher has no web port",
        "the launcher listens on its loopback address only",
        "the advertised web address is invalid",
        &format!("http://127.0.0.1:{} does not respond", unused.number),
        "\"incomplete\"",
    ];
    wait::until("all peers to be reported", TIMEOUT, async || {
        let reply = peer_metrics().await.to_string();
        expected.iter().all(|expected| reply.contains(expected))
            && !reply.contains("169.254")
            && !reply.contains("extra")
    })
    .await;
    // Missing keys are shown as empty values, so that clients need not check for them.
    let reply = peer_metrics().await;
    let providers = reply.as_array().unwrap().iter().flat_map(|launcher| launcher["providers"].as_array().cloned());
    let incomplete = providers.flatten().find(|provider| provider["name"] == "incomplete").unwrap();
    assert_eq!((&incomplete["quotas"], &incomplete["calls"]["count"]), (&serde_json::json!([]), &0.into()));
    second.kill();
    wait::until("the second launcher to be removed", TIMEOUT, async || {
        let reply = peer_metrics().await.to_string();
        !reply.contains("\"there\"") && reply.contains("\"here\"")
    })
    .await;
}

#[tokio::test]
async fn dumps_are_served_to_local_users_only() {
    let (work_dir, _coordinator, _launcher) = launcher("labels: []\nproviders: []\n").await;
    let words = ["-c", "nodepool.yaml", "-o", "json", "dump", "--profile", "0.5"];
    let output = tokio::process::Command::new(testkit::programs::nodepool())
        .args(words)
        .current_dir(work_dir.home())
        .output()
        .await
        .unwrap();
    let dump: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", testkit::daemon_process::text(&output.stderr)));
    let actors: Vec<&str> =
        dump["actors"].as_array().unwrap().iter().filter_map(|view| view["actor"].as_str()).collect();
    assert!(actors.contains(&"Launcher") && actors.contains(&"CleanupWorker"), "{actors:?}");
    assert!(dump["profile"].to_string().contains("Handlers by processor time"), "{dump}");
    let text = tokio::process::Command::new(testkit::programs::nodepool())
        .args(["-c", "nodepool.yaml", "dump"])
        .current_dir(work_dir.home())
        .output();
    assert!(testkit::daemon_process::text(&text.await.unwrap().stdout).starts_with(r#"{"actor":"BackingWorker""#));
    let client = reqwest::Client::new();
    let url = format!("http://127.0.0.1:{}/dump", work_dir.web_port.number);
    for (name, value) in [
        ("x-forwarded-for", "192.0.2.1"),
        ("x-forwarded-host", "nodepool.example"),
        ("x-real-ip", "192.0.2.1"),
        ("forwarded", "for=192.0.2.1"),
        ("origin", "http://evil.example"),
        ("sec-fetch-site", "cross-site"),
        // A foreign name that resolves to our address (DNS rebinding).
        ("host", "evil.example"),
        ("host", "127.0.0.1.evil.example:8005"),
    ] {
        let refused = client.get(&url).header(name, value).send().await.unwrap();
        assert_eq!(refused.status(), 403, "{name}");
    }
    for (query, status) in
        [("profile=-1", 400), ("profile=x", 400), ("profile=1e9", 400), ("profile=NaN", 400), ("x=y", 200)]
    {
        assert_eq!(client.get(format!("{url}?{query}")).send().await.unwrap().status(), status, "{query}");
    }
    // A second profile at the same time is rejected; the profile of a disconnected client ends at its regular time.
    let begin = async || {
        let mut stream = TcpStream::connect(("127.0.0.1", work_dir.web_port.number)).await.unwrap();
        stream.write_all(b"GET /dump?profile=3 HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        stream
    };
    let mut first = begin().await;
    wait::until("the second profile to be rejected", TIMEOUT, async || {
        let refused = client.get(format!("{url}?profile=0.01")).send().await.unwrap().status() == 409;
        if !refused {
            // The second request was served before the first one, which was rejected.
            first = begin().await;
        }
        refused
    })
    .await;
    drop(first);
    wait::until("another profile to be accepted", TIMEOUT, async || {
        client.get(format!("{url}?profile=0.01")).send().await.unwrap().status() == 200
    })
    .await;
}

/// Secrets of the configuration appear in no reply and in no log.
#[tokio::test]
async fn no_secret_is_in_replies_or_logs() {
    let secret = "hunter2-do-not-show";
    let work_dir = WorkDir::new("");
    let coordinator = Coordinator::start(&work_dir.path("coordinator")).await;
    let servers = format!("zookeeper-servers: [{{host: 127.0.0.1, port: {}}}]\n", coordinator.port);
    work_dir.write(
        "clouds.yaml",
        &format!("clouds: {{c: {{auth: {{auth_url: 'http://127.0.0.1:9/v3', username: u, password: {secret}, project_name: p}}}}}}\n"),
    );
    work_dir.configure(&format!(
        "{servers}labels: [{{name: a}}, {{name: b}}]\ndiskimages: [{{name: i, env-vars: {{TOKEN: {secret}}}, metadata: {{x: {secret}}}}}]\n\
         providers:\n- {{name: one, driver: openstack, cloud: c, cloud-images: [{{name: x}}], pools: [{{name: main, labels: [{{name: a, cloud-image: x, min-ram: 1, userdata: {secret}, instance-properties: {{p: {secret}}}}}]}}]}}\n\
         - {{name: two, driver: fake, cloud: fake, cloud-images: [{{name: fake-image-id, username: z}}], pools: [{{name: main, labels: [{{name: b, cloud-image: fake-image-id, min-ram: 1, userdata: {secret}}}]}}]}}\n"
    ));
    let mut command = work_dir.command(testkit::programs::launcher(), &["-d", "-c", "nodepool.yaml"]);
    command.env("OS_CLIENT_CONFIG_FILE", work_dir.path("clouds.yaml"));
    let launcher = work_dir.start_command(command);
    work_dir.wait_until_ready().await;
    let zk = coordinator.session().await;
    let pod = format!(
        r#"{{"state": "ready", "state_time": 1.0, "provider": "k8s", "type": ["a"], "connection_port": {{"token": "{secret}"}}}}"#
    );
    zk.create("/nodepool/nodes/0000000077", Bytes::from(pod), CreateMode::Persistent).await.unwrap();
    wait::until("the pod to be listed", TIMEOUT, async || {
        work_dir.get("/node-list").await.unwrap().1.contains("redacted")
    })
    .await;
    launcher.signal(nix::sys::signal::Signal::SIGUSR2);
    launcher.wait_for_log("End debug handler").await;
    let paths = [
        "/node-list",
        "/node-list?node_id=0000000077",
        "/request-list",
        "/image-list",
        "/dib-image-list",
        "/image-status",
        "/label-list",
        "/metrics",
        "/api/state",
        "/api/metrics",
        "/api/providers",
        "/api/timeseries",
        "/api/node/0000000077",
        "/health/live",
        "/health/ready",
        "/why/200-0000000000",
        "/dump",
    ];
    for path in paths {
        let client = reqwest::Client::new();
        for accept in ["application/json", "text/html"] {
            let url = format!("http://127.0.0.1:{}{path}", work_dir.web_port.number);
            let text = client.get(url).header("accept", accept).send().await.unwrap().text().await.unwrap();
            assert!(!text.contains(secret), "{path} {accept}: {text}");
        }
    }
    assert!(!launcher.log().contains(secret), "{}", launcher.log());
}

/// Two requests in one packet: a body after HEAD would be parsed as the reply to the second request.
#[tokio::test]
async fn head_has_no_body_even_with_another_request_behind_it() {
    let (work_dir, _coordinator, _launcher) = launcher("labels: []\nproviders: []\n").await;
    let mut stream = TcpStream::connect(("127.0.0.1", work_dir.web_port.number)).await.unwrap();
    let pipelined =
        b"HEAD /node-list HTTP/1.1\r\nHost: x\r\n\r\nGET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(pipelined).await.unwrap();
    let mut output = String::new();
    let _ = tokio::time::timeout(TIMEOUT, stream.read_to_string(&mut output)).await.unwrap();
    assert!(!output.contains("| ID"), "{output}");
    let reply = reqwest::Client::new().head(format!("http://127.0.0.1:{}/node-list", work_dir.web_port.number));
    let reply = reply.send().await.unwrap();
    assert!(reply.headers()["content-length"].to_str().unwrap().parse::<usize>().unwrap() > 100);
}
