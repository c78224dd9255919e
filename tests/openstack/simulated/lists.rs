//! Lists that are stale, incomplete or cyclic.

use std::time::Duration;

use super::{fault, ids, listed, server, start};
use serde_json::json;
use testkit::wait;

const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_stale_list_shows_past_state() {
    let (simulated, cloud) = start(&["--boot-time-s", "0", "--delete-time-s", "0", "--stale-lists-s", "1.5"]).await;
    let id = server(&cloud, "stale").await;
    assert_eq!(cloud.server(&id).await["status"], "ACTIVE");
    assert!(listed(&cloud).await.is_empty());
    wait::until("the list to show the server", TIMEOUT, async || !listed(&cloud).await.is_empty()).await;
    cloud.delete("compute", &format!("/servers/{id}")).await.expect(204);
    cloud.get("compute", &format!("/servers/{id}")).await.expect(404);
    let answer = cloud.get("compute", "/servers/detail").await.expect(200);
    assert_eq!((&answer.get("servers")[0]["id"], &answer.get("servers")[0]["status"]), (&json!(id), &json!("ACTIVE")));
    wait::until("the list to be empty", TIMEOUT, async || listed(&cloud).await.is_empty()).await;
    simulated.knobs(json!({"stale_lists_s": 0})).await;
    assert!(listed(&cloud).await.is_empty());
}

#[tokio::test]
async fn a_partial_list_ends_early_without_a_marker() {
    let (simulated, cloud) = start(&[]).await;
    for name in ["a", "b", "c", "d"] {
        server(&cloud, name).await;
    }
    fault(&simulated, "partial-list path=/servers$ every=2").await;
    assert_eq!(listed(&cloud).await.len(), 4);
    let answer = cloud.get("compute", "/servers?limit=4").await.expect(200);
    assert_eq!(ids(answer.get("servers")).len(), 2);
    assert!(answer.body.get("servers_links").is_none());
}

#[tokio::test]
async fn a_repeated_marker_leads_to_the_same_page() {
    let (simulated, cloud) = start(&["--page-size", "2"]).await;
    for name in ["a", "b", "c"] {
        server(&cloud, name).await;
    }
    let next = |answer: &crate::cloud::Answer| answer.get("servers_links")[0]["href"].as_str().unwrap().to_owned();
    let first = cloud.get("compute", "/servers").await.expect(200);
    let honest = next(&first);
    fault(&simulated, "repeated-marker path=/servers$").await;
    let path = honest.strip_prefix(&cloud.url("compute", "")).unwrap();
    let second = cloud.get("compute", path).await.expect(200);
    assert_eq!(next(&second), honest);
}

#[tokio::test]
async fn pages_are_as_long_as_the_cloud_allows() {
    let (simulated, cloud) = start(&["--page-size", "2"]).await;
    let mut created = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        created.insert(0, server(&cloud, name).await);
    }
    let (mut path, mut found) = ("/servers?limit=1000".to_owned(), Vec::new());
    loop {
        let answer = cloud.get("compute", &path).await.expect(200);
        let page = ids(answer.get("servers"));
        assert!(page.len() <= 2);
        found.extend(page);
        let Some(links) = answer.body.get("servers_links") else { break };
        path = links[0]["href"].as_str().unwrap().strip_prefix(&cloud.url("compute", "")).unwrap().to_owned();
    }
    assert_eq!(found, created);
    assert_eq!(simulated.state().await["calls_by_kind"]["compute"]["GET /v2.1/servers"], 3);
}
