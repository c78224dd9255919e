//! TLS proxy: decrypts connections and forwards them to the plain server over loopback.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// Pause after a failed accept, because the process may be out of file descriptors.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

pub fn acceptor(certificate: &Path, key: &Path) -> anyhow::Result<TlsAcceptor> {
    let chain = CertificateDer::pem_file_iter(certificate).and_then(|chain| chain.collect::<Result<Vec<_>, _>>());
    let chain = chain.with_context(|| format!("cannot read {}", certificate.display()))?;
    let key = PrivateKeyDer::from_pem_file(key).with_context(|| format!("cannot read {}", key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(TlsAcceptor::from(Arc::new(config.with_no_client_auth().with_single_cert(chain, key)?)))
}

/// Forwards connections until the process ends.
pub async fn forward(listener: TcpListener, acceptor: TlsAcceptor, to: SocketAddr) {
    loop {
        // A connection that closed before it was accepted does not end the proxy.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(RETRY_INTERVAL).await;
            continue;
        };
        let acceptor = acceptor.clone();
        // The task ends with its connection, so the clients bound the number of tasks.
        tokio::spawn(async move {
            let Ok(mut outer) = acceptor.accept(stream).await else { return };
            if let Ok(mut inner) = TcpStream::connect(to).await {
                let _ = tokio::io::copy_bidirectional(&mut outer, &mut inner).await;
            }
        });
    }
}
