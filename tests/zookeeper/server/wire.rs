//! Protocol of the embedded server: sessions, watches, limits, and misbehaving clients.

use std::net::SocketAddr;
use std::time::Duration;

use testkit::embedded_zk::raw_client::{RawClient, RawReply, op, write_create};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zookeeper_server::EmbeddedServer;
use zookeeper_server::jute::{Reader, Writer};

const NO_NODE: i32 = -101;

struct ServerHarness {
    _directory: tempfile::TempDir,
    server: EmbeddedServer,
    address: SocketAddr,
}

async fn start_server() -> ServerHarness {
    let directory = tempfile::tempdir().unwrap();
    let server = testkit::embedded_zk::start(directory.path()).await;
    let address = server.address();
    ServerHarness { _directory: directory, server, address }
}

async fn four_letter_word(address: SocketAddr, word: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(word.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

/// Waits until `exists` on a path has this error code.
async fn until_reply_code(client: &mut RawClient, path: &str, code: i32) {
    let holds = async {
        while client.exists_and_watch(path).await != code {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), holds)
        .await
        .unwrap_or_else(|_| panic!("{path} never had code {code}"));
}

#[tokio::test]
async fn four_letter_words_are_answered() {
    let harness = start_server().await;
    let mut client = RawClient::open(harness.address, 4_000).await;
    client.create("/e", 1).await;
    assert_eq!(four_letter_word(harness.address, "ruok").await, "imok");
    let srvr = four_letter_word(harness.address, "srvr").await;
    assert!(srvr.contains("Mode: standalone\n") && srvr.contains("Node count: 5\n"), "{srvr}");
    let mntr = four_letter_word(harness.address, "mntr").await;
    assert!(mntr.contains("zk_znode_count\t5\n") && mntr.contains("zk_ephemerals_count\t1\n"), "{mntr}");
    harness.server.stop().await;
}

#[tokio::test]
async fn garbage_closes_only_its_own_connection() {
    let harness = start_server().await;
    let mut neighbour = RawClient::open(harness.address, 4_000).await;
    let frames: [&[u8]; 7] = [
        b"GET / HTTP/1.1\r\n\r\n",                            // as a length: far too large
        &[0xff, 0xff, 0xff, 0xff],                            // a negative length
        &[0, 0, 0, 0],                                        // an empty handshake
        &[0, 0, 0, 3, 1, 2, 3],                               // a truncated handshake
        &[0, 0x10, 0, 0],                                     // one byte more than a frame may have
        &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3],             // TLS on the plain port
        &[0, 0, 0, 8, 0x7f, 0xff, 0xff, 0xff, 0xff, 1, 1, 1], // an unknown protocol version
    ];
    for bytes in frames {
        let mut stream = TcpStream::connect(harness.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut rest)).await;
        assert!(closed.is_ok() && rest.is_empty(), "{bytes:?}: {rest:?}");
        assert_eq!(neighbour.ping().await.code, 0);
    }
    // The same within a session: a list of allegedly two billion entries, text that is not UTF-8, no body, a truncated
    // body.
    let bodies: [(i32, &[u8]); 4] = [
        (op::SET_WATCHES, &[0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff]),
        (op::EXISTS, &[0, 0, 0, 2, 0xc3, 0x28, 0]),
        (op::CREATE, &[]),
        (op::MULTI, &[0, 0, 0, 1, 0]),
    ];
    for (operation, bytes) in bodies {
        let mut client = RawClient::open(harness.address, 4_000).await;
        client.send(operation, |writer| writer.raw(bytes)).await;
        assert!(client.is_closed().await, "{operation}");
        assert_eq!(neighbour.ping().await.code, 0);
    }
    harness.server.stop().await;
}

