//! Reference environment: Zuul's own code and the Python launcher work together, without our programs.
//!
//! The tests run real processes on a real ZooKeeper.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{
    real::{
        self, nodepool11,
        python::{self, Interpreter, Script},
        tls,
        zookeeper::{Options, Server},
    },
    wait,
};

/// Timeout for the Python launcher, which polls most objects once a second, and used nodes every few seconds.
const ZUUL_TIMEOUT: Duration = Duration::from_secs(90);

fn zuul(interpreter: Interpreter, server: &Server) -> Script {
    let paths = ["client.pem", "client.key", "ca.pem"].map(|name| tls::file(name).to_string_lossy().into_owned());
    python::spawn(interpreter, "zuul_client.py", &[&server.address(), &paths[0], &paths[1], &paths[2]])
}

async fn states(zuul: &mut Script) -> Value {
    zuul.call(json!({"do": "list"})).await["nodes"].take()
}

/// Waits until Zuul's code lists exactly nodes in these states.
async fn until_states(zuul: &mut Script, expected: &[&str]) {
    let what = format!("the nodes to be {expected:?}");
    wait::until(&what, ZUUL_TIMEOUT, async || {
        let listed = states(zuul).await;
        let mut found: Vec<&str> = listed.as_object().unwrap().values().map(|state| state.as_str().unwrap()).collect();
        found.sort_unstable();
        found == expected
    })
    .await;
}

async fn run_request_lifecycle(interpreter: Interpreter) {
    let server = Server::start(Options::tls()).await;
    let sections = nodepool11::static_sections("static", "small", &["127.0.0.1", "127.0.0.2"]);
    let configuration = nodepool11::zookeeper_section(&server) + &sections;
    let launcher = nodepool11::launcher(&configuration);
    let mut zuul = zuul(interpreter, &server);
    until_states(&mut zuul, &["ready", "ready"]).await;
    wait::until("the launcher to be registered", ZUUL_TIMEOUT, async || {
        let listed = zuul.call(json!({"do": "list"})).await;
        listed["launchers"][0]["labels"] == json!(["small"])
    })
    .await;

    // A request is fulfilled. Its node is locked, used and released, and the host is registered again.
    let request = zuul.call(json!({"do": "submit", "labels": ["small"]})).await;
    assert_eq!(zuul.call(json!({"do": "wait", "request": request})).await, "fulfilled", "{}", launcher.log());
    let nodes = zuul.call(json!({"do": "accept", "request": request})).await;
    assert_eq!((nodes.as_array().unwrap().len(), &nodes[0]["state"]), (1, &json!("ready")));
    assert_eq!(nodes[0]["allocated_to"], request);
    assert_eq!(zuul.call(json!({"do": "state", "request": request})).await, Value::Null);
    zuul.call(json!({"do": "use", "request": request})).await;
    until_states(&mut zuul, &["in-use", "ready"]).await;
    zuul.call(json!({"do": "give_back", "request": request})).await;
    wait::until("the host to be registered again", ZUUL_TIMEOUT, async || {
        let listed = states(&mut zuul).await;
        let is_new = listed.get(nodes[0]["id"].as_str().unwrap()).is_none();
        is_new && listed.as_object().unwrap().values().filter(|state| *state == "ready").count() == 2
    })
    .await;

    // While both hosts are in use, another request waits. It is revised and then cancelled.
    let pair = zuul.call(json!({"do": "submit", "labels": ["small", "small"]})).await;
    assert_eq!(zuul.call(json!({"do": "wait", "request": pair})).await, "fulfilled");
    assert_eq!(zuul.call(json!({"do": "accept", "request": pair})).await.as_array().unwrap().len(), 2);
    zuul.call(json!({"do": "use", "request": pair})).await;
    let unserved = zuul.call(json!({"do": "submit", "labels": ["absent"], "relative_priority": 3})).await;
    assert_eq!(zuul.call(json!({"do": "wait", "request": unserved})).await, "failed");
    let hold = zuul.call(json!({"do": "hold", "request": pair})).await;
    until_states(&mut zuul, &["hold", "hold"]).await;
    let waiting = zuul.call(json!({"do": "submit", "labels": ["small"], "relative_priority": 3})).await;
    zuul.call(json!({"do": "revise", "request": waiting, "relative_priority": 1})).await;
    zuul.call(json!({"do": "cancel", "request": waiting})).await;
    assert_eq!(zuul.call(json!({"do": "wait", "request": waiting})).await, "deleted");
    zuul.call(json!({"do": "end_hold", "hold": hold})).await;
    until_states(&mut zuul, &["ready", "ready"]).await;

    let listed = nodepool11::command(&configuration, &["list"]).await;
    assert_eq!(listed.status, Some(0), "{}", listed.stderr);
    assert_eq!(listed.stdout.matches("| ready").count(), 2, "{}", listed.stdout);
}

#[tokio::test]
async fn zuul_10_and_the_python_launcher_pass_nodes() {
    if real::skipped() {
        return;
    }
    run_request_lifecycle(Interpreter::Zuul10).await;
}

#[tokio::test]
async fn zuul_13_and_the_python_launcher_pass_nodes() {
    if real::skipped() {
        return;
    }
    run_request_lifecycle(Interpreter::Zuul13).await;
}

/// Zuul revises a request before any launcher runs. The test reads the record, because Zuul reports no failed revision.
#[tokio::test]
async fn zuul_revises_a_request_that_is_not_served_yet() {
    if real::skipped() {
        return;
    }
    let server = Server::start(Options::tls()).await;
    for interpreter in Interpreter::ZUUL {
        let mut zuul = zuul(interpreter, &server);
        let request = zuul.call(json!({"do": "submit", "labels": ["small"], "relative_priority": 3})).await;
        let revised = zuul.call(json!({"do": "revise", "request": request, "relative_priority": 1})).await;
        assert_eq!(revised, 1, "{interpreter:?}");
        let record = zuul.call(json!({"do": "request", "request": request})).await;
        assert_eq!(record["node_types"], json!(["small"]));
        assert_eq!(record["requestor"], "zuul-under-test");
    }
}
