//! The built-in drivers. Each is a table of API calls and the state machines that decide which call is next.

#[cfg(feature = "aws")]
pub mod aws;
#[cfg(feature = "azure")]
pub mod azure;
pub mod common;
pub mod example;
pub mod fake;
#[cfg(feature = "gce")]
pub mod gce;
#[cfg(feature = "ibm")]
pub mod ibmvpc;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod metastatic;
pub mod openstack;
pub mod static_nodes;

use std::path::PathBuf;

use nodepool_driver::driver::Driver;
use nodepool_model::config::ProviderConfig;
use python_yaml::diagnostics::Diagnostic;

/// The drivers of this version.
pub const BUILT_IN_DRIVERS: &[&str] = &[
    "static",
    "fake",
    "openstack",
    "example",
    #[cfg(feature = "kubernetes")]
    "kubernetes",
    #[cfg(feature = "kubernetes")]
    "openshift",
    #[cfg(feature = "kubernetes")]
    "openshiftpods",
    "metastatic",
    #[cfg(feature = "aws")]
    "aws",
    #[cfg(feature = "azure")]
    "azure",
    #[cfg(feature = "gce")]
    "gce",
    #[cfg(feature = "ibm")]
    "ibmvpc",
];

/// Visitor that `open` calls with the driver, because only `open` knows its type.
pub trait OpenDriver {
    type Out;
    fn with<D: Driver>(self, driver: D) -> Self::Out;
}

/// Opens the driver of a provider section, or returns all errors in the driver's part of the section.
pub fn open<V: OpenDriver>(section: &ProviderConfig, visitor: V) -> Result<V::Out, Vec<Diagnostic>> {
    match section.driver.as_str() {
        "static" => Ok(visitor.with(static_nodes::open(section)?)),
        "fake" => Ok(visitor.with(fake::open(section)?)),
        "openstack" => Ok(visitor.with(openstack::open(section)?)),
        "example" => Ok(visitor.with(example::open(section)?)),
        #[cfg(feature = "kubernetes")]
        "kubernetes" | "openshift" | "openshiftpods" => Ok(visitor.with(kubernetes::open(section)?)),
        #[cfg(feature = "aws")]
        "aws" => Ok(visitor.with(aws::open(section)?)),
        #[cfg(feature = "azure")]
        "azure" => Ok(visitor.with(azure::open(section)?)),
        #[cfg(feature = "gce")]
        "gce" => Ok(visitor.with(gce::open(section)?)),
        #[cfg(feature = "ibm")]
        "ibmvpc" => Ok(visitor.with(ibmvpc::open(section)?)),
        "metastatic" => Ok(visitor.with(metastatic::open_without_launcher(section)?)),
        other => {
            let message = format!("the driver {other} is not part of this version");
            let help = format!(
                "provider {} is out of service; the drivers are: {}",
                section.name,
                BUILT_IN_DRIVERS.join(", ")
            );
            Err(vec![Diagnostic::error(section.section.at, message).help(help)])
        }
    }
}

/// Files that the driver reads besides the section, for a provider that could not be opened without them.
pub fn files(section: &ProviderConfig) -> Vec<PathBuf> {
    match section.driver.as_str() {
        "openstack" => openstack::files(),
        #[cfg(feature = "kubernetes")]
        "kubernetes" | "openshift" | "openshiftpods" => kubernetes::files(),
        #[cfg(feature = "aws")]
        "aws" => aws::files(),
        #[cfg(feature = "azure")]
        "azure" => azure::files(section),
        #[cfg(feature = "gce")]
        "gce" => gce::files(),
        #[cfg(feature = "ibm")]
        "ibmvpc" => ibmvpc::files(section),
        _ => Vec::new(),
    }
}

/// Diagnostics of the driver's part of a section; the driver is not opened. If one of them is an error, the provider
/// cannot be used.
pub fn diagnostics(section: &ProviderConfig) -> Vec<Diagnostic> {
    match section.driver.as_str() {
        "static" => static_nodes::config::diagnostics(section),
        "fake" => fake::diagnostics(section),
        "openstack" => openstack::diagnostics(section),
        "example" => example::diagnostics(section),
        #[cfg(feature = "kubernetes")]
        "kubernetes" | "openshift" | "openshiftpods" => kubernetes::diagnostics(section),
        "metastatic" => metastatic::diagnostics(section),
        #[cfg(feature = "aws")]
        "aws" => aws::diagnostics(section),
        #[cfg(feature = "azure")]
        "azure" => azure::diagnostics(section),
        #[cfg(feature = "gce")]
        "gce" => gce::diagnostics(section),
        #[cfg(feature = "ibm")]
        "ibmvpc" => ibmvpc::diagnostics(section),
        _ => Vec::new(),
    }
}
