//! The authority of the cluster, and the certificate of its API server.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

/// A new authority with one server certificate.
pub struct Authority {
    /// The certificate of the authority (PEM), which token secrets and the kubeconfig contain.
    pub pem: String,
    pub acceptor: TlsAcceptor,
}

impl Authority {
    pub fn new() -> anyhow::Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "simulated-kubernetes");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        let names = ["127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        let server_key = KeyPair::generate()?;
        let params = CertificateParams::new(names.map(str::to_owned))?;
        let certificate = params.signed_by(&server_key, &issuer)?.der().clone();
        let server_key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(server_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = config.with_no_client_auth().with_single_cert(vec![certificate], server_key)?;
        Ok(Self { pem, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }
}
