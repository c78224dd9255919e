//! What a driver's own section must satisfy before the reference loads it, beyond the types of its keys.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::diagnostics::Findings;
use crate::config::driver_limits::DriverFacts;
use python_yaml::tree::{YamlNode, python_quoted};

/// Where a key belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Provider,
    Pool,
    Label,
    CloudImage,
    DiskImage,
}

/// Keys without which the reference stops, whatever its validator says.
const REQUIRED: &[(&str, Part, &[&str])] = &[
    ("aws", Part::CloudImage, &["name", "username"]),
    ("azure", Part::Provider, &["location", "resource-group", "resource-group-location"]),
    ("azure", Part::CloudImage, &["name", "username"]),
    ("azure", Part::Pool, &["max-servers"]),
    ("azure", Part::Label, &["hardware-profile"]),
    ("example", Part::CloudImage, &["name"]),
    ("example", Part::Label, &["instance-type"]),
    ("fake", Part::CloudImage, &["name"]),
    ("gce", Part::CloudImage, &["name"]),
    ("gce", Part::Label, &["instance-type"]),
    ("ibmvpc", Part::Provider, &["vpc", "region"]),
    ("ibmvpc", Part::CloudImage, &["name", "username"]),
    ("ibmvpc", Part::DiskImage, &["operating-system"]),
    ("ibmvpc", Part::Pool, &["max-servers"]),
    ("ibmvpc", Part::Label, &["profile"]),
    ("kubernetes", Part::Label, &["type"]),
    ("metastatic", Part::Label, &["backing-label"]),
    ("openshift", Part::Provider, &["context"]),
    ("openshift", Part::Label, &["type"]),
    ("openshiftpods", Part::Provider, &["context"]),
    ("openstack", Part::CloudImage, &["name"]),
    ("test", Part::Pool, &["labels"]),
];

/// Drivers whose labels name images of their provider, and which of the two kinds they look up.
const IMAGE_REFERENCES: &[(&str, &[&str])] = &[
    ("aws", &["cloud-image", "diskimage"]),
    ("azure", &["cloud-image", "diskimage"]),
    ("example", &["cloud-image"]),
    ("fake", &["cloud-image"]),
    ("gce", &["cloud-image"]),
    ("ibmvpc", &["cloud-image", "diskimage"]),
    ("openstack", &["cloud-image"]),
];

pub(crate) fn check_provider(name: &str, facts: &DriverFacts, provider: &YamlNode, findings: &mut Findings) {
    let driver = facts.name;
    check_required(driver, Part::Provider, "a provider", provider, findings);
    for (key, part, what) in
        [("cloud-images", Part::CloudImage, "a cloud image"), ("diskimages", Part::DiskImage, "a provider's diskimage")]
    {
        for image in mappings(provider, key) {
            check_required(driver, part, what, image, findings);
            if driver == "aws" && part == Part::DiskImage {
                check_aws_image(image, findings);
            }
        }
    }
    let images = ["cloud-images", "diskimages"].map(|list| {
        mappings(provider, list).filter_map(|image| image.get("name")?.scalar_text()).collect::<BTreeSet<_>>()
    });
    for pool in mappings(provider, "pools") {
        check_required(driver, Part::Pool, "a pool", pool, findings);
        if driver == "ibmvpc" {
            check_ibmvpc_pool(pool, provider, findings);
        }
        for label in mappings(pool, "labels") {
            check_required(driver, Part::Label, "a label of a pool", label, findings);
            check_image_references(name, driver, label, pool, &images, findings);
            if driver == "aws" {
                check_aws_label(label, pool, findings);
            }
        }
    }
    if driver == "metastatic" {
        check_metastatic(provider, findings);
    }
}

fn mappings<'a>(section: &'a YamlNode, key: &str) -> impl Iterator<Item = &'a YamlNode> {
    let items = section.get(key).map(YamlNode::items).unwrap_or_default();
    items.iter().filter(|item| !item.entries().is_empty())
}

fn check_required(driver: &str, part: Part, what: &str, section: &YamlNode, findings: &mut Findings) {
    let keys = REQUIRED.iter().filter(|(of, at, _)| *of == driver && *at == part).flat_map(|(_, _, keys)| *keys);
    for key in keys.filter(|key| section.get(key).is_none()) {
        let message = format!("KeyError: {}", python_quoted(key));
        findings.error_only_for_loader(section.at, message, format!("{what} of the driver {driver} needs `{key}`"));
    }
}

