//! kazoo 2.9 and Nodepool 11's client on top of it: the embedded server replies as Apache ZooKeeper does.

use serde_json::{Value, json};
use testkit::real::python::{Interpreter, Script, spawn};
use testkit::real::{self, zookeeper};
use zookeeper_server::EmbeddedServer;

/// Result of each part of the script on a new server.
fn expected() -> Vec<(&'static str, Value)> {
    vec![
        ("locks", json!(["one", "two"])),
        ("counter", json!(60)),
        ("barrier", json!(2)),
        ("tree_cache", json!([])),
        (
            "recursive_watch",
            json!([
                ["CREATED", "/watched/a"],
                ["CHANGED", "/watched/a"],
                ["CREATED", "/watched/a/b"],
                ["DELETED", "/watched/a/b"]
            ]),
        ),
        (
            "transactions",
            json!([
                "/t",
                "/t/s-0000000000",
                true,
                1,
                ["RolledBackError", "NoNodeError", "RuntimeInconsistency"],
                "two"
            ]),
        ),
        ("access_lists", json!([["digest", "world"], 1, true])),
        ("session", json!([true, true, true])),
        ("bulk", json!(["/bulk/n-0000001999", 1_000_000, 2_000])),
    ]
}

async fn check(mut script: Script) {
    for (part, value) in expected() {
        assert_eq!(script.call(json!({ "do": part })).await, value, "{part}");
    }
    assert!(script.finish(std::time::Duration::from_secs(20)).await.success());
}

async fn server() -> (tempfile::TempDir, EmbeddedServer) {
    let directory = tempfile::tempdir().unwrap();
    let server = testkit::embedded_zk::start(directory.path()).await;
    (directory, server)
}

#[tokio::test]
async fn kazoo_works_over_a_plain_connection() {
    if real::skipped() {
        return;
    }
    let (_directory, server) = server().await;
    check(spawn(Interpreter::Reference, "kazoo_embedded.py", &[&server.address().to_string()])).await;
    server.stop().await;
}

#[tokio::test]
async fn kazoo_works_over_tls_with_the_certificates_of_the_data_directory() {
    if real::skipped() {
        return;
    }
    let (_directory, server) = server().await;
    let files = server.tls_files();
    let [cert, key, ca] = [&files.cert, &files.key, &files.ca].map(|path| path.to_str().expect("its path is UTF-8"));
    check(spawn(Interpreter::Reference, "kazoo_embedded.py", &[&server.tls_address().to_string(), cert, key, ca]))
        .await;
    server.stop().await;
}

/// The expectations above are those of Apache ZooKeeper.
#[tokio::test]
async fn apache_zookeeper_gives_kazoo_the_same_replies() {
    if real::skipped() {
        return;
    }
    let server = zookeeper::Server::start(zookeeper::Options::default()).await;
    check(spawn(Interpreter::Reference, "kazoo_embedded.py", &[&server.address()])).await;
}
