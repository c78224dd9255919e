//! OpenStack driver in the test's process, with a clouds.yaml of its own instead of the one that the environment names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nodepool::actors::provider::jobs::ProviderHandle;
use nodepool::actors::provider::providers::{ExtraDrivers, StartProvider};
use nodepool_drivers::OpenDriver;
use nodepool_drivers::openstack::{self, OpenStack};
use nodepool_model::config::ProviderConfig;
use openstack_clouds::{ConfigPaths, Environment};
use python_yaml::diagnostics::Diagnostic;

/// Replaces the driver `openstack`.
pub struct InProcessDriver(pub PathBuf);

impl ExtraDrivers for InProcessDriver {
    fn names(&self) -> Vec<&'static str> {
        vec!["openstack"]
    }

    fn open(&self, section: &ProviderConfig, start: StartProvider) -> Result<ProviderHandle, Vec<Diagnostic>> {
        Ok(start.with(open_driver(section, &self.0)?))
    }
}

pub fn open_driver(section: &ProviderConfig, clouds_yaml: &Path) -> Result<OpenStack, Vec<Diagnostic>> {
    openstack::open_with(section, &clouds_yaml_locations(clouds_yaml))
}

pub fn clouds_yaml_locations(clouds_yaml: &Path) -> ConfigPaths {
    let file = clouds_yaml.to_str().expect("temporary directories have names in UTF-8").to_owned();
    let variables = BTreeMap::from([("OS_CLIENT_CONFIG_FILE".to_owned(), file)]);
    ConfigPaths::new(&[], Environment { variables, home: None })
}
