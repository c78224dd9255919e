//! Faults of calls: errors, closed connections, lost and malformed replies.

use std::time::Duration;

use super::{fault, server, start};
use crate::cloud::{Answer, Cloud};
use serde_json::{Value, json};
use testkit::clouds::simulated_openstack::SimulatedOpenStack;
use testkit::programs;
use testkit::wait;

const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn every_nth_call_of_a_pattern_fails_and_no_other() {
    let (simulated, cloud) = start(&["--fault", "503 every=3 method=GET path=/servers$ times=2"]).await;
    let mut statuses = Vec::new();
    for _ in 0..12 {
        statuses.push(cloud.get("compute", "/servers").await.status);
        cloud.get("compute", "/servers/detail").await.expect(200);
    }
    assert_eq!(statuses, [200, 200, 503, 200, 200, 503, 200, 200, 200, 200, 200, 200]);
    assert_eq!(simulated.state().await["faults_struck"], json!([2]));
}

#[tokio::test]
async fn errors_match_the_format_of_their_service() {
    let (simulated, cloud) = start(&[]).await;
    fault(&simulated, "500").await;
    let body = cloud.get("compute", "/servers").await.expect(500).body;
    assert_eq!(body["computeFault"]["code"], 500);
    assert!(cloud.get("network", "/networks").await.expect(500).body["NeutronError"]["message"].is_string());
    assert!(cloud.get("image", "/images").await.expect(500).text.starts_with("<html>"));
    fault(&simulated, "html service=compute").await;
    let answer = cloud.get("compute", "/servers").await.expect(502);
    assert!(answer.headers["content-type"].to_str().unwrap().starts_with("text/html"), "{:?}", answer.headers);
    cloud.get("image", "/images").await.expect(200);
}

#[tokio::test]
async fn a_redirect_is_followed_to_the_reply() {
    let (simulated, cloud) = start(&[]).await;
    fault(&simulated, "redirect times=1 path=limits$").await;
    let answer = cloud.get("compute", "/limits").await.expect(307);
    let location = answer.headers["location"].to_str().unwrap();
    let followed = Answer::of(cloud.http.get(location).header("X-Auth-Token", &cloud.token)).await.expect(200);
    assert_eq!(followed.get("limits")["absolute"]["maxTotalInstances"], 100);
}

/// Whether a call ends without a reply.
async fn is_cut(cloud: &Cloud, path: &str) -> bool {
    let sent = cloud.request(reqwest::Method::GET, "compute", path).send().await;
    sent.is_err_and(|error| !error.is_timeout() && !error.is_connect())
}

#[tokio::test]
async fn connections_are_closed_without_a_reply() {
    let (simulated, cloud) = start(&[]).await;
    fault(&simulated, "closed times=1").await;
    assert!(is_cut(&cloud, "/servers").await);
    assert!(!is_cut(&cloud, "/servers").await);
}

#[tokio::test]
async fn connections_hang_before_they_are_closed() {
    let (simulated, cloud) = start(&["--hang-s", "3600"]).await;
    fault(&simulated, "hang times=1").await;
    let request = cloud.request(reqwest::Method::GET, "compute", "/servers").timeout(Duration::from_millis(100));
    assert!(request.send().await.is_err_and(|error| error.is_timeout()));
    cloud.get("compute", "/servers").await.expect(200);
    simulated.knobs(json!({"hang_s": 0.05, "faults": ["hang times=1"]})).await;
    assert!(is_cut(&cloud, "/servers").await);
}

async fn connects(simulated: &SimulatedOpenStack) -> bool {
    let address = simulated.base().split_once("://").unwrap().1;
    tokio::net::TcpStream::connect(address).await.is_ok()
}

