//! Servers: create, show, find, fail, delete; flavors, zones, keys and limits.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::UNKNOWN_ID;
use crate::cloud::{Answer, Cloud, PREFIX};
use crate::contract::shape::{JsonType, check};
use reqwest::Method;
use serde_json::{Value, json};

const SERVER: [(&str, JsonType); 20] = [
    ("id", JsonType::Text),
    ("name", JsonType::Text),
    ("status", JsonType::Text),
    ("tenant_id", JsonType::Text),
    ("metadata", JsonType::Object),
    ("hostId", JsonType::Text),
    ("flavor", JsonType::Object),
    ("created", JsonType::Text),
    ("updated", JsonType::Text),
    ("addresses", JsonType::Object),
    ("accessIPv4", JsonType::Text),
    ("accessIPv6", JsonType::Text),
    ("links", JsonType::List),
    ("OS-EXT-AZ:availability_zone", JsonType::Text),
    ("config_drive", JsonType::Text),
    ("key_name", JsonType::TextOrNull),
    ("OS-EXT-STS:task_state", JsonType::TextOrNull),
    ("OS-EXT-STS:vm_state", JsonType::Text),
    ("OS-EXT-STS:power_state", JsonType::Number),
    ("os-extended-volumes:volumes_attached", JsonType::List),
];

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a string"))
}

/// The entry of a server in the detailed list.
async fn listed(cloud: &Cloud, id: &str) -> Option<Value> {
    let answer = cloud.get("compute", "/servers/detail").await.expect(200);
    answer.get("servers").as_array().unwrap().iter().find(|server| server["id"] == id).cloned()
}

pub async fn lifecycle(cloud: Arc<Cloud>) {
    let mut body = cloud.server_request("lifecycle").await;
    body["config_drive"] = json!(true);
    body["user_data"] = json!("IyEvYmluL3NoCg==");
    body["metadata"]["groups"] = json!("one,two");
    let answer = cloud.post("compute", "/servers", &json!({"server": body})).await.expect(202);
    let created = answer.get("server");
    let id = text(&created["id"]);
    cloud.delete_at_clean_up("compute", format!("/servers/{id}"));
    check(
        "a new server",
        created,
        &[("links", JsonType::List), ("security_groups", JsonType::List), ("adminPass", JsonType::Text)],
    );

    let shown = cloud.server(id).await;
    check("a server in BUILD", &shown, &SERVER);
    assert!(["BUILD", "ACTIVE"].contains(&text(&shown["status"])), "{shown}");
    let active = cloud.active(id).await;
    check("an ACTIVE server", &active, &SERVER);
    assert_eq!(active["metadata"], json!({"nodepool_node_id": "lifecycle", "groups": "one,two"}));
    assert_eq!((&active["OS-EXT-STS:vm_state"], &active["OS-EXT-STS:task_state"]), (&json!("active"), &Value::Null));
    assert_eq!(active["image"]["id"], body["imageRef"]);
    assert_eq!(active["flavor"]["id"], body["flavorRef"]);
    assert!(!text(&active["hostId"]).is_empty() && !text(&active["OS-EXT-AZ:availability_zone"]).is_empty());
    let addresses = active["addresses"].as_object().unwrap().values().next().expect("the server has a network");
    let shape = [("addr", JsonType::Text), ("version", JsonType::Number), ("OS-EXT-IPS:type", JsonType::Text)];
    check("an address", &addresses[0], &shape);
    check("an address", &addresses[0], &[("OS-EXT-IPS-MAC:mac_addr", JsonType::Text)]);
    assert_eq!(addresses[0]["OS-EXT-IPS:type"], "fixed");

    let listed_one = listed(&cloud, id).await.expect("the list contains the server");
    check("a server in a list", &listed_one, &SERVER);
    assert_eq!(listed_one["metadata"], active["metadata"]);
    cloud.remove(id).await;
    assert!(listed(&cloud, id).await.is_none());
}

