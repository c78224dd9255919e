//! The section of a metastatic provider: its labels with the terms of their backing nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use nodepool_driver::facts::{BackingLabel, LabelImage, LaunchConfig, LaunchLabel, Login, Unavailable};
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::config::{PoolConfig, ProviderConfig};
use nodepool_model::records::ids::LabelName;
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;
use python_yaml::tree::YamlNode;

/// The image of every node, in its record.
const IMAGE: &str = "unused";
/// Connection data in a record before the backing node is known.
const UNKNOWN: &str = "unknown";
const SSH_PORT: u16 = 22;

pub fn read(provider: &ProviderConfig, diagnostics: &mut Diagnostics) -> LaunchConfig {
    let node = &provider.section;
    let mut number =
        |key: &str, default: i64| diagnostics.or_default(node.integer(key)).unwrap_or(default).clamp(0, i64::MAX);
    let attempts = number("launch-retries", 3).clamp(1, 1000) as u32;
    let timeout = Seconds(number("launch-timeout", 3600) as f64);
    let boot_timeout = Seconds(number("boot-timeout", 120) as f64);
    let pools = provider.pools.values().map(|pool| (pool.name.clone(), labels(pool, diagnostics)));
    LaunchConfig {
        attempts,
        timeout,
        boot_timeout,
        zones: Vec::new(),
        resource_kinds: Vec::new(),
        labels: pools.collect(),
    }
}

fn labels(pool: &PoolConfig, diagnostics: &mut Diagnostics) -> BTreeMap<LabelName, LaunchLabel> {
    let host_key_checking = pool.section.boolean("host-key-checking").unwrap_or(false);
    let mut labels = BTreeMap::new();
    for node in diagnostics.mappings(&pool.section, "labels", "a label") {
        let mut required = |key| diagnostics.required(node, key, "a label of a metastatic pool").map(LabelName::from);
        let (Some(name), Some(backing_label)) = (required("name"), required("backing-label")) else { continue };
        let host_key_checking = node.boolean("host-key-checking").unwrap_or(host_key_checking);
        let (backing, problem) = backing(node, backing_label, &name, diagnostics);
        let unknown = || Some(UNKNOWN.to_owned());
        let label = LaunchLabel {
            need: Some(need()),
            image: Some(LabelImage::Cloud(IMAGE.to_owned())),
            login: Login {
                username: unknown(),
                python_path: unknown(),
                shell_type: unknown(),
                connection_type: unknown(),
                connection_port: SSH_PORT,
            },
            host_key_checking,
            console_log: false,
            unavailable: problem.map(Unavailable::Permanent),
            backing: Some(Arc::new(backing)),
        };
        labels.insert(name, label);
    }
    labels
}

/// Resources of a node, with the three names that Nodepool 11 records. The capacity of the backing node counts at its
/// own provider.
pub fn need() -> Resources {
    Resources::none().with("cores", 0.0).with("instances", 1.0).with("ram", 0.0)
}

fn backing(
    node: &YamlNode,
    label: LabelName,
    name: &LabelName,
    diagnostics: &mut Diagnostics,
) -> (BackingLabel, Option<String>) {
    let mut number = |key: &str| diagnostics.or_default(node.integer(key));
    let [slots, grace, retention, max_age, max_failures] =
        ["max-parallel-jobs", "grace-time", "min-retention-time", "max-age", "max-failures"].map(&mut number);
    let seconds = |number: i64| Seconds(number as f64);
    let positive = |number: Option<i64>| number.filter(|number| *number > 0);
    let mut problem = None;
    let mut refuse = |key: &str, text: String, help: &str| {
        let at = node.get(key).map_or(node.at, |value| value.at);
        diagnostics.warning(at, text.clone(), format!("{help}; label {name} is out of service"));
        problem.get_or_insert(text);
    };
    if slots.is_some_and(|slots| slots <= 0) {
        refuse("max-parallel-jobs", "max-parallel-jobs is less than 1".to_owned(), "a backing node needs a slot");
    }
    if label == *name {
        refuse("backing-label", format!("label {name} is its own backing label"), "name the label of another provider");
    }
    let backing = BackingLabel {
        label,
        slots: slots.unwrap_or(1).clamp(0, i64::from(u32::MAX)) as u32,
        grace_time: seconds(grace.unwrap_or(60)),
        min_retention_time: seconds(retention.unwrap_or(0)),
        max_age: positive(max_age).map(seconds),
        max_failures: positive(max_failures).map(|number| number.min(i64::from(u32::MAX)) as u32),
    };
    (backing, problem)
}
