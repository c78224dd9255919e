//! Servers that fail, stick, disappear or leak ports; quotas; addresses; reset.

use std::time::Duration;

use super::{listed, server, start};
use serde_json::{Value, json};
use testkit::wait;

const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn every_nth_server_fails_to_boot() {
    let (_simulated, cloud) =
        start(&["--boot-time-s", "0", "--boot-fails-every", "2", "--boot-failure", "No valid host"]).await;
    let (one, other) = (server(&cloud, "one").await, server(&cloud, "other").await);
    cloud.active(&one).await;
    let failed = cloud.built(&other).await;
    assert_eq!((&failed["status"], &failed["fault"]["message"]), (&json!("ERROR"), &json!("No valid host")));
    cloud.remove(&other).await;
}

#[tokio::test]
async fn servers_stick_while_they_are_built_or_deleted() {
    let flags =
        ["--boot-time-s", "0", "--delete-time-s", "0", "--boot-sticks-every", "2", "--delete-sticks-every", "2"];
    let (simulated, cloud) = start(&flags).await;
    let (one, stuck) = (server(&cloud, "one").await, server(&cloud, "stuck").await);
    cloud.active(&one).await;
    assert_eq!(cloud.server(&stuck).await["status"], "BUILD");
    cloud.remove(&one).await;
    cloud.delete("compute", &format!("/servers/{stuck}")).await.expect(204);
    cloud.delete("compute", &format!("/servers/{stuck}")).await.expect(204);
    let shown = cloud.server(&stuck).await;
    assert_eq!((&shown["status"], &shown["OS-EXT-STS:task_state"]), (&json!("BUILD"), &json!("deleting")));
    let state = simulated.state().await;
    assert_eq!((&state["servers_by_state"], &state["servers_deleting"]), (&json!({"BUILD": 1}), &json!(1)));
}

#[tokio::test]
async fn servers_disappear_spontaneously() {
    let (simulated, cloud) = start(&["--boot-time-s", "0", "--vanish-every", "1", "--vanish-after-s", "0.2"]).await;
    let id = server(&cloud, "vanishing").await;
    wait::until("the server to disappear", TIMEOUT, async || listed(&cloud).await.is_empty()).await;
    cloud.get("compute", &format!("/servers/{id}")).await.expect(404);
    assert_eq!(simulated.state().await["ports"], 0);
}

#[tokio::test]
async fn a_leaked_port_stays_until_deleted() {
    let (simulated, cloud) = start(&["--boot-time-s", "0", "--delete-time-s", "0", "--port-stays-every", "1"]).await;
    let id = server(&cloud, "leaky").await;
    cloud.remove(&id).await;
    let down = cloud.get("network", "/ports?status=DOWN").await.expect(200);
    let port = &down.get("ports")[0];
    assert!(port["device_owner"].as_str().unwrap().starts_with("compute:"), "{port}");
    cloud.delete("network", &format!("/ports/{}", port["id"].as_str().unwrap())).await.expect(204);
    assert_eq!(simulated.state().await["ports"], 0);
}

#[tokio::test]
async fn metadata_decides_how_a_server_is_built_and_deleted() {
    let (_simulated, cloud) = start(&["--boot-time-s", "3600", "--delete-time-s", "3600"]).await;
    let mut body = cloud.server_request("metadata").await;
    for (key, value) in
        [("spawn_seconds", "0"), ("delete_seconds", "0"), ("delete_error", "no"), ("delete_failures", "2")]
    {
        body["metadata"][format!("loopback:{key}")] = json!(value);
    }
    let id = cloud.create(&body).await;
    cloud.active(&id).await;
    for _ in 0..2 {
        cloud.delete("compute", &format!("/servers/{id}")).await.expect(204);
        let failed = cloud.server(&id).await;
        assert_eq!((&failed["status"], &failed["fault"]["message"]), (&json!("ERROR"), &json!("no")));
    }
    cloud.remove(&id).await;
}

