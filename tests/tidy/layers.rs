//! Which layer may use what: the table of doc/architecture.md as rules on paths.

use crate::source::{Named, Source};
use std::collections::BTreeSet;

const LAYERS: [&str; 6] = ["model", "policy", "zk", "drivers", "actors", "bin"];

/// Crates that the pure layers may use; the second list is of crates that one file has a reason to use.
const PURE: [&str; 5] = ["std", "core", "serde", "serde_json", "thiserror"];
const PURE_IN_ONE_FILE: [(&str, &str); 8] = [
    ("serde_saphyr", "src/model/yaml_parse.rs"),
    ("serde_saphyr", "src/model/yaml.rs"),
    ("imbl", "src/model/snapshot.rs"),
    // Parts of the snapshot, which are cloned with it.
    ("imbl", "src/model/images.rs"),
    ("imbl", "src/model/ledger.rs"),
    ("imbl", "src/model/registry.rs"),
    ("imbl", "src/model/snapshot/differences.rs"),
    ("unicode_width", "src/model/table.rs"),
];

/// Parts of the standard library that touch the world or the clock.
const WORLD: [&str; 8] = [
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
    "std::thread",
    "std::os",
    "std::time::SystemTime",
    "std::time::Instant",
];

/// Of `std::net`, these are plain data.
const ADDRESSES: [&str; 4] = ["std::net::IpAddr", "std::net::Ipv4Addr", "std::net::Ipv6Addr", "std::net::SocketAddr"];

/// Parts of the library below actors/ that a program may name: flags hold spans of time; the CLI reads, changes and shows
/// records in ZooKeeper.
const PROGRAM: [&str; 1] = ["model::time"];
const CLI: [&str; 2] = ["zk", "model"];

/// Crates that know the framework, and which folder may know them.
const CONFINED: [(&str, &[&str]); 16] = [
    ("actix", &["actors"]),
    ("actix_rt", &["actors"]),
    ("actix_web", &["actors"]),
    ("rust_embed", &["actors"]),
    ("statsd", &["actors"]),
    ("zookeeper_client", &["zk"]),
    ("redb", &["zk"]),
    ("rcgen", &["zk"]),
    ("russh", &["drivers"]),
    ("openstack", &["drivers"]),
    ("osauth", &["drivers"]),
    ("clap", &["bin", "actors"]),
    ("opentelemetry", &["actors"]),
    ("opentelemetry_http", &["actors"]),
    ("opentelemetry_otlp", &["actors"]),
    ("opentelemetry_sdk", &["actors"]),
];

/// Every arrow of the product code that the layers forbid. `sources` are all files, `crates` the dependencies of Cargo.toml.
pub fn complaints(sources: &[Source], crates: &BTreeSet<String>) -> Vec<String> {
    let world = World {
        crates,
        model: order(sources, "src/model/mod.rs"),
        policy: order(sources, "src/policy/mod.rs"),
        drivers: driver_folders(sources),
    };
    let mut complaints = Vec::new();
    for source in sources {
        for named in source.names() {
            if let Some(reason) = world.forbids(source, &named) {
                complaints.push(format!("{}:{}: {} {reason}", source.path, named.line, named.path.join("::")));
            }
        }
    }
    complaints
}

/// What the rules need to know about the files.
struct World<'a> {
    crates: &'a BTreeSet<String>,
    model: Vec<String>,
    policy: Vec<String>,
    drivers: BTreeSet<String>,
}

