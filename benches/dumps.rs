//! Duration of a state dump (SIGUSR2) of 1,000 actors on five threads: with all threads running, and with one blocked.

use std::sync::mpsc;
use std::time::Duration;

use actix::{Actor, Arbiter, AsyncContext, Context, Handler, MessageResult, System};
use nodepool::actors::runtime::dump::{self, DumpRegistry};
use nodepool::actors::runtime::messages::Dump;
use nodepool::actors::runtime::registry::Registration;
use serde_json::{Value, json};
use tokio::time::Instant;

const ACTORS: usize = 1000;
const THREADS: usize = 5;
const ROUNDS: usize = 21;

/// An actor whose dump has about the size of a PoolWorker's.
struct Worker {
    _registration: Registration,
}

impl Actor for Worker {
    type Context = Context<Self>;
}

impl Handler<Dump> for Worker {
    type Result = MessageResult<Dump>;

    fn handle(&mut self, _: Dump, _: &mut Self::Context) -> Self::Result {
        let requests: Vec<String> = (0..20).map(|number| format!("200-{number:010}")).collect();
        MessageResult(Some(
            json!({"paused": false, "at_quota": false, "waiting": requests, "in_flight": {"launch": 3}}),
        ))
    }
}

fn main() {
    // `cargo test --benches` only checks that the benchmark runs.
    let rounds = if std::env::args().any(|word| word == "--bench") { ROUNDS } else { 1 };
    System::new().block_on(async {
        let registry = DumpRegistry::default();
        let arbiters: Vec<Arbiter> = (0..THREADS).map(|_| Arbiter::new()).collect();
        let (sender, started) = mpsc::channel();
        for number in 0..ACTORS {
            let (registry, sender) = (registry.clone(), sender.clone());
            arbiters[number % THREADS].spawn_fn(move || {
                let worker = Worker::create(|context| Worker {
                    _registration: registry.register("Worker", number.to_string(), context.address()),
                });
                sender.send(worker).unwrap();
            });
        }
        // The addresses are kept: an actor without an address stops.
        let _workers: Vec<_> = (0..ACTORS).map(|_| started.recv().unwrap()).collect();
        println!("dump of {ACTORS} actors, all responding: {:.1} ms", median(&registry, rounds, 0).await);
        let (release, blocked) = mpsc::channel::<()>();
        arbiters[0].spawn_fn(move || {
            let _ = blocked.recv();
        });
        let one_blocked = median(&registry, rounds, ACTORS / THREADS).await;
        println!("dump of {ACTORS} actors, one thread blocked: {one_blocked:.1} ms");
        drop(release);
    });
}

/// Median of the milliseconds until all lines are collected.
async fn median(registry: &DumpRegistry, rounds: usize, silent: usize) -> f64 {
    let mut took = Vec::new();
    for _ in 0..rounds {
        let began = Instant::now();
        let lines: Vec<String> = dump::collect(registry).await.iter().map(Value::to_string).collect();
        took.push(began.elapsed());
        let without: usize = lines.iter().filter(|line| line.contains("none within")).count();
        assert_eq!((lines.len(), without), (ACTORS, silent));
    }
    took.sort();
    took.get(rounds / 2).map_or(0.0, Duration::as_secs_f64) * 1000.0
}
