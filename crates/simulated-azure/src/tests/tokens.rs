//! Tokens, and the checks before each call.

use serde_json::json;

use super::{Azure, COMPUTE, NETWORK, VM_VERSION, refused};

const TENANT: &str = "/aaaaaaaa-0000-4000-8000-000000000001";

fn form(secret: &str, last: &str) -> String {
    format!(
        "grant_type=client_credentials&client_id=bbbbbbbb-0000-4000-8000-000000000002&client_secret={secret}&{last}"
    )
}

#[test]
fn both_endpoints_issue_tokens_in_their_own_form() {
    let mut azure = Azure::new(&["--token-s", "61"]);
    let body = form("simulated-secret", "resource=https%3A%2F%2Fmanagement.azure.com%2F");
    let first = azure.send("POST", &format!("{TENANT}/oauth2/token"), &[], body.as_bytes()).json();
    assert_eq!((&first["expires_in"], &first["token_type"]), (&json!("61"), &json!("Bearer")));
    assert!(first["expires_on"].as_str().is_some_and(|text| text.parse::<u64>().is_ok()), "{first}");
    let body = form("simulated-secret", "scope=https%3A%2F%2Fmanagement.azure.com%2F.default");
    let second = azure.send("POST", &format!("{TENANT}/oauth2/v2.0/token"), &[], body.as_bytes()).json();
    assert_eq!((&second["expires_in"], second.get("expires_on")), (&json!(61), None));
}

#[test]
fn wrong_credentials_are_refused_with_a_description() {
    let mut azure = Azure::new(&[]);
    let v1 = format!("{TENANT}/oauth2/token");
    for (path, body, status, code) in [
        (&v1, form("wrong", "resource=https://management.azure.com/"), 401, "invalid_client"),
        (&v1, form("simulated-secret", "resource=https://graph.microsoft.com/"), 400, "invalid_resource"),
        (&v1, "grant_type=password".to_owned(), 400, "unsupported_grant_type"),
        (&"/other/oauth2/token".to_owned(), form("simulated-secret", ""), 400, "invalid_request"),
        (&format!("{TENANT}/oauth2/v2.0/token"), form("simulated-secret", "scope=x"), 400, "invalid_scope"),
    ] {
        let answer = azure.send("POST", path, &[], body.as_bytes());
        assert_eq!((answer.status, &answer.json()["error"]), (status, &json!(code)), "{body}");
        assert!(answer.json()["error_description"].as_str().is_some_and(|text| text.starts_with("AADSTS")));
    }
}

#[test]
fn a_call_needs_a_valid_token() {
    let mut azure = Azure::new(&["--token-s", "61"]);
    let list = format!("{COMPUTE}/virtualMachines/?api-version={VM_VERSION}");
    let missing = azure.send("GET", &list, &[], b"");
    assert_eq!(missing.error(), refused(401, "AuthenticationFailed"));
    assert!(missing.header("WWW-Authenticate").starts_with("Bearer authorization_uri="));
    let unknown = azure.send("GET", &list, &[("authorization", "Bearer x")], b"");
    assert_eq!(unknown.error(), refused(401, "InvalidAuthenticationToken"));
    azure.wait(60.0);
    assert_eq!(azure.get(&list).status, 200);
    azure.wait(1.0);
    assert_eq!(azure.get(&list).error(), refused(401, "ExpiredAuthenticationToken"));
    azure.renew_token();
    assert_eq!(azure.get(&list).status, 200);
    azure.sim("POST", "/sim/revoke-tokens");
    assert_eq!(azure.get(&list).error(), refused(401, "ExpiredAuthenticationToken"));
    let state = azure.sim("GET", "/sim/state");
    assert_eq!((&state["tokens_issued"], &state["counters"]["unauthorized"]), (&json!(2), &json!(4)));
}

#[test]
fn versions_of_the_api_are_checked() {
    let mut azure = Azure::new(&[]);
    let list = format!("{COMPUTE}/virtualMachines");
    assert_eq!(azure.get(&list).error(), refused(400, "MissingApiVersionParameter"));
    let wrong = azure.get(&format!("{list}?api-version=2020-11-01"));
    assert_eq!(wrong.error(), refused(400, "NoRegisteredProviderFound"));
    assert!(wrong.text.contains("API version '2020-11-01'"));
    let group = "/subscriptions/cccccccc-0000-4000-8000-000000000003/resourcegroups/NODEPOOL";
    assert_eq!(azure.get(&format!("{group}?api-version=1")).error(), refused(400, "InvalidApiVersionParameter"));
    let found = azure.get(&format!("{group}?api-version=2020-06-01")).json();
    assert_eq!((&found["name"], &found["location"]), (&json!("nodepool"), &json!("eastus")));
    for version in ["2023-03-01", "2025-04-01", "2026-04-01"] {
        assert_eq!(azure.get(&format!("{list}/?api-version={version}")).status, 200);
    }
}

#[test]
fn unknown_scopes_are_not_found() {
    let mut azure = Azure::new(&[]);
    let list = format!("/virtualMachines?api-version={VM_VERSION}");
    let other_group = COMPUTE.replace("/nodepool/", "/other/");
    assert_eq!(azure.get(&format!("{other_group}{list}")).error(), refused(404, "ResourceGroupNotFound"));
    let other = COMPUTE.replace("cccccccc", "dddddddd");
    assert_eq!(azure.get(&format!("{other}{list}")).error(), refused(404, "SubscriptionNotFound"));
    let subnets = format!("{NETWORK}/virtualNetworks/network/subnets");
    assert_eq!(azure.get(&format!("{subnets}/default?api-version=2020-07-01")).json()["name"], "default");
    assert_eq!(azure.get(&format!("{subnets}/x?api-version=2020-07-01")).error(), refused(404, "NotFound"));
    assert_eq!(azure.names(&format!("{subnets}/?api-version=2020-07-01")), ["default"]);
}
