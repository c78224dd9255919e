//! Oddities of real clouds: links, versions, addresses and names that surprise, and connections that end.

use std::time::Duration;

use super::{fault, start};
use crate::cloud::{Answer, Cloud};
use crate::contract::cases::networks::refuses_ambiguous_group;
use serde_json::{Value, json};
use testkit::clouds::simulated_openstack::SimulatedOpenStack;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Keystone's id of the only project.
const PROJECT_ID: &str = "a1b0000000004000800000000000000a";

async fn get(cloud: &Cloud, url: &str) -> Answer {
    Answer::of(cloud.http.get(url).header("X-Auth-Token", &cloud.token)).await
}

/// A new login, because a catalogue is part of a token.
async fn login(simulated: &SimulatedOpenStack) -> Cloud {
    Cloud::connect(&simulated.clouds_yaml(), "simulated").await
}

/// The ids of the versions in a list.
fn versions(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|version| version["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn links_of_version_documents_have_the_form_of_the_knob() {
    let (simulated, cloud) = start(&["--document-links", "compute=other-host"]).await;
    let compute = format!("{}/compute/", simulated.base());
    let links = async || get(&cloud, &compute).await.expect(200).get("versions")[0]["links"].clone();
    assert_eq!(links().await[0]["href"], "http://cloud.invalid:1/compute/v2.1/");
    let other_scheme = format!("{compute}v2.1/").replace("http:", "https:");
    let forms = [
        ("own", format!("{compute}v2.1/")),
        ("other-scheme", other_scheme),
        ("no-prefix", "/v2.1/".to_owned()),
        ("path", "/compute/v2.1/".to_owned()),
        ("relative", "v2.1/".to_owned()),
        ("empty", String::new()),
        ("image=missing", format!("{compute}v2.1/")),
    ];
    for (form, href) in forms {
        simulated.knobs(json!({"document_links": form})).await;
        assert_eq!(links().await[0]["href"], href, "{form}");
    }
    let image = get(&cloud, &format!("{}/image/", simulated.base())).await.expect(300);
    assert_eq!(image.get("versions")[0]["links"], json!([]));
}

#[tokio::test]
async fn cinder_has_the_types_and_versions_of_the_knob() {
    let (simulated, cloud) = start(&["--volume-types", "volumev2,volume"]).await;
    let volume = format!("{}/volume", simulated.base());
    assert_eq!(cloud.endpoints["volumev2"], format!("{volume}/v2/{PROJECT_ID}"));
    assert_eq!(cloud.endpoints["volume"], format!("{volume}/v1/{PROJECT_ID}"));
    cloud.get("volumev2", "/limits").await.expect(200);
    cloud.get("volume", "/limits").await.expect(404);
    let document = get(&cloud, &volume).await.expect(300);
    assert_eq!(versions(document.get("versions")), ["v2.0"]);
    simulated.knobs(json!({"volume_types": ["block-store", "volumev2"]})).await;
    assert_eq!(login(&simulated).await.endpoints["block-store"], format!("{volume}/v3/{PROJECT_ID}"));
    let document = get(&cloud, &volume).await.expect(300);
    assert_eq!(versions(document.get("versions")), ["v2.0", "v3.0"]);
}

#[tokio::test]
async fn nova_has_the_address_of_the_knob() {
    let (simulated, cloud) = start(&["--compute-address", "v2/PROJECT"]).await;
    let compute = format!("{}/compute", simulated.base());
    assert_eq!(cloud.endpoints["compute"], format!("{compute}/v2/{PROJECT_ID}"));
    let answer = cloud.get_with_microversion("/limits").await.expect(200);
    assert!(!answer.headers.contains_key("openstack-api-version"), "{:?}", answer.headers);
    get(&cloud, &format!("{compute}/v2.1/{PROJECT_ID}/limits")).await.expect(200);
    get(&cloud, &format!("{compute}/v2.1/limits")).await.expect(404);
    let document = get(&cloud, &compute).await.expect(200);
    assert_eq!(versions(document.get("versions")), ["v2.0", "v2.1"]);
    simulated.knobs(json!({"compute_address": ""})).await;
    assert_eq!(login(&simulated).await.endpoints["compute"], compute);
    get(&cloud, &format!("{compute}/v2.1/limits")).await.expect(200);
    get(&cloud, &format!("{compute}/v2.1/{PROJECT_ID}/limits")).await.expect(404);
    get(&cloud, &format!("{compute}/v2/limits")).await.expect(404);
}

#[tokio::test]
async fn objects_exist_twice_with_the_same_name() {
    let (simulated, cloud) = start(&["--duplicates", "network,security-group", "--boot-time-s", "0"]).await;
    simulated.knobs(json!({"duplicates": ["network", "security-group", "image"]})).await;
    let kinds = [
        ("network", "networks", "networks", "private"),
        ("network", "security-groups", "security_groups", "default"),
        ("image", "images", "images", "raw-1M"),
    ];
    let mut second = Vec::new();
    for (service, path, list, name) in kinds {
        let found = cloud.get(service, &format!("/{path}?name={name}")).await.expect(200);
        let ids = super::ids(found.get(list));
        assert!(ids.len() == 2 && ids[0] != ids[1], "{path}: {ids:?}");
        cloud.get(service, &format!("/{path}/{}", ids[1])).await.expect(200);
        second.push(ids[1].clone());
    }
    let mut body = cloud.server_request("second").await;
    body["networks"] = json!([{"uuid": second[0]}]);
    body["imageRef"] = json!(second[2]);
    body["security_groups"] = json!([{"name": second[1]}]);
    let id = cloud.create(&body).await;
    cloud.active(&id).await;
    refuses_ambiguous_group(&cloud, "default").await;
    simulated.knobs(json!({"duplicates": []})).await;
    for (service, path, list, name) in kinds {
        let found = cloud.get(service, &format!("/{path}?name={name}")).await.expect(200);
        assert_eq!(super::ids(found.get(list)).len(), 1, "{path}");
    }
}

#[tokio::test]
async fn keystone_v2_issues_tokens_with_their_catalog() {
    let simulated = SimulatedOpenStack::start(&["--identity-versions", "v2.0"]).await;
    let (http, identity) = (reqwest::Client::new(), format!("{}/identity", simulated.base()));
    let document = Answer::of(http.get(&identity)).await.expect(300);
    let values = &document.get("versions")["values"];
    assert_eq!((versions(values), &values[0]["status"]), (vec!["v2.0"], &json!("stable")));
    let tokens =
        async |auth: Value| Answer::of(http.post(format!("{identity}/v2.0/tokens")).json(&json!({"auth": auth}))).await;
    let credentials = json!({"username": "nodepool", "password": "secret"});
    let answer = tokens(json!({"passwordCredentials": credentials, "tenantName": "nodepool"})).await.expect(200);
    let access = answer.get("access");
    assert_eq!((&access["token"]["tenant"]["id"], &access["user"]["name"]), (&json!(PROJECT_ID), &json!("nodepool")));
    let entry = &access["serviceCatalog"][0];
    assert_eq!(
        (&entry["type"], &entry["endpoints"][0]["publicURL"]),
        (&json!("identity"), &json!(identity.clone() + "/v2.0"))
    );
    let limits = http.get(format!("{}/compute/v2.1/limits", simulated.base()));
    Answer::of(limits.header("X-Auth-Token", access["token"]["id"].as_str().unwrap())).await.expect(200);
    tokens(json!({"token": {"id": access["token"]["id"]}, "tenantId": PROJECT_ID})).await.expect(200);
    let wrong = tokens(json!({"passwordCredentials": {"username": "nodepool", "password": "no"}})).await.expect(401);
    assert_eq!(wrong.get("error")["code"], 401);
    assert_eq!(Answer::of(http.get(format!("{identity}/v3"))).await.expect(404).get("error")["code"], 404);
}

#[tokio::test]
async fn keystone_v2_is_deprecated_beside_v3() {
    let (simulated, cloud) = start(&["--identity-versions", "v2.0,v3"]).await;
    let identity = format!("{}/identity", simulated.base());
    assert_eq!(cloud.endpoints["identity"], format!("{identity}/v3"));
    let document = get(&cloud, &identity).await.expect(300);
    assert_eq!(versions(&document.get("versions")["values"]), ["v3.14", "v2.0"]);
    let document = get(&cloud, &format!("{identity}/v2.0")).await.expect(200);
    assert_eq!(document.get("version")["status"], "deprecated");
}

#[tokio::test]
async fn calls_are_redirected_or_end_with_a_page_or_nothing() {
    let (simulated, cloud) = start(&[]).await;
    for status in [301, 302, 303, 308] {
        fault(&simulated, &format!("{status} path=^/compute")).await;
        let answer = cloud.get("compute", "/limits").await.expect(status);
        get(&cloud, answer.headers["location"].to_str().unwrap()).await.expect(200);
    }
    fault(&simulated, "page").await;
    let answer = cloud.post("compute", "/servers", &json!({})).await.expect(200);
    assert!(answer.text.starts_with("<html>") && answer.body == Value::Null, "{}", answer.text);
    fault(&simulated, "empty").await;
    assert_eq!(cloud.get("compute", "/servers").await.expect(200).text, "");
}

#[tokio::test]
async fn connections_are_closed_after_a_response_without_announcement() {
    let simulated = SimulatedOpenStack::start(&["--close-connections"]).await;
    let address = simulated.base().strip_prefix("http://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /identity/v3 HTTP/1.1\r\nHost: cloud\r\n\r\n").await.unwrap();
    let mut received = String::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_string(&mut received)).await;
    read.expect("the server closes the connection").unwrap();
    let received = received.to_lowercase();
    assert!(received.starts_with("http/1.1 200") && received.ends_with("}}"), "{received}");
    assert!(!received.contains("connection:"), "{received}");
}

