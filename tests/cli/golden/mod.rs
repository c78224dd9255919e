//! Golden test of the command line: for each line of `tests/cli/golden/cli/steps.txt`, in order on one tree, our
//! command prints and writes the same as Nodepool 11.
//!
//! Our command runs against the embedded coordinator in the test's process, Nodepool 11 against a real ZooKeeper.
//! `UPDATE=1 tests/run --test cli nodepool_11_still_matches_the_golden_files` rewrites the expected output with that
//! of Nodepool 11.

mod transcript;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nodepool_zk::client::{ConnectOptions, connect};
use serde_json::json;
use testkit::programs;
use testkit::real::python::{self, Interpreter, Script};
use testkit::real::zookeeper::{Options, Server};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use transcript::{CommandOutput, GoldenTree, Implementation, Step, Times, golden};
use zookeeper_server::{EmbeddedOptions, EmbeddedServer};

const DEADLINE: Duration = Duration::from_secs(120);

/// The implementation that runs the command lines.
enum Program {
    Ours,
    Nodepool11(Box<Script>),
}

impl Program {
    async fn run(&mut self, home: &Path, step: &Step) -> CommandOutput {
        let words = ["-c", "nodepool.yaml"].into_iter().chain(step.words());
        let script = match self {
            Program::Ours => return run_ours(home, words, &step.typed).await,
            Program::Nodepool11(script) => script,
        };
        let words: Vec<&str> = words.collect();
        script.send(&json!({"do": "run", "words": words, "folder": home, "typed": step.typed})).await;
        serde_json::from_value(script.reply(DEADLINE).await.unwrap()).unwrap()
    }

    fn implementation(&self) -> Implementation {
        match self {
            Program::Ours => Implementation::Ours,
            Program::Nodepool11(_) => Implementation::Nodepool11,
        }
    }
}

async fn run_ours(home: &Path, words: impl Iterator<Item = &str>, typed: &str) -> CommandOutput {
    let mut command = Command::new(programs::nodepool());
    command.args(words).current_dir(home).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // A command that reads no input may have exited already.
    let _ = input.write_all(typed.as_bytes()).await;
    drop(input);
    let output = tokio::time::timeout(DEADLINE, child.wait_with_output()).await.unwrap().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    CommandOutput { out: text(output.stdout), notes: text(output.stderr), status: output.status.code().unwrap() }
}

/// Writes the files that the command lines name or need.
fn write_files(home: &Path, configuration: &str) {
    std::fs::write(home.join("nodepool.yaml"), configuration).unwrap();
    for name in ["clouds.yaml", "secure.yaml", "logging.yaml"] {
        std::fs::write(home.join(name), golden(name)).unwrap();
    }
}

/// Runs all steps on a new tree and returns their transcript.
async fn run_steps(mut program: Program, home: &Path, plain_port: u16, configuration: &str) -> String {
    write_files(home, configuration);
    let zk = connect(ConnectOptions::plain("127.0.0.1", plain_port)).await.unwrap();
    let times = Times::from_now();
    let mut tree = GoldenTree::create(zk.clone(), &times).await;
    let mut played = String::new();
    for step in transcript::steps() {
        if let Some(path) = step.removed() {
            tree.remove(path).await;
            continue;
        }
        let output = program.run(home, &step).await;
        played.push_str(&transcript::entry(program.implementation(), &step, &output));
        if step.line.starts_with("export-image-data") {
            played.push_str(&transcript::exported(&home.join("export.json"), &times));
        }
        played.push_str(&tree.changes(&times).await);
        played.push('\n');
    }
    zk.close().await;
    played
}

fn configuration(port: u16) -> String {
    golden("nodepool.yaml").replace("PORT", &port.to_string())
}

#[tokio::test]
async fn every_command_matches_the_output_and_writes_of_nodepool_11() {
    let home = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { data_dir: home.path().join("store"), first_port: 0, now_ms: transcript::now_ms };
    let server = EmbeddedServer::start(options).await.unwrap();
    let port = server.address().port();
    let played = run_steps(Program::Ours, home.path(), port, &configuration(port)).await;
    server.stop().await;
    transcript::assert_same(&played, &golden("transcript.txt"));
}

#[tokio::test]
async fn nodepool_11_still_matches_the_golden_files() {
    if testkit::real::skipped() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let zookeeper = Server::start(Options::tls()).await;
    let port = |address: String| address.rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
    let certificates = PathBuf::from(testkit::real::setting("NODEPOOL_TEST_TLS"));
    let file = |name: &str| certificates.join(name).display().to_string();
    // Nodepool 11 connects with TLS only.
    let (ca, cert, key) = (file("ca.pem"), file("client.pem"), file("client.key"));
    let tls = format!("zookeeper-tls:\n  ca: {ca}\n  cert: {cert}\n  key: {key}\n");
    let configuration = configuration(port(zookeeper.address())) + &tls;
    let nodepool_11 = Program::Nodepool11(Box::new(python::spawn(Interpreter::Reference, "command_line.py", &[])));
    let played = run_steps(nodepool_11, home.path(), port(zookeeper.plain_address()), &configuration).await;
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(transcript::folder().join("transcript.txt"), played).unwrap();
        return;
    }
    transcript::assert_same(&played, &golden("transcript.txt"));
}

/// Lists are arrays. Every other document is an object whose `outcome` states the result.
#[tokio::test]
async fn every_command_prints_one_json_document() {
    let home = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { data_dir: home.path().join("store"), first_port: 0, now_ms: transcript::now_ms };
    let server = EmbeddedServer::start(options).await.unwrap();
    let port = server.address().port();
    write_files(home.path(), &configuration(port));
    let zk = connect(ConnectOptions::plain("127.0.0.1", port)).await.unwrap();
    let mut tree = GoldenTree::create(zk.clone(), &Times::from_now()).await;
    for step in transcript::steps() {
        if let Some(path) = step.removed() {
            tree.remove(path).await;
            continue;
        }
        let words = ["-c", "nodepool.yaml", "-o", "json"].into_iter().chain(step.words());
        let output = run_ours(home.path(), words, &step.typed).await;
        let document: serde_json::Value =
            serde_json::from_str(&output.out).unwrap_or_else(|error| panic!("{}: {error}\n{}", step.line, output.out));
        if output.status == 0 {
            assert!(document.is_array() || document["outcome"].is_string(), "{}: {document}", step.line);
        } else {
            let message = document["message"].as_str().unwrap();
            assert_eq!(document["outcome"], "failed", "{}", step.line);
            assert!(output.notes.trim_end().ends_with(message), "{}: {}", step.line, output.notes);
        }
    }
    zk.close().await;
    server.stop().await;
}
