//! Tokens: assertions of the service account, refresh tokens, expiry, revocation, and the metadata server.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rsa::RsaPrivateKey;
use rsa::pkcs1v15::SigningKey;
use rsa::pkcs8::DecodePrivateKey;
use rsa::signature::{SignatureEncoding, Signer};
use serde_json::{Value, json};
use sha2::Sha256;

use super::{Cloud, PROJECT, pass, text};

/// Status of a call to the API with a token, and the challenge of the response.
async fn status(cloud: &Cloud, token: &str) -> (u16, String) {
    let authorization = format!("Bearer {token}");
    let headers = [("authorization", authorization.as_str())];
    let headers = if token.is_empty() { &[][..] } else { &headers[..] };
    let response = cloud.send("GET", &format!("{PROJECT}/zones"), headers, b"").await.unwrap();
    let challenge = response.headers.into_iter().find(|(name, _)| *name == "www-authenticate");
    (response.status, challenge.map(|(_, value)| value).unwrap_or_default())
}

/// An assertion with these claims, signed with the key of a key file.
fn assertion(key: &Value, claims: &Value) -> String {
    let part = |json: &Value| URL_SAFE_NO_PAD.encode(json.to_string());
    let signed = format!("{}.{}", part(&json!({"alg": "RS256", "typ": "JWT"})), part(claims));
    let key = RsaPrivateKey::from_pkcs8_pem(&text(&key["private_key"])).unwrap();
    let signature = SigningKey::<Sha256>::new(key).sign(signed.as_bytes()).to_bytes();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

async fn grant(cloud: &Cloud, assertion: &str) -> (u16, Value) {
    let form = form_urlencoded::Serializer::new(String::new())
        .append_pair("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer")
        .append_pair("assertion", assertion)
        .finish();
    cloud.call("POST", "/token", form.as_bytes()).await
}

#[tokio::test(start_paused = true)]
async fn an_assertion_of_the_service_account_gets_a_token_that_expires() {
    let cloud = Cloud::with_tokens(&["--token-s", "100"]);
    let key = cloud.sim("GET", "service-account-key").await;
    assert_eq!((&key["token_uri"], &key["project_id"]), (&json!("http://api/token"), &json!("simulated")));
    let now_s = (cloud.sim("GET", "history").await["now_ms"].as_f64().unwrap() / 1000.0) as i64;
    let claims = json!({
        "iss": key["client_email"], "aud": key["token_uri"], "iat": now_s, "exp": now_s + 3600,
        "scope": "https://www.googleapis.com/auth/cloud-platform",
    });
    let (status_of_grant, answer) = grant(&cloud, &assertion(&key, &claims)).await;
    assert_eq!((status_of_grant, &answer["expires_in"], &answer["token_type"]), (200, &json!(100), &json!("Bearer")));
    let token = text(&answer["access_token"]);
    assert_eq!(status(&cloud, &token).await.0, 200);
    pass(101.0).await;
    let (code, challenge) = status(&cloud, &token).await;
    assert_eq!((code, challenge.contains("error=\"invalid_token\"")), (401, true), "{challenge}");
    for (field, value) in [
        ("iss", json!("other@x")),
        ("aud", json!("http://other")),
        ("exp", json!(now_s - 9999)),
        ("scope", Value::Null),
    ] {
        let mut wrong = claims.clone();
        wrong[field] = value;
        let (status, answer) = grant(&cloud, &assertion(&key, &wrong)).await;
        assert_eq!((status, &answer["error"]), (400, &json!("invalid_grant")), "{field}");
    }
    let mut forged = assertion(&key, &claims);
    forged.replace_range(forged.len() - 8..forged.len() - 4, "AAAA");
    let (_, answer) = grant(&cloud, &forged).await;
    assert_eq!(answer["error_description"], "Invalid JWT Signature.");
    assert_eq!(grant(&cloud, "one.two").await.0, 400);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_token_gets_tokens_and_all_can_be_revoked() {
    let cloud = Cloud::with_tokens(&[]);
    let user = cloud.sim("GET", "authorized-user").await;
    let form = |refresh_token: &str| {
        form_urlencoded::Serializer::new(String::new())
            .append_pair("grant_type", "refresh_token")
            .append_pair("client_id", user["client_id"].as_str().unwrap())
            .append_pair("client_secret", user["client_secret"].as_str().unwrap())
            .append_pair("refresh_token", refresh_token)
            .finish()
    };
    let (_, answer) = cloud.call("POST", "/token", form(&text(&user["refresh_token"])).as_bytes()).await;
    let token = text(&answer["access_token"]);
    assert_eq!(status(&cloud, &token).await.0, 200);
    cloud.sim("POST", "revoke-tokens").await;
    assert_eq!(status(&cloud, &token).await.0, 401);
    let (code, answer) = cloud.call("POST", "/token", form("other").as_bytes()).await;
    assert_eq!((code, &answer["error"]), (400, &json!("invalid_grant")));
    assert_eq!(cloud.call("POST", "/token", b"grant_type=password").await.1["error"], "unsupported_grant_type");
    let state = cloud.sim("GET", "state").await;
    assert_eq!((&state["tokens_issued"], &state["counters"]["unauthorized"]), (&json!(1), &json!(1)));
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_token_is_unauthenticated() {
    let cloud = Cloud::with_tokens(&[]);
    assert_eq!(status(&cloud, "").await, (401, "Bearer realm=\"https://accounts.google.com/\"".to_owned()));
    let (_, json) = cloud.call("GET", PROJECT, b"").await;
    let (error, detail) = (&json["error"], &json["error"]["errors"][0]);
    assert_eq!((&error["status"], &detail["reason"]), (&json!("UNAUTHENTICATED"), &json!("required")));
    assert_eq!(status(&cloud, "other").await.0, 401);
    assert_eq!(status(&Cloud::new(&[]), "").await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn the_metadata_server_requires_its_header() {
    let cloud = Cloud::with_tokens(&["--project", "first"]);
    let path = "/computeMetadata/v1/instance/service-accounts/default/token";
    assert_eq!(cloud.call("GET", path, b"").await.0, 403);
    let get = async |path: &str| {
        let response = cloud.send("GET", path, &[("metadata-flavor", "Google")], b"").await.unwrap();
        let flavor = response.headers.iter().any(|header| *header == ("metadata-flavor", "Google".to_owned()));
        (response.status, flavor, String::from_utf8(response.body.to_vec()).unwrap())
    };
    let (code, has_flavor, body) = get(path).await;
    assert_eq!((code, has_flavor), (200, true));
    let token = text(&serde_json::from_str::<Value>(&body).unwrap()["access_token"]);
    let zones = [("authorization", format!("Bearer {token}"))];
    let zones = zones.each_ref().map(|(name, value)| (*name, value.as_str()));
    let answer = cloud.send("GET", "/compute/v1/projects/first/zones", &zones, b"").await.unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(get("/computeMetadata/v1/project/project-id").await.2, "first");
    assert_eq!(get("/").await.0, 200);
    assert_eq!(get("/computeMetadata/v1/other").await.0, 404);
}
