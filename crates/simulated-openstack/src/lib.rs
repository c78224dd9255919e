//! A simulated OpenStack over HTTP: the parts of Keystone, Nova, Glance, Neutron and Cinder that Nodepool uses, with
//! adjustable knobs and injectable faults. See doc/simulated-openstack.md.

mod call;
mod cloud;
mod faults;
mod http;
mod options;
mod response;
mod service_port;
mod services;
mod tls;

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Mutex;

use actix_web::web;
use anyhow::Context;

use crate::cloud::simulation::Simulation;
use crate::faults::api_versions::IdentityVersion;
use crate::http::Signals;
use crate::service_port::ServicePort;

pub use crate::options::Options;

/// Serves until the process ends; prints the address once it listens.
pub async fn run(options: Options) -> anyhow::Result<()> {
    options.check()?;
    let acceptor = match (&options.tls_cert, &options.tls_key) {
        (Some(certificate), Some(key)) => Some(tls::acceptor(certificate, key)?),
        _ => None,
    };
    let port = ServicePort::reserve(options.port, acceptor)?;
    let base = port.base();
    if let Some(path) = &options.clouds_yaml {
        std::fs::write(path, clouds(&options, &base)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let control = TcpListener::bind((Ipv4Addr::LOCALHOST, options.control_port));
    let control = control.with_context(|| format!("cannot listen on port {}", options.control_port))?;
    let control_base = format!("http://{}", control.local_addr()?);
    let simulation = Simulation::new(options, base.clone(), control_base);
    let refusing = simulation.refusing_connections();
    let simulation = web::Data::new(Mutex::new(simulation));
    let control = http::run(control, &simulation, Signals::Stop)?;
    let listener = port.listen()?;
    println!("listening on {base}");
    tokio::select! {
        // The control server handles the signals that end the process.
        ended = control => ended.context("the control server failed"),
        failed = port.serve(listener, simulation, refusing) => failed,
    }
}

/// A clouds.yaml with one cloud per authentication method. Keystone v2.0 has neither domains nor application
/// credentials.
fn clouds(options: &Options, base: &str) -> String {
    use crate::services::identity::{CREDENTIAL_ID, CREDENTIAL_SECRET, PASSWORD, PROJECT, USER};
    let cacert = options.tls_cert.as_ref().map(|path| format!("    cacert: {}\n", path.display())).unwrap_or_default();
    let has_v3 = options.knobs.identity_versions.contains(&IdentityVersion::V3);
    let newest = if has_v3 { IdentityVersion::V3 } else { IdentityVersion::V2 };
    let common = format!(
        "    region_name: {}\n{cacert}    auth:\n      auth_url: {base}/identity/{}\n",
        options.region,
        newest.name()
    );
    let password = format!(
        "clouds:\n  simulated:\n{common}      username: {USER}\n      password: {PASSWORD}\n      \
         project_name: {PROJECT}\n"
    );
    if !has_v3 {
        return password;
    }
    format!(
        "{password}      user_domain_id: default\n      project_domain_id: default\n  simulated-appcred:\n    \
         auth_type: v3applicationcredential\n{common}      application_credential_id: '{CREDENTIAL_ID}'\n      \
         application_credential_secret: {CREDENTIAL_SECRET}\n"
    )
}
