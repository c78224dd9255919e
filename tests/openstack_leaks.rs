//! What nobody uses in a cloud goes, and only that: leaked servers, unattached floating IPs, ports that stayed behind.

mod grown;
mod stack;
mod support;

use grown::on_real_time;
use nodepool::model::time::Span;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use stack::Cloud;
use stack::scene::{LONG, Scene, with_tuned_launcher};
use support::wait;

/// A server with the mark of a provider and of a node that is gone.
async fn forgotten_server(cloud: &Cloud, scene: &Scene, provider: &str) -> String {
    let metadata = json!({"nodepool_provider_name": provider, "nodepool_node_id": "0000099999"});
    let network = scene.client.id_of("network", "networks", &cloud.network).await;
    let image = scene.client.id_of("image", "images", &cloud.image).await;
    let flavor = scene.client.id_of("compute", "flavors", &cloud.flavor).await;
    let server = json!({"name": "forgotten", "flavorRef": flavor, "imageRef": image, "networks": [{"uuid": network}],
        "metadata": metadata});
    let body = Some(json!({"server": server}));
    let (status, answer) = scene.client.call(Method::POST, "compute", "/servers", body).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
    answer["server"]["id"].as_str().expect("a server has an id").to_owned()
}

async fn floating_ips(scene: &Scene) -> Vec<Value> {
    scene.client.get("network", "/floatingips").await["floatingips"].as_array().expect("a list").clone()
}

async fn unattached_floating_ip(scene: &Scene) -> String {
    let network = scene.client.id_of("network", "networks", "outside").await;
    let body = Some(json!({"floatingip": {"floating_network_id": network}}));
    let (status, answer) = scene.client.call(Method::POST, "network", "/floatingips", body).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    answer["floatingip"]["id"].as_str().expect("a floating IP has an id").to_owned()
}

/// Sweeps every half second, where a launcher makes one a minute.
async fn swept(cloud: &Cloud, change: impl Fn(&mut Value), test: impl AsyncFnOnce(&mut Scene)) {
    let configure = |name: &str| {
        let mut provider = cloud.provider(name);
        change(&mut provider);
        vec![provider]
    };
    with_tuned_launcher(cloud, configure, |options| options.cleanup_interval = Span(0.5), test).await;
}

// drivers.md 1.7.6, 2.1.8
#[test]
fn a_forgotten_server_goes_and_those_of_others_stay() {
    on_real_time(async {
        let cloud = Cloud::simulated(&[]).await;
        swept(
            &cloud,
            |_| {},
            async |scene| {
                let (ours, others) = (
                    forgotten_server(&cloud, scene, &scene.provider).await,
                    forgotten_server(&cloud, scene, "other").await,
                );
                let (id, nodes) = scene.serve(&["a"]).await;
                let gone =
                    async || scene.client.call(Method::GET, "compute", &format!("/servers/{ours}"), None).await.0;
                wait::until("the forgotten server to be gone", LONG, async || gone().await == StatusCode::NOT_FOUND)
                    .await;
                assert_eq!(scene.client.server(&others).await["name"], "forgotten");
                assert_eq!(nodes.len(), 1);
                scene.use_up(&id).await;
                scene.empties().await;
            },
        )
        .await;
    });
}

#[test]
fn unattached_floating_ips_go_where_the_file_says_so() {
    on_real_time(async {
        let cloud = Cloud::simulated(&[]).await;
        swept(
            &cloud,
            |provider| provider["clean-floating-ips"] = json!(true),
            async |scene| {
                unattached_floating_ip(scene).await;
                wait::until("the floating IP to be gone", LONG, async || floating_ips(scene).await.is_empty()).await;
            },
        )
        .await;
    });
}

#[test]
fn ports_that_servers_left_behind_go() {
    on_real_time(async {
        let cloud = Cloud::simulated(&["--port-stays-every", "1"]).await;
        swept(
            &cloud,
            |provider| provider["port-cleanup-interval"] = json!(1),
            async |scene| {
                let (id, _) = scene.serve(&["a"]).await;
                scene.use_up(&id).await;
                scene.empties().await;
                let down = async || {
                    let ports = scene.client.get("network", "/ports?status=DOWN").await;
                    ports["ports"].as_array().expect("a list").len()
                };
                wait::until("the port that stayed to be gone", LONG, async || down().await == 0).await;
            },
        )
        .await;
    });
}
