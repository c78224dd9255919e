//! Znode bytes of any content as records, through the picture of ZooKeeper into the decisions made on it.
#![no_main]

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use nodepool::model::config::Config;
use nodepool::model::ids::{LauncherId, PoolId};
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

const PATHS: [&str; 4] = [
    "/nodepool/nodes/",
    "/nodepool/requests/200-",
    "/nodepool/components/pool/host",
    "/nodepool/components/launcher/host",
];

// Input: records separated by line breaks; the first byte of each says where it is found.
fuzz_target!(|data: &[u8]| {
    let mut picture = Picture::default();
    for (number, line) in data.split(|byte| *byte == b'\n').enumerate() {
        let Some((place, record)) = line.split_first() else { continue };
        if let Decoded::Record(node) = decode::<Node>(record) {
            let again: Node = json::from_bytes(&json::to_bytes(&node)).expect("what we write we can read");
            assert_eq!(again, node);
        }
        if let Decoded::Record(request) = decode::<NodeRequest>(record) {
            let again: NodeRequest = json::from_bytes(&json::to_bytes(&request)).expect("what we write we can read");
            assert_eq!(again, request);
        }
        let path = format!("{}{number:010}", PATHS[usize::from(*place) % PATHS.len()]);
        let stat = Stat { mzxid: number as i64 + 1, ..Stat::default() };
        picture.take(&path, &Bytes::copy_from_slice(record), &stat);
    }
    let mut snapshot = Snapshot::default();
    snapshot.connected = true;
    picture.merge_into(&mut snapshot);
    decide(&snapshot);
});

fn decide(snapshot: &Snapshot) {
    let (config, facts) = (config(), BTreeMap::new());
    let world = World { config: &config, snapshot, facts: &facts, now: Timestamp(1.7e9) };
    let mut mind = pool::Pool::new(PoolId::new("p", "main"), LauncherId::from("l"));
    mind.step(pool::Event::Wake, &world);
    upkeep::Upkeep::new(Span(28_800.0)).step(upkeep::Event::Sweep, &world);
}

fn config() -> Arc<Config> {
    let text = "labels: [{name: a, max-ready-age: 5}]\nmax-hold-age: 5\nproviders: [{name: p, driver: static, pools: [{name: main, nodes: [{name: fake, labels: [a]}]}]}]";
    let root = parse(text, &mut Vec::new()).expect("this text parses");
    resolve(Source { file: "fuzz", root: &root }, None, &["static"]).config.expect("and resolves")
}
