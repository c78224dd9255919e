//! Drivers: tables of API calls and small machines that decide which call comes next; and the list of them.

pub mod common;

use nodepool_driver::driver::Driver;
use nodepool_model::config::ProviderConfig;
use python_yaml::diagnostics::Diagnostic;

pub mod example;
pub mod fake;
pub mod openstack;
pub mod static_nodes;

/// The drivers of this version.
pub const BUILT_IN_DRIVERS: &[&str] = &["static", "fake", "openstack", "example"];

/// What somebody wants to do with a driver whose type only `open` knows.
pub trait OpenDriver {
    type Out;
    fn with<D: Driver>(self, driver: D) -> Self::Out;
}

/// Opens the driver of a provider section, or says everything that is wrong with the driver's part of it.
pub fn open<V: OpenDriver>(section: &ProviderConfig, visitor: V) -> Result<V::Out, Vec<Diagnostic>> {
    match section.driver.as_str() {
        "static" => Ok(visitor.with(static_nodes::open(section)?)),
        "fake" => Ok(visitor.with(fake::open(section)?)),
        "openstack" => Ok(visitor.with(openstack::open(section)?)),
        "example" => Ok(visitor.with(example::open(section)?)),
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

/// What a driver of this version says against its part of a section, without being opened. With an error among it, the
/// provider cannot be used.
pub fn diagnostics(section: &ProviderConfig) -> Vec<Diagnostic> {
    match section.driver.as_str() {
        "static" => static_nodes::config::diagnostics(section),
        "fake" => fake::diagnostics(section),
        "openstack" => openstack::diagnostics(section),
        "example" => example::diagnostics(section),
        _ => Vec::new(),
    }
}
