//! Networks, ports and floating IPs.

use std::sync::Arc;
use std::time::Duration;

use super::UNKNOWN_ID;
use crate::cloud::{Cloud, PREFIX};
use crate::contract::shape::{JsonType, check};
use serde_json::{Value, json};
use testkit::wait;

const CLOUD_TIMEOUT: Duration = Duration::from_secs(60);

const FLOATING_IP: [(&str, JsonType); 7] = [
    ("id", JsonType::Text),
    ("floating_ip_address", JsonType::Text),
    ("floating_network_id", JsonType::Text),
    ("port_id", JsonType::TextOrNull),
    ("fixed_ip_address", JsonType::TextOrNull),
    ("router_id", JsonType::TextOrNull),
    ("status", JsonType::Text),
];

async fn external_network(cloud: &Cloud) -> Option<Value> {
    let answer = cloud.get("network", "/networks?router:external=true").await.expect(200);
    answer.get("networks").get(0).cloned()
}

async fn ports_of(cloud: &Cloud, server: &str) -> Vec<Value> {
    let answer = cloud.get("network", &format!("/ports?device_id={server}")).await.expect(200);
    answer.get("ports").as_array().unwrap().clone()
}

pub async fn environment(cloud: Arc<Cloud>) {
    let networks = cloud.get("network", "/networks").await.expect(200);
    let shape = [
        ("id", JsonType::Text),
        ("name", JsonType::Text),
        ("router:external", JsonType::Bool),
        ("subnets", JsonType::List),
    ];
    for network in networks.get("networks").as_array().unwrap() {
        check("a network", network, &shape);
        check(
            "a network",
            network,
            &[("shared", JsonType::Bool), ("admin_state_up", JsonType::Bool), ("status", JsonType::Text)],
        );
        let shown = cloud.get("network", &format!("/networks/{}", network["id"].as_str().unwrap())).await.expect(200);
        assert_eq!(shown.get("network")["name"], network["name"]);
    }
    let subnets = cloud.get("network", "/subnets").await.expect(200);
    let shape = [
        ("id", JsonType::Text),
        ("network_id", JsonType::Text),
        ("ip_version", JsonType::Number),
        ("cidr", JsonType::Text),
        ("gateway_ip", JsonType::TextOrNull),
    ];
    subnets.get("subnets").as_array().unwrap().iter().for_each(|subnet| check("a subnet", subnet, &shape));
    let routers = cloud.get("network", "/routers").await.expect(200);
    for router in routers.get("routers").as_array().unwrap() {
        check(
            "a router",
            router,
            &[("id", JsonType::Text), ("admin_state_up", JsonType::Bool), ("status", JsonType::Text)],
        );
    }
    let groups = cloud.get("network", "/security-groups?name=default").await.expect(200);
    check("a security group", &groups.get("security_groups")[0], &[("id", JsonType::Text), ("name", JsonType::Text)]);
}

pub async fn security_groups(cloud: Arc<Cloud>) {
    let listed = cloud.get("network", "/security-groups?name=default").await.expect(200);
    let project = listed.get("security_groups")[0]["project_id"].as_str().unwrap().to_owned();
    let filters = format!("/security-groups?project_id={project}&fields=id&fields=name");
    let groups = cloud.get("network", &filters).await.expect(200);
    let groups = groups.get("security_groups").as_array().unwrap();
    assert!(groups.iter().any(|group| group["name"] == "default"), "{groups:?}");
    groups.iter().for_each(|group| check("a group", group, &[("id", JsonType::Text), ("name", JsonType::Text)]));
    // The simulated cloud has a knob for duplicates instead of this call.
    let name = format!("{PREFIX}-twice");
    for _ in 0..2 {
        let answer = cloud.post("network", "/security-groups", &json!({"security_group": {"name": name}})).await;
        if answer.status != 201 {
            return;
        }
        let id = answer.get("security_group")["id"].as_str().unwrap().to_owned();
        cloud.delete_at_clean_up("network", format!("/security-groups/{id}"));
    }
    refuses_ambiguous_group(&cloud, &name).await;
}

/// A server whose security group has the name of another one is refused, which is why the driver looks for them.
pub async fn refuses_ambiguous_group(cloud: &Cloud, name: &str) {
    let mut body = cloud.server_request("ambiguous").await;
    body["security_groups"] = json!([{"name": name}]);
    let answer = cloud.post("compute", "/servers", &json!({"server": body})).await.expect(409);
    assert!(answer.text.contains("use an ID to be more specific"), "{}", answer.text);
}

