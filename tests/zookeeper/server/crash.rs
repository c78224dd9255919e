//! Crashes of the embedded server: after kill -9 of its process under load, acknowledged writes exist and sessions
//! resume.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::embedded_zk::raw_client::{RawClient, op, write_create};
use testkit::{programs, wait};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use zookeeper_server::jute::Reader;

const ROUNDS: u64 = 12;
const WRITERS: usize = 4;

/// Starts a server process after the shell commands in `before`.
async fn start(data_dir: &Path, before: &str) -> (Child, SocketAddr) {
    let mut child = Command::new("sh")
        .args(["-c", &format!("{before} exec \"$@\""), "sh"])
        .arg(programs::example("coordinator"))
        .arg(data_dir)
        .arg("0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("sh starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let line = tokio::time::timeout(Duration::from_secs(30), lines.next_line()).await.expect("it starts in time");
    let line = line.unwrap().expect("the server prints its addresses");
    (child, line.split(' ').next().unwrap().parse().unwrap())
}

/// Creates znodes, several in flight, until the connection breaks. Returns the names of the acknowledged ones.
async fn write(mut client: RawClient, prefix: String, data: &'static [u8]) -> Vec<String> {
    let mut acknowledged = Vec::new();
    let (mut sent, mut received) = (0_u32, 0_u32);
    loop {
        while sent < received + 5 {
            let mut frame = zookeeper_server::jute::Writer::frame();
            frame.int(i32::try_from(sent).unwrap()).int(op::CREATE);
            write_create(&mut frame, &format!("{prefix}{sent}"), data, 0);
            if tokio::io::AsyncWriteExt::write_all(&mut client.stream, &frame.finish_frame()).await.is_err() {
                return acknowledged;
            }
            sent += 1;
        }
        let Some(answer) = client.read_reply().await else { return acknowledged };
        assert_eq!((answer.code, answer.xid), (0, i32::try_from(received).unwrap()));
        acknowledged.push(Reader::new(&answer.body).text().unwrap());
        received += 1;
    }
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_when_the_server_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let mut random = StdRng::seed_from_u64(1);
    let mut all: Vec<String> = Vec::new();
    let (mut long_session_id, mut long_session_password) = (0, vec![0; 16]);
    for round in 0..ROUNDS {
        let (mut child, address) = start(directory.path(), "").await;
        let long_session = RawClient::resume(address, 40_000, long_session_id, &long_session_password, 0).await;
        let mut long_session = long_session.unwrap_or_else(|| panic!("round {round}: the session was lost"));
        if round == 0 {
            (long_session_id, long_session_password) = (long_session.session, long_session.password.clone());
            assert_eq!(long_session.create("/held", 1).await.code, 0);
        }
        assert_eq!(long_session.exists_and_watch("/held").await, 0, "round {round}: the ephemeral was lost");
        for path in &all {
            assert_eq!(long_session.exists_and_watch(path).await, 0, "round {round}: {path} was acknowledged and lost");
        }
        let mut writers = Vec::new();
        for writer in 0..WRITERS {
            let client = RawClient::open(address, 4_000).await;
            writers.push(tokio::spawn(write(client, format!("/r{round}-w{writer}-"), b"some data")));
        }
        tokio::time::sleep(Duration::from_millis(random.gen_range(20..400))).await; // kill at a random time
        child.start_kill().unwrap();
        child.wait().await.unwrap();
        for writer in writers {
            all.extend(writer.await.unwrap());
        }
    }
    assert!(all.len() > 100, "only {} znodes were acknowledged in all rounds", all.len());
}

#[tokio::test]
async fn a_server_stops_gracefully_when_stdin_closes() {
    let directory = tempfile::tempdir().unwrap();
    let (mut child, address) = start(directory.path(), "").await;
    let mut client = RawClient::open(address, 40_000).await;
    assert_eq!(client.create("/kept", 0).await.code, 0);
    drop(child.stdin.take());
    wait::until("the server to exit", Duration::from_secs(20), async || child.try_wait().unwrap().is_some()).await;
    let (_child, address) = start(directory.path(), "").await;
    let mut client =
        RawClient::resume(address, 40_000, client.session, &client.password, 0).await.expect("the session resumes");
    assert_eq!(client.exists_and_watch("/kept").await, 0);
}

#[tokio::test]
async fn a_full_disk_stops_the_server_and_loses_no_acknowledged_write() {
    let directory = tempfile::tempdir().unwrap();
    let (mut first, _) = start(directory.path(), "").await; // the store must exist before the disk is full
    first.start_kill().unwrap();
    first.wait().await.unwrap();
    // In blocks of 512 bytes: a file cannot exceed 3 MiB; its write fails, and the process is not killed.
    let (mut child, address) = start(directory.path(), "trap '' XFSZ; ulimit -f 6144;").await;
    let client = RawClient::open(address, 4_000).await;
    let acknowledged = write(client, "/full-".to_owned(), &[b'x'; 50_000]).await;
    assert!(!acknowledged.is_empty());
    // `wait` would close the standard input, which also ends the server, without an error.
    let _input = child.stdin.take();
    let ended = tokio::time::timeout(Duration::from_secs(20), child.wait()).await.expect("the server exits");
    assert!(!ended.unwrap().success());
    let (_child, address) = start(directory.path(), "").await;
    let mut client = RawClient::open(address, 4_000).await;
    for path in acknowledged {
        assert_eq!(client.exists_and_watch(&path).await, 0, "{path}");
    }
}