impl World<'_> {
    fn forbids(&self, source: &Source, named: &Named) -> Option<String> {
        let module = source.module();
        let layer = module.first().filter(|layer| LAYERS.contains(&layer.as_str()))?;
        let path: Vec<&str> = named.path.iter().map(String::as_str).collect();
        match path.as_slice() {
            // A program of ours sees the library as a crate like any other.
            ["nodepool", target @ ..] if layer == "bin" => self.forbids_program(&source.path, target),
            ["crate", ..] if layer == "bin" => None,
            ["crate", target @ ..] => self.forbids_layer(layer, &module, target),
            [name, ..] if *name == "std" || *name == "core" || self.crates.contains(*name) => {
                forbids_crate(layer, &source.path, &path)
            }
            _ => None,
        }
    }

    fn forbids_program(&self, file: &str, target: &[&str]) -> Option<String> {
        match target {
            ["actors", ..] | [] => None,
            _ if is_in(&PROGRAM, target) => None,
            _ if is_in(&CLI, target) && file.starts_with("src/bin/nodepool/") => None,
            _ => Some("reaches past actors/".to_owned()),
        }
    }

    fn forbids_layer(&self, layer: &str, module: &[String], target: &[&str]) -> Option<String> {
        let (to, rest) = target.split_first()?;
        let below: &[&str] = match layer {
            "model" => &["model"],
            "policy" => &["model", "policy"],
            "zk" => &["model", "zk"],
            "drivers" => &["model", "policy", "drivers"],
            _ => &["model", "policy", "zk", "drivers", "actors"],
        };
        if LAYERS.contains(to) && !below.contains(to) {
            return Some(format!("points from {layer}/ up or across to {to}/"));
        }
        match (layer, *to) {
            ("drivers", "policy") if rest.first() != Some(&"machine") => {
                Some("is more of policy/ than a driver may know: only policy/machine.rs".to_owned())
            }
            ("drivers", "drivers") => self.forbids_driver(module, rest),
            ("model", "model") => forbids_order(&self.model, module, rest),
            ("policy", "policy") => forbids_order(&self.policy, module, rest),
            _ => None,
        }
    }

    /// Only drivers/mod.rs, which lists them, names another driver's folder.
    fn forbids_driver(&self, module: &[String], target: &[&str]) -> Option<String> {
        let (own, other) = (module.get(1), target.first()?);
        let is_other = own.is_some_and(|own| own != other) && self.drivers.contains(*other);
        is_other.then(|| "is another driver's folder".to_owned())
    }
}

/// Within model/ and policy/ a file uses only files above it in the folder's list.
fn forbids_order(order: &[String], module: &[String], target: &[&str]) -> Option<String> {
    let position = |name: &str| order.iter().position(|listed| listed == name);
    let own = position(module.get(1)?)?;
    let other = position(target.first()?)?;
    (other > own).then(|| format!("is below {} in the list of {}/mod.rs", order[own], module[0]))
}

fn forbids_crate(layer: &str, file: &str, path: &[&str]) -> Option<String> {
    let name = path[0];
    if layer == "model" || layer == "policy" {
        let excepted = PURE_IN_ONE_FILE.contains(&(name, file));
        if !PURE.contains(&name) && !excepted {
            return Some(format!("is no crate for the pure layer {layer}/"));
        }
        let is_world = is_in(&WORLD, path) && !is_in(&ADDRESSES, path);
        return is_world.then(|| format!("touches the world, {layer}/ is pure"));
    }
    let (_, homes) = CONFINED.iter().find(|(confined, _)| *confined == name)?;
    if !homes.contains(&layer) {
        return Some(format!("is for {}/ only", homes.join("/ and ")));
    }
    (name == "redb" && !file.starts_with("src/zk/embedded/")).then(|| "is for zk/embedded/ only".to_owned())
}

/// Whether one of these holds the path or is it.
fn is_in(places: &[&str], path: &[&str]) -> bool {
    let path = path.join("::");
    places.iter().any(|place| path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with("::")))
}

/// The modules that a `mod.rs` lists, in its order.
fn order(sources: &[Source], file: &str) -> Vec<String> {
    let Some(source) = sources.iter().find(|source| source.path == file) else { return Vec::new() };
    let tokens = source.product();
    let declared = tokens.windows(3).filter(|three| three[0].text == "mod" && three[2].text == ";");
    declared.map(|three| three[1].text.clone()).collect()
}

fn driver_folders(sources: &[Source]) -> BTreeSet<String> {
    let inner = sources.iter().filter_map(|source| source.path.strip_prefix("src/drivers/"));
    inner.filter_map(|path| Some(path.split_once('/')?.0.to_owned())).collect()
}
