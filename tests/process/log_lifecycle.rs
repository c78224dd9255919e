//! Lifecycle of a request in the log: one search for the request's id finds every step, in text and in JSON. Also the
//! names of the builder's workers.

use nodepool_zk::Connection;
use serde_json::Value;
use testkit::daemon_process::{Coordinator, WorkDir};
use testkit::programs;
use testkit::request_lifecycle::{EVENT, RequestLifecycle, mark_used, submit, wait_until_fulfilled};

/// Expected lines, in this order: the logger, and the beginning of the message.
const EXPECTED_LINES: [(&str, &str); 14] = [
    ("nodepool.driver.NodeRequestHandler", "claim"),
    ("nodepool.StateMachineNodeLauncher.lab", "launching"),
    ("nodepool.StateMachineNodeLauncher.lab", "submitted"),
    ("nodepool.StateMachineProvider.lab", "API call"),
    ("nodepool.StateMachineProvider.lab", "advanced"),
    ("nodepool.StateMachineNodeLauncher.lab", "job ended"),
    ("nodepool.utils", "scanning for host keys"),
    ("nodepool.utils", "host keys found"),
    ("nodepool.StateMachineNodeLauncher.lab", "launch attempt ended"),
    ("nodepool.driver.NodeRequestHandler", "finish"),
    ("nodepool.DeletedNodeWorker", "deleting"),
    ("nodepool.StateMachineProvider.lab", "API call ended"),
    ("nodepool.StateMachineNodeDeleter.lab", "deleted"),
    ("nodepool.CleanupWorker", "done"),
];

/// The first expected line that is missing in this order.
fn missing<'a>(lines: impl Iterator<Item = (String, String)>) -> Option<(&'a str, &'a str)> {
    let mut expected = EXPECTED_LINES.iter();
    let mut wanted = expected.next();
    for (logger, text) in lines {
        if let Some((family, start)) = wanted
            && logger.starts_with(family)
            && text.starts_with(start)
        {
            wanted = expected.next();
        }
    }
    wanted.copied()
}

#[tokio::test]
async fn searching_the_log_for_a_request_shows_its_lifecycle() {
    let RequestLifecycle { request, nodes, record, log } =
        testkit::request_lifecycle::run_one_request(&["-d"], &[]).await;
    assert!(
        record.contains(&testkit::request_lifecycle::requestor_data()),
        "the data of the requestor is unchanged: {record}"
    );
    let request_id = format!("[node_request: {request}] ");
    let found: Vec<&str> = log.lines().filter(|line| line.contains(&request)).collect();
    let all = found.join("\n");
    // `2026-01-31 12:00:00,123 LEVEL LOGGER: [e: EVENT] [node_request: ID] [node: ID] text`
    let lines = found.iter().filter_map(|line| {
        let (head, text) = line.split_once(": ")?;
        let text = text.split_once(&request_id)?.1;
        let text = text.strip_prefix("[node: ").map_or(text, |rest| rest.split_once("] ").unwrap().1);
        Some((head.rsplit(' ').next()?.to_owned(), text.to_owned()))
    });
    assert_eq!(missing(lines), None, "{all}");
    let launcher = "nodepool.driver.NodeRequestHandler[";
    assert!(all.contains(launcher) && all.contains("PoolWorker.lab-main-"), "{all}");
    // The second server fails: its node takes two attempts, and the failure is logged with all ids.
    let failed = nodes.iter().any(|node| {
        let prefix = format!("[e: {EVENT}] {request_id}[node: {node}] job failed");
        found.iter().any(|line| line.contains(&prefix))
    });
    assert!(failed, "{all}");
    for line in &found {
        // Lines after the deletion of the request have the ids of the node.
        let is_after = line.contains("Delet") || line.contains("Cleanup") || line.contains("StateMachineProvider");
        assert!(line.contains(&format!("[e: {EVENT}] {request_id}")) || is_after, "{line}");
    }
}

