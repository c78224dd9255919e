//! The static driver's part of a provider section: `pools[].nodes[]`, read as Nodepool's loader reads it.

use std::collections::BTreeMap;
use std::sync::Arc;

use nodepool_model::config::diagnostics::Findings;
use nodepool_model::config::{PoolConfig, ProviderConfig};
use nodepool_model::records::ids::LabelName;
use nodepool_model::records::static_host::{HostCheck, HostIdentity, StandingHost};
use nodepool_model::records::time::Span;
use python_yaml::diagnostics::Problem;
use python_yaml::tree::{Place, YamlNode, YamlValue};

const DEFAULT_PORT: i64 = 22;
const DEFAULT_TIMEOUT_S: i64 = 5;
/// Each slot is a node record of its own; more of them on one machine is a slip of the keyboard.
const MOST_SLOTS: i64 = 10_000;

/// All hosts of a provider in the order of its pools, or everything that is wrong with them.
pub fn hosts(provider: &ProviderConfig) -> Result<Vec<Arc<StandingHost>>, Vec<Problem>> {
    let (hosts, mut findings) = read(provider);
    findings.problems.retain(Problem::is_error);
    if findings.problems.is_empty() { Ok(hosts) } else { Err(findings.problems) }
}

/// All that is wrong or odd about them: errors, and warnings of what can be used and is hardly meant.
pub fn problems(provider: &ProviderConfig) -> Vec<Problem> {
    read(provider).1.problems
}

fn read(provider: &ProviderConfig) -> (Vec<Arc<StandingHost>>, Findings) {
    let mut findings = Findings::default();
    let mut hosts = Vec::new();
    let mut defined: BTreeMap<HostIdentity, Place> = BTreeMap::new();
    for pool in provider.pools.values() {
        for node in findings.mappings(&pool.section, "nodes", "a static node") {
            let Some(host) = host(node, pool, &mut findings) else { continue };
            if let Some(first) = defined.insert(host.identity.clone(), node.at) {
                already_defined(&host.identity, node.at, first, &mut findings);
            }
            doubt(&host, node, &mut findings);
            hosts.push(Arc::new(host));
        }
    }
    (hosts, findings)
}

/// Says what makes a host useless though every key of it can be read.
fn doubt(host: &StandingHost, node: &YamlNode, findings: &mut Findings) {
    let mut say = |key: &str, message: &str, help: &str| {
        let at = node.get(key).map_or(node.at, |value| value.at);
        findings.warning(at, format!("{message} ({})", host.identity), help);
    };
    if host.slots == 0 {
        say("max-parallel-jobs", "a static node without slots is never used", "max-parallel-jobs is 1 or more");
    }
    if host.labels.is_empty() {
        say("labels", "a static node without labels is never used", "name at least one label");
    }
    if host.timeout.0 <= 0.0 && host.host_key_checking {
        say("timeout", "a static node that has no time to answer is never used", "give seconds above 0");
    }
    let is_key = |key: &String| key.split_whitespace().count() >= 2;
    if !host.configured_keys.iter().all(is_key) {
        say(
            "host-key",
            "a host key that no host can show",
            "write its type and its base64 text, as in ssh-ed25519 AAAA…",
        );
    }
}

fn host(node: &YamlNode, pool: &PoolConfig, findings: &mut Findings) -> Option<StandingHost> {
    let name = findings.required(node, "name", "a static node");
    let labels = labels(node, findings);
    let username = text_or(node, "username", "zuul", findings);
    let port = port(node, findings);
    let slots = slots(node, findings);
    let timeout = findings.keep(node.integer("timeout")).unwrap_or(DEFAULT_TIMEOUT_S);
    let host = StandingHost {
        identity: HostIdentity { name: name?, username, port: port? },
        pool: pool.name.clone(),
        labels,
        slots: slots?,
        connection_type: text_or(node, "connection-type", "ssh", findings),
        shell_type: findings.keep(node.text("shell-type")),
        python_path: text_or(node, "python-path", "auto", findings),
        timeout: Span(timeout as f64),
        host_key_checking: node.boolean("host-key-checking").unwrap_or(true),
        configured_keys: host_keys(node, findings),
        check: HostCheck::Pending,
    };
    Some(host)
}

fn text_or(node: &YamlNode, key: &str, default: &str, findings: &mut Findings) -> String {
    findings.keep(node.text(key)).unwrap_or_else(|| default.to_owned())
}

/// One text names several labels, divided by blanks.
fn labels(node: &YamlNode, findings: &mut Findings) -> Vec<LabelName> {
    match node.given("labels").map(|labels| &labels.value) {
        None => {
            findings.missing(node.at, "labels", "a static node needs `labels`");
            Vec::new()
        }
        Some(YamlValue::Text(text)) => text.split_whitespace().map(LabelName::from).collect(),
        Some(_) => findings.keep(node.texts("labels")).into_iter().map(LabelName::from).collect(),
    }
}

/// An empty text is no key, as in Nodepool.
fn host_keys(node: &YamlNode, findings: &mut Findings) -> Vec<String> {
    match node.given("host-key").map(|keys| &keys.value) {
        Some(YamlValue::Text(text)) if text.is_empty() => Vec::new(),
        _ => findings.keep(node.texts("host-key")),
    }
}

fn port(node: &YamlNode, findings: &mut Findings) -> Option<u16> {
    // The old name counts only where the new one is absent.
    let key = if node.given("connection-port").is_some() { "connection-port" } else { "ssh-port" };
    let port = findings.keep(node.integer(key)).unwrap_or(DEFAULT_PORT);
    match u16::try_from(port) {
        Ok(port) if port > 0 => Some(port),
        _ => {
            out_of_range(node, key, port, "1 to 65535", findings);
            None
        }
    }
}

/// None and fewer are no nodes, as in Nodepool.
fn slots(node: &YamlNode, findings: &mut Findings) -> Option<u32> {
    let slots = findings.keep(node.integer("max-parallel-jobs")).unwrap_or(1);
    if slots > MOST_SLOTS {
        out_of_range(node, "max-parallel-jobs", slots, "up to 10000", findings);
        return None;
    }
    Some(u32::try_from(slots).unwrap_or(0))
}

fn out_of_range(node: &YamlNode, key: &str, value: i64, range: &str, findings: &mut Findings) {
    let at = node.get(key).map_or(node.at, |value| value.at);
    findings.error(at, format!("{key} of a static node is out of range"), format!("it is {value}, it may be {range}"));
}

fn already_defined(identity: &HostIdentity, at: Place, first: Place, findings: &mut Findings) {
    let help = format!(
        "line {} has a node with the same name, username and connection-port; give one node several labels, or \
         several slots with max-parallel-jobs",
        first.line
    );
    findings.error(at, format!("static node {identity} already defined"), help);
}
