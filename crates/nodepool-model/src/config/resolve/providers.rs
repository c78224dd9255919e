//! Providers and their pools: driver, labels, limits, and whether a provider is out of service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::config::diagnostics::Diagnostics;
use crate::config::driver_limits::{self, DriverFacts, LabelStyle, driver_name};
use crate::config::schema::driver_rules;
use crate::config::{DiskImage, Label, PoolConfig, ProviderConfig};
use crate::records::ids::{ImageName, LabelName, PoolName, ProviderName};
use crate::records::resources::Resources;
use python_yaml::diagnostics::nearest;
use python_yaml::tree::{Position, YamlKey, YamlNode, YamlValue};

/// The resolved section `providers`.
#[derive(Debug, Default)]
pub(crate) struct Providers {
    pub providers: BTreeMap<ProviderName, Arc<ProviderConfig>>,
    pub out_of_service: BTreeMap<ProviderName, String>,
}

/// Objects that a provider section may refer to.
struct Context<'a> {
    labels: &'a BTreeMap<LabelName, Label>,
    diskimages: &'a BTreeMap<ImageName, DiskImage>,
}

pub(crate) fn resolve(
    root: &YamlNode,
    labels: &BTreeMap<LabelName, Label>,
    diskimages: &mut BTreeMap<ImageName, DiskImage>,
    available_drivers: &[&str],
    diagnostics: &mut Diagnostics,
) -> Providers {
    let mut sections = Vec::new();
    for section in diagnostics.mappings(root, "providers", "a provider") {
        let name = diagnostics.required(section, "name", "a provider");
        let facts = driver_of(section, available_drivers, diagnostics);
        if let (Some(name), Some(facts)) = (name, facts) {
            add_formats(section, facts, diskimages, diagnostics);
            sections.push((name, facts, section));
        }
    }
    let context = Context { labels, diskimages };
    let mut result = Providers::default();
    for (name, facts, section) in sections {
        let provider = provider(&name, facts, section, &context, diagnostics);
        let name = provider.name.clone();
        let known = result.providers.remove(&name).is_some() | result.out_of_service.remove(&name).is_some();
        if known {
            diagnostics.warning(section.at, format!("provider {name} already defined"), "the last definition counts");
        }
        if available_drivers.contains(&provider.driver.as_str()) {
            result.providers.insert(name, Arc::new(provider));
        } else {
            let reason = format!("the driver {} is not part of this version", provider.driver);
            diagnostics.notice(section.at, format!("provider {name} is out of service"), reason.clone());
            result.out_of_service.insert(name, reason);
        }
    }
    result
}

fn driver_of(
    section: &YamlNode,
    available_drivers: &[&str],
    diagnostics: &mut Diagnostics,
) -> Option<&'static DriverFacts> {
    let name = driver_name(section);
    let facts = driver_limits::find_in(available_drivers, &name);
    if facts.is_none() {
        diagnostics.items.push(driver_limits::unknown_driver(section, &name, available_drivers));
    }
    facts
}

/// Adds the provider's image format to each diskimage that it uploads, also while the upload is paused.
fn add_formats(
    section: &YamlNode,
    facts: &DriverFacts,
    diskimages: &mut BTreeMap<ImageName, DiskImage>,
    diagnostics: &mut Diagnostics,
) {
    if !facts.manages_images {
        return;
    }
    let format = match facts.image_format {
        // The cloud's entry in clouds.yaml names the format; the driver reads that file and adds it.
        None => None,
        Some(default) => diagnostics.or_default(section.text("image-format")).or(Some(default.to_owned())),
    };
    for entry in diagnostics.mappings(section, "diskimages", "a provider's diskimage") {
        let Some(name) = diagnostics.required(entry, "name", "a provider's diskimage") else { continue };
        match diskimages.get_mut(name.as_str()) {
            Some(image) => image.formats.extend(format.clone()),
            None => unknown_image(entry, &name, diskimages, diagnostics),
        }
    }
}

fn unknown_image(
    entry: &YamlNode,
    name: &str,
    diskimages: &BTreeMap<ImageName, DiskImage>,
    diagnostics: &mut Diagnostics,
) {
    let at = entry.get("name").map_or(entry.at, |node| node.at);
    let close = nearest(name, diskimages.keys().map(ImageName::as_str));
    let suggestion = close.map(|close| format!("; did you mean {close}?")).unwrap_or_default();
    diagnostics.unknown_name(at, name, format!("no top-level diskimage that can be built has this name{suggestion}"));
}

