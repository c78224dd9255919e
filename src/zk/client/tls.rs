//! TLS to ZooKeeper: the three PEM files, the checks, and the reasons of a failed handshake.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use nodepool_model::config::{HostNames, TlsFiles};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    pub files: TlsFiles,
    pub host_names: HostNames,
}

/// Errors of the files, for which a retry is useless.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read the {role} {path}, named in zookeeper-tls: {reason}")]
    Unreadable { role: PemRole, path: PathBuf, reason: String },
    #[error("the {role} {path}, named in zookeeper-tls, holds no {wanted} in PEM form")]
    Missing { role: PemRole, path: PathBuf, wanted: &'static str },
    #[error("the {role} {path}, named in zookeeper-tls, cannot be used: {reason}")]
    Unusable { role: PemRole, path: PathBuf, reason: String },
    #[error("the client key {key} does not belong to the client certificate {cert}, both named in zookeeper-tls")]
    Mismatch { cert: PathBuf, key: PathBuf },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PemRole {
    Authority,
    Certificate,
    Key,
}

impl fmt::Display for PemRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PemRole::Authority => "CA file",
            PemRole::Certificate => "client certificate",
            PemRole::Key => "client key",
        })
    }
}

/// Selects the crypto provider: two are compiled in by dependencies, and rustls panics when it has to choose. Called
/// before the first connection; also for tests and the embedded server.
pub fn install_crypto_provider() {
    static ONCE: Once = Once::new();
    // A provider that is already installed is kept.
    ONCE.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

/// The text of the three files. Read for every connection, so that renewed certificates are used.
pub struct TlsPem<'a> {
    tls: &'a Tls,
    authority: String,
    certificate: String,
    key: String,
}

impl<'a> TlsPem<'a> {
    pub fn read(tls: &'a Tls) -> Result<Self, TlsError> {
        let authority = read_text(PemRole::Authority, &tls.files.ca)?;
        let certificate = read_text(PemRole::Certificate, &tls.files.cert)?;
        let key = read_text(PemRole::Key, &tls.files.key)?;
        Ok(Self { tls, authority, certificate, key })
    }

    /// TLS options for the client crate. Our own configuration is built first, because its errors are more precise.
    pub fn client_options(&self) -> Result<zookeeper_client::TlsOptions, TlsError> {
        self.probe_config()?;
        let files = &self.tls.files;
        let unusable = |role, path: &Path, error: zookeeper_client::Error| TlsError::Unusable {
            role,
            path: path.to_owned(),
            reason: error.to_string(),
        };
        let options = zookeeper_client::TlsOptions::new()
            .with_pem_ca(&self.authority)
            .map_err(|error| unusable(PemRole::Authority, &files.ca, error))?
            .with_pem_identity(&self.certificate, &self.key)
            .map_err(|error| unusable(PemRole::Certificate, &files.cert, error))?;
        Ok(match self.tls.host_names {
            HostNames::Checked => options,
            HostNames::Ignored => without_host_names(options),
        })
    }

    /// The same checks with our own rustls, for the probe that explains why the crate cannot connect.
    pub fn probe_config(&self) -> Result<Arc<ClientConfig>, TlsError> {
        install_crypto_provider();
        let files = &self.tls.files;
        let inner = WebPkiServerVerifier::builder(Arc::new(self.roots()?)).build().map_err(|error| {
            TlsError::Unusable { role: PemRole::Authority, path: files.ca.clone(), reason: error.to_string() }
        })?;
        let verifier = Verifier { inner, host_names: self.tls.host_names };
        let (chain, key) = self.identity()?;
        let config = ClientConfig::builder()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(chain, key)
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    TlsError::Mismatch { cert: files.cert.clone(), key: files.key.clone() }
                }
                other => TlsError::Unusable { role: PemRole::Key, path: files.key.clone(), reason: other.to_string() },
            })?;
        Ok(Arc::new(config))
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let path = &self.tls.files.ca;
        let mut roots = RootCertStore::empty();
        let mut refused = None;
        for certificate in certificates(PemRole::Authority, path, &self.authority)? {
            if let Err(error) = roots.add(certificate) {
                refused = Some(certificate_reason_of(&error));
            }
        }
        match refused {
            Some(reason) if roots.is_empty() => {
                Err(TlsError::Unusable { role: PemRole::Authority, path: path.clone(), reason })
            }
            _ => Ok(roots),
        }
    }

    fn identity(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        let files = &self.tls.files;
        let chain = certificates(PemRole::Certificate, &files.cert, &self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|_| TlsError::Missing {
            role: PemRole::Key,
            path: files.key.clone(),
            wanted: "unencrypted private key",
        })?;
        Ok((chain, key))
    }
}

