//! Zuul's own client classes as one more consumer: now and then one of them dies with whatever it has.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::support::real::python::{self, Interpreter, Script};

/// Longer than a request may take in the middle of failures.
const ANSWER: Duration = Duration::from_secs(120);

/// Asks and uses until it is stopped.
pub struct Zuul {
    task: JoinHandle<usize>,
    orders: watch::Sender<Orders>,
}

#[derive(Clone, Copy, Default)]
struct Orders {
    deaths: usize,
    stop: bool,
}

impl Zuul {
    pub fn start(interpreter: Interpreter, addresses: &str, labels: &[&[&str]]) -> Zuul {
        let (orders, ordered) = watch::channel(Orders::default());
        let labels: Vec<Value> = labels.iter().map(|labels| json!(labels)).collect();
        let task = tokio::spawn(work(interpreter, addresses.to_owned(), labels, ordered));
        Zuul { task, orders }
    }

    /// Its process is killed, and there is another.
    pub fn die(&self) {
        self.orders.send_modify(|orders| orders.deaths += 1);
    }

    /// Lets it finish what it has begun. How many requests were served.
    pub async fn stop(self) -> usize {
        self.orders.send_modify(|orders| orders.stop = true);
        self.task.await.expect("Zuul's task does not panic")
    }
}

async fn work(
    interpreter: Interpreter,
    addresses: String,
    labels: Vec<Value>,
    mut orders: watch::Receiver<Orders>,
) -> usize {
    let mut served = 0;
    let start = || python::spawn(interpreter, "zuul_client.py", &[&addresses]);
    let mut script = start();
    let mut deaths = 0;
    for labels in labels.iter().cycle() {
        if orders.borrow().stop {
            break;
        }
        let outcome = tokio::select! {
            outcome = one(&mut script, labels) => outcome,
            _ = orders.wait_for(|orders| orders.deaths > deaths) => Err("it was killed".to_owned()),
        };
        match outcome {
            Ok(()) => served += 1,
            // It has lost its connection in the middle of something, as Zuul does: whoever carries on begins anew.
            Err(error) => {
                eprintln!("Zuul: {error}");
                deaths = orders.borrow().deaths;
                script.kill();
                script = start();
            }
        }
    }
    served
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
