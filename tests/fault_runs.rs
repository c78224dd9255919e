//! Launchers, builders, ZooKeeper servers, a cloud and Zuul's classes as real processes, while what can fail fails: what really happened is
//! held to the promises to which simulated hours are held.
//!
//! NODEPOOL_FAULTS=500 makes it a long run, NODEPOOL_SEED repeats one as far as chance goes.

mod crowd;
mod disks;
mod faults;
mod oven;
mod support;
mod witness;

use std::sync::Arc;
use std::time::Duration;

use crowd::book::{Book, Launchers};
use crowd::scene::{self, children, soon};
use crowd::{Crowd, Wishes, again};
use faults::stage::{Setting, Stage};
use faults::zuul::Zuul;
use faults::{Fault, KINDS, Tally};
use nodepool::actors::clock;
use nodepool::model::json;
use nodepool::model::request::NodeRequest;
use nodepool::zk::{Zk, paths};
use rand::{Rng, SeedableRng, rngs::StdRng};
use support::real::{self, python::Interpreter, zookeeper::Server};
use support::wait;
use tokio::time::{Instant, sleep};
use witness::transactions::Change;
use witness::{Life, Witness};
use zookeeper_client::{Acls, CreateMode};

const PATIENCE: Duration = Duration::from_secs(90);
/// What is promised beyond the session timeout, while nothing fails.
const GRACE: Duration = Duration::from_secs(5);
/// Where a server may still appear it is looked for so long before another one is made.
const LOOKED_FOR: Duration = Duration::from_secs(10);
/// After so many faults it is looked whether all comes to rest, and everything is judged.
const ROUND: usize = 40;

fn wishes() -> Wishes {
    let shapes = [&["a"][..], &["a"], &["a", "a"], &["b"], &["a", "b"], &["c"], &["s"], &["s", "s"]].map(<[_]>::to_vec);
    Wishes { shapes: shapes.to_vec(), hopeless: None, consumers: 5, longest_use: Duration::from_millis(80) }
}

