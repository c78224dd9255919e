//! Tokens: API keys, refresh tokens, expiry and revocation.

use serde_json::{Value, json};

use super::{Cloud, pass, text};

const VPCS: &str = "/v1/vpcs?version=2025-06-03&generation=2";
const APIKEY: &str = "grant_type=urn%3Aibm%3Aparams%3Aoauth%3Agrant-type%3Aapikey&apikey=";

async fn token(cloud: &Cloud, form: &str, headers: &[(&str, &str)]) -> (u16, Value) {
    let response = cloud.send("POST", "/identity/token", headers, form.as_bytes()).await.unwrap();
    (response.status, serde_json::from_slice(&response.body).unwrap())
}

async fn status_with(cloud: &Cloud, token: &str) -> u16 {
    let header = format!("Bearer {token}");
    cloud.send("GET", VPCS, &[("authorization", &header)], b"").await.unwrap().status
}

#[tokio::test(start_paused = true)]
async fn an_api_key_gets_a_token_that_expires() {
    let cloud = Cloud::with_tokens(&["--token-s", "60"]);
    let (status, json) = token(&cloud, &format!("{APIKEY}simulated-api-key"), &[]).await;
    assert_eq!((status, &json["expires_in"], &json["token_type"]), (200, &json!(60), &json!("Bearer")));
    assert_eq!(json["refresh_token"], "not_supported");
    let access = text(&json["access_token"]);
    assert_eq!(access.split('.').count(), 3, "clients read the times of a JSON Web Token");
    assert_eq!(status_with(&cloud, &access).await, 200);
    pass(61.0).await;
    assert_eq!(status_with(&cloud, &access).await, 401);
    assert_eq!(status_with(&cloud, "unknown").await, 401);
    assert_eq!(cloud.sim("GET", "state").await["counters"]["unauthorized"], 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_token_is_an_error_of_its_service() {
    let cloud = Cloud::with_tokens(&[]);
    let (status, json) = cloud.call("GET", VPCS, b"").await;
    assert_eq!((status, &json["errors"][0]["code"]), (401, &json!("not_authorized")));
    let (status, json) = cloud.call("GET", "/v2/resource_groups", b"").await;
    assert_eq!((status, &json["status_code"]), (401, &json!(401)));
}

#[tokio::test(start_paused = true)]
async fn wrong_keys_and_forms_have_the_codes_of_iam() {
    let cloud = Cloud::with_tokens(&[]);
    for (form, code) in [
        (format!("{APIKEY}wrong"), "BXNIM0415E"),
        (APIKEY.to_owned(), "BXNIM0109E"),
        (String::new(), "BXNIM0109E"),
        ("grant_type=refresh_token&refresh_token=no".to_owned(), "BXNIM0408E"),
        ("grant_type=password".to_owned(), "BXNIM0106E"),
    ] {
        let (status, json) = token(&cloud, &form, &[]).await;
        assert_eq!((status, &json["errorCode"]), (400, &json!(code)), "{form}");
        assert!(json["errorMessage"].is_string() && json["context"]["requestId"].is_string());
    }
}

#[tokio::test(start_paused = true)]
async fn clients_that_identify_themselves_get_refresh_tokens() {
    let cloud = Cloud::with_tokens(&[]);
    let (_, json) = token(&cloud, &format!("{APIKEY}simulated-api-key"), &[("authorization", "Basic Yng6Yng=")]).await;
    let form = format!("grant_type=refresh_token&refresh_token={}", text(&json["refresh_token"]));
    let (status, refreshed) = token(&cloud, &form, &[]).await;
    assert_eq!(status, 200);
    assert_eq!(status_with(&cloud, &text(&refreshed["access_token"])).await, 200);
    cloud.sim("POST", "revoke-tokens").await;
    assert_eq!(status_with(&cloud, &text(&refreshed["access_token"])).await, 401);
    assert_eq!(token(&cloud, &form, &[]).await.0, 400);
}

#[tokio::test(start_paused = true)]
async fn a_reset_keeps_tokens() {
    let cloud = Cloud::with_tokens(&[]);
    let (_, json) = token(&cloud, &format!("{APIKEY}simulated-api-key"), &[]).await;
    cloud.sim("POST", "reset").await;
    assert_eq!(status_with(&cloud, &text(&json["access_token"])).await, 200);
}
