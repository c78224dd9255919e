//! A launcher dies with servers that boot: the second one goes on with them as soon as ZooKeeper says that the first has gone.
//!
//! NODEPOOL_FAILOVERS=20 does it as often, and the times are told.

mod crowd;
mod disks;
mod faults;
mod oven;
mod support;
mod witness;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use crowd::again;
use crowd::scene::{children, soon};
use faults::stage::{Setting, Stage};
use nodepool::actors::clock;
use nodepool::model::ids::RequestId;
use nodepool::model::json;
use nodepool::model::request::{NodeRequest, RequestState};
use nodepool::zk::{CreateMode, Zk, lock, paths};
use serde_json::json;
use support::{real, wait};
use witness::Witness;
use witness::transactions::Change;

const PATIENCE: Duration = Duration::from_secs(90);
const REQUESTS: usize = 20;
/// Longer than it takes to kill and to go on, so that all of them boot at that moment.
const CLOUD: &[&str] = &["--boot-time-s", "8", "--delete-time-s", "0.2", "--latency-ms", "compute=5-60"];
/// ZooKeeper ends a session up to a tick later than it might: with short ones nearly all of what is measured is ours.
const TICK: Duration = Duration::from_millis(50);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_launcher_goes_on_with_what_boots_and_makes_nothing_anew() {
    if real::skipped() {
        return;
    }
    let rounds = std::env::var("NODEPOOL_FAILOVERS").map_or(1, |text| text.parse().expect("it is a number"));
    let mut times = Vec::new();
    for round in 0..rounds {
        let taken = fail_over().await;
        eprintln!("round {round}: {taken:?}");
        times.push(taken);
    }
    let worst = |of: fn(&Taken) -> i64| times.iter().map(of).max().expect("there was a round");
    let last = worst(|taken| taken.until_last_ms);
    let first = worst(|taken| taken.until_first_ms);
    let after = worst(|taken| taken.until_last_ms - taken.until_expiry_ms);
    eprintln!("the slowest of {rounds}: the first goes on {first} ms after the kill, the last of {REQUESTS} {last} ms");
    eprintln!("the last goes on {after} ms after the end of the session");
}

/// From the kill, in milliseconds.
#[derive(Debug)]
struct Taken {
    /// ZooKeeper ends the session of the dead launcher.
    until_expiry_ms: i64,
    /// The other one holds the first, and the last, of the requests.
    until_first_ms: i64,
    until_last_ms: i64,
}

async fn fail_over() -> Taken {
    let mut stage = Stage::set(&Setting { cloud: CLOUD, tick: TICK, ..Setting::quick() }).await;
    stage.seats[1].kill();
    until_pools(&stage.zk, 2).await;
    let dead = session(&stage.zk).await;
    for container in [paths::REQUESTS, paths::NODES] {
        lock::make_path(&stage.zk, container).await.expect("a server that serves lets us make paths");
    }
    let mut requests = Vec::new();
    for _ in 0..REQUESTS {
        requests.push(ask(&stage.zk).await);
    }
    wait::until("all servers to boot", PATIENCE, async || {
        stage.cloud.state().await["servers_by_state"]["BUILD"] == json!(REQUESTS)
    })
    .await;
    stage.seats[1].start_again();
    until_pools(&stage.zk, 4).await;
    let killed_ms = (clock::now().0 * 1000.0) as i64;
    stage.seats[0].kill();
    for id in &requests {
        wait::until(
            &format!("request {id} to be fulfilled"),
            PATIENCE,
            async || matches!(request(&stage.zk, id).await, Some(found) if found.state == RequestState::Fulfilled),
        )
        .await;
    }
    stage.keep_logs("fail-over");
    let state = stage.cloud.state().await;
    assert_eq!(state["servers_created"], json!(REQUESTS), "nothing is made anew: {state}");
    assert_eq!(state["double_creates"], json!(0), "{state}");
    // Nobody came for them.
    for id in &requests {
        again(|| stage.zk.delete(&paths::request(id), -1)).await.expect("it is ours");
    }
    stage.seats[0].start_again();
    soon(PATIENCE, async || stage.unrest().await).await;
    let witness = Witness::of_ensemble(&stage.ensemble, Some(&stage.cloud)).await;
    let findings = witness.judge();

    findings.assert_kept("fail-over");
    taken(&witness, &requests, dead, killed_ms)
}

fn taken(witness: &Witness, requests: &[RequestId], dead: i64, killed_ms: i64) -> Taken {
    let left: Vec<String> = requests.iter().map(paths::request_lock).collect();
    let mut held: BTreeMap<&str, i64> = BTreeMap::new();
    let mut expiry_ms = None;
    for transaction in witness.transactions.iter().filter(|transaction| transaction.at_ms >= killed_ms) {
        for change in &transaction.changes {
            match change {
                Change::SessionEnded if transaction.session == dead => expiry_ms = Some(transaction.at_ms),
                Change::Created(path, _) => {
                    let lock = left.iter().find(|lock| paths::parent(path) == Some(lock.as_str()));
                    held.extend(
                        lock.filter(|lock| !held.contains_key(lock.as_str())).map(|lock| (&**lock, transaction.at_ms)),
                    );
                }
                Change::SessionEnded | Change::Written(..) | Change::Gone(_) => {}
            }
        }
    }
    assert_eq!(held.len(), REQUESTS, "somebody went on with each of them");
    Taken {
        until_expiry_ms: expiry_ms.expect("the session of who is dead ends") - killed_ms,
        until_first_ms: held.values().min().expect("there are some") - killed_ms,
        until_last_ms: held.values().max().expect("there are some") - killed_ms,
    }
}

async fn until_pools(zk: &Zk, number: usize) {
    let what = format!("{number} pools to be registered");
    wait::until(&what, PATIENCE, async || children(zk, "/nodepool/components/pool").await.len() == number).await;
}

/// That of the launcher which is registered alone.
async fn session(zk: &Zk) -> i64 {
    // Its pools may be registered before it.
    let registered = async || children(zk, "/nodepool/components/launcher").await;
    wait::until("a launcher that is registered alone", PATIENCE, async || registered().await.len() == 1).await;
    let names = registered().await;
    let path = format!("/nodepool/components/launcher/{}", names[0]);
    again(|| zk.exists(&path)).await.expect("ZooKeeper answers").expect("it was there a moment ago").ephemeral_owner
}

async fn ask(zk: &Zk) -> RequestId {
    let record = NodeRequest::new(vec!["a".into()], "tester", clock::now());
    let data = Bytes::from(json::to_bytes(&record));
    let created = zk.create(&paths::request_prefix("200"), data, CreateMode::PersistentSequential).await;
    RequestId::from(paths::name(&created.expect("a server that serves takes requests").0))
}

async fn request(zk: &Zk, id: &RequestId) -> Option<NodeRequest> {
    let (data, _) = again(|| zk.get(&paths::request(id))).await.ok()?;
    json::from_bytes(&data).ok()
}
