//! Lists: pages, filters, foreign instances, and the list of all zones.

use serde_json::{Value, json};

use super::{Cloud, INSTANCES, PROJECT, pass, plain, reason, refused, text};

fn names(list: &Value) -> Vec<String> {
    list["items"].as_array().into_iter().flatten().map(|item| text(&item["name"])).collect()
}

/// The names of all pages, and the sizes of the pages.
async fn pages(cloud: &Cloud, uri: &str) -> (Vec<String>, Vec<usize>) {
    let (mut all, mut sizes, mut token) = (Vec::new(), Vec::new(), String::new());
    loop {
        let page = cloud.get(&format!("{uri}&pageToken={token}")).await;
        let found = names(&page);
        sizes.push(found.len());
        all.extend(found);
        token = text(&page["nextPageToken"]);
        if token.is_empty() {
            return (all, sizes);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn twelve_hundred_instances_are_three_pages() {
    let cloud = Cloud::new(&[]);
    cloud.inserted(&plain("own")).await;
    cloud.sim("POST", "foreign?count=1199&type=n1-standard-2").await;
    let (all, sizes) = pages(&cloud, &format!("{INSTANCES}?")).await;
    assert_eq!(sizes, [500, 500, 200]);
    assert!(all.contains(&"own".to_owned()) && all.is_sorted());
    assert_eq!((cloud.usage("INSTANCES").await, cloud.usage("CPUS").await), (1200.0, 2398.0));
    assert_eq!(pages(&cloud, &format!("{INSTANCES}?maxResults=450")).await.1, [450, 450, 300]);
    cloud.knobs(json!({"page": 100})).await;
    assert_eq!(pages(&cloud, &format!("{INSTANCES}?")).await.1, [100; 12]);
    for wrong in ["maxResults=501", "maxResults=x", "pageToken=!", "orderBy=status", "filter=name"] {
        let answer = cloud.call("GET", &format!("{INSTANCES}?{wrong}"), b"").await;
        assert_eq!(reason(answer), refused(400, "invalid"), "{wrong}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_begins_after_the_last_one_though_instances_vanish() {
    let cloud = Cloud::new(&[]);
    cloud.sim("POST", "foreign?count=4").await;
    let page = cloud.get(&format!("{INSTANCES}?maxResults=2")).await;
    cloud.sim("POST", "remove?instance=foreign-0001").await;
    cloud.sim("POST", "remove?instance=foreign-0002").await;
    let rest = cloud.get(&format!("{INSTANCES}?pageToken={}", text(&page["nextPageToken"]))).await;
    assert_eq!(names(&rest), ["foreign-0003", "foreign-0004"]);
}

#[tokio::test(start_paused = true)]
async fn filters_select_instances_and_operations() {
    let cloud = Cloud::new(&["--boot-s", "100"]);
    cloud.sim("POST", "foreign?count=3").await;
    let operation = cloud.inserted(&plain("own")).await;
    for (filter, expected) in [
        ("name=own", vec!["own"]),
        ("name eq own", vec!["own"]),
        ("name eq .*-0002", vec!["foreign-0002"]),
        ("(status = \"PROVISIONING\")", vec!["own"]),
        ("name=none", vec![]),
    ] {
        assert_eq!(names(&cloud.get(&format!("{INSTANCES}?filter={filter}")).await), expected, "{filter}");
    }
    pass(1.0).await;
    let uri = format!("{PROJECT}/zones/us-central1-a/operations?filter=");
    assert_eq!(names(&cloud.get(&format!("{uri}status!=DONE")).await), [operation.as_str()]);
    assert_eq!(names(&cloud.get(&format!("{uri}name={operation}")).await), [operation]);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_instance_may_have_an_unknown_machine_type() {
    let cloud = Cloud::new(&[]);
    cloud.sim("POST", "foreign?count=2&zone=us-central1-b&type=z9-odd&prefix=odd-").await;
    let list = cloud.get(&INSTANCES.replace("us-central1-a", "us-central1-b")).await;
    assert!(text(&list["items"][0]["machineType"]).ends_with("/z9-odd"), "{list}");
    assert_eq!((cloud.usage("INSTANCES").await, cloud.usage("CPUS").await), (2.0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn the_aggregated_list_warns_of_scopes_without_instances() {
    let cloud = Cloud::new(&[]);
    cloud.sim("POST", "foreign?count=3").await;
    cloud.sim("POST", "foreign?count=2&zone=europe-west1-c").await;
    let uri = format!("{PROJECT}/aggregated/instances");
    let list = cloud.get(&uri).await;
    let count = |list: &Value, scope: &str| list["items"][scope]["instances"].as_array().map_or(0, Vec::len);
    assert_eq!((count(&list, "zones/us-central1-a"), count(&list, "zones/europe-west1-c")), (3, 2));
    let warning = &list["items"]["zones/us-central1-b"]["warning"];
    assert_eq!(
        (&warning["code"], &warning["data"][0]["value"]),
        (&json!("NO_RESULTS_ON_PAGE"), &json!("zones/us-central1-b"))
    );
    let first = cloud.get(&format!("{uri}?maxResults=4")).await;
    assert_eq!((count(&first, "zones/us-central1-a"), count(&first, "zones/europe-west1-c")), (2, 2));
    let second = cloud.get(&format!("{uri}?maxResults=4&pageToken={}", text(&first["nextPageToken"]))).await;
    assert_eq!((count(&second, "zones/us-central1-a"), second.get("nextPageToken")), (1, None));
    assert!(second["items"]["zones/europe-west1-c"]["warning"].is_object());
    let named = cloud.get(&format!("{uri}?filter=name=foreign-0001")).await;
    assert_eq!((count(&named, "zones/us-central1-a"), count(&named, "zones/europe-west1-c")), (1, 1));
}
