//! The launcher as a process: flags, start-up and its failures, signals, the web port, sessions.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use nix::sys::signal::Signal;
use testkit::daemon_process::{Coordinator, PROCESS_TIMEOUT, WorkDir, last_line, registered_launchers, text};
use testkit::real::child_process::{ChildProcess, Output};
use testkit::real::ports;
use testkit::{programs, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::Instant;

async fn coordinator(work_dir: &WorkDir) -> Coordinator {
    let coordinator = Coordinator::start(&work_dir.path("coordinator")).await;
    work_dir.configure(&coordinator.configuration());
    coordinator
}

#[test]
fn the_version_text_matches_the_reference() {
    let work_dir = WorkDir::new("");
    for arguments in [["--version"], ["--vers"]] {
        let ended = work_dir.run(programs::launcher(), &arguments);
        assert!(ended.status.success());
        assert_eq!(text(&ended.stdout), "Nodepool version: 12.0.0\n");
    }
}

#[test]
fn wrong_options_exit_with_status_2_and_a_reason() {
    let work_dir = WorkDir::new("");
    let cases: [(&[&str], &str); 5] = [
        (&["--frobnicate"], "--frobnicate"),
        (&["--watermark-sleep", "0"], "above 0"),
        (&["--cleanup-interval", "soon"], "above 0"),
        (&["--delete-interval", "NaN"], "above 0"),
        (&["--api-concurrency", "0"], "1..=1000"),
    ];
    for (arguments, reason) in cases {
        let ended = work_dir.run(programs::launcher(), arguments);
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}");
        assert!(text(&ended.stderr).contains(reason), "{arguments:?}: {}", text(&ended.stderr));
    }
}

#[test]
fn a_load_failure_at_startup_is_logged_last() {
    let work_dir = WorkDir::new("labels: [");
    work_dir.write("no-servers.yaml", "labels: []\nproviders: []\n");
    work_dir.write("odd-server.yaml", "zookeeper-servers: [{host: 'a b'}]\nlabels: []\nproviders: []\n");
    let cases: [(&[&str], &str); 6] = [
        (&["-f", "-c", "missing.yaml"], "missing.yaml: [Errno 2] No such file or directory"),
        (&["-f", "-c", "nodepool.yaml"], "nodepool.yaml"),
        (&["-f", "-c", "no-servers.yaml"], "zookeeper-servers names no server"),
        (&["-f", "-c", "odd-server.yaml"], "zookeeper-servers"),
        (&["-f", "-c", "no-servers.yaml", "-s", "missing.yaml"], "missing.yaml"),
        (&["-f", "-l", "missing.conf"], "Unable to read logging config file at"),
    ];
    for (arguments, message) in cases {
        let ended = work_dir.run(programs::launcher(), arguments);
        assert_eq!(ended.status.code(), Some(1), "{arguments:?}");
        assert!(last_line(&ended).contains(message), "{arguments:?}: {}", text(&ended.stderr));
    }
}

#[tokio::test]
async fn a_web_port_in_use_prevents_startup() {
    let work_dir = WorkDir::new("");
    let _coordinator = coordinator(&work_dir).await;
    let _listener = TcpListener::bind(("127.0.0.1", work_dir.web_port.number)).unwrap();
    let ended = work_dir.run(programs::launcher(), &["-f", "-c", "nodepool.yaml"]);
    assert_eq!(ended.status.code(), Some(1));
    let expected = format!("cannot listen on 127.0.0.1:{}", work_dir.web_port.number);
    assert!(last_line(&ended).starts_with(&expected), "{}", last_line(&ended));
    // Without a web server, the port does not matter.
    let mut launcher = work_dir.launcher(&["-f", "--no-webapp"]);
    launcher.wait_for_log("Nodepool launcher 12.0.0 starting").await;
    launcher.signal(Signal::SIGTERM);
    assert!(launcher.wait_for_exit().await.success());
}

#[tokio::test]
async fn the_launcher_is_ready_after_the_first_snapshot() {
    let work_dir = WorkDir::new("");
    let mut coordinator = coordinator(&work_dir).await;
    coordinator.stop().await;
    let _launcher = work_dir.launcher(&["-f"]);
    wait::until("a reply", PROCESS_TIMEOUT, async || work_dir.get("/ready").await.is_some()).await;
    assert_eq!(work_dir.get("/ready").await.unwrap().0, 503);
    assert_eq!(work_dir.get("/why/200-0000000001").await, Some((200, "[]".to_owned())));
    coordinator.start_again(&work_dir.path("coordinator")).await;
    work_dir.wait_until_ready().await;
}