#[tokio::test]
async fn unsupported_operations_are_answered_as_such() {
    let harness = start_server().await;
    let mut client = RawClient::open(harness.address, 4_000).await;
    let path = |writer: &mut Writer| {
        writer.text("/a");
    };
    for operation in [10, 16, 19, 20, 21, 102, 103, 104, 4711, i32::MIN] {
        assert_eq!(client.request(operation, path).await.code, -6, "{operation}");
    }
    for (flags, code) in [(4, -6), (5, -6), (7, -8), (-1, -8)] {
        assert_eq!(client.create("/a", flags).await.code, code, "{flags}");
    }
    assert_eq!(
        client
            .request(op::CREATE, |writer| {
                writer.text("/a").buffer(b"").count(0).int(0);
            })
            .await
            .code,
        -114
    );
    assert_eq!(
        client
            .request(op::ADD_WATCH, |writer| {
                writer.text("/a").int(9);
            })
            .await
            .code,
        -5
    );
    assert_eq!(client.exists_and_watch("/a").await, NO_NODE);
    harness.server.stop().await;
}

#[tokio::test]
async fn a_session_is_resumed_by_id_and_password_only() {
    let harness = start_server().await;
    let mut first = RawClient::open(harness.address, 2_000).await;
    assert_eq!(first.timeout_ms, 2_000);
    first.create("/e", 1).await;
    let wrong = RawClient::resume(harness.address, 2_000, first.session, &[7; 16], 0).await;
    assert!(wrong.is_none(), "a wrong password resumes nothing");
    let unknown = RawClient::resume(harness.address, 2_000, first.session + 1, &first.password, 0).await;
    assert!(unknown.is_none());
    let mut second = RawClient::resume(harness.address, 3_000, first.session, &first.password, 0)
        .await
        .expect("the session resumes");
    assert_eq!((second.session, second.timeout_ms), (first.session, 3_000));
    assert!(first.is_closed().await, "the former connection is closed");
    assert_eq!(second.exists_and_watch("/e").await, 0);
    harness.server.stop().await;
}

#[tokio::test]
async fn ephemerals_end_with_an_expired_session_and_at_once_with_a_closed_one() {
    let harness = start_server().await;
    let mut observer = RawClient::open(harness.address, 40_000).await;
    let mut silent = RawClient::open(harness.address, 1).await;
    assert_eq!(silent.timeout_ms, 1_000, "the minimum timeout");
    silent.create("/silent", 1).await;
    let mut closing = RawClient::open(harness.address, 1_000_000).await;
    assert_eq!(closing.timeout_ms, 40_000, "the maximum timeout");
    closing.create("/closing", 1).await;
    assert_eq!((observer.exists_and_watch("/silent").await, observer.exists_and_watch("/closing").await), (0, 0));
    assert_eq!(closing.request(op::CLOSE, |_| {}).await.code, 0);
    assert!(closing.is_closed().await);
    assert_eq!(observer.exists_and_watch("/closing").await, NO_NODE);
    assert!(silent.is_closed().await, "an expired session loses its connection");
    assert_eq!(observer.exists_and_watch("/silent").await, NO_NODE);
    assert_eq!(observer.events, [(2, "/closing".into()), (2, "/silent".into())]);
    let again = RawClient::resume(harness.address, 4_000, silent.session, &silent.password, 0).await;
    assert!(again.is_none(), "an expired session cannot be resumed");
    harness.server.stop().await;
}

#[tokio::test]
async fn a_session_survives_a_restart_of_the_server_until_it_times_out() {
    let directory = tempfile::tempdir().unwrap();
    let server = testkit::embedded_zk::start(directory.path()).await;
    let mut client = RawClient::open(server.address(), 1_000).await;
    client.create("/stays", 0).await;
    let before = client.create("/e", 1).await;
    let ports = (server.address(), server.tls_address());
    server.stop().await;
    assert!(client.is_closed().await);
    let server = testkit::embedded_zk::start(directory.path()).await;
    assert_eq!((server.address(), server.tls_address()), ports, "the ports are unchanged");
    let seen = before.zxid;
    let mut client = RawClient::resume(server.address(), 1_000, client.session, &client.password, seen)
        .await
        .expect("the session resumes");
    assert_eq!((client.exists_and_watch("/stays").await, client.exists_and_watch("/e").await), (0, 0));
    let after = client.create("/later", 0).await;
    assert!(after.zxid > seen, "transaction ids increase");
    let mut other = RawClient::open(server.address(), 40_000).await;
    assert!(other.session > client.session, "session ids are not reused");
    drop(client);
    until_reply_code(&mut other, "/e", NO_NODE).await;
    assert_eq!(other.exists_and_watch("/stays").await, 0);
    server.stop().await;
}

