//! Settings and orders for the unit tests of this driver.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::config::{self, Settings};
use super::label::AwsLabel;
use nodepool_driver::job::LaunchOrder;
use nodepool_model::config::diagnostics::{Diagnostics, Source};
use nodepool_model::config::resolve::resolve;
use python_yaml::parse;

/// The settings of a provider with one pool and the label `small`, with more keys of provider, pool and label.
pub fn settings(provider: &str, pool: &str, label: &str) -> (Settings, Vec<String>) {
    let comma = |keys: &str| if keys.is_empty() { String::new() } else { format!(", {keys}") };
    let (provider, pool) = (comma(provider), comma(pool));
    let instance =
        if label.contains("instance-types") || label.contains("fleet") { "" } else { ", instance-type: t3.medium" };
    let image = if label.contains("image:") { "" } else { ", cloud-image: debian" };
    let label = format!("{{name: small, key-name: key{instance}{image}{}}}", comma(label));
    let yaml = format!(
        "labels: [{{name: small}}]\ndiskimages: [{{name: built, username: me}}]\nproviders:\n  - {{name: ec2, driver: aws, region-name: \
         us-east-1, cloud-images: [{{name: debian, image-id: ami-1, username: admin}}], diskimages: [{{name: built}}]{provider}, \
         pools: [{{name: main, labels: [{label}]{pool}}}]}}\n"
    );
    let mut found = Vec::new();
    let root = parse::parse(&yaml, &mut found).expect("the YAML parses");
    let resolved = resolve(Source { file: "nodepool.yaml", root: &root }, None, crate::BUILT_IN_DRIVERS);
    let config = resolved.config.unwrap_or_else(|| panic!("{:?}", resolved.diagnostics));
    let provider = config.providers.values().next().expect("there is one provider");
    let mut diagnostics = Diagnostics::default();
    let settings = config::read(provider, &mut diagnostics);
    (settings, diagnostics.items.iter().map(|item| item.message.clone()).collect())
}

pub fn label(label: &str) -> Arc<AwsLabel> {
    let (settings, _) = settings("", "", label);
    settings.labels().next().expect("there is one label").clone()
}

pub fn order() -> LaunchOrder {
    let metadata =
        [("nodepool_node_id", "0000000001"), ("nodepool_pool_name", "main"), ("nodepool_provider_name", "ec2")];
    LaunchOrder {
        pool: "main".into(),
        label: "small".into(),
        hostname: "np0000000001".to_owned(),
        identity: "i ec2 0000000001 1".to_owned(),
        attempt: 1,
        zone: None,
        image: None,
        request: Arc::new(json!({"tenant_name": "t"})),
        metadata: metadata
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into_iter()
            .collect::<BTreeMap<_, _>>(),
        prior_instance: None,
        may_exist: false,
        may_appear: false,
    }
}