#[tokio::test]
async fn responses_carry_the_headers_of_the_reference() {
    let work_dir = WorkDir::new("");
    let _coordinator = coordinator(&work_dir).await;
    let _launcher = work_dir.launcher(&["-f"]);
    work_dir.wait_until_ready().await;
    let url = format!("http://127.0.0.1:{}", work_dir.web_port.number);
    let client = reqwest::Client::new();
    for method in [reqwest::Method::GET, reqwest::Method::POST, reqwest::Method::DELETE, reqwest::Method::HEAD] {
        let response = client.request(method.clone(), format!("{url}/ready")).send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200, "{method}");
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(header("access-control-allow-origin"), "*");
        assert_eq!(header("cache-control"), "max-age=1, public");
        assert_eq!(header("content-type"), "text/plain; charset=UTF-8");
        assert!(header("last-modified").ends_with("GMT") && header("expires").ends_with("GMT"));
        let expected = if method == reqwest::Method::HEAD { "" } else { "OK" };
        assert_eq!(response.text().await.unwrap(), expected, "{method}");
    }
    let json = client.get(format!("{url}/ready")).header("Accept", "application/json").send().await.unwrap();
    assert_eq!(json.headers()["content-type"], "application/json");
    let future = "Fri, 01 Jan 2100 00:00:00 GMT";
    let known = client.get(format!("{url}/ready")).header("If-Modified-Since", future).send().await.unwrap();
    assert_eq!(known.status().as_u16(), 304);
    assert_eq!(known.text().await.unwrap(), "");
}