#[tokio::test]
async fn quota_errors_use_the_format_of_each_service() {
    let (simulated, cloud) = start(&["--quota-servers", "1", "--quota-cores", "1", "--delete-time-s", "0"]).await;
    let message = async |body: &Value| {
        let answer = cloud.post("compute", "/servers", &json!({"server": body})).await.expect(403);
        answer.get("forbidden")["message"].as_str().unwrap().to_owned()
    };
    let body = cloud.server_request("quota").await;
    let id = cloud.create(&body).await;
    let both = "Quota exceeded for cores, instances: Requested 1, 1, but already used 1, 1 of 1, 1 cores, instances";
    assert_eq!(message(&body).await, both);
    simulated.knobs(json!({"quota_servers": 5, "quota_cores": -1, "quota_ports": 1})).await;
    assert_eq!(message(&body).await, "Maximum number of ports exceeded");
    simulated.knobs(json!({"quota_ports": 5, "quota_ram_mib": 1000})).await;
    assert_eq!(message(&body).await, "Quota exceeded for ram: Requested 512, but already used 512 of 1000 ram");
    cloud.remove(&id).await;
    simulated.knobs(json!({"quota_floating_ips": 0, "quota_gigabytes": 2, "boot_time_s": 0})).await;
    let external = cloud.get("network", "/networks?router:external=true").await.expect(200);
    let body = json!({"floatingip": {"floating_network_id": external.get("networks")[0]["id"]}});
    let refused = cloud.post("network", "/floatingips", &body).await.expect(409);
    assert_eq!(refused.get("NeutronError")["message"], "Quota exceeded for resources: ['floatingip'].");
    let refused = cloud.post("volumev3", "/volumes", &json!({"volume": {"size": 3}})).await.expect(413);
    assert!(refused.get("overLimit")["message"].as_str().unwrap().contains("exceeds allowed gigabytes quota"));
    assert_eq!(simulated.state().await["quota_refusals"], 5);
}

#[tokio::test]
async fn a_hidden_quota_refuses_servers_and_limits_do_not_show_it() {
    let (simulated, cloud) = start(&["--quota-servers", "-1", "--hidden-quota-servers", "1"]).await;
    let body = json!({"server": cloud.server_request("hidden").await});
    let first = cloud.create(&body["server"]).await;
    let refused = cloud.post("compute", "/servers", &body).await.expect(403);
    let expected = "Quota exceeded for ports: Requested 1, but already used 100 of 100 ports";
    assert_eq!(refused.get("forbidden"), &json!({"code": 403, "message": expected}));
    let limits = cloud.get("compute", "/limits").await.expect(200);
    assert_eq!(limits.get("limits")["absolute"]["maxTotalInstances"], -1);
    simulated.knobs(json!({"hidden_quota_refusal": "no host is left"})).await;
    let refused = cloud.post("compute", "/servers", &body).await.expect(403);
    assert_eq!(refused.get("forbidden")["message"], "no host is left");
    assert_eq!(simulated.state().await["quota_refusals"], 2);
    simulated.knobs(json!({"hidden_quota_servers": 2})).await;
    let second = cloud.create(&body["server"]).await;
    assert_eq!(listed(&cloud).await, [second, first]);
}

#[tokio::test]
async fn more_servers_than_fit_are_cut_down_to_the_quota() {
    let (_simulated, cloud) = start(&["--quota-servers", "3"]).await;
    let mut body = cloud.server_request("many").await;
    body["max_count"] = json!(10);
    cloud.create(&body).await;
    assert_eq!(listed(&cloud).await.len(), 3);
}

#[tokio::test]
async fn disabled_services_are_absent_from_the_catalog() {
    let (_simulated, cloud) = start(&["--without", "cinder", "--without", "network", "--boot-time-s", "0"]).await;
    assert!(!cloud.has("volumev3") && !cloud.has("network") && cloud.has("image"));
    let flavor = cloud.flavor("tiny").await;
    let body = json!({"name": "bare", "imageRef": cloud.image().await, "flavorRef": flavor["id"]});
    let id = cloud.create(&body).await;
    let server = cloud.active(&id).await;
    assert!(server["addresses"]["private"][0]["addr"].as_str().unwrap().starts_with("127.80."), "{server}");
}

#[tokio::test]
async fn addresses_follow_one_another_and_come_in_both_families() {
    let (_simulated, cloud) = start(&["--boot-time-s", "0", "--ipv6"]).await;
    let mut addresses = Vec::new();
    for name in ["one", "two"] {
        let server = cloud.active(&server(&cloud, name).await).await;
        let of_server = server["addresses"]["private"].as_array().unwrap().clone();
        addresses.extend(of_server.into_iter().map(|address| address["addr"].clone()));
    }
    assert_eq!(addresses, ["127.80.0.10", "fd00:80::a", "127.80.0.11", "fd00:80::b"]);
}

#[tokio::test]
async fn a_reset_restores_the_initial_state() {
    let (simulated, cloud) = start(&["--boot-time-s", "0"]).await;
    let before = server(&cloud, "before").await;
    simulated.knobs(json!({"boot_time_s": 3600})).await;
    simulated.reset().await;
    assert!(listed(&cloud).await.is_empty());
    let state = simulated.state().await;
    assert_eq!((&state["servers_created"], &state["images"]), (&json!(0), &json!(2)));
    // The knobs have the values of the command line again, and ids are not reused.
    let after = server(&cloud, "after").await;
    assert_ne!(before, after);
    cloud.active(&after).await;
}