pub async fn ports(cloud: Arc<Cloud>) {
    let id = cloud.create(&cloud.server_request("ports").await).await;
    let server = cloud.active(&id).await;
    let ports = ports_of(&cloud, &id).await;
    assert_eq!(ports.len(), 1, "{ports:?}");
    let port = &ports[0];
    let shape = [
        ("id", JsonType::Text),
        ("network_id", JsonType::Text),
        ("mac_address", JsonType::Text),
        ("status", JsonType::Text),
        ("device_id", JsonType::Text),
        ("device_owner", JsonType::Text),
        ("fixed_ips", JsonType::List),
        ("created_at", JsonType::Text),
    ];
    check("a port", port, &shape);
    check("a fixed address", &port["fixed_ips"][0], &[("ip_address", JsonType::Text), ("subnet_id", JsonType::Text)]);
    assert!(port["device_owner"].as_str().unwrap().starts_with("compute:"), "{port}");
    let address = server["addresses"].as_object().unwrap().values().next().unwrap()[0].clone();
    assert_eq!(
        (&address["addr"], &address["OS-EXT-IPS-MAC:mac_addr"]),
        (&port["fixed_ips"][0]["ip_address"], &port["mac_address"])
    );
    let query = format!("/ports?device_id={id}&status=DOWN");
    assert_eq!(cloud.get("network", &query).await.expect(200).get("ports"), &json!([]));
    cloud.remove(&id).await;
    assert!(ports_of(&cloud, &id).await.is_empty());
}

pub async fn floating_ip(cloud: Arc<Cloud>) {
    let Some(external) = external_network(&cloud).await else { return };
    let id = cloud.create(&cloud.server_request("floating").await).await;
    cloud.active(&id).await;
    let port = ports_of(&cloud, &id).await.remove(0);
    let body = json!({"floatingip": {
        "floating_network_id": external["id"], "port_id": port["id"],
        "fixed_ip_address": port["fixed_ips"][0]["ip_address"],
    }});
    let answer = cloud.post("network", "/floatingips", &body).await.expect(201);
    let created = answer.get("floatingip");
    let path = format!("/floatingips/{}", created["id"].as_str().unwrap());
    cloud.delete_at_clean_up("network", path.clone());
    check("a floating IP", created, &FLOATING_IP);
    assert_eq!((&created["port_id"], &created["fixed_ip_address"]), (&port["id"], &port["fixed_ips"][0]["ip_address"]));
    wait::until("the floating IP to be ACTIVE", CLOUD_TIMEOUT, async || {
        cloud.get("network", &path).await.expect(200).get("floatingip")["status"] == "ACTIVE"
    })
    .await;
    let address = created["floating_ip_address"].as_str().unwrap();
    let shown = wait::until_some("Nova to show the floating IP", CLOUD_TIMEOUT, async || {
        let server = cloud.server(&id).await;
        let addresses = server["addresses"].as_object().unwrap().values().next().unwrap().clone();
        addresses.as_array().unwrap().iter().find(|shown| shown["addr"] == address).cloned()
    })
    .await;
    assert_eq!(shown["OS-EXT-IPS:type"], "floating");
    assert_eq!(shown["OS-EXT-IPS-MAC:mac_addr"], port["mac_address"]);
    let found = cloud.get("network", &format!("/floatingips?floating_ip_address={address}")).await.expect(200);
    assert_eq!(found.get("floatingips").as_array().unwrap().len(), 1);

    // A port gets no second floating IP, and a deleted floating IP is not found.
    let answer = cloud.post("network", "/floatingips", &body).await.expect(409);
    assert_eq!(answer.get("NeutronError")["type"], "FloatingIPPortAlreadyAssociated");
    cloud.delete("network", &path).await.expect(204);
    cloud.get("network", &path).await.expect(404);
    cloud.remove(&id).await;
}

pub async fn not_found(cloud: Arc<Cloud>) {
    for (collection, kind) in [("floatingips", "FloatingIPNotFound"), ("ports", "PortNotFound")] {
        let path = format!("/{collection}/{UNKNOWN_ID}");
        for answer in [cloud.get("network", &path).await, cloud.delete("network", &path).await] {
            let answer = answer.expect(404);
            assert_eq!(answer.get("NeutronError")["type"], kind);
            check("an error", answer.get("NeutronError"), &[("message", JsonType::Text), ("detail", JsonType::Text)]);
        }
    }
    let body = json!({"floatingip": {"floating_network_id": UNKNOWN_ID}});
    let answer = cloud.post("network", "/floatingips", &body).await;
    assert!([400, 404].contains(&answer.status), "{}", answer.text);
    cloud.get("network", "/no-such-thing").await.expect(404);
}