/// One of each kind, then as they come; none where nobody asked for more.
fn number_of_faults() -> usize {
    std::env::var("NODEPOOL_FAULTS").map_or(KINDS.len(), |text| text.parse().expect("NODEPOOL_FAULTS is a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_no_node_is_lost_or_given_twice() {
    if real::skipped() {
        return;
    }
    let seed = scene::seed();
    let (mut left, mut tally) = (number_of_faults(), Tally::default());
    for round in 0.. {
        let share = left.min(ROUND);
        tally.add(&one_round(share, seed.wrapping_add(round)).await);
        left -= share;
        if left == 0 {
            break;
        }
    }
    eprintln!("faults: {:?}", tally.0);
    let missing: Vec<_> = KINDS.iter().filter(|kind| !tally.0.contains_key(*kind)).collect();
    assert!(missing.is_empty(), "these did not strike: {missing:?}");
}

/// All of it from a new stage to an empty one.
async fn one_round(number: usize, seed: u64) -> Tally {
    let dice = &mut StdRng::seed_from_u64(seed);
    let mut stage = Stage::set(&Setting { builders: 2, ..Setting::quick() }).await;
    // Before that nobody has the label, and who asks for it fails.
    soon(PATIENCE, async || stage.unrest_of_images().await).await;
    let book = Arc::new(Book::new(PATIENCE, &[], Launchers::Twins));
    let crowd = Crowd::start(&stage.zk, &book, wishes(), seed).await;
    let interpreter = Interpreter::ZUUL[dice.gen_range(0..2)];
    let zuul = Zuul::start(interpreter, &stage.ensemble.address(), &[&["a"], &["b", "c"], &["s"]]);
    let mut tally = Tally::default();
    let mut times = Vec::new();
    for number in 0..number {
        let fault = match KINDS.get(number) {
            Some(kind) => Fault::of_kind(kind, &stage, dice),
            None => Fault::draw(&stage, dice),
        };
        eprintln!("{} {fault:?}", now_ms());
        tally.count(&fault);
        if dice.gen_bool(0.4) {
            stage.ask_for_build().await;
        }
        let began = now_ms();
        fault.strike(&mut stage, Some(&zuul)).await;
        times.push((began, now_ms()));
        if dice.gen_bool(0.6) {
            let before = book.figures().served;
            let what = format!("more to be served after {fault:?}, seed {seed}");
            let served = wait::until(&what, PATIENCE, async || book.figures().served > before);
            if tokio::time::timeout(PATIENCE, served).await.is_err() {
                stage.keep_logs(&format!("fault-runs-{seed}"));
            }
        }
        sleep(Duration::from_millis(dice.gen_range(0..400))).await;
        assert_kept(&book, &stage, seed);
    }
    crowd.stop().await;
    let by_zuul = zuul.stop().await;
    withdraw_forgotten(&stage.zk).await;
    comes_to_rest(&stage, seed).await;
    assert_kept(&book, &stage, seed);
    let witness = Witness::of_ensemble(&stage.ensemble, Some(&stage.cloud)).await;
    stage.keep_logs(&format!("fault-runs-{seed}"));
    let (findings, name) = (witness.judge(), format!("fault-runs-{seed}"));
    findings.assert_kept(&name);
    let longest = findings.requests.iter().map(|stay| (stay.longest_calm_ms(&times), &stay.id)).max();
    let (longest, id) = longest.expect("somebody asked for something");
    eprintln!(
        "seed {seed}: served {} and {by_zuul} to Zuul, {} transactions, {} nodes, {} servers, {} images, longest wait {longest} ms ({id})",
        book.figures().served,
        witness.transactions.len(),
        findings.nodes,
        witness.servers.len(),
        witness.images.len(),
    );
    if Duration::from_millis(longest as u64) > stage.session + GRACE + LOOKED_FOR {
        eprintln!("seed {seed}: that is too long, {} tells all", findings.write(&name).display());
    }
    for seat in &mut stage.seats {
        seat.process.stop(PATIENCE).await;
    }
    tally
}

fn assert_kept(book: &Arc<Book>, stage: &Stage, seed: u64) {
    let violations = book.violations();
    if !violations.is_empty() {
        stage.keep_logs(&format!("fault-runs-{seed}"));
        let told: Vec<String> = violations.iter().map(|text| format!("{text}\n{}", stage.logged_of(text))).collect();
        panic!("seed {seed}: {} promises were broken:\n{}", violations.len(), told.join("\n"));
    }
}

async fn comes_to_rest(stage: &Stage, seed: u64) {
    let began = Instant::now();
    while let Some(unrest) = stage.unrest().await {
        if began.elapsed() > PATIENCE {
            let name = format!("fault-runs-{seed}");
            stage.keep_logs(&name);
            let findings = Witness::of_ensemble(&stage.ensemble, Some(&stage.cloud)).await.judge();
            panic!(
                "seed {seed}, {PATIENCE:?} after all faults: {unrest}; {} tells all",
                findings.write(&name).display()
            );
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// What consumers left that died: nobody else ever takes it away.
async fn withdraw_forgotten(zk: &Zk) {
    for name in children(zk, paths::REQUESTS).await {
        let path = paths::request(&name.into());
        let Ok((data, _)) = again(|| zk.get(&path)).await else { continue };
        if json::from_bytes::<NodeRequest>(&data).is_ok_and(|record| record.requestor.as_deref() != Some("tester")) {
            let _ = again(|| zk.delete(&path, -1)).await;
        }
    }
}

fn now_ms() -> i64 {
    (clock::now().0 * 1000.0) as i64
}

/// What was refused is in the logs of ZooKeeper as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_logs_of_servers_tell_what_was_done_and_not_what_was_refused() {
    if real::skipped() {
        return;
    }
    let mut server = Server::start(scene::options()).await;
    let client = zookeeper_client::Client::connect(&server.address()).await.unwrap();
    let (lasting, passing) = (CreateMode::Persistent, CreateMode::Ephemeral);
    let [lasting, passing] = [lasting, passing].map(|mode| mode.with_acls(Acls::anyone_all()));
    client.create("/one", b"1", &lasting).await.unwrap();
    client.set_data("/one", b"2", None).await.unwrap();
    let mut refused = client.new_multi_writer();
    refused.add_create("/two", b"", &lasting).unwrap();
    refused.add_set_data("/one", b"3", Some(77)).unwrap();
    refused.commit().await.unwrap_err();
    let mut done = client.new_multi_writer();
    done.add_create("/three", b"", &lasting).unwrap();
    done.add_delete("/one", None).unwrap();
    done.commit().await.unwrap();
    let session = client.session_id().0;
    client.create("/mine", b"", &passing).await.unwrap();
    server.kill();
    server.start_again().await;
    drop(client);
    let text = |text: &str| text.to_owned();
    let expected = [
        Change::Created(text("/one"), b"1".to_vec()),
        Change::Written(text("/one"), b"2".to_vec()),
        Change::Created(text("/three"), Vec::new()),
        Change::Gone(text("/one")),
        Change::Created(text("/mine"), Vec::new()),
        Change::Gone(text("/mine")),
        Change::SessionEnded,
    ];
    wait::until("the log to tell of the session's end", PATIENCE, async || {
        let witness = Witness::of_server(&server, "", None).await;
        let of_session = witness.transactions.iter().filter(|transaction| transaction.session == session);
        of_session.flat_map(|transaction| transaction.changes.clone()).eq(expected.iter().cloned())
    })
    .await;
}

/// A checker that notices nothing shows nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_given_twice_and_a_server_that_is_left_are_noticed() {
    if real::skipped() {
        return;
    }
    let server = Server::start(scene::options()).await;
    let client = zookeeper_client::Client::connect(&server.address()).await.unwrap();
    let lasting = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for container in ["/nodepool", "/nodepool/nodes", "/nodepool/requests"] {
        client.create(container, b"", &lasting).await.unwrap();
    }
    let node = br#"{"state": "ready", "provider": "lab", "type": ["a"], "allocated_to": "200-1", "external_id": "s"}"#;
    client.create("/nodepool/nodes/1", node, &lasting).await.unwrap();
    let request = br#"{"state": "fulfilled", "node_types": ["a"], "nodes": ["1"], "declined_by": []}"#;
    client.create("/nodepool/requests/200-1", request, &lasting).await.unwrap();
    client.create("/nodepool/requests/200-2", request, &lasting).await.unwrap();
    let mut witness = Witness::of_server(&server, "", None).await;
    let created = (clock::now().0 * 1e6) as i64;
    let life = |id: &str, created: i64| Life {
        place: ("lab".into(), id.to_owned()),
        node: "1".into(),
        created,
        delete_asked: None,
        gone: None,
    };
    witness.servers = vec![life("s", created), life("t", created + 1)];
    let broken = witness.judge().broken.join("\n");
    for part in ["node 1, which is not given to it", "node 1 is in 200-2 and in 200-1", "t of lab is made for node 1"] {
        assert!(broken.contains(part), "{part}: {broken}");
    }
    client.delete("/nodepool/nodes/1", None).await.unwrap();
    let mut later = Witness::of_server(&server, "", None).await;
    later.servers = vec![life("s", created)];
    let findings = later.judge();
    assert!(findings.broken.iter().any(|text| text.contains("its server s of lab stays")), "{:?}", findings.broken);
    assert!(findings.unrest.iter().any(|text| text.contains("server s of lab is left over")), "{:?}", findings.unrest);
}