fn check_image_references(
    provider_name: &str,
    driver: &str,
    label: &YamlNode,
    pool: &YamlNode,
    [cloud_images, diskimages]: &[BTreeSet<String>; 2],
    findings: &mut Findings,
) {
    let kinds = IMAGE_REFERENCES.iter().filter(|(of, _)| *of == driver).flat_map(|(_, kinds)| *kinds);
    for kind in kinds {
        let Some(node) = label.get(kind).filter(|node| node.is_truthy()) else { continue };
        let wanted = node.scalar_text().unwrap_or_default();
        let (list, known) =
            if *kind == "cloud-image" { ("cloud-images", cloud_images) } else { ("diskimages", diskimages) };
        if known.contains(&wanted) {
            continue;
        }
        // These drivers print the name of the pool in this message, and scripts have learnt it so.
        let pool_name = pool.get("name").and_then(YamlNode::scalar_text).unwrap_or_default();
        let shown = if matches!(driver, "openstack" | "fake" | "example") { &pool_name } else { provider_name };
        let label_name = label.get("name").and_then(YamlNode::scalar_text).unwrap_or_default();
        let message =
            format!("{kind} {wanted} does not exist in provider {shown} but is referenced in label {label_name}");
        findings.error_only_for_loader(node.at, message, format!("add it to {list} of the provider {provider_name}"));
    }
}

fn check_aws_image(image: &YamlNode, findings: &mut Findings) {
    let is = |key: &str, value: &str| image.get(key).and_then(YamlNode::as_text) == Some(value);
    if is("imds-support", "v2.0") && is("import-method", "image") {
        let message = "IMDSv2 requires 'snapshot' or 'ebs-direct' import method";
        findings.error_only_for_loader(image.at, message, "change `import-method` or drop `imds-support`");
    }
}

fn check_aws_label(label: &YamlNode, pool: &YamlNode, findings: &mut Findings) {
    if !label.boolean("dedicated-host").unwrap_or(false) {
        return;
    }
    if label.boolean("use-spot").unwrap_or(false) {
        let message = "Spot instances can not be used on dedicated hosts";
        findings.error_only_for_loader(label.at, message, "drop `use-spot` or `dedicated-host`");
    }
    if !pool.boolean("availability-zone").unwrap_or(false) {
        let message = "Availability-zone is required for dedicated hosts";
        findings.error_only_for_loader(label.at, message, "set `availability-zone` in the pool");
    }
}

fn check_ibmvpc_pool(pool: &YamlNode, provider: &YamlNode, findings: &mut Findings) {
    for (key, message) in [
        ("zone", "Zone is required in provider or pool config"),
        ("subnet", "Subnet is required in provider or pool config"),
    ] {
        if !pool.get(key).or(provider.get(key)).is_some_and(YamlNode::is_truthy) {
            findings.error_only_for_loader(pool.at, message, format!("set `{key}`"));
        }
    }
}

/// Labels that share a backing node must agree on what it is good for.
fn check_metastatic(provider: &YamlNode, findings: &mut Findings) {
    const AGREED: [(&str, f64); 4] =
        [("max-parallel-jobs", 1.0), ("grace-time", 60.0), ("min-retention-time", 0.0), ("max-age", f64::INFINITY)];
    let mut terms: BTreeMap<String, [f64; 4]> = BTreeMap::new();
    for label in mappings(provider, "pools").flat_map(|pool| mappings(pool, "labels")) {
        let own = AGREED.map(|(key, default)| label.number(key).ok().flatten().unwrap_or(default));
        let [_, _, min_retention, max_age] = own;
        if max_age != 0.0 && max_age < min_retention {
            let message = "The max_age must be greater than or equal to the min_retention_time";
            findings.error_only_for_loader(label.at, message, "raise `max-age` or lower `min-retention-time`");
        }
        let Some(backing) = label.get("backing-label").and_then(YamlNode::scalar_text) else { continue };
        if terms.insert(backing, own).is_some_and(|other| other != own) {
            let keys = AGREED.map(|(key, _)| key).join(", ");
            let message = "Multiple label definitions for the same backing label must be identical";
            findings.error_only_for_loader(label.at, message, format!("compare {keys}"));
        }
    }
}
