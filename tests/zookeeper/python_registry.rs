//! Components of a real launcher in the registry of Nodepool 11: listed, updated, and removed at the end of their
//! session.

use std::time::Duration;

use nix::sys::signal::Signal;
use nodepool_model::records::component::ComponentKind;
use nodepool_zk::client::RealConnection;
use nodepool_zk::{Connection, paths};
use serde_json::{Value, json};
use testkit::daemon_process::{Coordinator, WorkDir};
use testkit::real::python::{self, Interpreter, Script};
use testkit::{real, wait};

/// Python programs start slowly, even more so on a busy machine.
const REGISTRY_TIMEOUT: Duration = Duration::from_secs(60);

fn configuration(port: u16, labels: &str) -> String {
    let provider = format!(
        "providers: [{{name: ours, driver: static, pools: [{{name: main, nodes: [{{name: fake-1, labels: {labels}, \
         host-key-checking: false}}]}}]}}]\n"
    );
    testkit::daemon_process::configuration(port)
        .replace("labels: []", "labels: [{name: a}, {name: b}]")
        .replace("providers: []\n", &provider)
}

async fn becomes(script: &mut Script, what: &str, expected: Value) {
    wait::until(&format!("Python to read {what} as {expected}"), REGISTRY_TIMEOUT, async || {
        script.call(json!({"do": what})).await == expected
    })
    .await;
}

/// The only component of a kind, as stored.
async fn record(session: &RealConnection, kind: ComponentKind) -> Value {
    let (names, _) = session.children(&paths::components(kind)).await.unwrap();
    assert_eq!(names.len(), 1, "{names:?}");
    serde_json::from_slice(&session.get(&paths::component(kind, &names[0])).await.unwrap().0).unwrap()
}

#[tokio::test]
async fn components_are_listed_with_their_web_port_while_registered() {
    if real::skipped() {
        return;
    }
    let work_dir = WorkDir::new("");
    let coordinator = Coordinator::start(&work_dir.path("coordinator")).await;
    let session = coordinator.session().await;
    let tls = coordinator.tls();
    let mut registry = python::spawn(Interpreter::Reference, "records.py", &tls.each_ref().map(String::as_str));
    work_dir.configure(&configuration(coordinator.port, "[a]"));
    let mut launcher = work_dir.launcher(&["-f"]);
    work_dir.wait_until_ready().await;
    wait::until("the pool to be listed", REGISTRY_TIMEOUT, async || {
        registry.call(json!({"do": "pools"})).await != json!([])
    })
    .await;

    let (pool, process) =
        (record(&session, ComponentKind::Pool).await, record(&session, ComponentKind::Launcher).await);
    let port = format!(":{}", work_dir.web_port.number);
    for record in [&pool, &process] {
        assert!(record["webapp"].as_str().is_some_and(|webapp| webapp.ends_with(&port)), "{record}");
    }
    let listed = |labels: Value| {
        json!([{
            "id": pool["id"], "name": "main", "provider": "ours", "labels": labels, "priority": 100, "paused": false,
            "state": "running", "hostname": pool["hostname"],
        }])
    };
    let launchers = json!([{"hostname": process["hostname"], "state": "running", "version": process["version"]}]);
    becomes(&mut registry, "pools", listed(json!(["a"]))).await;
    becomes(&mut registry, "launchers", launchers.clone()).await;
    // Changes of a registration are visible, too.
    work_dir.configure(&configuration(coordinator.port, "[a, b]"));
    becomes(&mut registry, "pools", listed(json!(["a", "b"]))).await;

    // The pool is unregistered with its provider, while the launcher stays registered.
    work_dir.configure(&coordinator.configuration());
    becomes(&mut registry, "pools", json!([])).await;
    becomes(&mut registry, "launchers", launchers).await;
    work_dir.configure(&configuration(coordinator.port, "[a]"));
    wait::until("another pool to be listed", REGISTRY_TIMEOUT, async || {
        let pools = registry.call(json!({"do": "pools"})).await;
        pools[0]["labels"] == json!(["a"]) && pools[0]["id"] != pool["id"]
    })
    .await;
    launcher.signal(Signal::SIGTERM);
    assert!(launcher.wait_for_exit().await.success());
    becomes(&mut registry, "pools", json!([])).await;
    becomes(&mut registry, "launchers", json!([])).await;
}
