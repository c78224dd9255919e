//! A simulated OpenStack over HTTP: the parts of Keystone, Nova, Glance, Neutron and Cinder that Nodepool uses, with
//! adjustable knobs and injectable faults. See doc/simulated-openstack.md.

mod call;
mod cloud;
mod faults;
mod http;
mod options;
mod response;
mod services;
mod tls;

use std::net::{Ipv4Addr, TcpListener};

use anyhow::Context;

use crate::cloud::simulation::Simulation;

pub use crate::options::Options;

/// Serves until the process ends; prints the address once it listens.
pub async fn run(options: Options) -> anyhow::Result<()> {
    options.check()?;
    let listener = listen(options.port)?;
    let address = listener.local_addr()?;
    let acceptor = match (&options.tls_cert, &options.tls_key) {
        (Some(certificate), Some(key)) => Some(tls::acceptor(certificate, key)?),
        _ => None,
    };
    let base = format!("{}://{address}", if acceptor.is_some() { "https" } else { "http" });
    if let Some(path) = &options.clouds_yaml {
        std::fs::write(path, clouds(&options, &base)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let simulation = Simulation::new(options, base.clone());
    let plain = match acceptor {
        None => listener,
        Some(acceptor) => {
            let plain = listen(0)?;
            listener.set_nonblocking(true)?;
            let listener = tokio::net::TcpListener::from_std(listener)?;
            tokio::spawn(tls::forward(listener, acceptor, plain.local_addr()?));
            plain
        }
    };
    let server = http::run(plain, simulation)?;
    println!("listening on {base}");
    server.await.context("the server failed")
}

fn listen(port: u16) -> anyhow::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).with_context(|| format!("cannot listen on port {port}"))
}

/// A clouds.yaml with one cloud per authentication method.
fn clouds(options: &Options, base: &str) -> String {
    use crate::services::identity::{CREDENTIAL_ID, CREDENTIAL_SECRET, PASSWORD, PROJECT, USER};
    let cacert = options.tls_cert.as_ref().map(|path| format!("    cacert: {}\n", path.display())).unwrap_or_default();
    let common =
        format!("    region_name: {}\n{cacert}    auth:\n      auth_url: {base}/identity/v3\n", options.region);
    format!(
        "clouds:\n  simulated:\n{common}      username: {USER}\n      password: {PASSWORD}\n      project_name: {PROJECT}\n      \
         user_domain_id: default\n      project_domain_id: default\n  simulated-appcred:\n    auth_type: \
         v3applicationcredential\n{common}      application_credential_id: '{CREDENTIAL_ID}'\n      \
         application_credential_secret: {CREDENTIAL_SECRET}\n"
    )
}