#[tokio::test]
async fn a_closed_port_refuses_connections_and_opens_with_its_state() {
    let (simulated, cloud) = start(&["--hang-s", "3600"]).await;
    let id = server(&cloud, "kept").await;
    fault(&simulated, "hang path=/limits$").await;
    let hanging = cloud.request(reqwest::Method::GET, "compute", "/limits").send();
    let hanging = tokio::spawn(hanging);
    wait::until("the hanging call", TIMEOUT, async || simulated.state().await["faults_struck"] == json!([1])).await;
    simulated.knobs(json!({"refuse_connections": true})).await;
    wait::until("the port to close", TIMEOUT, async || !connects(&simulated).await).await;
    assert!(hanging.await.unwrap().is_err_and(|error| !error.is_timeout()), "open connections are closed");
    assert_eq!(simulated.state().await["servers"], 1);
    simulated.knobs(json!({"refuse_connections": false})).await;
    wait::until("the port to open", TIMEOUT, async || connects(&simulated).await).await;
    cloud.get("compute", &format!("/servers/{id}")).await.expect(200);
    simulated.knobs(json!({"refuse_connections": true})).await;
    wait::until("the port to close again", TIMEOUT, async || !connects(&simulated).await).await;
    simulated.reset().await;
    wait::until("a reset to open the port", TIMEOUT, async || connects(&simulated).await).await;
}

#[tokio::test]
async fn a_create_reply_is_lost_but_the_server_exists() {
    let (simulated, cloud) = start(&[]).await;
    let body = json!({"server": cloud.server_request("lost").await});
    fault(&simulated, "lost-answer method=POST path=/servers$ times=1").await;
    let request = cloud.request(reqwest::Method::POST, "compute", "/servers").json(&body);
    assert!(request.send().await.is_err());
    let answer = cloud.get("compute", "/servers/detail").await.expect(200);
    assert_eq!(answer.get("servers")[0]["metadata"]["nodepool_node_id"], "lost");
    // A client that retries without a search creates a second server for the node, and the cloud counts it.
    cloud.post("compute", "/servers", &body).await.expect(202);
    let state = simulated.state().await;
    assert_eq!((&state["double_creates"], &state["creates_by_node"]["lost"]), (&json!(1), &json!(2)));
    assert_eq!(state["servers_at_once_max"], 2);
}

async fn detail(cloud: &Cloud) -> Answer {
    cloud.get("compute", "/servers/detail").await.expect(200)
}

#[tokio::test]
async fn replies_are_truncated_incomplete_or_malformed() {
    let (simulated, cloud) = start(&["--boot-time-s", "0"]).await;
    server(&cloud, "one").await;
    fault(&simulated, "truncated path=/servers/").await;
    let truncated = detail(&cloud).await;
    assert!(truncated.text.starts_with("{\"servers\":[{") && truncated.body == Value::Null, "{}", truncated.text);
    fault(&simulated, "missing-fields path=/servers/ fields=status,flavor").await;
    let one = detail(&cloud).await.get("servers")[0].clone();
    assert!(one.get("status").is_none() && one.get("flavor").is_none() && one["metadata"].is_object(), "{one}");
    fault(&simulated, "unknown-state path=/servers/").await;
    assert_eq!(detail(&cloud).await.get("servers")[0]["status"], "UNHEARD_OF");
}

#[tokio::test]
async fn unknown_knobs_and_faults_are_rejected() {
    let simulated = SimulatedOpenStack::start(&[]).await;
    let url = format!("{}/sim/knobs", simulated.base());
    let http = reqwest::Client::new();
    let wrong = [
        json!({"no_such_knob": 1}),
        json!({"boot_time_s": -1}),
        json!({"boot_time_s": 5, "faults": ["nonsense"]}),
        json!({"faults": ["500 every=often"]}),
        json!({"faults": ["500 path=("]}),
        json!({"latency_ms": "compute=9-2"}),
        json!([1]),
    ];
    for knobs in wrong {
        let answer = http.put(&url).json(&knobs).send().await.unwrap();
        assert_eq!(answer.status(), 400, "{knobs}");
    }
    let knobs: Value = http.get(&url).send().await.unwrap().json().await.unwrap();
    assert_eq!((&knobs["boot_time_s"], &knobs["faults"]), (&json!(1.0), &json!([])));
}

#[test]
fn invalid_flags_are_rejected_at_startup() {
    for flags in [["--boot-time-s", "-1"], ["--networks", "1,2,3,4,5,6,7,8,9,10"], ["--fault", "nonsense"]] {
        let ended = std::process::Command::new(programs::example("simulated-openstack"))
            .args(flags)
            .output()
            .expect("the example is built");
        assert!(!ended.status.success() && ended.stdout.is_empty(), "{flags:?}: {ended:?}");
    }
}
