//! The fake driver's own part of a provider section: the mapping `fake`, with the knobs of its cloud.

use crate::drivers::servers::Label;
use crate::model::cloud::Trouble;
use crate::model::config::ProviderConfig;
use crate::model::findings::Findings;
use crate::model::quantity::Amounts;
use crate::model::time::Span;
use crate::model::yaml::YamlNode;

const FLAVORS: [&str; 2] = ["Fake Flavor", "Unreal Flavor"];
/// MiB of each flavor.
const RAM: f64 = 8192.0;

/// How the cloud behaves. The defaults are those of the fake cloud of Nodepool 11.
#[derive(Clone, Debug, PartialEq)]
pub struct Knobs {
    pub boot_time: Span,
    pub delete_time: Span,
    /// Of every call.
    pub latency: Span,
    /// Every so many creations are refused; 0 is none. So are the others.
    pub create_fails_every: u64,
    /// Every so many servers end in an error.
    pub boot_fails_every: u64,
    pub delete_fails_every: u64,
    /// Every so many calls are told to come again after `retry_after`.
    pub throttle_every: u64,
    pub retry_after: Span,
    pub zones: Vec<String>,
    pub limits: Amounts,
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
            boot_time: Span(0.1),
            delete_time: Span::ZERO,
            latency: Span::ZERO,
            create_fails_every: 0,
            boot_fails_every: 0,
            delete_fails_every: 0,
            throttle_every: 0,
            retry_after: Span(1.0),
            zones: vec!["az1".to_owned(), "az2".to_owned()],
            limits: limits.into_iter().fold(Amounts::unlimited(), |limits, (name, amount)| limits.with(name, amount)),
        }
    }
}

/// What every server takes.
pub fn server_needs() -> Amounts {
    Amounts::none().with("cores", 4.0).with("instances", 1.0).with("ram", RAM)
}

/// What a node of a label takes. With `min-ram` a part of the flavor's name is enough.
pub fn need(label: &Label) -> Result<Amounts, Trouble> {
    let wanted = label.flavor.as_deref();
    let fits = |flavor: &&str| match label.min_ram > 0 {
        true => wanted.is_none_or(|part| flavor.contains(part)) && label.min_ram as f64 <= RAM,
        false => wanted == Some(*flavor),
    };
    if FLAVORS.iter().any(fits) {
        return Ok(server_needs());
    }
    let wanted = wanted.map_or_else(String::new, |name| format!(" named {name:?}"));
    let ram = if label.min_ram > 0 { format!(" with {} MiB", label.min_ram) } else { String::new() };
    let has = FLAVORS.join(" and ");
    Err(Trouble::Broken(format!("Unable to find flavor{wanted}{ram}: the fake cloud has {has} with {RAM} MiB")))
}

const SPANS: &str = "seconds, 0 or more";

pub fn knobs(section: &ProviderConfig, findings: &mut Findings) -> Knobs {
    let mut knobs = Knobs::default();
    let Some(node) = section.section.given("fake") else { return knobs };
    let spans = [
        ("boot-time", &mut knobs.boot_time),
        ("delete-time", &mut knobs.delete_time),
        ("latency", &mut knobs.latency),
        ("retry-after", &mut knobs.retry_after),
    ];
    for (key, span) in spans {
        read(node, key, SPANS, findings, |seconds| *span = Span(seconds));
    }
    let rates = [
        ("create-fails-every", &mut knobs.create_fails_every),
        ("boot-fails-every", &mut knobs.boot_fails_every),
        ("delete-fails-every", &mut knobs.delete_fails_every),
        ("throttle-every", &mut knobs.throttle_every),
    ];
    for (key, rate) in rates {
        read(node, key, "a whole number, 0 for never", findings, |number| *rate = number as u64);
    }
    for resource in ["cores", "instances", "ram", "volumes", "volume-gb"] {
        let limits = &mut knobs.limits;
        read(node, &format!("max-{resource}"), "a number", findings, |number| limits.set(resource, number));
    }
    if node.given("zones").is_some() {
        knobs.zones = findings.keep(node.texts("zones"));
    }
    knobs
}

fn read(node: &YamlNode, key: &str, expected: &str, findings: &mut Findings, take: impl FnOnce(f64)) {
    let Some(number) = findings.keep(node.number(key)) else { return };
    if (0.0..=1e9).contains(&number) {
        take(number);
    } else {
        let at = node.get(key).map_or(node.at, |value| value.at);
        findings.error(
            at,
            format!("{key} of the fake cloud is out of range"),
            format!("it is {number}, expected {expected}"),
        );
    }
}