#[tokio::test]
async fn a_client_with_a_newer_zxid_is_rejected() {
    let harness = start_server().await;
    let client = RawClient::open(harness.address, 4_000).await;
    let mut stream = TcpStream::connect(harness.address).await.unwrap();
    let mut hello = Writer::frame();
    hello.int(0).long(i64::MAX).int(4_000).long(client.session).buffer(&client.password).flag(false);
    stream.write_all(&hello.finish_frame()).await.unwrap();
    assert_eq!(testkit::embedded_zk::raw_client::frame(&mut stream).await, None);
    harness.server.stop().await;
}

#[tokio::test]
async fn watches_set_after_a_reconnect_fire_for_missed_changes() {
    let harness = start_server().await;
    let mut client = RawClient::open(harness.address, 4_000).await;
    client.create("/a", 0).await;
    let seen = client.create("/b", 0).await.zxid;
    assert_eq!(client.exists_and_watch("/a").await, 0);
    let (session, password) = (client.session, client.password.clone());
    drop(client);
    let mut other = RawClient::open(harness.address, 4_000).await;
    other.create("/new", 0).await;
    other
        .request(op::DELETE, |writer| {
            writer.text("/a").int(-1);
        })
        .await;
    let mut client = RawClient::resume(harness.address, 4_000, session, &password, seen).await.unwrap();
    let list = |writer: &mut Writer, paths: &[&str]| {
        writer.count(paths.len());
        paths.iter().for_each(|path| {
            writer.text(path);
        });
    };
    let set = client.request(op::SET_WATCHES_2, |writer| {
        writer.long(seen);
        list(writer, &["/a", "/b"]);
        list(writer, &["/new", "/none"]);
        list(writer, &["/"]);
        list(writer, &[]);
        list(writer, &["/deep"]);
    });
    assert_eq!(set.await.code, 0);
    assert_eq!(client.events, [(2, "/a".into()), (1, "/new".into()), (4, "/".into())]);
    client.events.clear();
    other.create("/deep", 0).await;
    other.create("/deep/er", 0).await;
    other.create("/none", 0).await;
    client.ping().await;
    assert_eq!(client.events, [(1, "/deep".into()), (1, "/deep/er".into()), (1, "/none".into())]);
    harness.server.stop().await;
}

#[tokio::test]
async fn watches_are_found_and_removed_by_kind() {
    let harness = start_server().await;
    let mut client = RawClient::open(harness.address, 4_000).await;
    client.exists_and_watch("/w").await;
    client
        .request(op::ADD_WATCH, |writer| {
            writer.text("/w").int(1);
        })
        .await;
    let mut codes = Vec::new();
    let steps = [
        (op::CHECK_WATCHES, 2),
        (op::CHECK_WATCHES, 1),
        (op::REMOVE_WATCHES, 2),
        (op::CHECK_WATCHES, 2),
        (op::CHECK_WATCHES, 3),
        (op::REMOVE_WATCHES, 3),
        (op::REMOVE_WATCHES, 3),
        (op::REMOVE_WATCHES, 8),
    ];
    for (operation, kind) in steps {
        codes.push(
            client
                .request(operation, |writer| {
                    writer.text("/w").int(kind);
                })
                .await
                .code,
        );
    }
    assert_eq!(codes, [0, -121, 0, -121, 0, 0, -121, -5]);
    client.create("/w", 0).await;
    assert_eq!(client.events, []);
    harness.server.stop().await;
}