#[tokio::test]
async fn invalid_oddities_are_rejected() {
    let simulated = SimulatedOpenStack::start(&[]).await;
    let http = reqwest::Client::new();
    let wrong = [
        (json!({"document_links": "compute=sideways"}), "sideways is not a form of links: expected one of own, "),
        (json!({"document_links": "nova2=own"}), "nova2 is not a service"),
        (json!({"volume_types": []}), "require at least one entry"),
        (json!({"volume_types": ["volumev4"]}), "unknown variant `volumev4`"),
        (json!({"compute_address": "v3"}), "unknown variant `v3`"),
        (json!({"duplicates": ["flavor"]}), "unknown variant `flavor`"),
        (json!({"identity_versions": []}), "require at least one entry"),
        (json!({"identity_versions": ["v2"]}), "unknown variant `v2`"),
        (json!({"faults": ["304"]}), "unknown fault 304: expected 301, 302, 303, 308, 400 to 599"),
        (json!({"close_connections": "often"}), "expected a boolean"),
    ];
    for (knobs, message) in wrong {
        let answer = Answer::of(http.put(format!("{}/sim/knobs", simulated.base())).json(&knobs)).await.expect(400);
        assert!(answer.get("error").as_str().unwrap().contains(message), "{}", answer.text);
    }
}