pub async fn not_found(cloud: Arc<Cloud>) {
    let path = format!("/servers/{UNKNOWN_ID}");
    for answer in [cloud.get("compute", &path).await, cloud.delete("compute", &path).await] {
        let answer = answer.expect(404);
        check("an error", answer.get("itemNotFound"), &[("code", JsonType::Number), ("message", JsonType::Text)]);
    }
    let action = cloud.post("compute", &format!("{path}/action"), &json!({"os-getConsoleOutput": {}})).await;
    action.expect(404);
    cloud.get("compute", "/no-such-thing").await.expect(404);
}

pub async fn pages(cloud: Arc<Cloud>) {
    let mut created = Vec::new();
    for name in ["page-1", "page-2", "page-3"] {
        created.push(cloud.create(&cloud.server_request(name).await).await);
    }
    // Other users may have servers, so only the order of our own is compared.
    let mut path = format!("/servers/detail?limit=2&name={PREFIX}-page");
    let (mut found, mut times, mut pages) = (Vec::new(), Vec::new(), 0);
    loop {
        let answer = cloud.get("compute", &path).await.expect(200);
        let servers = answer.get("servers").as_array().unwrap();
        assert!(servers.len() <= 2);
        found.extend(servers.iter().map(|server| text(&server["id"]).to_owned()));
        times.extend(servers.iter().map(|server| text(&server["created"]).to_owned()));
        pages += 1;
        let Some(links) = answer.body["servers_links"].as_array() else { break };
        assert_eq!(links[0]["rel"], "next");
        let next = text(&links[0]["href"]);
        let base = cloud.url("compute", "");
        assert!(next.contains(&format!("marker={}", found.last().unwrap())), "{next}");
        path = next.strip_prefix(&base).unwrap_or_else(|| panic!("{next} is not below {base}")).to_owned();
    }
    assert_eq!(pages, 2);
    // The newest server is first. The order within a second is any.
    assert!(times.is_sorted_by(|one, next| one >= next), "{times:?}");
    assert_eq!(BTreeSet::from_iter(&found), BTreeSet::from_iter(&created));
    let answer = cloud.get("compute", "/servers/detail?marker=nothing").await.expect(400);
    assert!(text(&answer.get("badRequest")["message"]).contains("marker"));
    cloud.get("compute", "/servers/detail?limit=-1").await.expect(400);
    let short = cloud.get("compute", &format!("/servers?name={PREFIX}-page")).await.expect(200);
    check("an entry of the short list", &short.get("servers")[0], &[("id", JsonType::Text), ("name", JsonType::Text)]);
    assert!(short.get("servers")[0].get("status").is_none());
    for id in created {
        cloud.active(&id).await;
        cloud.remove(&id).await;
    }
}

pub async fn filters(cloud: Arc<Cloud>) {
    let id = cloud.create(&cloud.server_request("filtered").await).await;
    cloud.active(&id).await;
    let count = async |query: &str| {
        let answer = cloud.get("compute", &format!("/servers?{query}")).await.expect(200);
        answer.get("servers").as_array().unwrap().iter().filter(|server| server["id"] == id.as_str()).count()
    };
    assert_eq!(count("name=contract-filtered").await, 1);
    assert_eq!(count(&format!("name=^{PREFIX}-f.*d$&status=ACTIVE")).await, 1);
    assert_eq!(count("name=something-else").await, 0);
    assert_eq!(count("status=active").await, 1);
    assert_eq!(count("status=BUILD").await, 0);
    cloud.remove(&id).await;
}

