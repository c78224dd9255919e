//! Tokens, their expiry, and the version documents.

use std::sync::Arc;

use crate::cloud::{Answer, Cloud};
use crate::contract::shape::{JsonType, check};
use reqwest::Method;
use serde_json::{Value, json};

async fn token(cloud: &Cloud, auth: &Value) -> Answer {
    Answer::of(cloud.http.post(format!("{}/auth/tokens", cloud.auth_url)).json(auth)).await
}

pub async fn wrong_password(cloud: Arc<Cloud>) {
    let user = json!({"name": "unknown-user", "domain": {"id": "default"}, "password": "wrong"});
    let identity = json!({"methods": ["password"], "password": {"user": user}});
    let answer = token(&cloud, &json!({"auth": {"identity": identity}})).await.expect(401);
    check(
        "an error",
        answer.get("error"),
        &[("code", JsonType::Number), ("message", JsonType::Text), ("title", JsonType::Text)],
    );
    token(&cloud, &json!({"auth": {}})).await.expect(400);
}

pub async fn bad_token(cloud: Arc<Cloud>) {
    let lists = [("compute", "/servers"), ("image", "/images"), ("network", "/networks"), ("volumev3", "/volumes")];
    for (service, path) in lists.into_iter().filter(|(service, _)| cloud.has(service)) {
        for token in ["", "nonsense"] {
            let request = cloud.http.get(cloud.url(service, path)).header("X-Auth-Token", token);
            let answer = Answer::of(request).await.expect(401);
            assert!(answer.headers.contains_key("www-authenticate"), "{service}: {:?}", answer.headers);
        }
    }
}

pub async fn revoked_token(cloud: Arc<Cloud>) {
    let answer = token(&cloud, &cloud.auth).await.expect(201);
    let mine = answer.headers["x-subject-token"].to_str().unwrap();
    let tokens = format!("{}/auth/tokens", cloud.auth_url);
    let about = |method| {
        let request = cloud.http.request(method, &tokens).header("X-Auth-Token", &cloud.token);
        Answer::of(request.header("X-Subject-Token", mine))
    };
    let use_it = || Answer::of(cloud.http.get(cloud.url("compute", "/servers")).header("X-Auth-Token", mine));
    about(Method::GET).await.expect(200);
    // The token is not used before its revocation, because services cache validated tokens for some minutes.
    about(Method::DELETE).await.expect(204);
    use_it().await.expect(401);
    about(Method::GET).await.expect(404);
}

pub async fn token_shape(cloud: Arc<Cloud>) {
    let answer = token(&cloud, &cloud.auth).await.expect(201);
    let token = answer.get("token");
    let shape = [
        ("expires_at", JsonType::Text),
        ("issued_at", JsonType::Text),
        ("catalog", JsonType::List),
        ("project", JsonType::Object),
        ("user", JsonType::Object),
        ("roles", JsonType::List),
        ("methods", JsonType::List),
    ];
    check("a token", token, &shape);
    assert!(token["expires_at"].as_str().unwrap().ends_with('Z'), "{token}");
    for service in token["catalog"].as_array().unwrap() {
        check(
            "a service",
            service,
            &[("type", JsonType::Text), ("name", JsonType::Text), ("endpoints", JsonType::List)],
        );
        for endpoint in service["endpoints"].as_array().unwrap() {
            let shape = [
                ("interface", JsonType::Text),
                ("region", JsonType::Text),
                ("region_id", JsonType::Text),
                ("url", JsonType::Text),
            ];
            check("an endpoint", endpoint, &shape);
        }
    }
}

pub async fn token_for_token(cloud: Arc<Cloud>) {
    if cloud.auth["auth"]["scope"].is_null() {
        // An application credential cannot be exchanged for another token.
        return;
    }
    let identity = json!({"methods": ["token"], "token": {"id": cloud.token}});
    let auth = json!({"auth": {"identity": identity, "scope": cloud.auth["auth"]["scope"]}});
    let answer = token(&cloud, &auth).await.expect(201);
    // The methods are in any order, and include the method of the first token.
    assert!(answer.get("token")["methods"].as_array().unwrap().contains(&json!("token")));
}

pub async fn discovery(cloud: Arc<Cloud>) {
    let shape = [("id", JsonType::Text), ("status", JsonType::Text), ("links", JsonType::List)];
    let identity = Answer::of(cloud.http.get(&cloud.auth_url)).await.expect(200);
    check("the version of identity", identity.get("version"), &shape);

    // Nova lists its versions at the endpoint without a token.
    let compute = Answer::of(cloud.http.get(cloud.url("compute", "/"))).await.expect(200);
    let version = compute.get("version");
    check("the version of compute", version, &shape);
    check("the version of compute", version, &[("version", JsonType::Text), ("min_version", JsonType::Text)]);

    for service in ["image", "network"] {
        let root = cloud.endpoints[service].trim_end_matches('/');
        let root = root.trim_end_matches("/v2.0").trim_end_matches("/v2");
        let answer = Answer::of(cloud.http.get(format!("{root}/"))).await;
        assert!([200, 300].contains(&answer.status), "{service}: {}", answer.status);
        let versions = answer.get("versions").as_array().unwrap();
        assert!(!versions.is_empty());
        versions.iter().for_each(|version| check("a version", version, &shape));
    }
    if cloud.has("volumev3") {
        let (root, _) = cloud.endpoints["volumev3"].split_once("/v3").expect("the endpoint contains its version");
        let answer = cloud.http.get(format!("{root}/v3/")).header("X-Auth-Token", &cloud.token);
        let answer = Answer::of(answer).await.expect(200);
        check(
            "the version of volume",
            &answer.get("versions")[0],
            &[("version", JsonType::Text), ("min_version", JsonType::Text)],
        );
    }
}
