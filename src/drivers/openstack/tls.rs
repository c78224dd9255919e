//! TLS of a cloud whose authorities `cacert` names.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// TLS with the authorities of this file alone. `identity`: client certificate and key, one after the other.
pub fn client_config(cacert: &Path, identity: Option<&[u8]>) -> Result<ClientConfig, String> {
    let unusable = |error: String| format!("cacert {} holds no certificates: {error}", cacert.display());
    let pem = std::fs::read(cacert).map_err(|error| format!("cannot read {}: {error}", cacert.display()))?;
    let trusted: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let trusted = trusted.map_err(|error| unusable(error.to_string()))?;
    let provider = Arc::new(ring::default_provider());
    let verifier = AuthorityVerifier::new(trusted, provider.clone()).map_err(unusable)?;
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| error.to_string())?.dangerous().with_custom_certificate_verifier(verifier);
    let Some(pem) = identity else { return Ok(config.with_no_client_auth()) };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| error.to_string())?;
    let chain = chain.map_err(|error| error.to_string())?;
    config.with_client_auth_cert(chain, key).map_err(|error| error.to_string())
}

/// Accepts what webpki accepts, and a server certificate that is itself one of the authorities. webpki refuses such a
/// certificate if it is marked as that of an authority (CA:TRUE), as `openssl req -x509` does; OpenSSL accepts it.
#[derive(Debug)]
struct AuthorityVerifier {
    webpki: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl AuthorityVerifier {
    fn new(trusted: Vec<CertificateDer<'static>>, provider: Arc<CryptoProvider>) -> Result<Arc<Self>, String> {
        let mut roots = RootCertStore::empty();
        // Bundles of a system may have certificates that rustls cannot read.
        roots.add_parsable_certificates(trusted.iter().cloned());
        let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        Ok(Arc::new(Self { webpki: webpki.map_err(|error| error.to_string())?, trusted }))
    }
}

impl ServerCertVerifier for AuthorityVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.webpki.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        // webpki has checked the validity period before it finds this.
        let is_refused_authority = |error: &rustls::Error| matches!(error, rustls::Error::InvalidCertificate(CertificateError::Other(other)) if other.to_string() == "CaUsedAsEndEntity");
        match verified {
            Err(error) if is_refused_authority(&error) && self.trusted.contains(end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};

    fn certificate(is_ca: IsCa, change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["cloud.example.com".to_owned()]).unwrap();
        params.is_ca = is_ca;
        change(&mut params);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn authority() -> IsCa {
        IsCa::Ca(BasicConstraints::Unconstrained)
    }

    fn verify(trusted: &CertificateDer<'static>, shown: &CertificateDer<'static>, name: &str) -> Result<(), String> {
        let verifier = AuthorityVerifier::new(vec![trusted.clone()], Arc::new(ring::default_provider())).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let verified = verifier.verify_server_cert(shown, &[], &name, &[], UnixTime::now());
        verified.map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn a_certificate_that_is_the_trust_anchor_is_accepted_as_openssl_does() {
        for kind in [authority(), IsCa::NoCa] {
            let own = certificate(kind, |_| {});
            verify(&own, &own, "cloud.example.com").unwrap();
            let wrong_name = verify(&own, &own, "other.example.com").unwrap_err();
            assert!(wrong_name.contains("not valid for name"), "{wrong_name}");
        }
    }

    #[test]
    fn other_certificates_are_refused() {
        let own = certificate(authority(), |_| {});
        let other = certificate(authority(), |_| {});
        assert!(verify(&own, &other, "cloud.example.com").is_err());
        let expired = certificate(authority(), |params| params.not_after = date_time_ymd(2020, 1, 1));
        let expired = verify(&expired, &expired, "cloud.example.com").unwrap_err();
        assert!(expired.contains("expired"), "{expired}");
    }
}
