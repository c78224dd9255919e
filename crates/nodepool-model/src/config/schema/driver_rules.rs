//! Rules, beyond the types of keys, that a driver's section must satisfy before Nodepool 11 loads it.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::diagnostics::Diagnostics;
use crate::config::driver_limits::DriverFacts;
use python_yaml::tree::{YamlNode, python_quoted};

/// Kind of section that a key belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SectionKind {
    Provider,
    Pool,
    Label,
    CloudImage,
    DiskImage,
}

/// Keys without which Nodepool 11 stops, although its validator may accept the file.
const REQUIRED: &[(&str, SectionKind, &[&str])] = &[
    ("aws", SectionKind::CloudImage, &["name", "username"]),
    ("azure", SectionKind::Provider, &["location", "resource-group", "resource-group-location"]),
    ("azure", SectionKind::CloudImage, &["name", "username"]),
    ("azure", SectionKind::Pool, &["max-servers"]),
    ("azure", SectionKind::Label, &["hardware-profile"]),
    ("example", SectionKind::CloudImage, &["name"]),
    ("example", SectionKind::Label, &["instance-type"]),
    ("fake", SectionKind::CloudImage, &["name"]),
    ("gce", SectionKind::CloudImage, &["name"]),
    ("gce", SectionKind::Label, &["instance-type"]),
    ("ibmvpc", SectionKind::Provider, &["vpc", "region"]),
    ("ibmvpc", SectionKind::CloudImage, &["name", "username"]),
    ("ibmvpc", SectionKind::DiskImage, &["operating-system"]),
    ("ibmvpc", SectionKind::Pool, &["max-servers"]),
    ("ibmvpc", SectionKind::Label, &["profile"]),
    ("kubernetes", SectionKind::Label, &["type"]),
    ("metastatic", SectionKind::Label, &["backing-label"]),
    ("openshift", SectionKind::Provider, &["context"]),
    ("openshift", SectionKind::Label, &["type"]),
    ("openshiftpods", SectionKind::Provider, &["context"]),
    ("openstack", SectionKind::CloudImage, &["name"]),
    ("test", SectionKind::Pool, &["labels"]),
];

/// Drivers whose labels name images of their provider, and the kinds of image that they look up.
const IMAGE_REFERENCES: &[(&str, &[&str])] = &[
    ("aws", &["cloud-image", "diskimage"]),
    ("azure", &["cloud-image", "diskimage"]),
    ("example", &["cloud-image"]),
    ("fake", &["cloud-image"]),
    ("gce", &["cloud-image"]),
    ("ibmvpc", &["cloud-image", "diskimage"]),
    ("openstack", &["cloud-image"]),
];

pub(crate) fn check_provider(name: &str, facts: &DriverFacts, provider: &YamlNode, diagnostics: &mut Diagnostics) {
    let driver = facts.name;
    check_required(driver, SectionKind::Provider, "a provider", provider, diagnostics);
    for (key, kind, what) in [
        ("cloud-images", SectionKind::CloudImage, "a cloud image"),
        ("diskimages", SectionKind::DiskImage, "a provider's diskimage"),
    ] {
        for image in mappings(provider, key) {
            check_required(driver, kind, what, image, diagnostics);
            if driver == "aws" && kind == SectionKind::DiskImage {
                check_aws_image(image, diagnostics);
            }
        }
    }
    let images = ["cloud-images", "diskimages"].map(|list| {
        mappings(provider, list).filter_map(|image| image.get("name")?.scalar_text()).collect::<BTreeSet<_>>()
    });
    for pool in mappings(provider, "pools") {
        check_required(driver, SectionKind::Pool, "a pool", pool, diagnostics);
        if driver == "ibmvpc" {
            check_ibmvpc_pool(pool, provider, diagnostics);
        }
        for label in mappings(pool, "labels") {
            check_required(driver, SectionKind::Label, "a label of a pool", label, diagnostics);
            check_image_references(name, driver, label, pool, &images, diagnostics);
            if driver == "aws" {
                check_aws_label(label, pool, diagnostics);
            }
        }
    }
    if driver == "metastatic" {
        check_metastatic(provider, diagnostics);
    }
}

fn mappings<'a>(section: &'a YamlNode, key: &str) -> impl Iterator<Item = &'a YamlNode> {
    let items = section.get(key).map(YamlNode::items).unwrap_or_default();
    items.iter().filter(|item| !item.entries().is_empty())
}