#[tokio::test]
async fn unusual_http_requests_are_answered_and_do_no_harm() {
    let work_dir = WorkDir::new("");
    let _coordinator = coordinator(&work_dir).await;
    let _launcher = work_dir.launcher(&["-f"]);
    work_dir.wait_until_ready().await;
    let cases = [
        ("//", 404),
        ("/ready/", 404),
        ("/why", 404),
        ("/why/", 404),
        ("/why/200-0000000001/lock", 404),
        ("/why/nonsense", 400),
        ("/why/200-%00", 400),
        ("/why/%ff%fe", 400),
        ("/why/200-1?x=%zz", 200),
    ];
    for (path, status) in cases {
        let (got, body) = work_dir.get(path).await.unwrap();
        assert_eq!(got, status, "{path}: {body}");
    }
    let (_, body) = work_dir.get("/why/nonsense").await.unwrap();
    assert!(body.starts_with(r#"{"error":"a request id is"#), "{body}");
    let long_path = format!("GET /why/{} HTTP/1.1\r\nHost: x\r\n\r\n", "9".repeat(200_000));
    let many_headers = format!("GET /ready HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(5_000));
    for bytes in
        [&b"\x16\x03\x01\x02\x00"[..], b"\r\n\r\n", b"GET\0/\r\n\r\n", long_path.as_bytes(), many_headers.as_bytes()]
    {
        let mut stream = TcpStream::connect(("127.0.0.1", work_dir.web_port.number)).await.unwrap();
        // The server may close during the write; other clients must still be served.
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
        let _ = tokio::time::timeout(PROCESS_TIMEOUT, stream.read_to_end(&mut Vec::new())).await.unwrap();
    }
    work_dir.wait_until_ready().await;
}

#[tokio::test]
async fn every_stopping_signal_releases_the_registration_at_once() {
    let work_dir = WorkDir::new("");
    let coordinator = coordinator(&work_dir).await;
    let session = coordinator.session().await;
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1] {
        let mut launcher = work_dir.launcher(&["-f"]);
        wait::until("the launcher to register", PROCESS_TIMEOUT, async || {
            registered_launchers(&session).await.len() == 1
        })
        .await;
        work_dir.wait_until_ready().await;
        launcher.signal(signal);
        assert!(launcher.wait_for_exit().await.success(), "{signal}");
        // The session timeout is ten seconds, so only a closed session has no registration at this time.
        assert_eq!(registered_launchers(&session).await, Vec::<String>::new(), "{signal}");
        assert!(launcher.log().contains(&format!("stopping signal={signal}")), "{}", launcher.log());
    }
}

#[tokio::test]
async fn a_process_waiting_for_zookeeper_can_be_stopped() {
    let unused = ports::reserve();
    let work_dir = WorkDir::new(&testkit::daemon_process::configuration(unused.number));
    let mut launcher = work_dir.launcher(&["-f"]);
    launcher.wait_for_log("Nodepool launcher 12.0.0 starting").await;
    wait::until("a reply", PROCESS_TIMEOUT, async || work_dir.get("/ready").await.is_some()).await;
    launcher.signal(Signal::SIGTERM);
    assert!(launcher.wait_for_exit().await.success());
}

#[tokio::test]
async fn a_hanging_zookeeper_delays_exit_by_at_most_ten_seconds() {
    let other = WorkDir::new("labels: []\nproviders: []\n");
    let standalone = other.start(programs::nodepool(), &["-c", "nodepool.yaml", "standalone"]);
    standalone.wait_for_log("Coordinator 127.0.0.1:").await;
    let log = standalone.log();
    let port = log.split("Coordinator 127.0.0.1:").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let work_dir = WorkDir::new(&testkit::daemon_process::configuration(port));
    let mut launcher = work_dir.launcher(&["-f"]);
    work_dir.wait_until_ready().await;
    standalone.signal(Signal::SIGSTOP);
    launcher.signal(Signal::SIGTERM);
    let started = Instant::now();
    let status = launcher.wait_for_exit().await;
    standalone.signal(Signal::SIGCONT);
    assert!(status.success() && started.elapsed() < Duration::from_secs(13), "{status} after {:?}", started.elapsed());
}

#[tokio::test]
async fn an_unread_log_pipe_does_not_prevent_exit() {
    let work_dir = WorkDir::new("");
    let _coordinator = coordinator(&work_dir).await;
    let mut command = work_dir.command(programs::launcher(), &["-d", "-c", "nodepool.yaml"]);
    let mut launcher =
        ChildProcess::start("launcher", &mut command, Output::Piped, &work_dir.path("daemon.log"), work_dir.home());
    let _unread = launcher.pipes();
    work_dir.wait_until_ready().await;
    // The test fills the pipe, so the launcher cannot write to it.
    let output = format!("/proc/{}/fd/1", launcher.pid());
    let mut options = std::fs::OpenOptions::new();
    let mut pipe = options.write(true).custom_flags(nix::libc::O_NONBLOCK).open(output).unwrap();
    let block = [b'x'; 4096];
    for length in [block.len(), 1] {
        while pipe.write(&block[..length]).is_ok() {}
    }
    // The dump blocks the thread that writes it.
    launcher.signal(Signal::SIGUSR2);
    launcher.signal(Signal::SIGTERM);
    let started = Instant::now();
    let status = launcher.wait(PROCESS_TIMEOUT).await;
    assert!(status.success() && started.elapsed() < Duration::from_secs(16), "{status} after {:?}", started.elapsed());
}

#[tokio::test]
async fn sigusr2_writes_the_state_of_every_actor() {
    let work_dir = WorkDir::new("");
    let _coordinator = coordinator(&work_dir).await;
    let launcher = work_dir.launcher(&["-d"]);
    work_dir.wait_until_ready().await;
    for dump in 1..=2 {
        launcher.signal(Signal::SIGUSR2);
        let ends = async || launcher.log().matches("DEBUG nodepool.stack_dump: End debug handler").count() == dump;
        wait::until("the end of the dump", PROCESS_TIMEOUT, ends).await;
    }
    let log = launcher.log();
    let dump = log.split("Beginning debug handler").nth(1).unwrap().split("End debug handler").next().unwrap();
    let objects: Vec<serde_json::Value> = dump
        .lines()
        .filter_map(|line| line.split_once("nodepool.stack_dump: {"))
        .map(|(_, object)| serde_json::from_str(&format!("{{{object}")).unwrap())
        .collect();
    let actors: Vec<&str> = objects.iter().map(|object| object["actor"].as_str().unwrap()).collect();
    assert!(actors.contains(&"Launcher") && actors.contains(&"CleanupWorker"), "{actors:?}");
    // The first signal starts a profile, the second writes it.
    let (first, second) = log.split_once("End debug handler").unwrap();
    assert!(first.contains("Starting profile") && !first.contains("Handlers by processor time"), "{first}");
    for expected in
        ["Stopping profile", "Handlers by processor time:", "Launcher Dump: ", "Mailboxes", "Functions, of "]
    {
        assert!(second.contains(expected), "{expected}: {second}");
    }
}

#[tokio::test]
async fn an_expired_session_restarts_all_actors() {
    let work_dir = WorkDir::new("");
    let mut coordinator = coordinator(&work_dir).await;
    let mut launcher = work_dir.launcher(&["-f"]);
    work_dir.wait_until_ready().await;
    // The new coordinator does not know the session.
    coordinator.stop().await;
    coordinator.start_again(&work_dir.path("another-coordinator")).await;
    let session = coordinator.session().await;
    wait::until("the launcher to register again", PROCESS_TIMEOUT, async || {
        registered_launchers(&session).await.len() == 1
    })
    .await;
    assert!(launcher.log().contains("ZooKeeper session ended; starting a new one"), "{}", launcher.log());
    launcher.signal(Signal::SIGTERM);
    assert!(launcher.wait_for_exit().await.success());
    assert_eq!(registered_launchers(&session).await, Vec::<String>::new());
}

#[tokio::test]
async fn the_session_moves_to_the_servers_of_a_changed_configuration() {
    let work_dir = WorkDir::new("");
    let first = coordinator(&work_dir).await;
    let _launcher = work_dir.launcher(&["-f"]);
    work_dir.wait_until_ready().await;
    let second = Coordinator::start(&work_dir.path("second")).await;
    let session = second.session().await;
    work_dir.configure(&second.configuration());
    // The second server does not know the session, so the launcher creates a new one there.
    wait::until("the launcher to register there", PROCESS_TIMEOUT, async || {
        registered_launchers(&session).await.len() == 1
    })
    .await;
    drop(first);
}

#[tokio::test]
async fn an_unreachable_zookeeper_is_retried_with_the_current_configuration() {
    let unused = ports::reserve();
    let work_dir = WorkDir::new(&testkit::daemon_process::configuration(unused.number));
    let mut launcher = work_dir.launcher(&["-f"]);
    launcher.wait_for_log("cannot connect to ZooKeeper, retrying").await;
    let _coordinator = coordinator(&work_dir).await;
    work_dir.wait_until_ready().await;
    launcher.signal(Signal::SIGTERM);
    assert!(launcher.wait_for_exit().await.success());
}

#[tokio::test]
async fn statsd_metrics_are_sent_to_the_configured_address() {
    let work_dir = WorkDir::new("");
    let _coordinator = coordinator(&work_dir).await;
    let statsd = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut command = work_dir.command(programs::launcher(), &["-f", "-c", "nodepool.yaml"]);
    command.env("STATSD_HOST", "127.0.0.1").env("STATSD_PORT", statsd.local_addr().unwrap().port().to_string());
    let _launcher = work_dir.start_command(command);
    let hostname = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let mut expected = vec![
        "nodepool.nodes.ready:0|g".to_owned(),
        "nodepool.nodes.in-use:0|g".to_owned(),
        format!("nodepool.launcher.{hostname}.zk.client.connection_queue:0|g"),
    ];
    let mut buffer = [0; 2048];
    while !expected.is_empty() {
        let length = tokio::time::timeout(PROCESS_TIMEOUT, statsd.recv(&mut buffer))
            .await
            .expect("all keys are received")
            .unwrap();
        assert!(length <= 512, "{length}");
        let datagram = text(&buffer[..length]);
        expected.retain(|line| !datagram.lines().any(|sent| sent == line));
    }
}

#[tokio::test]
async fn a_logging_file_sets_levels_and_destinations() {
    let work_dir = WorkDir::new("");
    let _coordinator = coordinator(&work_dir).await;
    let yaml = "version: 1\nformatters: {short: {format: '%(levelname)s|%(name)s|%(message)s'}}\n\
                handlers:\n  file: {class: logging.FileHandler, filename: own.log, formatter: short}\n\
                \x20 mail: {class: logging.handlers.SMTPHandler}\n\
                loggers: {nodepool.NodePool: {level: INFO, handlers: [file]}}\nroot: {level: ERROR, handlers: [mail]}\n";
    work_dir.write("logging.yaml", yaml);
    let launcher = work_dir.launcher(&["-f", "-l", "logging.yaml"]);
    work_dir.wait_until_ready().await;
    let own = std::fs::read_to_string(work_dir.path("own.log")).unwrap();
    assert!(own.contains("\nINFO|nodepool.NodePool|Nodepool launcher 12.0.0 starting\n"), "{own}");
    let named =
        "WARNING|nodepool.NodePool|logging configuration: handler `mail`: the class `logging.handlers.SMTPHandler`";
    assert!(own.contains(named), "{own}");
    assert!(launcher.log().contains("the class `logging.handlers.SMTPHandler` is not supported"), "{}", launcher.log());
}
