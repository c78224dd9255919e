//! Zuul's own client classes as one more consumer: now and then one of them dies with whatever it has.

use std::time::Duration;

use nodepool::actors::runtime::clock;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::support::real::python::{self, Interpreter, Script};

/// Longer than a request may take in the middle of failures.
const ANSWER: Duration = Duration::from_secs(120);

/// Longer than the first request takes when nothing fails any more.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(90);

/// Asks and uses until it is stopped.
pub struct Zuul {
    task: JoinHandle<()>,
    orders: watch::Sender<Orders>,
    told: watch::Receiver<Told>,
}

#[derive(Clone, Copy, Default)]
struct Orders {
    deaths: usize,
    stop: bool,
}

/// What became of it.
#[derive(Clone, Default)]
pub struct Told {
    /// Requests that were served.
    pub served: usize,
    pub deaths: usize,
    pub errors: Vec<Refusal>,
}

/// Zuul's classes could not do what was asked of them; in milliseconds since the Unix epoch.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub began_ms: i64,
    pub at_ms: i64,
    pub error: String,
}

impl Zuul {
    pub fn start(interpreter: Interpreter, addresses: &str, labels: &[&[&str]]) -> Zuul {
        let (orders, ordered) = watch::channel(Orders::default());
        let (telling, told) = watch::channel(Told::default());
        let labels: Vec<Value> = labels.iter().map(|labels| json!(labels)).collect();
        let task = tokio::spawn(work(interpreter, addresses.to_owned(), labels, ordered, telling));
        Zuul { task, orders, told }
    }

    /// Its process is killed, and there is another. Whether it was killed.
    pub async fn die(&self) -> bool {
        let before = self.told.borrow().deaths;
        self.orders.send_modify(|orders| orders.deaths += 1);
        timeout(RECOVERY_TIMEOUT, self.told.clone().wait_for(|told| told.deaths > before)).await.is_ok_and(|seen| seen.is_ok())
    }

    /// Lets it finish what it has begun, and one request at least.
    pub async fn stop(self) -> Told {
        self.orders.send_modify(|orders| orders.stop = true);
        let ended = timeout(ANSWER + RECOVERY_TIMEOUT, self.task).await.expect("Zuul's classes are served in the end");
        ended.expect("Zuul's task does not panic");
        self.told.borrow().clone()
    }
}

async fn work(
    interpreter: Interpreter,
    addresses: String,
    labels: Vec<Value>,
    mut orders: watch::Receiver<Orders>,
    told: watch::Sender<Told>,
) {
    let start = || python::spawn(interpreter, "zuul_client.py", &[&addresses]);
    let mut script = start();
    for labels in labels.iter().cycle() {
        if orders.borrow().stop && told.borrow().served > 0 {
            break;
        }
        let (began_ms, deaths) = (now_ms(), told.borrow().deaths);
        let outcome = tokio::select! {
            outcome = one(&mut script, labels) => outcome.map_err(Some),
            _ = orders.wait_for(|orders| orders.deaths > deaths) => Err(None),
        };
        if outcome.is_err() {
            // It has lost its connection in the middle of something, as Zuul does: whoever carries on begins anew.
            script.kill();
            script = start();
        }
        told.send_modify(|told| match outcome {
            Ok(()) => told.served += 1,
            Err(None) => told.deaths += 1,
            Err(Some(error)) => {
                eprintln!("Zuul: {error}");
                told.errors.push(Refusal { began_ms, at_ms: now_ms(), error });
            }
        });
    }
}

fn now_ms() -> i64 {
    (clock::now().0 * 1000.0) as i64
}

/// One request from its beginning to its end.
async fn one(script: &mut Script, labels: &Value) -> Result<(), String> {
    let request = ask(script, json!({"do": "submit", "labels": labels})).await?;
    let state = ask(script, json!({"do": "wait", "request": request, "timeout": 100})).await?;
    assert_eq!(state, "fulfilled", "request {request} for {labels}");
    for step in ["accept", "use", "give_back"] {
        ask(script, json!({"do": step, "request": request})).await?;
    }
    Ok(())
}

async fn ask(script: &mut Script, command: Value) -> Result<Value, String> {
    script.send(&command).await;
    script.answer(ANSWER).await
}
