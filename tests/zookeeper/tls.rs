//! TLS connections to Apache ZooKeeper: accepted certificates, and errors that name the cause and the file or server.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use nodepool_model::config::TlsFiles;
use nodepool_zk::Connection;
use nodepool_zk::client::{self, ConnectOptions, HostNames, Tls, connect, connect_until};
use testkit::real;
use testkit::real::tls::file;
use testkit::real::zookeeper::{Options, Server};
use zookeeper_server::types::CreateMode;

fn files() -> TlsFiles {
    TlsFiles { cert: file("client.pem"), key: file("client.key"), ca: file("ca.pem") }
}

fn options(address: &str, files: TlsFiles, host_names: HostNames) -> ConnectOptions {
    let (host, port) = address.rsplit_once(':').unwrap();
    let plain = ConnectOptions::plain(host, port.parse().unwrap());
    ConnectOptions { tls: Some(Tls { files, host_names }), session_timeout: Duration::from_secs(5), ..plain }
}

async fn serve(certificate: &'static str) -> Server {
    Server::start(Options { certificate: Some(certificate), ..Options::default() }).await
}

async fn works(options: ConnectOptions) {
    let zk = connect(options).await.unwrap();
    let mode = CreateMode::EphemeralSequential;
    let (path, _) = zk.create("/tls-", Bytes::from_static(b"data"), mode).await.unwrap();
    assert_eq!(zk.get(&path).await.unwrap().0, "data");
    zk.close().await;
}

async fn is_refused(options: ConnectOptions, words: &[&str]) {
    let error = connect(options).await.err().expect("the connection is refused").to_string();
    for word in words {
        assert!(error.contains(word), "{word:?} is missing in: {error}");
    }
}

#[tokio::test]
async fn certificates_are_verified_by_authority_and_optionally_host() {
    if real::skipped() {
        return;
    }
    let good = serve("server").await;
    works(options(&good.address(), files(), HostNames::Ignored)).await;
    works(options(&good.address(), files(), HostNames::Checked)).await;
    // Zuul's helper script creates certificates without host names, which Nodepool 11 accepts.
    for certificate in ["server-cn-only", "server-foreign"] {
        let server = serve(certificate).await;
        works(options(&server.address(), files(), HostNames::Ignored)).await;
        let strict = options(&server.address(), files(), HostNames::Checked);
        is_refused(strict, &[&server.address(), "the server's certificate is for another host name"]).await;
    }
    let server = serve("server-expired").await;
    is_refused(options(&server.address(), files(), HostNames::Ignored), &["the server's certificate has expired"])
        .await;
    let server = serve("server-v1").await;
    let refused = options(&server.address(), files(), HostNames::Ignored);
    is_refused(refused, &["X.509 version 1", "re-create it as version 3"]).await;
    let server = serve("ca").await;
    let refused = options(&server.address(), files(), HostNames::Ignored);
    is_refused(refused, &["(CA:TRUE)", "re-create it with basicConstraints=CA:FALSE"]).await;
}

#[tokio::test]
async fn wrong_authority_certificate_and_port_have_distinct_errors() {
    if real::skipped() {
        return;
    }
    let server = serve("server").await;
    let ours = |files| options(&server.address(), files, HostNames::Ignored);
    let wrong_authority = TlsFiles { ca: file("other-ca.pem"), ..files() };
    is_refused(ours(wrong_authority), &["is not signed by an authority in", "other-ca.pem"]).await;
    let foreign = TlsFiles { cert: file("other-client.pem"), key: file("other-client.key"), ..files() };
    is_refused(ours(foreign), &["refuses our client certificate", "other-client.pem"]).await;
    is_refused(options(&server.plain_address(), files(), HostNames::Ignored), &["plain port"]).await;
    let plain = ConnectOptions { tls: None, ..ours(files()) };
    is_refused(plain, &[&server.address(), "TLS"]).await;
    let unresolvable = ConnectOptions {
        servers: vec![client::ServerAddress { host: "no-such-host.invalid".into(), port: 2281 }],
        ..ours(files())
    };
    is_refused(unresolvable, &["no-such-host.invalid:2281: host name not found"]).await;
}

#[tokio::test]
async fn unusable_tls_files_are_named_in_the_error() {
    if real::skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let written = |name: &str, text: &str| -> PathBuf {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (empty, rubbish) =
        (written("empty.pem", ""), written("rubbish.pem", "\u{1f980}\n-----BEGIN CERTIFICATE-----\n???"));
    let missing = directory.path().join("missing.pem");
    let cases = [
        (TlsFiles { ca: missing.clone(), ..files() }, "cannot read the CA file", "missing.pem"),
        (TlsFiles { cert: missing.clone(), ..files() }, "cannot read the client certificate", "missing.pem"),
        (TlsFiles { key: missing, ..files() }, "cannot read the client key", "missing.pem"),
        (TlsFiles { ca: directory.path().to_owned(), ..files() }, "cannot read the CA file", "directory"),
        (TlsFiles { ca: empty.clone(), ..files() }, "holds no certificate", "empty.pem"),
        (TlsFiles { cert: empty.clone(), ..files() }, "holds no certificate", "empty.pem"),
        (TlsFiles { key: empty, ..files() }, "holds no unencrypted private key", "empty.pem"),
        (TlsFiles { ca: rubbish, ..files() }, "the CA file", "rubbish.pem"),
        (TlsFiles { key: file("server.key"), ..files() }, "does not belong to", "server.key"),
    ];
    for (files, words, name) in cases {
        // Nothing listens on this port; the files are checked before a connection is made.
        let options = options("127.0.0.1:1", files, HostNames::Ignored);
        let ended = tokio::time::timeout(Duration::from_secs(5), connect_until(options, std::future::pending())).await;
        let error = ended.expect("invalid files are not retried").err().expect("the files are unusable").to_string();
        assert!(error.contains(words) && error.contains(name), "{words:?} or {name:?} is missing in: {error}");
        assert!(!error.contains("PRIVATE"), "secrets stay out of messages: {error}");
    }
}
