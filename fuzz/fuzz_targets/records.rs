//! Znode bytes of any content as records, through the picture of ZooKeeper into the decisions made on it.
#![no_main]

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use nodepool::drivers::{Driver, static_nodes};
use nodepool::model::cloud::{Facts, HostCheck};
use nodepool::model::config::Config;
use nodepool::model::ids::{LauncherId, PoolId, ProviderName};
use nodepool::model::json;
use nodepool::model::node::Node;
use nodepool::model::request::NodeRequest;
use nodepool::model::resolve::{Source, resolve};
use nodepool::model::snapshot::Snapshot;
use nodepool::model::time::{Span, Timestamp};
use nodepool::model::world::World;
use nodepool::model::yaml_parse::parse;
use nodepool::policy::{pool, upkeep};
use nodepool::zk::Stat;
use nodepool::zk::bulk::Picture;
use nodepool::zk::records::{Decoded, decode};
use serde_json::Value;

/// Where a record may be found, and the document that it changes where its first byte says so: most records then concern
/// our provider and its hosts, whatever else is in them.
const PLACES: [(&str, &str); 4] = [
    (
        "/nodepool/nodes/",
        r#"{"state": "ready", "state_time": 1.6e9, "provider": "p", "pool": "main", "type": ["a"], "hostname": "fake",
            "username": "zuul", "connection_port": 22, "slot": 0, "tenant_name": "t", "resources": {"instances": 1}}"#,
    ),
    ("/nodepool/requests/200-", r#"{"state": "requested", "node_types": ["a"], "tenant_name": "t", "requestor": "z"}"#),
    ("/nodepool/components/pool/host", r#"{"kind": "pool", "id": "other", "supported_labels": ["a", "b"]}"#),
    ("/nodepool/components/launcher/host", r#"{"kind": "launcher"}"#),
];
/// Without its own registration in the picture a pool decides nothing.
const OWN_POOL: &[u8] =
    br#"{"kind": "pool", "id": "l", "name": "main", "provider_name": "p", "supported_labels": ["a", "b"]}"#;
const NOW: Timestamp = Timestamp(1.7e9);

// Input: records separated by line breaks; the first byte of each says where it is found and whether it changes the
// document of that place.
fuzz_target!(|data: &[u8]| {
    let mut picture = Picture::default();
    let stat = |number: usize| Stat { mzxid: number as i64 + 1, ..Stat::default() };
    picture.take("/nodepool/components/pool/own0000000000", &Bytes::from_static(OWN_POOL), &stat(0));
    for (number, line) in data.split(|byte| *byte == b'\n').enumerate() {
        let Some((place, record)) = line.split_first() else { continue };
        let (path, document) = PLACES[usize::from(*place) % PLACES.len()];
        let is_change = usize::from(*place) / PLACES.len() % 2 == 1;
        let record = if is_change { changed(document, record) } else { record.to_vec() };
        if let Decoded::Record(node) = decode::<Node>(&record) {
            let again: Node = json::from_bytes(&json::to_bytes(&node)).expect("what we write we can read");
            assert_eq!(again, node);
        }
        if let Decoded::Record(request) = decode::<NodeRequest>(&record) {
            let again: NodeRequest = json::from_bytes(&json::to_bytes(&request)).expect("what we write we can read");
            assert_eq!(again, request);
        }
        picture.take(&format!("{path}{number:010}"), &Bytes::from(record), &stat(number));
    }
    let mut snapshot = Snapshot::default();
    snapshot.connected = true;
    picture.merge_into(&mut snapshot);
    decide(&snapshot);
});

/// The document with the keys of the record in the place of its own; the record itself where it is no object.
fn changed(document: &str, record: &[u8]) -> Vec<u8> {
    let Ok(Value::Object(changes)) = serde_json::from_slice(record) else { return record.to_vec() };
    let mut whole: serde_json::Map<String, Value> = serde_json::from_str(document).expect("ours are objects");
    whole.extend(changes);
    Value::Object(whole).to_string().into_bytes()
}

fn decide(snapshot: &Snapshot) {
    static SURROUNDINGS: OnceLock<(Arc<Config>, BTreeMap<ProviderName, Arc<Facts>>)> = OnceLock::new();
    let (config, facts) = SURROUNDINGS.get_or_init(|| {
        let config = config();
        let facts = facts(&config);
        (config, facts)
    });
    let world = World { config, snapshot, facts, now: NOW };
    let mut mind = pool::Pool::new(PoolId::new("p", "main"), LauncherId::from("l"));
    mind.step(pool::Event::Wake, &world);
    mind.step(pool::Event::Tick, &world);
    let mut upkeep = upkeep::Upkeep::new(Span(28_800.0));
    upkeep.step(upkeep::Event::Wake, &world);
    upkeep.step(upkeep::Event::Sweep, &world);
}

fn config() -> Arc<Config> {
    let text = "labels: [{name: a, max-ready-age: 5}, {name: b}]\nmax-hold-age: 5\n\
        tenant-resource-limits: [{tenant-name: t, max-servers: 2}]\n\
        providers: [{name: p, driver: static, pools: [{name: main, node-attributes: {x: 1}, nodes: [\
        {name: fake, labels: [a], max-parallel-jobs: 3}, {name: passed, labels: [a, b]}, \
        {name: failed, labels: [b]}, {name: pending, labels: [a]}]}]}]";
    let root = parse(text, &mut Vec::new()).expect("this text parses");
    resolve(Source { file: "fuzz", root: &root }, None, &["static"]).config.expect("and resolves")
}

/// The hosts of the configuration, each with another finding of its last check.
fn facts(config: &Config) -> BTreeMap<ProviderName, Arc<Facts>> {
    let name = ProviderName::from("p");
    let mut facts = static_nodes::open(&config.providers[&name]).expect("the section is right").facts();
    facts.seen_at = Timestamp(NOW.0 - 1.0);
    for host in &mut facts.standing {
        let host = Arc::make_mut(host);
        host.check = match host.identity.name.as_str() {
            "fake" => HostCheck::NotNeeded { address: None },
            "passed" => {
                HostCheck::Passed { at: NOW, host_keys: vec!["ssh-rsa KEY".to_owned()], address: "::1".parse().ok() }
            }
            "failed" => HostCheck::Failed { at: NOW, reason: "no route".to_owned() },
            _ => HostCheck::Pending,
        };
    }
    BTreeMap::from([(name, Arc::new(facts))])
}
