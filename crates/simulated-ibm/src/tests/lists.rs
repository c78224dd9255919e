//! Lists: pages, filters and their parameters.

use serde_json::{Value, json};

use super::{Cloud, code, refused, text};

/// The names on all pages, and the sizes of the pages. `between` runs after the first page.
async fn pages(cloud: &Cloud, query: &str, between: &str) -> (Vec<String>, Vec<usize>) {
    let (mut names, mut sizes, mut start) = (Vec::new(), Vec::new(), String::new());
    loop {
        let page = cloud.get(&format!("instances?{query}{start}")).await;
        let rows = page["instances"].as_array().unwrap();
        names.extend(rows.iter().map(|row| text(&row["name"])));
        sizes.push(rows.len());
        if sizes.len() == 1 && !between.is_empty() {
            cloud.sim("POST", between).await;
        }
        let Some(next) = page["next"]["href"].as_str() else { return (names, sizes) };
        assert!(next.starts_with("http://api/v1/instances?limit="), "{next}");
        start = format!("&start={}", next.split("start=").nth(1).unwrap().split('&').next().unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn pages_have_all_items_newest_first() {
    let cloud = Cloud::new(&[]);
    cloud.sim("POST", "foreign?count=120").await;
    let (names, sizes) = pages(&cloud, "limit=50", "").await;
    assert_eq!((sizes, &names[0], &names[119]), (vec![50, 50, 20], &"foreign-0120".into(), &"foreign-0001".into()));
    assert_eq!(pages(&cloud, "", "").await.1, [50, 50, 20]);
    assert_eq!(pages(&cloud, "sort=created_at&limit=100", "").await.0[0], "foreign-0001");
    cloud.knobs(json!({"page": 7})).await;
    assert_eq!(pages(&cloud, "limit=100", "").await.1.len(), 18);
}

#[tokio::test(start_paused = true)]
async fn a_page_begins_after_the_last_item_of_the_page_before() {
    let cloud = Cloud::new(&[]);
    cloud.sim("POST", "foreign?count=6").await;
    let (names, _) = pages(&cloud, "limit=3", "remove?name=foreign-0004").await;
    assert_eq!(names, ["foreign-0006", "foreign-0005", "foreign-0004", "foreign-0003", "foreign-0002", "foreign-0001"]);
}

#[tokio::test(start_paused = true)]
async fn filters_select_by_fields() {
    let cloud = Cloud::new(&[]);
    cloud.sim("POST", "foreign?count=3&group=np_ibm_main").await;
    cloud.sim("POST", "foreign?count=2&prefix=other-&zone=us-south-2").await;
    let groups = cloud.call("GET", "/v2/resource_groups?name=np_ibm_main", b"").await.1;
    let group = text(&groups["resources"][0]["id"]);
    let vpc = cloud.id("vpcs", "nodepool").await;
    for (query, count) in [
        (format!("resource_group.id={group}"), 3),
        (format!("vpc.id={vpc}"), 5),
        ("vpc.name=other".to_owned(), 0),
        ("name=other-0002".to_owned(), 1),
        (format!("name=other-0002&resource_group.id={group}"), 0),
        ("dedicated_host.id=none".to_owned(), 0),
    ] {
        let page = cloud.get(&format!("instances?{query}")).await;
        assert_eq!(page["total_count"], count, "{query}");
        assert_eq!(page["instances"].as_array().unwrap().len(), count as usize);
    }
    let (names, sizes) = pages(&cloud, &format!("limit=2&resource_group.id={group}"), "").await;
    assert_eq!((names.len(), sizes), (3, vec![2, 1]));
    assert_eq!(cloud.count("subnets?zone.name=us-south-3").await, 1);
}

#[tokio::test(start_paused = true)]
async fn wrong_parameters_of_lists_are_refused() {
    let cloud = Cloud::new(&[]);
    for query in
        ["limit=0", "limit=101", "limit=x", "start=!", "start=AAAA", "sort=size", "zone.name=us-south-1", "x=1"]
    {
        let answer = cloud.vpc("GET", &format!("instances?{query}"), Value::Null).await;
        assert_eq!(code(answer), refused(400, "bad_query_parameter"), "{query}");
    }
}

#[tokio::test(start_paused = true)]
async fn places_and_profiles_are_listed_and_found() {
    let cloud = Cloud::new(&["--region", "eu-de"]);
    let zones = cloud.get("regions/eu-de/zones").await;
    assert_eq!((&zones["zones"][2]["name"], zones["zones"].as_array().unwrap().len()), (&json!("eu-de-3"), 3));
    let profile = cloud.get("instance/profiles/cx2-2x4").await;
    assert_eq!((&profile["vcpu_count"]["value"], &profile["memory"]["value"]), (&json!(2), &json!(4)));
    for (name, kind) in [("sim-range", "range"), ("sim-dependent", "dependent")] {
        let profile = cloud.get(&format!("instance/profiles/{name}")).await;
        assert_eq!((&profile["memory"]["type"], &profile["memory"]["value"]), (&json!(kind), &Value::Null));
    }
    let profiles = cloud.get("instance/profiles").await;
    assert!(profiles["next"].is_null(), "clients that do not read pages see all profiles");
    assert_eq!(cloud.get("placement_groups").await["placement_groups"], json!([]));
    for path in ["regions/us-south", "regions/eu-de/zones/eu-de-4", "instance/profiles/none", "keys/none"] {
        assert_eq!(code(cloud.vpc("GET", path, Value::Null).await), refused(404, "not_found"), "{path}");
    }
}
