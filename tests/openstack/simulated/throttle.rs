//! Calls that are throttled, slow, or sent with an expired token.

use std::time::Duration;

use super::start;
use crate::cloud::{Answer, Cloud};
use serde_json::json;
use testkit::real::tls;
use testkit::wait;
use tokio::time::Instant;

const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn calls_are_throttled_every_nth_and_above_a_rate() {
    let (simulated, cloud) = start(&["--retry-after-s", "7"]).await;
    simulated.knobs(json!({"throttle_every": 2})).await;
    let mut refused = Vec::new();
    for _ in 0..4 {
        let answer = cloud.get("compute", "/servers").await;
        refused.push(answer.status == 429);
        assert!(answer.status == 200 || answer.headers["retry-after"] == "7");
    }
    assert_eq!(refused.iter().filter(|refused| **refused).count(), 2, "{refused:?}");
    simulated.knobs(json!({"throttle_every": 0, "throttle_above_per_s": 1, "throttle_status": 413})).await;
    let answer = wait::until_some("a refused call", TIMEOUT, async || {
        Some(cloud.get("compute", "/servers").await).filter(|answer| answer.status != 200)
    })
    .await;
    let answer = answer.expect(413);
    assert_eq!(answer.get("overLimit")["retryAfter"], "7");
    wait::until("an accepted call", TIMEOUT, async || cloud.get("compute", "/servers").await.status == 200).await;
    assert!(simulated.state().await["throttled"].as_u64().unwrap() >= 3);
}

#[tokio::test]
async fn calls_have_the_configured_latency() {
    let (simulated, cloud) = start(&["--latency-ms", "compute=150-200,image=0"]).await;
    let took = async |service| {
        let before = Instant::now();
        cloud.get(service, if service == "compute" { "/servers" } else { "/images" }).await.expect(200);
        before.elapsed()
    };
    assert!(took("compute").await >= Duration::from_millis(150));
    simulated.knobs(json!({"latency_ms": "image=120"})).await;
    assert!(took("image").await >= Duration::from_millis(120));
}

#[tokio::test]
async fn tokens_end_when_they_expire_and_when_they_are_revoked() {
    let (simulated, cloud) = start(&["--token-lifetime-s", "0.5"]).await;
    wait::until("the token to expire", TIMEOUT, async || cloud.get("compute", "/servers").await.status == 401).await;
    simulated.knobs(json!({"token_lifetime_s": 3600})).await;
    let cloud = Cloud::connect(&simulated.clouds_yaml(), "simulated").await;
    cloud.get("compute", "/servers").await.expect(200);
    simulated.revoke_tokens().await;
    cloud.get("compute", "/servers").await.expect(401);
    assert_eq!(simulated.state().await["tokens_issued"], 2);
}

#[tokio::test]
async fn the_cloud_serves_tls() {
    if testkit::real::skipped() {
        return;
    }
    let (certificate, key) = (tls::file("server.pem"), tls::file("server.key"));
    let flags = ["--tls-cert", certificate.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let simulated = super::SimulatedOpenStack::start_with_authority(&flags, &tls::text("ca.pem")).await;
    assert!(simulated.base().starts_with("https://127.0.0.1:"), "{}", simulated.base());
    let authority = reqwest::Certificate::from_pem(tls::text("ca.pem").as_bytes()).unwrap();
    let http = reqwest::Client::builder().add_root_certificate(authority).build().unwrap();
    let answer = Answer::of(http.get(format!("{}/identity/v3", simulated.base()))).await.expect(200);
    let link = &answer.get("version")["links"][0]["href"];
    assert_eq!(link, &json!(format!("{}/identity/v3/", simulated.base())));
    // Each request has a connection of its own, because a kept one would end with an error that is none of `connect`.
    let refused = async || {
        let authority = reqwest::Certificate::from_pem(tls::text("ca.pem").as_bytes()).unwrap();
        let http = reqwest::Client::builder().add_root_certificate(authority).build().unwrap();
        http.get(simulated.base()).send().await.is_err_and(|error| error.is_connect())
    };
    simulated.knobs(json!({"refuse_connections": true})).await;
    wait::until("the port to close", TIMEOUT, refused).await;
    simulated.knobs(json!({"refuse_connections": false})).await;
    wait::until("the port to open", TIMEOUT, async || !refused().await).await;
}