#[tokio::test]
async fn the_log_says_why_a_request_waits_and_how_it_ends() {
    let work_dir = WorkDir::new("");
    let coordinator = Coordinator::start(&work_dir.path("store")).await;
    let head = coordinator.configuration().lines().next().unwrap().to_owned();
    work_dir.configure(&format!(
        "{head}\nlabels: [{{name: small}}]\nproviders:\n- name: lab\n  driver: static\n  pools:\n  - name: main\n\
        \x20   nodes: [{{name: 127.0.0.1, labels: small, username: zuul, host-key-checking: false}}]\n"
    ));
    let launcher = work_dir.launcher(&["-f"]);
    work_dir.wait_until_ready().await;
    let zk = coordinator.session().await;
    let record = |event: &str| {
        format!(
            "{{\"node_types\": [\"small\"], \"requestor\": \"zuul\", \"state\": \"requested\", \"state_time\": 1.0, \
             \"event_id\": \"{event}\"}}"
        )
    };
    let first = submit(&zk, record("e1")).await;
    let fulfilled: Value = serde_json::from_str(&wait_until_fulfilled(&zk, &first).await).unwrap();
    let node = fulfilled["nodes"][0].as_str().unwrap();
    let second = submit(&zk, record("e2")).await;
    let id = second.rsplit('/').next().unwrap();
    let prefix = format!("[e: e2] [node_request: {id}] ");
    launcher.wait_for_log(&format!("{prefix}waits, because needs 1 idle node(s) of label small, 0 idle")).await;
    zk.delete(&second, -1).await.unwrap();
    launcher.wait_for_log(&format!("{prefix}withdrawn")).await;
    mark_used(&zk, node).await;
    launcher.wait_for_log(&format!("[node: {node}] returned")).await;
    zk.delete(&first, -1).await.unwrap();
    let third = submit(&zk, record("e3")).await;
    wait_until_fulfilled(&zk, &third).await;
    assert!(!launcher.log().contains("[e: e1] [node_request: 200-0000000000] withdrawn"), "{}", launcher.log());
}

#[tokio::test]
async fn each_worker_of_the_builder_logs_under_its_number() {
    let work_dir = WorkDir::new("");
    let coordinator = Coordinator::start(&work_dir.path("store")).await;
    let head = coordinator.configuration().lines().next().unwrap().to_owned();
    work_dir.configure(&format!(
        "{head}\nlabels: []\nproviders: []\nimages-dir: {}\n\
        diskimages: [{{name: one, formats: [tar], elements: [vm]}}, {{name: two, formats: [tar], elements: [vm]}}]\n",
        work_dir.path("images").display()
    ));
    std::fs::create_dir(work_dir.path("images")).unwrap();
    let flags = ["-c", "nodepool.yaml", "-f", "--fake", "--build-workers", "2"];
    let builder = work_dir.start(programs::builder(), &flags);
    builder.wait_for_log("INFO nodepool.builder.NodePoolBuilder: Nodepool builder ").await;
    for number in 0..2 {
        builder.wait_for_log(&format!("INFO nodepool.builder.BuildWorker.{number}: building image=")).await;
    }
    for image in ["one", "two"] {
        builder.wait_for_log(&format!(": DIB image {image} is built build=")).await;
    }
}

#[tokio::test]
async fn json_log_records_have_a_key_per_id() {
    let RequestLifecycle { request, nodes, log, .. } =
        testkit::request_lifecycle::run_one_request(&["-d", "--log-format", "json"], &[]).await;
    let lines: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect();
    for line in &lines {
        let keys: Vec<&String> = line.as_object().unwrap().keys().take(4).collect();
        assert_eq!(keys, ["time", "level", "logger", "message"], "{line}");
    }
    let ours: Vec<&Value> = lines.iter().filter(|line| line["node_request"] == request.as_str()).collect();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    assert_eq!(missing(ours.iter().map(|line| (text(&line["logger"]), text(&line["message"])))), None, "{log}");
    let claim = ours.iter().find(|line| line["message"] == "claim").unwrap();
    assert_eq!((&claim["event"], &claim["pool"]), (&EVENT.into(), &"lab-main".into()), "{claim}");
    let end = ours.iter().find(|line| line["message"] == "launch attempt ended" && line["result"] == "ready").unwrap();
    assert!(end["took_s"].is_number() && end["provider"] == "lab", "{end}");
    assert!(nodes.contains(&text(&end["node"])), "{end}");
}
