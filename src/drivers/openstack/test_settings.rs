//! Cloud settings for the unit tests of this folder.

use std::sync::Arc;

use super::catalog::shared::ProviderContext;
use super::config;
use crate::BUILT_IN_DRIVERS;
use nodepool_driver::facts::ProviderFacts;
use nodepool_model::config::diagnostics::{Diagnostics, Source};
use nodepool_model::config::resolve::resolve as resolve_config;
use openstack_clouds::{CloudSelector, CloudSettings, ConfigFiles, Environment, FileText, resolve};

/// The settings of a cloud with a login and these further keys of `clouds.yaml`.
pub fn cloud_with(keys: &str) -> CloudSettings {
    let login = "auth: {auth_url: 'https://keystone', username: zuul, password: hunter2, project_name: ci}";
    let keys: String = keys.lines().map(|line| format!("    {line}\n")).collect();
    let text = format!("clouds:\n  c:\n    {login}\n{keys}");
    let environment = Environment { variables: Default::default(), home: Some("/home/zuul".into()) };
    let clouds = Some(FileText { path: "clouds.yaml".into(), text });
    let files = ConfigFiles { clouds, environment, ..ConfigFiles::default() };
    resolve(&files, CloudSelector { cloud: Some("c"), region: None }).expect("the file is valid").settings
}

/// The context of a provider without pools.
pub fn context() -> Arc<ProviderContext> {
    let text = "labels: []\nproviders: [{name: p, driver: openstack, cloud: c}]\n";
    let root = python_yaml::parse::parse(text, &mut Vec::new()).expect("the text is YAML");
    let source = Source { file: "nodepool.yaml", root: &root };
    let config = resolve_config(source, None, BUILT_IN_DRIVERS).config.expect("the configuration is valid");
    let section = config.providers.values().next().expect("there is one provider");
    let settings = config::read(section, &mut Diagnostics::default());
    let cloud = Arc::new(cloud_with(""));
    Arc::new(ProviderContext::new(section.name.clone(), settings, cloud, false, ProviderFacts::initial()))
}
