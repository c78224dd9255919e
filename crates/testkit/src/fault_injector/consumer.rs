//! Consumer on Zuul's own client classes, which can be killed with its locks and requests.

use std::time::Duration;

use crate::real::python::{self, Interpreter, Script};
use nodepool::actors::runtime::clock;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Timeout of a reply, longer than a request may take during faults.
const REPLY_TIMEOUT: Duration = Duration::from_secs(120);

/// Timeout after the faults, longer than the first request takes then.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(90);

/// Requests and uses nodes until it is stopped.
pub struct ZuulConsumer {
    task: JoinHandle<()>,
    control: watch::Sender<ZuulControl>,
    stats: watch::Receiver<ZuulStats>,
}

#[derive(Clone, Copy, Default)]
struct ZuulControl {
    deaths: usize,
    stop: bool,
}

/// Results so far.
#[derive(Clone, Default)]
pub struct ZuulStats {
    /// Requests that were served.
    pub served: usize,
    pub deaths: usize,
    pub errors: Vec<ZuulError>,
}

/// An error of Zuul's classes; times in milliseconds since the Unix epoch.
#[derive(Clone, Debug)]
pub struct ZuulError {
    pub began_ms: i64,
    pub at_ms: i64,
    pub error: String,
}

impl ZuulConsumer {
    pub fn start(interpreter: Interpreter, addresses: &str, labels: &[&[&str]]) -> ZuulConsumer {
        let (control, control_receiver) = watch::channel(ZuulControl::default());
        let (stats_sender, stats) = watch::channel(ZuulStats::default());
        let labels: Vec<Value> = labels.iter().map(|labels| json!(labels)).collect();
        let task = tokio::spawn(run(interpreter, addresses.to_owned(), labels, control_receiver, stats_sender));
        ZuulConsumer { task, control, stats }
    }

    /// Kills the consumer's process and starts another one. Returns whether it was killed.
    pub async fn kill_and_restart(&self) -> bool {
        let before = self.stats.borrow().deaths;
        self.control.send_modify(|control| control.deaths += 1);
        timeout(RECOVERY_TIMEOUT, self.stats.clone().wait_for(|stats| stats.deaths > before))
            .await
            .is_ok_and(|result| result.is_ok())
    }

    /// Stops the consumer after the request in progress, or after its first served request if it has none yet.
    pub async fn stop(self) -> ZuulStats {
        self.control.send_modify(|control| control.stop = true);
        let ended =
            timeout(REPLY_TIMEOUT + RECOVERY_TIMEOUT, self.task).await.expect("Zuul's classes are served in the end");
        ended.expect("Zuul's task does not panic");
        self.stats.borrow().clone()
    }
}

async fn run(
    interpreter: Interpreter,
    addresses: String,
    labels: Vec<Value>,
    mut control: watch::Receiver<ZuulControl>,
    stats: watch::Sender<ZuulStats>,
) {
    let start = || python::spawn(interpreter, "zuul_client.py", &[&addresses]);
    let mut script = start();
    for labels in labels.iter().cycle() {
        if control.borrow().stop && stats.borrow().served > 0 {
            break;
        }
        let (began_ms, deaths) = (now_ms(), stats.borrow().deaths);
        let outcome = tokio::select! {
            outcome = run_request(&mut script, labels) => outcome.map_err(Some),
            _ = control.wait_for(|control| control.deaths > deaths) => Err(None),
        };
        if outcome.is_err() {
            // The process was killed, or lost its connection in the middle of a request, as Zuul may. A new process
            // starts with a new request.
            script.kill();
            script = start();
        }
        stats.send_modify(|stats| match outcome {
            Ok(()) => stats.served += 1,
            Err(None) => stats.deaths += 1,
            Err(Some(error)) => {
                eprintln!("Zuul: {error}");
                stats.errors.push(ZuulError { began_ms, at_ms: now_ms(), error });
            }
        });
    }
}

fn now_ms() -> i64 {
    (clock::now().0 * 1000.0) as i64
}

/// One request, from its submission to the release of its nodes.
async fn run_request(script: &mut Script, labels: &Value) -> Result<(), String> {
    let request = call(script, json!({"do": "submit", "labels": labels})).await?;
    let state = call(script, json!({"do": "wait", "request": request, "timeout": 100})).await?;
    assert_eq!(state, "fulfilled", "request {request} for {labels}");
    for step in ["accept", "use", "give_back"] {
        call(script, json!({"do": step, "request": request})).await?;
    }
    Ok(())
}

async fn call(script: &mut Script, command: Value) -> Result<Value, String> {
    script.send(&command).await;
    script.reply(REPLY_TIMEOUT).await
}
