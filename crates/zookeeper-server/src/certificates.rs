//! The server's own certificate authority: created once per data directory, for clients that require TLS.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use super::TlsFiles;
use crate::store::sync_directory;

/// The certificates cannot be created, or exist and cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("cannot create certificates: {0}")]
    Generate(#[from] rcgen::Error),
    #[error("cannot write {path}: {source}", path = path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("cannot use {path}: {reason}; delete the directory to create new certificates", path = path.display())]
    Unusable { path: PathBuf, reason: String },
}

/// The files of a data directory.
struct Files {
    directory: PathBuf,
}

impl Files {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn all(&self) -> [PathBuf; 5] {
        ["ca.pem", "server.pem", "server.key", "client.pem", "client.key"].map(|name| self.path(name))
    }
}

/// The TLS files for clients of this directory, and the server's TLS settings. Creates the certificates if any is
/// missing.
pub fn prepare(data_dir: &Path) -> Result<(TlsFiles, Arc<ServerConfig>), CertificateError> {
    let files = Files { directory: data_dir.join("tls") };
    if !files.all().iter().all(|path| path.is_file()) {
        generate(&files)?;
    }
    let client = TlsFiles { cert: files.path("client.pem"), key: files.path("client.key"), ca: files.path("ca.pem") };
    let config =
        server_config(&files).map_err(|reason| CertificateError::Unusable { path: files.directory.clone(), reason })?;
    Ok((client, Arc::new(config)))
}

fn server_config(files: &Files) -> Result<ServerConfig, String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_file(files.path("ca.pem")).map_err(|error| text(&error))?;
    roots.add(ca).map_err(|error| text(&error))?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| text(&error))?;
    let certificate = CertificateDer::from_pem_file(files.path("server.pem")).map_err(|error| text(&error))?;
    let key = PrivateKeyDer::from_pem_file(files.path("server.key")).map_err(|error| text(&error))?;
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| text(&error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate], key)
        .map_err(|error| text(&error))
}

/// The authority's key is not stored: no certificate can be added later, and a lost file requires a new set.
fn generate(files: &Files) -> Result<(), CertificateError> {
    let failed = |source| CertificateError::Write { path: files.directory.clone(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&files.directory).map_err(failed)?;
    let ca_key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, "Nodepool embedded coordinator CA");
    let ca = params.self_signed(&ca_key)?;
    let issuer = Issuer::new(params, ca_key);
    let (server, server_key) = leaf(&issuer, "localhost", ExtendedKeyUsagePurpose::ServerAuth)?;
    let (client, client_key) = leaf(&issuer, "nodepool", ExtendedKeyUsagePurpose::ClientAuth)?;
    for (name, mode, text) in [
        ("server.key", 0o600, server_key.serialize_pem()),
        ("server.pem", 0o644, server.pem()),
        ("client.key", 0o600, client_key.serialize_pem()),
        ("client.pem", 0o644, client.pem()),
        ("ca.pem", 0o644, ca.pem()),
    ] {
        let path = files.path(name);
        write(&path, mode, &text).map_err(|source| CertificateError::Write { path, source })?;
    }
    sync_directory(&files.directory).map_err(failed)
}

fn leaf(
    issuer: &Issuer<'_, KeyPair>,
    name: &str,
    purpose: ExtendedKeyUsagePurpose,
) -> Result<(Certificate, KeyPair), rcgen::Error> {
    let mut params = CertificateParams::new(["localhost", "127.0.0.1", "::1"].map(str::to_owned))?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![purpose];
    let key = KeyPair::generate()?;
    Ok((params.signed_by(&key, issuer)?, key))
}

/// A file appears complete and with its mode, or not at all.
fn write(path: &Path, mode: u32, text: &str) -> std::io::Result<()> {
    let unfinished = path.with_extension("new");
    if let Err(error) = fs::remove_file(&unfinished)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&unfinished)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(unfinished, path)
}
