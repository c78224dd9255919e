//! TLS files created by `tests/certificates`; the head of that script lists them.

use std::path::PathBuf;

use zookeeper_client::TlsOptions;

/// The path of one file, for example `file("client.pem")`.
pub fn file(name: &str) -> PathBuf {
    let path = PathBuf::from(super::setting("NODEPOOL_TEST_TLS")).join(name);
    assert!(path.is_file(), "{} does not exist", path.display());
    path
}

/// The text of one file.
pub fn text(name: &str) -> String {
    std::fs::read_to_string(file(name)).expect("the test certificates are readable")
}

/// Options of the ZooKeeper client for an authority and an identity, for example ("ca.pem", "client").
pub fn client_options(authority: &str, identity: &str) -> TlsOptions {
    // Two providers are compiled in, so one must be installed; only the first call of a process installs it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (certificate, key) = (text(&format!("{identity}.pem")), text(&format!("{identity}.key")));
    let options = TlsOptions::new().with_pem_ca(&text(authority)).expect("the test authority is well-formed");
    options.with_pem_identity(&certificate, &key).expect("the test identity is well-formed")
}
