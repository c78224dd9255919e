//! `request`: nodes for a person or a command, released automatically at the end.

pub mod consumer;
pub mod inventory;
pub mod kubeconfig;
pub mod run;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::bail;
use futures::future::BoxFuture;
use nodepool_model::records::ids::{LabelName, RequestId};
use nodepool_model::records::request::{NodeRequest, summarize_labels};
use nodepool_model::report::list;
use nodepool_zk::Zk;
use nodepool_zk::tools::scan;
use serde_json::{Value, json};

use self::consumer::{Consumer, RequestEnd, RequestSpec};
use self::inventory::Credentials;
use crate::args::RequestArguments;
use crate::commands::why;
use crate::interrupts::{Interrupt, Interrupts};
use crate::output::Output;
use crate::session_watch;

/// Time after which a waiting request is reported.
const NOTICE_DELAY: Duration = Duration::from_secs(2);
/// Timeout for releasing the nodes. After it, the command exits without releasing them.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout for the final check and the explanation after `--wait` has passed.
const EXPLANATION_TIMEOUT: Duration = Duration::from_secs(3);

/// Duration for which nodes are held if there is no command.
pub enum HoldPolicy {
    /// Until the future resolves: at a line or the end of standard input.
    Until(BoxFuture<'static, ()>),
    /// The nodes are not held, because there is no terminal to press Enter on.
    Never,
}

/// Runs `request`; returns the exit status.
pub async fn request(
    zk: &Zk,
    output: &mut Output<'_>,
    arguments: &RequestArguments,
    interrupts: &mut Interrupts,
    hold_policy: HoldPolicy,
    session_timeout: Duration,
) -> anyhow::Result<u8> {
    let mut consumer = Consumer::new(zk.clone());
    let result = run_request(zk, &mut consumer, output, arguments, interrupts, hold_policy, session_timeout).await;
    let released = tokio::select! {
        result = tokio::time::timeout(RELEASE_TIMEOUT, consumer.release()) => match result {
            Ok(released) => released,
            Err(_) => Err(anyhow::anyhow!("ZooKeeper does not respond")),
        },
        _ = interrupts.next() => Err(anyhow::anyhow!("interrupted")),
    };
    if let Err(error) = released {
        // Everything else is released when the session ends, together with this process.
        output.note(format_args!("WARNING not everything was released, the launchers will clean up: {error:#}"))?;
    }
    result
}

async fn run_request(
    zk: &Zk,
    consumer: &mut Consumer,
    output: &mut Output<'_>,
    arguments: &RequestArguments,
    interrupts: &mut Interrupts,
    hold_policy: HoldPolicy,
    session_timeout: Duration,
) -> anyhow::Result<u8> {
    let session_lost = || async {
        session_watch::wait_until_request_lost(zk, session_timeout).await;
        anyhow::anyhow!("the ZooKeeper session expired and the request with it")
    };
    let id = tokio::select! {
        biased;
        interrupt = interrupts.next() => return interrupted(output, interrupt),
        error = session_lost() => return Err(error),
        submitted = async { consumer.submit(&request_spec(arguments)).await } => submitted?,
    };
    let mut end = tokio::select! {
        biased;
        interrupt = interrupts.next() => return interrupted(output, interrupt),
        error = session_lost() => return Err(error),
        ended = wait(zk, consumer, output, arguments, &id) => ended?,
    };
    if end.is_none() {
        // The request may have been fulfilled at the same moment.
        end = tokio::time::timeout(EXPLANATION_TIMEOUT, consumer.poll_end()).await.ok().and_then(Result::ok).flatten();
    }
    let fulfilled = match end {
        Some(RequestEnd::Fulfilled(request)) => request,
        Some(RequestEnd::Failed(request)) => return failed(zk, output, &id, &request).await,
        Some(RequestEnd::Removed) => bail!("the request {id} was removed by another client"),
        None => return timed_out(zk, output, arguments, &id).await,
    };
    let accepted = async {
        consumer.accept(&fulfilled).await?;
        consumer.put_in_use().await
    };
    tokio::select! {
        biased;
        interrupt = interrupts.next() => return interrupted(output, interrupt),
        error = session_lost() => return Err(error),
        accepted = accepted => accepted?,
    }
    if arguments.command.is_empty() {
        show(consumer, output, &id)?;
        hold(zk, consumer, output, interrupts, hold_policy, session_timeout).await
    } else {
        let nodes_lost = session_watch::wait_until_nodes_lost(zk, session_timeout);
        run::run(nodes_lost, consumer.nodes(), &arguments.command, interrupts, output).await
    }
}

fn interrupted(output: &mut Output<'_>, interrupt: Interrupt) -> anyhow::Result<u8> {
    output.outcome(json!({"outcome": "interrupted"}))?;
    Ok(interrupt.status())
}

fn request_spec(arguments: &RequestArguments) -> RequestSpec {
    let host = nix::unistd::gethostname().unwrap_or_default();
    RequestSpec {
        labels: arguments.label.iter().map(|label| label.as_str().into()).collect(),
        tenant: arguments.tenant.as_deref().map(Into::into),
        provider: arguments.provider.as_deref().map(Into::into),
        priority: arguments.priority.clone(),
        requestor: format!("nodepool-cli:{}:{}", host.to_string_lossy(), std::process::id()),
    }
}

/// Waits for the end of the request; `None` after `--wait` has passed.
async fn wait(
    zk: &Zk,
    consumer: &Consumer,
    output: &mut Output<'_>,
    arguments: &RequestArguments,
    id: &RequestId,
) -> anyhow::Result<Option<RequestEnd>> {
    let limit = async {
        match arguments.wait {
            Some(wait) => tokio::time::sleep(wait).await,
            None => std::future::pending().await,
        }
    };
    let ended = consumer.wait_for_end();
    tokio::pin!(limit, ended);
    tokio::select! {
        ended = &mut ended => return ended.map(Some),
        () = &mut limit => return Ok(None),
        () = tokio::time::sleep(NOTICE_DELAY) => {}
    }
    output.note(format_args!("waiting for request {id}; \"nodepool why {id}\" shows the reason"))?;
    // If this check fails, the wait continues without it.
    let unoffered = tokio::select! {
        ended = &mut ended => return ended.map(Some),
        () = &mut limit => return Ok(None),
        missing = unoffered_labels(zk, arguments) => missing.unwrap_or_default(),
    };
    if !unoffered.is_empty() {
        output.note(format_args!("WARNING no launcher offers the label {}", summarize_labels(&unoffered)))?;
    }
    tokio::select! {
        ended = ended => ended.map(Some),
        () = limit => Ok(None),
    }
}

/// Labels that no registered pool offers, each once.
async fn unoffered_labels(zk: &Zk, arguments: &RequestArguments) -> anyhow::Result<Vec<LabelName>> {
    let pools = scan::pools(zk.as_ref()).await?.found;
    let offered = |label: &str| pools.iter().any(|pool| pool.record.supported_labels.contains(label));
    let unoffered: BTreeSet<&String> = arguments.label.iter().filter(|label| !offered(label)).collect();
    Ok(unoffered.into_iter().map(|label| label.as_str().into()).collect())
}

async fn failed(zk: &Zk, output: &mut Output<'_>, id: &RequestId, request: &NodeRequest) -> anyhow::Result<u8> {
    let explained = why::explain(zk, id, request).await?;
    for line in explained.sentences() {
        output.note(line)?;
    }
    let message = format!("the request {id} failed");
    output.outcome(json!({"outcome": "failed", "message": message, "request": id, "why": explained.document()}))?;
    bail!(message)
}

async fn timed_out(
    zk: &Zk,
    output: &mut Output<'_>,
    arguments: &RequestArguments,
    id: &RequestId,
) -> anyhow::Result<u8> {
    let waited = arguments.wait.unwrap_or_default().as_secs_f64();
    let message = format!("the request {id} was not fulfilled within {waited} s");
    let mut document = json!({"outcome": "not fulfilled in time", "message": message, "request": id});
    let explaining = async {
        let Some(Ok(entry)) = scan::request(zk.as_ref(), id).await? else { return Ok(None) };
        why::explain(zk, id, &entry.stored.record).await.map(Some)
    };
    // If ZooKeeper or the launchers do not respond, the explanation is omitted.
    let explained: Option<anyhow::Result<_>> = tokio::time::timeout(EXPLANATION_TIMEOUT, explaining).await.ok();
    if let Some(Ok(Some(explained))) = explained {
        for line in explained.sentences() {
            output.note(line)?;
        }
        document["why"] = explained.document();
    }
    output.outcome(document)?;
    bail!(message)
}

fn show(consumer: &Consumer, output: &mut Output<'_>, id: &RequestId) -> anyhow::Result<()> {
    let nodes: Vec<Value> =
        consumer.nodes().iter().map(|node| inventory::describe(node, Credentials::Hidden)).collect();
    output.print(list::table(inventory::COLUMNS, &nodes))?;
    output.outcome(json!({"outcome": "fulfilled", "request": id, "nodes": nodes}))?;
    Ok(output.flush()?)
}

async fn hold(
    zk: &Zk,
    consumer: &Consumer,
    output: &mut Output<'_>,
    interrupts: &mut Interrupts,
    hold_policy: HoldPolicy,
    session_timeout: Duration,
) -> anyhow::Result<u8> {
    let count = match consumer.nodes().len() {
        1 => "the node".to_owned(),
        many => format!("the {many} nodes"),
    };
    let HoldPolicy::Until(input) = hold_policy else {
        let hint = "standard input is not a terminal and there is no command to run";
        output.note(format_args!("releasing {count} at once: {hint} (\"-- COMMAND\")"))?;
        return Ok(0);
    };
    output.note(format_args!("holding {count}; press Enter to release {count}"))?;
    tokio::select! {
        () = input => {}
        // Holding normally ends with a signal, so the status is 0.
        _ = interrupts.next() => output.note("")?,
        () = session_watch::wait_until_nodes_lost(zk, session_timeout) => {
            bail!("the ZooKeeper session expired or is about to; {count} may be reassigned");
        }
    }
    output.note(format_args!("releasing {count}"))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{self, Command, OutputFormat};
    use crate::testing::{CommandOutput, TestStore, capture};

    fn arguments(line: &str) -> RequestArguments {
        let words = std::iter::once("nodepool").chain(std::iter::once("request")).chain(line.split(' '));
        match args::parse(words.map(Into::into)) {
            Ok((_, Command::Request(arguments))) => arguments,
            _ => panic!("{line} is not a request"),
        }
    }

    /// Runs `request` concurrently with `meanwhile`; returns its output and exit status.
    async fn run_request_while(
        store: &TestStore,
        line: &str,
        hold_policy: HoldPolicy,
        meanwhile: impl Future<Output = ()>,
    ) -> (CommandOutput, u8) {
        let (_signals, mut interrupts) = Interrupts::channel();
        run_request_with_signals(store, line, hold_policy, &mut interrupts, meanwhile).await
    }

    async fn run_request_with_signals(
        store: &TestStore,
        line: &str,
        hold_policy: HoldPolicy,
        interrupts: &mut Interrupts,
        meanwhile: impl Future<Output = ()>,
    ) -> (CommandOutput, u8) {
        let arguments = arguments(line);
        let zk = store.connect_other();
        let mut status = 1;
        let command = capture(OutputFormat::Json, async |output| {
            status = request(&zk, output, &arguments, interrupts, hold_policy, Duration::from_secs(10)).await?;
            Ok(())
        });
        let (captured, ()) = futures::join!(command, meanwhile);
        (captured, status)
    }

    /// Asserts that there is no request and no lock, and that the nodes have these states.
    async fn assert_released(store: &TestStore, nodes: &[&str]) {
        let (requests, _) = store.zk.children("/nodepool/requests").await.unwrap();
        assert_eq!(requests, Vec::<String>::new());
        for (index, state) in nodes.iter().enumerate() {
            let id = format!("{index:010}");
            let node = store.node(&id).await;
            assert_eq!(node.state.as_str(), *state, "{id}");
            assert_eq!(node.extra["later"], 1);
            let (contenders, _) = store.zk.children(&format!("/nodepool/nodes/{id}/lock")).await.unwrap();
            assert_eq!(contenders, Vec::<String>::new(), "{id}");
        }
    }

    #[tokio::test]
    async fn without_a_terminal_nodes_are_shown_and_released_at_once() {
        let store = TestStore::new();
        let line = "--label a --label b --tenant t --priority low";
        let (captured, status) =
            run_request_while(&store, line, HoldPolicy::Never, store.end_request("fulfilled")).await;
        assert_eq!((status, captured.result.is_none()), (0, true), "{}", captured.notes);
        let document = captured.json();
        assert_eq!(document["request"], "300-0000000000");
        let nodes: Vec<(&Value, &Value)> =
            document["nodes"].as_array().unwrap().iter().map(|node| (&node["label"], &node["port"])).collect();
        assert_eq!(nodes, [(&json!("a"), &json!(2200)), (&json!("b"), &json!(2201))]);
        assert_released(&store, &["used", "used"]).await;
    }

    #[tokio::test]
    async fn the_request_has_the_keys_that_zuul_reads_and_is_ephemeral() {
        let store = TestStore::new();
        let check = async {
            let path = store.wait_for_request().await;
            let request: Value = serde_json::from_str(&store.text(&path).await).unwrap();
            for key in ["state", "state_time", "event_id", "requestor", "requestor_data", "node_types", "provider"] {
                assert!(request.get(key).is_some(), "{key} is missing in {request}");
            }
            assert!(request["requestor"].as_str().unwrap().starts_with("nodepool-cli:"));
            assert_ne!(store.zk.exists(&path).await.unwrap().unwrap().ephemeral_owner, 0);
            store.end_request("fulfilled").await;
        };
        run_request_while(&store, "--label a --provider p", HoldPolicy::Never, check).await;
        assert_released(&store, &["used"]).await;
    }

    #[tokio::test]
    async fn held_nodes_are_locked_and_in_use() {
        let store = TestStore::new();
        let (release, released) = tokio::sync::oneshot::channel();
        let hold_policy = HoldPolicy::Until(Box::pin(async { released.await.unwrap() }));
        let check = async {
            store.end_request("fulfilled").await;
            while store.node("0000000000").await.state.as_str() != "in-use" {
                tokio::task::yield_now().await;
            }
            assert_eq!(store.zk.children("/nodepool/nodes/0000000000/lock").await.unwrap().0.len(), 1);
            assert_eq!(store.zk.children("/nodepool/requests").await.unwrap().0.len(), 0);
            release.send(()).unwrap();
        };
        let (_, status) = run_request_while(&store, "--label a", hold_policy, check).await;
        assert_eq!(status, 0);
        assert_released(&store, &["used"]).await;
    }

    #[tokio::test]
    async fn a_signal_while_waiting_removes_the_request() {
        let store = TestStore::new();
        let (signals, mut interrupts) = Interrupts::channel();
        let signal = async {
            store.wait_for_request().await;
            signals.send(Interrupt::Interrupted).await.unwrap();
        };
        let (_, status) =
            run_request_with_signals(&store, "--label a", HoldPolicy::Never, &mut interrupts, signal).await;
        assert_eq!(status, 130);
        assert_released(&store, &[]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_times_out_is_explained_and_removed() {
        let store = TestStore::new();
        let (captured, status) = run_request_while(&store, "--label a --wait 60.5", HoldPolicy::Never, async {}).await;
        assert_eq!(status, 1);
        assert_eq!(captured.error(), "the request 200-0000000000 was not fulfilled within 60.5 s");
        assert!(captured.notes.contains("no launcher offers the label a"), "{}", captured.notes);
        assert_eq!(captured.json()["outcome"], "not fulfilled in time");
        assert_released(&store, &[]).await;
    }

    #[tokio::test]
    async fn a_failed_request_names_the_pools_that_declined_it() {
        let store = TestStore::new();
        store.register_pool(&["a"], None).await;
        let (captured, status) =
            run_request_while(&store, "--label a", HoldPolicy::Never, store.end_request("failed")).await;
        assert_eq!((status, captured.error().as_str()), (1, "the request 200-0000000000 failed"));
        assert!(captured.notes.contains("p-main on nl01 declined it"), "{}", captured.notes);
        assert_released(&store, &[]).await;
    }

    #[tokio::test]
    async fn a_reassigned_node_ends_the_request_and_the_others_stay_ready() {
        let store = TestStore::new();
        let reassign = async {
            let path = store.wait_for_request().await;
            let request =
                store.text(&path).await.replace("\"nodes\": []", "\"nodes\": [\"0000000000\", \"0000000001\"]");
            for (id, owner) in [("0000000000", path.rsplit_once('/').unwrap().1), ("0000000001", "200-0000000099")] {
                let node = json!({"state": "ready", "allocated_to": owner, "later": 1});
                store.put_node(id, &node.to_string()).await;
            }
            store.put("/nodepool/nodes/0000000001/lock", "").await;
            let request = request.replace("\"requested\"", "\"fulfilled\"");
            store.zk.set(&path, request.into(), -1).await.unwrap();
        };
        let (captured, status) = run_request_while(&store, "--label a --label b", HoldPolicy::Never, reassign).await;
        assert_eq!(status, 1);
        assert!(captured.error().contains("node 0000000001 was assigned"), "{}", captured.error());
        assert_released(&store, &["ready", "ready"]).await;
    }

    #[tokio::test]
    async fn a_removed_request_ends_the_command() {
        let store = TestStore::new();
        let remove = async {
            let path = store.wait_for_request().await;
            store.zk.delete(&path, -1).await.unwrap();
        };
        let (captured, _) = run_request_while(&store, "--label a", HoldPolicy::Never, remove).await;
        assert!(captured.error().contains("removed by another client"), "{}", captured.error());
    }
}
