//! The static driver's part of a provider section: `pools[].nodes[]`, read as Nodepool's loader reads it.

use std::collections::BTreeMap;
use std::sync::Arc;

use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::config::{PoolConfig, ProviderConfig};
use nodepool_model::records::ids::LabelName;
use nodepool_model::records::static_host::{HostCheck, HostIdentity, StaticHost};
use nodepool_model::records::time::Seconds;
use python_yaml::diagnostics::Diagnostic;
use python_yaml::tree::{Position, YamlNode, YamlValue};

const DEFAULT_PORT: i64 = 22;
const DEFAULT_TIMEOUT_S: i64 = 5;
/// Each slot is a node record; a larger number of slots on one host is a typing error.
const MAX_SLOTS: i64 = 10_000;

/// All hosts of a provider in the order of its pools, or all errors in their configuration.
pub fn hosts(provider: &ProviderConfig) -> Result<Vec<Arc<StaticHost>>, Vec<Diagnostic>> {
    let (hosts, mut diagnostics) = read(provider);
    diagnostics.items.retain(Diagnostic::is_error);
    if diagnostics.items.is_empty() { Ok(hosts) } else { Err(diagnostics.items) }
}

/// All errors, and warnings for values that are valid but probably not intended.
pub fn diagnostics(provider: &ProviderConfig) -> Vec<Diagnostic> {
    read(provider).1.items
}

fn read(provider: &ProviderConfig) -> (Vec<Arc<StaticHost>>, Diagnostics) {
    let mut diagnostics = Diagnostics::default();
    let mut hosts = Vec::new();
    let mut defined: BTreeMap<HostIdentity, Position> = BTreeMap::new();
    for pool in provider.pools.values() {
        for node in diagnostics.mappings(&pool.section, "nodes", "a static node") {
            let Some(host) = host(node, pool, &mut diagnostics) else { continue };
            if let Some(first) = defined.insert(host.identity.clone(), node.at) {
                report_duplicate(&host.identity, node.at, first, &mut diagnostics);
            }
            check_usable(&host, node, &mut diagnostics);
            hosts.push(Arc::new(host));
        }
    }
    (hosts, diagnostics)
}

/// Warns of a host that can never be used although all its keys are valid.
fn check_usable(host: &StaticHost, node: &YamlNode, diagnostics: &mut Diagnostics) {
    let mut warn = |key: &str, message: &str, help: &str| {
        let at = node.get(key).map_or(node.at, |value| value.at);
        diagnostics.warning(at, format!("{message} ({})", host.identity), help);
    };
    if host.slots == 0 {
        warn("max-parallel-jobs", "a static node without slots is never used", "set max-parallel-jobs to 1 or more");
    }
    if host.labels.is_empty() {
        warn("labels", "a static node without labels is never used", "name at least one label");
    }
    if host.timeout.0 <= 0.0 && host.host_key_checking {
        warn("timeout", "a static node without a timeout is never used", "set timeout to a number of seconds above 0");
    }
    let is_key = |key: &String| key.split_whitespace().count() >= 2;
    if !host.configured_keys.iter().all(is_key) {
        warn("host-key", "invalid host key", "write its type and its base64 text, as in ssh-ed25519 AAAA…");
    }
}

fn host(node: &YamlNode, pool: &PoolConfig, diagnostics: &mut Diagnostics) -> Option<StaticHost> {
    let name = diagnostics.required(node, "name", "a static node");
    let labels = labels(node, diagnostics);
    let username = text_or(node, "username", "zuul", diagnostics);
    let port = port(node, diagnostics);
    let slots = slots(node, diagnostics);
    let timeout = diagnostics.or_default(node.integer("timeout")).unwrap_or(DEFAULT_TIMEOUT_S);
    let host = StaticHost {
        identity: HostIdentity { name: name?, username, port: port? },
        pool: pool.name.clone(),
        labels,
        slots: slots?,
        connection_type: text_or(node, "connection-type", "ssh", diagnostics),
        shell_type: diagnostics.or_default(node.text("shell-type")),
        python_path: text_or(node, "python-path", "auto", diagnostics),
        timeout: Seconds(timeout as f64),
        host_key_checking: node.boolean("host-key-checking").unwrap_or(true),
        configured_keys: host_keys(node, diagnostics),
        check: HostCheck::Pending,
    };
    Some(host)
}

fn text_or(node: &YamlNode, key: &str, default: &str, diagnostics: &mut Diagnostics) -> String {
    diagnostics.or_default(node.text(key)).unwrap_or_else(|| default.to_owned())
}

/// The labels of a node: a list, or a string in which blanks separate them.
fn labels(node: &YamlNode, diagnostics: &mut Diagnostics) -> Vec<LabelName> {
    match node.given("labels").map(|labels| &labels.value) {
        None => {
            diagnostics.missing_key(node.at, "labels", "a static node needs `labels`");
            Vec::new()
        }
        Some(YamlValue::Text(text)) => text.split_whitespace().map(LabelName::from).collect(),
        Some(_) => diagnostics.or_default(node.texts("labels")).into_iter().map(LabelName::from).collect(),
    }
}

/// An empty string means no key, as in Nodepool.
fn host_keys(node: &YamlNode, diagnostics: &mut Diagnostics) -> Vec<String> {
    match node.given("host-key").map(|keys| &keys.value) {
        Some(YamlValue::Text(text)) if text.is_empty() => Vec::new(),
        _ => diagnostics.or_default(node.texts("host-key")),
    }
}

fn port(node: &YamlNode, diagnostics: &mut Diagnostics) -> Option<u16> {
    // The old key is read only if the new one is absent.
    let key = if node.given("connection-port").is_some() { "connection-port" } else { "ssh-port" };
    let port = diagnostics.or_default(node.integer(key)).unwrap_or(DEFAULT_PORT);
    match u16::try_from(port) {
        Ok(port) if port > 0 => Some(port),
        _ => {
            report_out_of_range(node, key, port, "1 to 65535", diagnostics);
            None
        }
    }
}

/// 0 and negative numbers mean no slots, as in Nodepool.
fn slots(node: &YamlNode, diagnostics: &mut Diagnostics) -> Option<u32> {
    let slots = diagnostics.or_default(node.integer("max-parallel-jobs")).unwrap_or(1);
    if slots > MAX_SLOTS {
        report_out_of_range(node, "max-parallel-jobs", slots, "up to 10000", diagnostics);
        return None;
    }
    Some(u32::try_from(slots).unwrap_or(0))
}

fn report_out_of_range(node: &YamlNode, key: &str, value: i64, range: &str, diagnostics: &mut Diagnostics) {
    let at = node.get(key).map_or(node.at, |value| value.at);
    diagnostics.error(
        at,
        format!("{key} of a static node is out of range"),
        format!("it is {value}, expected {range}"),
    );
}

fn report_duplicate(identity: &HostIdentity, at: Position, first: Position, diagnostics: &mut Diagnostics) {
    let help = format!(
        "line {} has a node with the same name, username and connection-port; give one node several labels, or \
         several slots with max-parallel-jobs",
        first.line
    );
    diagnostics.error(at, format!("static node {identity} already defined"), help);
}
