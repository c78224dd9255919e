//! The fake driver's own part of a provider section: the mapping `fake`, with the knobs of its cloud.

use crate::common::server_section::{ImageRef, Label};
use nodepool_driver::facts::Unavailable;
use nodepool_model::config::ProviderConfig;
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;
use python_yaml::tree::YamlNode;

const FLAVORS: [&str; 2] = ["Fake Flavor", "Unreal Flavor"];
/// MiB of each flavor.
const RAM: f64 = 8192.0;

/// Behaviour of the cloud. The defaults are those of the fake cloud of Nodepool 11.
#[derive(Clone, Debug, PartialEq)]
pub struct Knobs {
    pub boot_time: Seconds,
    pub delete_time: Seconds,
    /// Duration of every call.
    pub latency: Seconds,
    pub faults: Faults,
    /// Retry delay of a throttled call.
    pub retry_after: Seconds,
    pub zones: Vec<String>,
    /// Names or ids.
    pub images: Vec<String>,
    pub limits: Resources,
    /// Address of every server.
    pub address: String,
    pub console: Option<String>,
    /// Format of uploaded images.
    pub image_format: String,
    /// Duration of every upload.
    pub upload_time: Seconds,
}

/// Injected faults: each number n hits every n-th operation; 0 means never.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// A creation fails.
    pub create_fails: u64,
    /// A server is created, but the response is lost.
    pub create_answer_lost: u64,
    /// A boot fails.
    pub boot_fails: u64,
    /// A boot fails because the quota is exceeded.
    pub boot_quota: u64,
    /// A boot never ends.
    pub boot_hangs: u64,
    pub delete_fails: u64,
    pub upload_fails: u64,
    pub image_delete_fails: u64,
    pub throttle: u64,
}

impl Default for Knobs {
    fn default() -> Self {
        let limits = [
            ("cores", 100.0),
            ("instances", 20.0),
            ("ram", 1_000_000.0),
            ("volumes", 100.0),
            ("volume-gb", 1_000_000.0),
        ];
        Self {
            boot_time: Seconds(0.1),
            delete_time: Seconds::ZERO,
            latency: Seconds::ZERO,
            faults: Faults::default(),
            retry_after: Seconds(1.0),
            zones: ["az1", "az2"].map(str::to_owned).into(),
            images: ["Fake Precise", "fake-image-id"].map(str::to_owned).into(),
            limits: limits.into_iter().fold(Resources::unlimited(), |limits, (name, amount)| limits.with(name, amount)),
            // Addresses that contain `fake` are never connected to.
            address: "fake".to_owned(),
            console: None,
            image_format: "qcow2".to_owned(),
            upload_time: Seconds::ZERO,
        }
    }
}

/// The resources of one node of a label, or the reason why it cannot be launched.
pub fn need(label: &Label, knobs: &Knobs) -> Result<Resources, Unavailable> {
    if let ImageRef::Name(name) = &label.image_ref
        && !knobs.images.contains(name)
    {
        let has = knobs.images.join(", ");
        return Err(Unavailable::Temporary(format!("Unable to find image {name}: the fake cloud has {has}")));
    }
    has_flavor(label)?;
    let need = Resources::none().with("cores", 4.0).with("instances", 1.0).with("ram", RAM);
    Ok(match label.volume {
        Some(size) => need.with("volumes", 1.0).with("volume-gb", size as f64),
        None => need,
    })
}

/// With `min-ram`, a part of the flavor's name is sufficient.
fn has_flavor(label: &Label) -> Result<(), Unavailable> {
    let flavor_name = label.flavor.as_deref();
    let matches = |flavor: &&str| match label.min_ram > 0 {
        true => flavor_name.is_none_or(|part| flavor.contains(part)) && label.min_ram as f64 <= RAM,
        false => flavor_name == Some(*flavor),
    };
    if FLAVORS.iter().any(matches) {
        return Ok(());
    }
    let wanted = flavor_name.map_or_else(String::new, |name| format!(" named {name:?}"));
    let ram = if label.min_ram > 0 { format!(" with {} MiB", label.min_ram) } else { String::new() };
    let has = FLAVORS.join(" and ");
    Err(Unavailable::Permanent(format!("Unable to find flavor{wanted}{ram}: the fake cloud has {has} with {RAM} MiB")))
}

pub fn knobs(section: &ProviderConfig, diagnostics: &mut Diagnostics) -> Knobs {
    let mut knobs = Knobs::default();
    let Some(node) = section.section.given("fake") else { return knobs };
    let durations = [
        ("boot-time", &mut knobs.boot_time),
        ("delete-time", &mut knobs.delete_time),
        ("latency", &mut knobs.latency),
        ("retry-after", &mut knobs.retry_after),
        ("upload-time", &mut knobs.upload_time),
    ];
    for (key, span) in durations {
        read(node, key, "seconds, 0 or more", |_| true, diagnostics, |seconds| *span = Seconds(seconds));
    }
    let faults = [
        ("create-fails-every", &mut knobs.faults.create_fails),
        ("create-answer-lost-every", &mut knobs.faults.create_answer_lost),
        ("boot-fails-every", &mut knobs.faults.boot_fails),
        ("boot-quota-every", &mut knobs.faults.boot_quota),
        ("boot-hangs-every", &mut knobs.faults.boot_hangs),
        ("delete-fails-every", &mut knobs.faults.delete_fails),
        ("upload-fails-every", &mut knobs.faults.upload_fails),
        ("image-delete-fails-every", &mut knobs.faults.image_delete_fails),
        ("throttle-every", &mut knobs.faults.throttle),
    ];
    for (key, every) in faults {
        let is_whole = |number: f64| number.fract() == 0.0;
        read(node, key, "a whole number, 0 for never", is_whole, diagnostics, |number| *every = number as u64);
    }
    for resource in ["cores", "instances", "ram", "volumes", "volume-gb"] {
        let limits = &mut knobs.limits;
        let key = format!("max-{resource}");
        read(node, &key, "a number", |_| true, diagnostics, |number| limits.set(resource, number));
    }
    for (key, names) in [("zones", &mut knobs.zones), ("images", &mut knobs.images)] {
        if node.given(key).is_some() {
            *names = diagnostics.or_default(node.texts(key));
        }
    }
    knobs.address = diagnostics.or_default(node.text("address")).unwrap_or(knobs.address);
    knobs.image_format = diagnostics.or_default(node.text("image-format")).unwrap_or(knobs.image_format);
    knobs.console = diagnostics.or_default(node.text("console"));
    knobs
}

fn read(
    node: &YamlNode,
    key: &str,
    expected: &str,
    is_allowed: impl FnOnce(f64) -> bool,
    diagnostics: &mut Diagnostics,
    apply: impl FnOnce(f64),
) {
    let Some(number) = diagnostics.or_default(node.number(key)) else { return };
    if (0.0..=1e9).contains(&number) && is_allowed(number) {
        apply(number);
    } else {
        let at = node.get(key).map_or(node.at, |value| value.at);
        diagnostics.error(
            at,
            format!("{key} of the fake cloud is out of range"),
            format!("it is {number}, expected {expected}"),
        );
    }
}