fn provider(
    name: &str,
    facts: &DriverFacts,
    section: &YamlNode,
    context: &Context<'_>,
    diagnostics: &mut Diagnostics,
) -> ProviderConfig {
    driver_rules::check_provider(name, facts, section, diagnostics);
    let mut section = normalised(section, facts);
    let mut pools = BTreeMap::new();
    let mut label_images = BTreeMap::new();
    for pool in diagnostics.mappings(&section, "pools", "a pool") {
        let Some(pool_name) = diagnostics.required(pool, "name", "a pool").map(PoolName::from) else { continue };
        if facts.labels_hold_images {
            for label in diagnostics.mappings(pool, "labels", "a label of a pool") {
                label_image(label, facts, context, &mut label_images, diagnostics);
            }
        }
        let config = self::pool(pool_name.clone(), pool, &section, facts, context, diagnostics);
        if pools.insert(pool_name.clone(), Arc::new(config)).is_some() {
            let message = format!("pool {pool_name} of provider {name} already defined");
            diagnostics.warning(pool.at, message, "the last definition counts");
        }
    }
    let max_concurrency = diagnostics.or_default(section.integer("max-concurrency")).unwrap_or(-1);
    // Each pool keeps its own section; with thousands of static nodes they are most of the file.
    if let YamlValue::Map(entries) = &mut section.value {
        entries.retain(|(key, _)| key.text != "pools");
    }
    ProviderConfig { name: name.into(), driver: driver_name(&section), max_concurrency, pools, label_images, section }
}

/// Records the image that a label boots, without fields that only the builder uses. A change of the rest replaces the
/// provider.
fn label_image(
    label: &YamlNode,
    facts: &DriverFacts,
    context: &Context<'_>,
    images: &mut BTreeMap<ImageName, DiskImage>,
    diagnostics: &mut Diagnostics,
) {
    if !label.get("diskimage").is_some_and(YamlNode::is_truthy) {
        return;
    }
    let Some(name) = diagnostics.or_default(label.text("diskimage")) else { return };
    match context.diskimages.get(name.as_str()) {
        Some(image) => {
            let compared = DiskImage { delete_after_upload: false, keep_formats: BTreeSet::new(), ..image.clone() };
            images.insert(image.name.clone(), compared);
        }
        None if facts.lists_images => {}
        None => {
            let at = label.get("diskimage").map_or(label.at, |node| node.at);
            diagnostics.unknown_name(at, &name, "no top-level diskimage that can be built has this name");
        }
    }
}

fn pool(
    name: PoolName,
    pool: &YamlNode,
    provider: &YamlNode,
    facts: &DriverFacts,
    context: &Context<'_>,
    diagnostics: &mut Diagnostics,
) -> PoolConfig {
    let priority =
        diagnostics.or_default(pool.integer("priority")).or(diagnostics.or_default(provider.integer("priority")));
    let max_servers = max_servers(pool, provider, facts, diagnostics);
    let zones = match facts.zone_key {
        Some(key) => diagnostics.or_default(pool.texts(key)),
        None => Vec::new(),
    };
    PoolConfig {
        name,
        priority: priority.unwrap_or(100),
        max_servers,
        limits: limits(max_servers, pool, provider, facts, diagnostics),
        ignore_provider_quota: facts.has_quota_switch && pool.boolean("ignore-provider-quota").unwrap_or(false),
        availability_zones: zones,
        node_attributes: pool.given("node-attributes").map(YamlNode::to_json),
        labels: labels(pool, facts, context, diagnostics),
        section: pool.clone(),
    }
}

fn max_servers(
    pool: &YamlNode,
    provider: &YamlNode,
    facts: &DriverFacts,
    diagnostics: &mut Diagnostics,
) -> Option<i64> {
    if let Some(own) = diagnostics.or_default(pool.integer("max-servers")) {
        return Some(own);
    }
    let inherited = facts.max_servers_keys.iter().find(|key| provider.given(key).is_some())?;
    diagnostics.or_default(provider.integer(inherited))
}

fn limits(
    max_servers: Option<i64>,
    pool: &YamlNode,
    provider: &YamlNode,
    facts: &DriverFacts,
    diagnostics: &mut Diagnostics,
) -> Resources {
    let mut limits = Resources::unlimited();
    // The pool is last, so that its limits take precedence.
    for section in [Some(provider).filter(|_| facts.pools_inherit_limits), Some(pool)].into_iter().flatten() {
        for (key, resource) in facts.limit_keys {
            if let Some(limit) = diagnostics.or_default(section.number(key)) {
                limits.set(resource, limit);
            }
        }
        if facts.pools_inherit_limits {
            for (key, node) in diagnostics.or_default(section.map("max-resources").map(<[_]>::to_vec)) {
                if let Some(limit) = diagnostics.or_default(node.as_number(&key.text)) {
                    limits.set(&key.text, limit);
                }
            }
        }
    }
    if let Some(servers) = max_servers {
        limits.set("instances", servers as f64);
    }
    limits
}

