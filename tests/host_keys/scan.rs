//! Host key scans: the keys of real SSH servers, and a deadline that no host can exceed.

use std::net::SocketAddr;
use std::time::Duration;

use nodepool_drivers::common::keyscan::{KeyScanResult, ScanError, ScanMode, ScanTarget, Scanner};
use nodepool_model::records::time::Seconds;
use testkit::misbehaving_hosts::{ListenerBehavior, free_address, listen};
use testkit::real::skipped;
use testkit::real::sshd::{Host, KeyKind, Options};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

fn target(address: SocketAddr, deadline: f64) -> ScanTarget {
    ScanTarget {
        host: address.ip().to_string(),
        port: address.port(),
        timeout: Seconds::new(deadline),
        mode: ScanMode::Keys,
    }
}

async fn scan(address: SocketAddr, deadline: f64) -> Result<KeyScanResult, ScanError> {
    Scanner::default().scan(&target(address, deadline)).await
}

fn ssh_keyscan(address: SocketAddr) -> Vec<String> {
    let output = std::process::Command::new("ssh-keyscan")
        .args(["-t", "ed25519,ecdsa,rsa", "-p", &address.port().to_string(), &address.ip().to_string()])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split_once(' ')).map(|(_, key)| key.to_owned()).collect()
}

#[tokio::test]
async fn a_scan_finds_what_ssh_keyscan_finds() {
    if skipped() {
        return;
    }
    let host = Host::start(Options::at(11)).await;
    let found = scan(host.address(), 20.0).await.unwrap();
    assert_eq!(found.address, Some(host.address().ip()));
    let types: Vec<&str> = found.host_keys.iter().filter_map(|key| key.split(' ').next()).collect();
    assert_eq!(types, ["ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa"]);
    let mut expected = ssh_keyscan(host.address());
    expected.sort();
    let mut sorted = found.host_keys;
    sorted.sort();
    assert_eq!((&sorted, &sorted), (&expected, &host.keys()));
}

#[tokio::test]
async fn every_curve_is_asked_for_and_missing_types_are_skipped() {
    if skipped() {
        return;
    }
    let keys = vec![KeyKind::Ecdsa384, KeyKind::Ecdsa521];
    let host = Host::start(Options { keys, ..Options::at(12) }).await;
    assert_eq!(scan(host.address(), 20.0).await.unwrap().host_keys, host.keys());
}

// The banner of this server comes when a connection for each of the five key types is open.
#[tokio::test]
async fn all_key_types_are_scanned_at_the_same_time() {
    if skipped() {
        return;
    }
    let host = Host::start(Options::at(97)).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let slow = listener.local_addr().unwrap();
    let server = host.address();
    tokio::spawn(async move {
        let mut waiting = Vec::new();
        while let Ok((client, _)) = listener.accept().await {
            waiting.push(client);
            if waiting.len() == 5 {
                for mut client in waiting.drain(..) {
                    tokio::spawn(async move {
                        let mut server = TcpStream::connect(server).await.unwrap();
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    });
                }
            }
        }
    });
    let mut keys = scan(slow, 30.0).await.unwrap().host_keys;
    keys.sort();
    assert_eq!(keys, host.keys());
}

#[tokio::test]
async fn a_scan_retries_until_a_late_host_is_up() {
    if skipped() {
        return;
    }
    let mut host = Host::start(Options { keys: vec![KeyKind::Ed25519], ..Options::at(13) }).await;
    host.stop();
    let address = host.address();
    let scanning = tokio::spawn(async move { scan(address, 30.0).await });
    assert!(scan(address, 0.3).await.is_err(), "a stopped host refuses connections");
    host.start_again().await;
    assert_eq!(scanning.await.unwrap().unwrap().host_keys, host.keys());
}

#[tokio::test]
async fn many_hosts_are_scanned_concurrently() {
    if skipped() {
        return;
    }
    let start = |last| Host::start(Options { keys: vec![KeyKind::Ed25519], ..Options::at(last) });
    let hosts = futures::future::join_all((21..26).map(start)).await;
    let scanner = Scanner::default();
    let scans = (0..40).map(|number| {
        let (host, scanner) = (&hosts[number % hosts.len()], &scanner);
        async move { (scanner.scan(&target(host.address(), 60.0)).await.unwrap().host_keys, host.keys()) }
    });
    for (found, expected) in futures::future::join_all(scans).await {
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn a_scan_of_a_closed_port_ends_by_the_deadline() {
    let address = free_address("127.0.0.1");
    let began = Instant::now();
    let error = scan(address, 0.5).await.unwrap_err();
    let text = format!("Timeout connecting to 127.0.0.1 on port {}: ", address.port());
    assert!(error.to_string().starts_with(&text), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn no_listener_behavior_outlives_the_deadline_or_leaks_a_connection() {
    for behavior in [
        ListenerBehavior::Silent,
        ListenerBehavior::BannerOnly,
        ListenerBehavior::HangsUp,
        ListenerBehavior::Chatters,
        ListenerBehavior::Garbage,
    ] {
        let (closed_sender, closed_receiver) = std::sync::mpsc::channel();
        let address = listen(behavior, closed_sender);
        let error = timeout(Duration::from_secs(5), scan(address, 0.7)).await.expect("ended by the deadline");
        assert!(matches!(error, Err(ScanError::Timeout { .. })), "{error:?}");
        let closed = tokio::task::spawn_blocking(move || closed_receiver.recv_timeout(Duration::from_secs(10)));
        closed.await.unwrap().expect("the connection is closed, not abandoned");
    }
}

#[tokio::test]
async fn a_connection_suffices_if_no_keys_are_requested() {
    let (closed_sender, _closed_receiver) = std::sync::mpsc::channel();
    let address = listen(ListenerBehavior::Silent, closed_sender);
    let target = ScanTarget { mode: ScanMode::ConnectOnly, ..target(address, 5.0) };
    let found = Scanner::default().scan(&target).await.unwrap();
    assert_eq!(found, KeyScanResult { host_keys: Vec::new(), address: Some(address.ip()) });
    let closed_port = ScanTarget { mode: ScanMode::ConnectOnly, ..self::target(free_address("127.0.0.1"), 0.3) };
    assert!(matches!(Scanner::default().scan(&closed_port).await, Err(ScanError::Timeout { .. })));
}

#[tokio::test]
async fn a_fake_host_has_a_fake_key_and_is_never_connected_to() {
    let mut target = target(free_address("127.0.0.1"), 0.0);
    target.host = String::from("fake-host-1");
    let found = Scanner::default().scan(&target).await.unwrap();
    assert_eq!(found, KeyScanResult { host_keys: vec![String::from("ssh-rsa FAKEKEY")], address: None });
    target.mode = ScanMode::ConnectOnly;
    assert_eq!(Scanner::default().scan(&target).await.unwrap(), KeyScanResult::default());
}

#[tokio::test]
async fn an_unresolvable_name_fails_at_once_with_a_reason() {
    let mut target = target(free_address("127.0.0.1"), 30.0);
    target.host = String::from("unresolvable.invalid");
    let error = Scanner::default().scan(&target).await.unwrap_err();
    assert!(matches!(error, ScanError::Unresolvable { .. }), "{error}");
    assert!(error.to_string().starts_with("cannot resolve unresolvable.invalid: "), "{error}");
}