fn check_required(driver: &str, kind: SectionKind, what: &str, section: &YamlNode, diagnostics: &mut Diagnostics) {
    let keys = REQUIRED.iter().filter(|(of, at, _)| *of == driver && *at == kind).flat_map(|(_, _, keys)| *keys);
    for key in keys.filter(|key| section.get(key).is_none()) {
        let message = format!("KeyError: {}", python_quoted(key));
        diagnostics.loader_error(section.at, message, format!("{what} of the driver {driver} needs `{key}`"));
    }
}

fn check_image_references(
    provider_name: &str,
    driver: &str,
    label: &YamlNode,
    pool: &YamlNode,
    [cloud_images, diskimages]: &[BTreeSet<String>; 2],
    diagnostics: &mut Diagnostics,
) {
    let kinds = IMAGE_REFERENCES.iter().filter(|(of, _)| *of == driver).flat_map(|(_, kinds)| *kinds);
    for kind in kinds {
        let Some(node) = label.get(kind).filter(|node| node.is_truthy()) else { continue };
        let wanted = node.scalar_text().unwrap_or_default();
        let (list, names) =
            if *kind == "cloud-image" { ("cloud-images", cloud_images) } else { ("diskimages", diskimages) };
        if names.contains(&wanted) {
            continue;
        }
        // These drivers print the pool's name in this message, and scripts rely on it.
        let pool_name = pool.get("name").and_then(YamlNode::scalar_text).unwrap_or_default();
        let shown = if matches!(driver, "openstack" | "fake" | "example") { &pool_name } else { provider_name };
        let label_name = label.get("name").and_then(YamlNode::scalar_text).unwrap_or_default();
        let message =
            format!("{kind} {wanted} does not exist in provider {shown} but is referenced in label {label_name}");
        diagnostics.loader_error(node.at, message, format!("add it to {list} of the provider {provider_name}"));
    }
}

fn check_aws_image(image: &YamlNode, diagnostics: &mut Diagnostics) {
    let is = |key: &str, value: &str| image.get(key).and_then(YamlNode::as_text) == Some(value);
    if is("imds-support", "v2.0") && is("import-method", "image") {
        let message = "IMDSv2 requires 'snapshot' or 'ebs-direct' import method";
        diagnostics.loader_error(image.at, message, "change `import-method` or drop `imds-support`");
    }
}

fn check_aws_label(label: &YamlNode, pool: &YamlNode, diagnostics: &mut Diagnostics) {
    if !label.boolean("dedicated-host").unwrap_or(false) {
        return;
    }
    if label.boolean("use-spot").unwrap_or(false) {
        let message = "Spot instances can not be used on dedicated hosts";
        diagnostics.loader_error(label.at, message, "drop `use-spot` or `dedicated-host`");
    }
    let has_zone = ["availability-zone", "availability-zones"].iter().any(|key| pool.boolean(key).unwrap_or(false));
    if !has_zone {
        let message = "Availability-zone is required for dedicated hosts";
        diagnostics.loader_error(label.at, message, "set `availability-zone` in the pool");
    }
}

fn check_ibmvpc_pool(pool: &YamlNode, provider: &YamlNode, diagnostics: &mut Diagnostics) {
    for (key, message) in [
        ("zone", "Zone is required in provider or pool config"),
        ("subnet", "Subnet is required in provider or pool config"),
    ] {
        if !pool.get(key).or(provider.get(key)).is_some_and(YamlNode::is_truthy) {
            diagnostics.loader_error(pool.at, message, format!("set `{key}`"));
        }
    }
}

/// Labels that share a backing node must agree on its jobs and ages.
fn check_metastatic(provider: &YamlNode, diagnostics: &mut Diagnostics) {
    const AGREED: [(&str, f64); 4] =
        [("max-parallel-jobs", 1.0), ("grace-time", 60.0), ("min-retention-time", 0.0), ("max-age", f64::INFINITY)];
    let mut terms: BTreeMap<String, [f64; 4]> = BTreeMap::new();
    for label in mappings(provider, "pools").flat_map(|pool| mappings(pool, "labels")) {
        let own = AGREED.map(|(key, default)| label.number(key).ok().flatten().unwrap_or(default));
        let [_, _, min_retention, max_age] = own;
        if max_age != 0.0 && max_age < min_retention {
            let message = "The max_age must be greater than or equal to the min_retention_time";
            diagnostics.loader_error(label.at, message, "raise `max-age` or lower `min-retention-time`");
        }
        let Some(backing) = label.get("backing-label").and_then(YamlNode::scalar_text) else { continue };
        if terms.insert(backing, own).is_some_and(|other| other != own) {
            let keys = AGREED.map(|(key, _)| key).join(", ");
            let message = "Multiple label definitions for the same backing label must be identical";
            diagnostics.loader_error(label.at, message, format!("compare {keys}"));
        }
    }
}
