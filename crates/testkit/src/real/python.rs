//! Scripts of `tests/python/` with a protocol of one JSON value per line, for kazoo, Zuul's classes and the Python
//! Nodepool; and the virtual environments that interpret them.

use std::{
    path::PathBuf,
    process::{Command, ExitStatus},
    time::Duration,
};

use super::child_process::{ChildProcess, Output};
use crate::programs;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{ChildStdin, ChildStdout},
};

/// Default deadline of a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// Deadline of a check on a busy machine.
const CHECK_TIMEOUT: Duration = Duration::from_secs(120);

/// Virtual environment of `tests/run` that interprets a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpreter {
    /// kazoo 2.9.0 and Nodepool 11.0.0.
    Reference,
    /// kazoo 2.9.0 and Zuul 10.2.0.
    Zuul10,
    /// kazoo 2.9.0 and Zuul 13.1.1.
    Zuul13,
    /// moto 5.2.5 and boto3.
    Moto,
    /// Microsoft's own clients.
    Azure,
}

impl Interpreter {
    /// Both versions of Zuul, for tests that hold for either.
    pub const ZUUL: [Interpreter; 2] = [Interpreter::Zuul10, Interpreter::Zuul13];

    pub fn path(self) -> PathBuf {
        PathBuf::from(super::setting(match self {
            Interpreter::Reference => "NODEPOOL_TEST_PYTHON",
            Interpreter::Zuul10 => "NODEPOOL_TEST_ZUUL_10",
            Interpreter::Zuul13 => "NODEPOOL_TEST_ZUUL_13",
            Interpreter::Moto => "NODEPOOL_TEST_MOTO",
            Interpreter::Azure => "NODEPOOL_TEST_AZURE",
        }))
    }
}

/// A running script. Dropping it kills it and, if the test fails, prints its standard error.
pub struct Script {
    name: String,
    running: ChildProcess,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    _home: TempDir,
}

/// Starts `tests/python/<script>`.
pub fn spawn(interpreter: Interpreter, script: &str, arguments: &[&str]) -> Script {
    let file = programs::repository().join("tests/python").join(script);
    assert!(file.is_file(), "{} does not exist", file.display());
    let home = tempfile::Builder::new().prefix("nodepool-test-python-").tempdir();
    let home = home.expect("the temporary directory is writable");
    let mut command = Command::new(interpreter.path());
    // Without bytecode files, because the sources are in the repository.
    command.args(["-u", "-B"]).arg(&file).args(arguments);
    let mut running = ChildProcess::start(script, &mut command, Output::Piped, &home.path().join("log"), home.path());
    let (input, output) = running.pipes();
    let input = ChildStdin::from_std(input).expect("a pipe works with the runtime");
    let output = ChildStdout::from_std(output).expect("a pipe works with the runtime");
    Script { name: script.to_owned(), running, input: Some(input), lines: BufReader::new(output).lines(), _home: home }
}

/// Runs a script to its end and returns the values it printed; panics if it fails or takes longer than the deadline.
pub async fn run(interpreter: Interpreter, script: &str, arguments: &[&str], deadline: Duration) -> Vec<Value> {
    let mut script = spawn(interpreter, script, arguments);
    let mut values = Vec::new();
    let reading = async {
        while let Some(value) = script.read().await {
            values.push(value);
        }
    };
    let in_time = tokio::time::timeout(deadline, reading).await.is_ok();
    assert!(in_time, "{} still runs after {deadline:?}", script.name);
    let status = script.finish(deadline).await;
    assert!(status.success(), "{} ended with {status}\n{}", script.name, script.running.log_tail());
    values
}

/// Runs a script that checks a service with a vendor's client. It fails at a difference, and else ends with `"ok"`.
pub async fn check(interpreter: Interpreter, script: &str, arguments: &[&str]) {
    let printed = run(interpreter, script, arguments, CHECK_TIMEOUT).await;
    assert_eq!(printed.last(), Some(&json!("ok")), "{printed:?}");
}

impl Script {
    /// Sends a command and returns the value of its reply. Panics if the script reports an error.
    pub async fn call(&mut self, command: Value) -> Value {
        match self.try_call(&command).await {
            Ok(value) => value,
            Err(error) => panic!("{}: {command} failed: {error}\n{}", self.name, self.running.log_tail()),
        }
    }

    /// Sends a command and returns the value of its reply, or the error that the script reports: its class and text.
    pub async fn try_call(&mut self, command: &Value) -> Result<Value, String> {
        self.send(command).await;
        self.reply(REPLY_TIMEOUT).await
    }

    /// Sends a command without waiting for the reply, which `reply` returns later.
    pub async fn send(&mut self, command: &Value) {
        let input = self.input.as_mut().expect("the script is not finished");
        let sent = input.write_all(format!("{command}\n").as_bytes()).await;
        if let Err(error) = sent {
            panic!("{} does not accept commands: {error}\n{}", self.name, self.running.log_tail());
        }
    }

    /// The next reply; panics at the deadline.
    pub async fn reply(&mut self, deadline: Duration) -> Result<Value, String> {
        let Ok(line) = tokio::time::timeout(deadline, self.read()).await else {
            panic!("{} did not reply within {deadline:?}\n{}", self.name, self.running.log_tail());
        };
        let Some(mut reply) = line else {
            panic!("{} ended without a reply\n{}", self.name, self.running.log_tail());
        };
        match reply.get("error").and_then(Value::as_str) {
            Some(error) => Err(error.to_owned()),
            None => Ok(reply["ok"].take()),
        }
    }

    /// Closes the script's input, which makes the script exit, and waits for its exit.
    pub async fn finish(&mut self, deadline: Duration) -> ExitStatus {
        self.input = None;
        self.running.wait(deadline).await
    }

    /// Kills the script: its sessions remain until they expire.
    pub fn kill(&mut self) {
        self.running.kill();
    }

    async fn read(&mut self) -> Option<Value> {
        let line = self.lines.next_line().await.expect("the script writes UTF-8")?;
        let value = serde_json::from_str(&line);
        Some(value.unwrap_or_else(|error| panic!("{} printed {line:?}, which is not JSON: {error}", self.name)))
    }
}