/// Comments around the PEM blocks may be in any encoding.
fn read_text(role: PemRole, path: &Path) -> Result<String, TlsError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) => Err(TlsError::Unreadable { role, path: path.to_owned(), reason: error.to_string() }),
    }
}

fn certificates(role: PemRole, path: &Path, text: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match found {
        Ok(found) if found.is_empty() => Err(TlsError::Missing { role, path: path.to_owned(), wanted: "certificate" }),
        Ok(found) => Ok(found),
        Err(error) => Err(TlsError::Unusable { role, path: path.to_owned(), reason: error.to_string() }),
    }
}

/// Nodepool 11 checks the chain and not the name, and certificates made by Zuul's own helper script carry no host
/// names, so a drop-in replacement cannot require them.
#[allow(unsafe_code)]
fn without_host_names(options: zookeeper_client::TlsOptions) -> zookeeper_client::TlsOptions {
    // SAFETY: not about memory. The crate marks the function as a reminder that any certificate of the given authority
    // is accepted from any host; `HostNames::Checked` is the stricter setting.
    unsafe { options.with_no_hostname_verification() }
}

/// rustls' own verifier, except that a wrong name is accepted if names are ignored. The name is checked last, after the
/// chain, the dates and the purpose.
#[derive(Debug)]
struct Verifier {
    inner: Arc<WebPkiServerVerifier>,
    host_names: HostNames,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use rustls::Error::InvalidCertificate;
        let verdict = self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verdict {
            Err(InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.host_names == HostNames::Ignored => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Reason of a failed handshake, with the setting to check.
pub fn handshake_reason(error: &rustls::Error, tls: &Tls) -> String {
    use rustls::Error;
    let files = &tls.files;
    match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => format!(
            "the server's certificate is not signed by an authority in {} (zookeeper-tls: ca)",
            files.ca.display()
        ),
        Error::InvalidCertificate(reason) => format!("the server's certificate {}", certificate_reason(reason)),
        Error::AlertReceived(AlertDescription::CertificateRequired | AlertDescription::NoCertificate) => {
            "the server wants a client certificate and did not get one".to_owned()
        }
        Error::AlertReceived(
            alert @ (AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied),
        ) => format!("the server refuses our client certificate {} ({alert:?})", files.cert.display()),
        Error::AlertReceived(alert) => format!("the server ended the TLS handshake ({alert:?})"),
        Error::InvalidMessage(_) => "the answer is not TLS; is this the plain port?".to_owned(),
        other => format!("TLS handshake failed: {other}"),
    }
}

fn certificate_reason(error: &CertificateError) -> String {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("has expired ({error})")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("is not valid yet; is the clock right? ({error})")
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("is for another host name ({error})")
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            format!("is not meant for servers ({error})")
        }
        other => format!("cannot be used: {}", remedy(&format!("{other:?}"))),
    }
}

fn certificate_reason_of(error: &rustls::Error) -> String {
    remedy(&format!("{error:?}"))
}

/// Remedies for certificates that Python accepts. `openssl x509 -req` without extensions creates those of version 1,
/// and `openssl req -x509` marks self-signed ones as those of an authority.
fn remedy(text: &str) -> String {
    if text.contains("CaUsedAsEndEntity") {
        "it is marked as that of an authority (CA:TRUE); re-create it with basicConstraints=CA:FALSE, or sign another \
         one with it for the server"
            .to_owned()
    } else if text.contains("UnsupportedCertVersion") {
        "it is an X.509 version 1 certificate; re-create it as version 3 (give openssl an extension file)".to_owned()
    } else {
        text.to_owned()
    }
}
