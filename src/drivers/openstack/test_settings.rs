//! Cloud settings for the unit tests of this folder.

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
