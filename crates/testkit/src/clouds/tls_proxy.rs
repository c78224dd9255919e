//! A proxy between a program and simulated clouds: it terminates the TLS of the hosts that the program's code names,
//! with certificates of its own authority.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// Longest head of a `CONNECT` request.
const MAX_HEAD: usize = 8192;

/// Addresses of plain HTTP, by the host that stands for each.
type Targets = BTreeMap<String, String>;

/// A running proxy; dropping it ends it.
pub struct TlsProxy {
    port: u16,
    home: TempDir,
    task: JoinHandle<()>,
}

impl Drop for TlsProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TlsProxy {
    /// Starts a proxy that forwards each host to the `http://ADDRESS:PORT` beside it. Connections to other hosts are
    /// refused.
    pub async fn start(targets: &[(&str, &str)]) -> Self {
        let home = tempfile::Builder::new().prefix("nodepool-test-proxy-").tempdir();
        let home = home.expect("the temporary directory is writable");
        let hosts: Vec<String> = targets.iter().map(|(host, _)| (*host).to_owned()).collect();
        let (authority, config) = certificates(&hosts);
        std::fs::write(home.path().join("ca.pem"), authority).expect("the directory is writable");
        let address = |base: &str| base.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let targets: Targets = targets.iter().map(|(host, base)| ((*host).to_owned(), address(base))).collect();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port exists");
        let port = listener.local_addr().expect("the listener has an address").port();
        let (acceptor, targets) = (TlsAcceptor::from(Arc::new(config)), Arc::new(targets));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, targets) = (acceptor.clone(), targets.clone());
                // A client that closes its connection is no error.
                tokio::spawn(async move { serve(stream, &acceptor, &targets).await.unwrap_or_default() });
            }
        });
        Self { port, home, task }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The certificate of its authority.
    pub fn authority(&self) -> PathBuf {
        self.home.path().join("ca.pem")
    }

    /// Variables with which Python's HTTP clients use the proxy, and trust its authority.
    pub fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        let (url, authority) = (PathBuf::from(self.url()), self.authority());
        let authorities = ["REQUESTS_CA_BUNDLE", "HTTPLIB2_CA_CERTS", "SSL_CERT_FILE"];
        let proxies = ["HTTPS_PROXY", "https_proxy"].map(|name| (name, url.clone()));
        let no_proxy = ["NO_PROXY", "no_proxy"].map(|name| (name, Path::new("127.0.0.1,localhost").to_owned()));
        let authorities = authorities.map(|name| (name, authority.clone()));
        proxies.into_iter().chain(no_proxy).chain(authorities).collect()
    }
}

/// The authority's certificate, and a server with a certificate for these hosts.
fn certificates(hosts: &[String]) -> (String, ServerConfig) {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "Nodepool's tests");
    let key = KeyPair::generate().expect("keys can be generated");
    let issuer = CertifiedIssuer::self_signed(authority, key).expect("the authority can be signed");
    let key = KeyPair::generate().expect("keys can be generated");
    let server = CertificateParams::new(hosts).expect("the names are valid").signed_by(&key, &issuer);
    let server = server.expect("the certificate can be signed");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has all protocol versions")
        .with_no_client_auth()
        .with_single_cert(vec![server.der().clone()], PrivatePkcs8KeyDer::from(key.serialize_der()).into())
        .expect("key and certificate belong together");
    (issuer.pem(), config)
}

async fn serve(mut client: TcpStream, acceptor: &TlsAcceptor, targets: &Targets) -> io::Result<()> {
    let head = read_head(&mut client).await?;
    let host = head.strip_prefix("CONNECT ").and_then(|rest| rest.split([':', ' ']).next()).unwrap_or_default();
    let Some(target) = targets.get(host) else {
        return client.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").await;
    };
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
    let mut client = acceptor.accept(client).await?;
    let mut target = TcpStream::connect(target).await?;
    copy_bidirectional(&mut client, &mut target).await.map(drop)
}

/// The head of a request. Nothing follows it, because the client waits for the response.
async fn read_head(client: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < MAX_HEAD {
        head.push(client.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}