/// The labels a pool serves; each must be among the top-level ones.
fn labels(
    pool: &YamlNode,
    facts: &DriverFacts,
    context: &Context<'_>,
    diagnostics: &mut Diagnostics,
) -> BTreeSet<LabelName> {
    let mut labels = BTreeSet::new();
    for (label, at) in named_labels(pool, facts, diagnostics) {
        if !context.labels.contains_key(label.as_str()) {
            let close = nearest(&label, context.labels.keys().map(LabelName::as_str));
            let suggestion = close.map(|close| format!("; did you mean {close}?")).unwrap_or_default();
            diagnostics.unknown_name(at, &label, format!("this label is not among the top-level labels{suggestion}"));
        }
        labels.insert(LabelName::from(label));
    }
    labels
}

fn named_labels(pool: &YamlNode, facts: &DriverFacts, diagnostics: &mut Diagnostics) -> Vec<(String, Position)> {
    let mut named = Vec::new();
    match facts.label_style {
        LabelStyle::Maps => {
            for label in diagnostics.mappings(pool, "labels", "a label of a pool") {
                let name = diagnostics.required(label, "name", "a label of a pool");
                named.extend(name.map(|name| (name, label.get("name").map_or(label.at, |node| node.at))));
            }
        }
        LabelStyle::Texts => {
            let items = diagnostics.or_default(pool.list("labels").map(<[_]>::to_vec));
            named.extend(items.iter().filter_map(|item| label_text(item, diagnostics)));
        }
        LabelStyle::OfNodes => {
            for node in diagnostics.mappings(pool, "nodes", "a static node") {
                diagnostics.required(node, "name", "a static node");
                named.extend(labels_of_static_node(node, diagnostics));
            }
        }
    }
    named
}

fn labels_of_static_node(node: &YamlNode, diagnostics: &mut Diagnostics) -> Vec<(String, Position)> {
    let Some(labels) = node.given("labels") else {
        diagnostics.missing_key(node.at, "labels", "a static node needs `labels`");
        return Vec::new();
    };
    match &labels.value {
        YamlValue::Text(text) => text.split_whitespace().map(|name| (name.to_owned(), labels.at)).collect(),
        YamlValue::List(items) => items.iter().filter_map(|item| label_text(item, diagnostics)).collect(),
        other => {
            let help = format!("labels must be text or a list of texts, not {}", other.type_name());
            diagnostics.error(labels.at, "expected str for dictionary value @ data['labels']", help);
            Vec::new()
        }
    }
}

fn label_text(item: &YamlNode, diagnostics: &mut Diagnostics) -> Option<(String, Position)> {
    let name = item.scalar_text();
    if name.is_none() {
        let help = format!("a label must be text, not {}", item.value.type_name());
        diagnostics.loader_error(item.at, "expected str @ data['labels']", help);
    }
    name.map(|name| (name, item.at))
}

/// The section with the defaults that Nodepool 11 writes into it before it compares sections.
fn normalised(section: &YamlNode, facts: &DriverFacts) -> YamlNode {
    let mut section = section.clone();
    let driver = driver_name(&section);
    set(&mut section, "driver", &driver);
    if let Some(label_type) = facts.forced_label_type
        && let Some(YamlValue::List(pools)) = value_mut(&mut section, "pools")
    {
        for pool in pools {
            if let Some(YamlValue::List(labels)) = value_mut(pool, "labels") {
                labels.iter_mut().for_each(|label| set(label, "type", label_type));
            }
        }
    }
    section
}

fn value_mut<'a>(node: &'a mut YamlNode, name: &str) -> Option<&'a mut YamlValue> {
    let YamlValue::Map(entries) = &mut node.value else { return None };
    entries.iter_mut().find(|(key, _)| key.text == name).map(|(_, node)| &mut node.value)
}

fn set(node: &mut YamlNode, name: &str, text: &str) {
    let at = node.at;
    let value = YamlValue::Text(text.to_owned());
    match value_mut(node, name) {
        Some(old) => *old = value,
        None => {
            if let YamlValue::Map(entries) = &mut node.value {
                entries.push((YamlKey::text(at, name), YamlNode::new(at, value)));
            }
        }
    }
}