pub async fn microversions(cloud: Arc<Cloud>) {
    let id = cloud.create(&cloud.server_request("versions").await).await;
    cloud.active(&id).await;
    let old = cloud.get("compute", &format!("/servers/{id}")).await.expect(200);
    check("an old flavor", &old.get("server")["flavor"], &[("id", JsonType::Text), ("links", JsonType::List)]);
    assert_eq!(old.headers["openstack-api-version"], "compute 2.1");
    let new = cloud.get_with_microversion(&format!("/servers/{id}")).await.expect(200);
    let shape = [
        ("vcpus", JsonType::Number),
        ("ram", JsonType::Number),
        ("disk", JsonType::Number),
        ("original_name", JsonType::Text),
        ("extra_specs", JsonType::Object),
    ];
    check("a new flavor", &new.get("server")["flavor"], &shape);
    let shape = [("locked", JsonType::Bool), ("description", JsonType::TextOrNull), ("tags", JsonType::List)];
    check("a server of a newer microversion", new.get("server"), &shape);
    assert_eq!(new.headers["openstack-api-version"], "compute 2.79");
    let unknown = cloud.request(Method::GET, "compute", "/servers").header("OpenStack-API-Version", "compute 2.999");
    Answer::of(unknown).await.expect(406);
    cloud.remove(&id).await;
}

pub async fn fault(cloud: Arc<Cloud>) {
    if !cloud.honors_metadata().await {
        return;
    }
    let mut body = cloud.server_request("fault").await;
    body["metadata"]["loopback:spawn_error"] = json!("injected failure");
    let id = cloud.create(&body).await;
    let server = cloud.built(&id).await;
    assert_eq!(server["status"], "ERROR");
    check(
        "a fault",
        &server["fault"],
        &[("code", JsonType::Number), ("message", JsonType::Text), ("created", JsonType::Text)],
    );
    assert!(text(&server["fault"]["message"]).ends_with("aborted: injected failure"), "{}", server["fault"]);
    assert_eq!(server["hostId"], "");
    let listed = listed(&cloud, &id).await.expect("the list contains a failed server");
    assert_eq!(listed["fault"]["message"], server["fault"]["message"]);
    cloud.remove(&id).await;
}

pub async fn console(cloud: Arc<Cloud>) {
    let mut body = cloud.server_request("console").await;
    body["metadata"]["loopback:console"] = json!("console text");
    let id = cloud.create(&body).await;
    cloud.active(&id).await;
    let action = json!({"os-getConsoleOutput": {}});
    let answer = cloud.post("compute", &format!("/servers/{id}/action"), &action).await.expect(200);
    let output = text(answer.get("output")).to_owned();
    assert!(!cloud.honors_metadata().await || output == "console text", "{output}");
    cloud.remove(&id).await;
}

pub async fn environment(cloud: Arc<Cloud>) {
    let flavors = cloud.get("compute", "/flavors/detail").await.expect(200);
    let shape = [
        ("id", JsonType::Text),
        ("name", JsonType::Text),
        ("vcpus", JsonType::Number),
        ("ram", JsonType::Number),
        ("disk", JsonType::Number),
    ];
    let flavors = flavors.get("flavors").as_array().unwrap();
    flavors.iter().for_each(|flavor| check("a flavor", flavor, &shape));
    let first = cloud.get("compute", "/flavors/detail?limit=1").await.expect(200);
    assert_eq!(first.get("flavors").as_array().unwrap().len(), 1);
    assert_eq!(first.get("flavors_links")[0]["rel"], "next");

    let zones = cloud.get("compute", "/os-availability-zone").await.expect(200);
    let zone = &zones.get("availabilityZoneInfo")[0];
    check("a zone", zone, &[("zoneName", JsonType::Text), ("zoneState", JsonType::Object)]);
    check("the state of a zone", &zone["zoneState"], &[("available", JsonType::Bool)]);

    let limits = cloud.get("compute", "/limits").await.expect(200);
    let keys = ["maxTotalInstances", "maxTotalCores", "maxTotalRAMSize", "totalInstancesUsed", "totalCoresUsed"];
    check("limits", &limits.get("limits")["absolute"], &keys.map(|key| (key, JsonType::Number)));

    let keys = cloud.get("compute", "/os-keypairs").await.expect(200);
    for key in keys.get("keypairs").as_array().unwrap() {
        check("a key", &key["keypair"], &[("name", JsonType::Text), ("public_key", JsonType::Text)]);
    }
}