#[tokio::test]
async fn authentication_is_accepted_and_acls_are_stored() {
    let harness = start_server().await;
    let mut client = RawClient::open(harness.address, 4_000).await;
    let auth = |scheme: &'static str| {
        move |writer: &mut Writer| {
            writer.int(0).text(scheme).buffer(b"me:secret");
        }
    };
    assert_eq!(client.request(op::AUTH, auth("digest")).await.code, 0);
    let body = client.request(op::WHO_AM_I, |_| {}).await.body;
    let mut reader = Reader::new(&body);
    let users = reader.list(|reader| Ok((reader.text()?, reader.text()?))).unwrap();
    assert_eq!(users, [("ip".into(), "127.0.0.1".into()), ("digest".into(), "me".into())]);
    client.create("/a", 0).await;
    let set = client.request(op::SET_ACL, |writer| {
        writer.text("/a").count(1).int(1).text("digest").text("me:hash").int(0);
    });
    assert_eq!(set.await.code, 0);
    let body = client
        .request(op::GET_ACL, |writer| {
            writer.text("/a");
        })
        .await
        .body;
    let acl = Reader::new(&body).list(|reader| Ok((reader.int()?, reader.text()?, reader.text()?))).unwrap();
    assert_eq!(acl, [(1, "digest".into(), "me:hash".into())]);
    assert_eq!(client.request(op::AUTH, auth("kerberos")).await.code, -115);
    assert!(client.is_closed().await);
    harness.server.stop().await;
}

#[tokio::test]
async fn one_request_reads_many_znodes_up_to_a_limit() {
    let harness = start_server().await;
    let mut client = RawClient::open(harness.address, 4_000).await;
    let data = vec![b'x'; 500_000];
    client.request(op::CREATE, |writer| write_create(writer, "/big", &data, 0)).await;
    let read = |times: usize| {
        move |writer: &mut Writer| {
            for _ in 0..times {
                writer.int(op::GET_DATA).flag(false).int(-1).text("/big").flag(false);
            }
            writer.int(op::GET_CHILDREN).flag(false).int(-1).text("/none").flag(false);
            writer.int(-1).flag(true).int(-1);
        }
    };
    let RawReply { code, body, .. } = client.request(op::MULTI_READ, read(2)).await;
    assert_eq!(code, 0);
    let mut reader = Reader::new(&body);
    assert_eq!((reader.int(), reader.flag(), reader.int()), (Ok(op::GET_DATA), Ok(false), Ok(0)));
    assert_eq!(reader.buffer().unwrap(), data);
    assert_eq!(client.request(op::MULTI_READ, read(1_000)).await.code, -8);
    harness.server.stop().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_disconnected() {
    let harness = start_server().await;
    let mut stalled = RawClient::open(harness.address, 40_000).await;
    stalled
        .request(op::ADD_WATCH, |writer| {
            writer.text("/").int(1);
        })
        .await;
    // From now on the client does not read. Its events contain long paths, so they fill every buffer soon.
    let name = "n".repeat(200_000);
    let mut busy = RawClient::open(harness.address, 40_000).await;
    for round in 0..60 {
        let path = format!("/{name}{round}");
        assert_eq!(busy.create(&path, 0).await.code, 0);
        assert_eq!(
            busy.request(op::DELETE, |writer| {
                writer.text(&path).int(-1);
            })
            .await
            .code,
            0
        );
    }
    let mntr = four_letter_word(harness.address, "mntr").await;
    assert!(mntr.contains("zk_num_alive_connections\t1\n"), "{mntr}");
    let alive = RawClient::resume(harness.address, 4_000, stalled.session, &stalled.password, 0).await;
    assert!(alive.is_some(), "its session can still be resumed");
    harness.server.stop().await;
}

#[tokio::test]
async fn unread_replies_exert_backpressure_on_the_client() {
    let harness = start_server().await;
    let mut client = RawClient::open(harness.address, 40_000).await;
    client.request(op::CREATE, |writer| write_create(writer, "/big", &vec![b'x'; 900_000], 0)).await;
    for _ in 0..500 {
        client
            .send(op::GET_DATA, |writer| {
                writer.text("/big").flag(false);
            })
            .await;
    }
    let mut other = RawClient::open(harness.address, 4_000).await;
    assert_eq!(other.exists_and_watch("/big").await, 0, "other clients are served meanwhile");
    let mntr = four_letter_word(harness.address, "mntr").await;
    let received: u64 = mntr
        .lines()
        .find_map(|line| line.strip_prefix("zk_packets_received\t"))
        .and_then(|count| count.parse().ok())
        .unwrap();
    assert!(received < 200, "{received} requests were read: no backpressure");
    for _ in 0..500 {
        assert_eq!(client.read_reply().await.unwrap().code, 0);
    }
    harness.server.stop().await;
}
