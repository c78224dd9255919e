//! Watches and lists that end, are refused or are too old.

use super::start;
use crate::client::{Client, TIMEOUT};
use serde_json::json;
use testkit::clouds::simulated_kubernetes::SimulatedKubernetes;
use testkit::wait;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn start_admin(flags: &[&str]) -> (SimulatedKubernetes, Client) {
    let (simulated, _) = start(flags).await;
    let admin = Client::connect(&simulated.kubeconfig(), "admin");
    (simulated, admin)
}

async fn create(admin: &Client, names: impl IntoIterator<Item = u32>) {
    for name in names {
        admin.post(CONFIG_MAPS, json!({"metadata": {"name": format!("c{name}")}})).await.expect(201);
    }
}

#[tokio::test]
async fn old_versions_are_gone() {
    let (simulated, admin) = start_admin(&["--history-size", "3"]).await;
    create(&admin, 0..2).await;
    let page = admin.get(&format!("{CONFIG_MAPS}?limit=1")).await.expect(200);
    let metadata = &page["metadata"];
    let (version, token) = (metadata["resourceVersion"].as_str().unwrap(), metadata["continue"].as_str().unwrap());
    create(&admin, 2..6).await;
    let mut watch = admin.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={version}")).await;
    let event = watch.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)), "{event}");
    assert_eq!((&event["object"]["kind"], &event["object"]["reason"]), (&json!("Status"), &json!("Expired")));
    assert!(event["object"]["message"].as_str().unwrap().starts_with("too old resource version: "), "{event}");
    assert!(watch.next().await.is_none());
    admin.get(&format!("{CONFIG_MAPS}?limit=1&continue={token}")).await.refused(410, "Expired");
    let exact = format!("{CONFIG_MAPS}?resourceVersion={version}&resourceVersionMatch=Exact");
    admin.get(&exact).await.refused(410, "Expired");
    simulated.knobs(json!({"gone_as_status": true})).await;
    admin.get(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={version}")).await.refused(410, "Expired");
    let future = admin.get(&format!("{CONFIG_MAPS}?resourceVersion=1000000")).await;
    assert!(future.refused(504, "Timeout").starts_with("Timeout: Too large resource version: 1000000"));
}

#[tokio::test]
async fn watches_close_have_bookmarks_and_are_refused() {
    let (simulated, admin) = start_admin(&["--watch-closes-after-s", "1", "--bookmark-s", "0.1"]).await;
    let mut watch = admin.watch(&format!("{CONFIG_MAPS}?watch=1&allowWatchBookmarks=1")).await;
    let bookmark = watch.next().await.unwrap();
    assert_eq!((&bookmark["type"], &bookmark["object"]["kind"]), (&json!("BOOKMARK"), &json!("ConfigMap")));
    let list = admin.get(CONFIG_MAPS).await.expect(200);
    assert_eq!(bookmark["object"]["metadata"]["resourceVersion"], list["metadata"]["resourceVersion"]);
    let end = async || watch.next().await.is_none().then_some(());
    wait::until_some("the end of the watch", TIMEOUT, end).await;
    for (status, reason) in [(403, "Forbidden"), (405, "MethodNotAllowed")] {
        simulated.knobs(json!({"no_watch": status})).await;
        admin.get(&format!("{CONFIG_MAPS}?watch=1")).await.refused(status, reason);
    }
    admin.get(CONFIG_MAPS).await.expect(200);
    wait::until("the watch to be counted", TIMEOUT, async || simulated.state().await["counters"]["watches_open"] == 0)
        .await;
}

#[tokio::test]
async fn a_cut_watch_ends_within_an_event() {
    let (_simulated, admin) = start_admin(&["--fault", "truncated verb=watch"]).await;
    create(&admin, 0..1).await;
    let cut = admin.get(&format!("{CONFIG_MAPS}?watch=1")).await;
    assert!(cut.status == 200 && cut.text.starts_with("{\"type\":\"ADDED\"") && cut.body.is_null(), "{cut:?}");
}

#[tokio::test]
async fn lists_have_at_most_as_many_entries_as_the_knob_says() {
    let (_simulated, admin) = start_admin(&["--page-limit", "2"]).await;
    create(&admin, 0..3).await;
    let page = admin.get(CONFIG_MAPS).await.expect(200);
    assert_eq!(page["items"].as_array().unwrap().len(), 2);
    assert_eq!(page["metadata"]["remainingItemCount"], 1);
    let token = page["metadata"]["continue"].as_str().unwrap();
    let rest = admin.get(&format!("{CONFIG_MAPS}?continue={token}")).await.expect(200);
    assert_eq!(rest["items"][0]["metadata"]["name"], "c2");
    assert!(rest["metadata"]["continue"].is_null());
}
