//! Driver facts for the loader, also for drivers that are not built: the notation of a pool's labels, and its limits.

use python_yaml::diagnostics::{Diagnostic, nearest};
use python_yaml::tree::YamlNode;

/// One driver of Nodepool 11.
#[derive(Debug)]
pub struct DriverFacts {
    /// Empty for a driver that Nodepool 11 does not know.
    pub name: &'static str,
    pub label_style: LabelStyle,
    pub manages_images: bool,
    /// Image format if the provider's section names none; `None` if clouds.yaml decides.
    pub image_format: Option<&'static str>,
    /// Whether a label's `diskimage` names a top-level diskimage, whose change replaces the provider.
    pub labels_hold_images: bool,
    /// Whether the images that labels name are those of the provider's own list, which is checked.
    pub lists_images: bool,
    /// Provider keys that replace a missing `max-servers` of a pool; the first one given counts.
    pub max_servers_keys: &'static [&'static str],
    /// Keys of a pool that limit a resource.
    pub limit_keys: &'static [(&'static str, &'static str)],
    /// Whether pools inherit the limits that they do not set from their provider, and both accept `max-resources`.
    pub pools_inherit_limits: bool,
    pub zone_key: Option<&'static str>,
    pub has_quota_switch: bool,
    pub forced_label_type: Option<&'static str>,
}

/// Part of a pool's section that lists the labels which the pool serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelStyle {
    /// `labels: [{name: …}]`
    Maps,
    /// `labels: [name, …]`
    Texts,
    /// `nodes: [{labels: …}]`
    OfNodes,
}

pub fn find(name: &str) -> Option<&'static DriverFacts> {
    DRIVERS.iter().find(|driver| driver.name == name)
}

/// Finds drivers of Nodepool 11, and drivers of this program that Nodepool 11 does not know. In sections of the latter,
/// labels and `max-servers` have the usual keys; all other keys are the driver's own.
pub fn find_in(available_drivers: &[&str], name: &str) -> Option<&'static DriverFacts> {
    find(name).or_else(|| available_drivers.contains(&name).then_some(&OUT_OF_TREE))
}

pub fn names() -> impl Iterator<Item = &'static str> {
    DRIVERS.iter().map(|driver| driver.name)
}

/// Driver of a provider: the explicit one, else fake if the name starts with `fake`, else openstack.
pub fn driver_name(section: &YamlNode) -> String {
    let fake = section.get("name").and_then(YamlNode::as_text).is_some_and(|name| name.starts_with("fake"));
    match section.get("driver") {
        Some(driver) if driver.is_truthy() || !fake => driver.scalar_text().unwrap_or_else(|| "None".to_owned()),
        _ if fake => "fake".to_owned(),
        _ => "openstack".to_owned(),
    }
}

/// The error for an unknown driver. `available_drivers` are the drivers of this program; Nodepool 11 may not know some
/// of them.
pub fn unknown_driver(section: &YamlNode, name: &str, available_drivers: &[&str]) -> Diagnostic {
    let at = section.get("driver").map_or(section.at, |node| node.at);
    let out_of_tree = available_drivers.iter().copied().filter(|name| find(name).is_none());
    let mut known: Vec<&str> = names().collect();
    known.extend(out_of_tree);
    let help = match nearest(name, known.iter().copied()) {
        Some(close) => format!("did you mean {close}?"),
        None => format!("the drivers are {}", known.join(", ")),
    };
    Diagnostic::error(at, format!("{name}: unknown driver")).help(help)
}

const DEFAULTS: DriverFacts = DriverFacts {
    name: "",
    label_style: LabelStyle::Maps,
    manages_images: false,
    image_format: None,
    labels_hold_images: false,
    lists_images: false,
    max_servers_keys: &[],
    limit_keys: &[],
    pools_inherit_limits: false,
    zone_key: None,
    has_quota_switch: false,
    forced_label_type: None,
};

const OPENSTACK: DriverFacts = DriverFacts {
    name: "openstack",
    manages_images: true,
    labels_hold_images: true,
    limit_keys: &[
        ("max-cores", "cores"),
        ("max-ram", "ram"),
        ("max-volumes", "volumes"),
        ("max-volume-gb", "volume-gb"),
    ],
    zone_key: Some("availability-zones"),
    has_quota_switch: true,
    ..DEFAULTS
};

const KUBERNETES: DriverFacts = DriverFacts {
    name: "kubernetes",
    limit_keys: &[("max-cores", "cores"), ("max-ram", "ram")],
    pools_inherit_limits: true,
    ..DEFAULTS
};

static OUT_OF_TREE: DriverFacts = DEFAULTS;

static DRIVERS: [DriverFacts; 13] = [
    DriverFacts {
        name: "aws",
        manages_images: true,
        labels_hold_images: true,
        lists_images: true,
        image_format: Some("raw"),
        max_servers_keys: &["max-servers"],
        zone_key: Some("availability-zone"),
        ..KUBERNETES
    },
    DriverFacts {
        name: "azure",
        manages_images: true,
        labels_hold_images: true,
        lists_images: true,
        image_format: Some("vhd"),
        ..DEFAULTS
    },
    DriverFacts { name: "example", ..DEFAULTS },
    DriverFacts { name: "fake", ..OPENSTACK },
    DriverFacts { name: "gce", ..DEFAULTS },
    DriverFacts {
        name: "ibmvpc",
        manages_images: true,
        labels_hold_images: true,
        lists_images: true,
        image_format: Some("qcow2"),
        ..DEFAULTS
    },
    KUBERNETES,
    DriverFacts { name: "metastatic", ..DEFAULTS },
    DriverFacts { name: "openshift", max_servers_keys: &["max-projects", "max-servers"], ..KUBERNETES },
    DriverFacts {
        name: "openshiftpods",
        max_servers_keys: &["max-pods", "max-projects", "max-servers"],
        forced_label_type: Some("pod"),
        ..KUBERNETES
    },
    OPENSTACK,
    DriverFacts { name: "static", label_style: LabelStyle::OfNodes, ..DEFAULTS },
    DriverFacts { name: "test", label_style: LabelStyle::Texts, ..DEFAULTS },
];
