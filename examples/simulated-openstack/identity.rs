//! Keystone: tokens for a password, an application credential or another token, and the catalogue.

use std::time::Duration;

use serde_json::{Value, json};

use crate::answer::Answer;
use crate::call::{Call, Service};
use crate::cloud::{Cloud, Moment, PROJECT_ID, USER_ID};

pub const USER: &str = "nodepool";
pub const PASSWORD: &str = "secret";
pub const PROJECT: &str = "nodepool";
pub const CREDENTIAL_ID: &str = "a3b0000000004000800000000000000a";
pub const CREDENTIAL_NAME: &str = "nodepool-credential";
pub const CREDENTIAL_SECRET: &str = "secret-of-the-credential";

impl Cloud {
    pub fn auth_url(&self) -> String {
        format!("{}/identity/v3", self.base)
    }

    pub fn authorized(&self, token: &str) -> bool {
        self.tokens.get(token).is_some_and(|expires| *expires > self.now)
    }

    pub fn identity(&mut self, call: &Call, body: &[u8]) -> Answer {
        let path = call.below_version();
        if let ("POST", ["auth", "tokens"]) = (call.method.as_str(), &path[..]) {
            return self.authenticate(body);
        }
        if !self.authorized(&call.token) {
            return self.unauthorized();
        }
        match (call.method.as_str(), &path[..]) {
            ("GET" | "HEAD", ["auth", "tokens"]) => match self.tokens.get(&call.subject_token) {
                Some(expires) if *expires > self.now => {
                    let token = self.shown_token(&json!(["password"]), *expires);
                    Answer::ok(&token).with("X-Subject-Token", call.subject_token.clone())
                }
                _ => Answer::error(Service::Identity, 404, "Failed to validate token"),
            },
            ("DELETE", ["auth", "tokens"]) => match self.tokens.remove(&call.subject_token) {
                Some(_) => Answer::empty(204),
                None => Answer::error(Service::Identity, 404, "Failed to validate token"),
            },
            ("GET", ["auth", "catalog"]) => Answer::ok(&json!({"catalog": self.catalogue()})),
            ("GET", ["auth", "projects"]) => {
                let links =
                    json!({"self": format!("{}/auth/projects", self.auth_url()), "next": null, "previous": null});
                Answer::ok(&json!({"projects": [self.shown_project()], "links": links}))
            }
            ("GET", ["projects", id]) if *id == PROJECT_ID => Answer::ok(&json!({"project": self.shown_project()})),
            ("GET", ["projects"]) => {
                let message = "You are not authorized to perform the requested action: identity:list_projects.";
                Answer::error(Service::Identity, 403, message)
            }
            _ => Answer::not_found(Service::Identity),
        }
    }

    fn unauthorized(&self) -> Answer {
        Answer::unauthorized(Service::Identity, &self.auth_url())
    }

    fn authenticate(&mut self, body: &[u8]) -> Answer {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let identity = &body["auth"]["identity"];
        let Some(methods) = identity["methods"].as_array() else {
            return Answer::error(Service::Identity, 400, "'identity' is a required property");
        };
        let lifetime = Duration::from_secs_f64(self.knobs.token_lifetime_s);
        let mut expires = self.now + lifetime;
        for method in methods {
            let known = match method.as_str() {
                Some("password") => is_user(&identity["password"]["user"]),
                Some("application_credential") => is_credential(&identity["application_credential"]),
                Some("token") => {
                    let token = identity["token"]["id"].as_str().unwrap_or_default();
                    // A token for a token lives no longer than that.
                    expires = self.tokens.get(token).map_or(expires, |of_other| expires.min(*of_other));
                    self.authorized(token)
                }
                _ => false,
            };
            if !known {
                return self.unauthorized();
            }
        }
        let project = &body["auth"]["scope"]["project"];
        let own = |key: &str, own: &str| project[key].as_str().is_none_or(|wanted| wanted == own);
        if methods.is_empty() || !own("name", PROJECT) || !own("id", PROJECT_ID) {
            return self.unauthorized();
        }
        self.tally.tokens_issued += 1;
        let token = format!("gAAAAA{}", uuid::Uuid::new_v4().simple());
        self.tokens.retain(|_, expires| *expires > self.now);
        self.tokens.insert(token.clone(), expires);
        Answer::json(201, &self.shown_token(&json!(methods), expires)).with("X-Subject-Token", token)
    }

    fn shown_token(&self, methods: &Value, expires: Moment) -> Value {
        let domain = json!({"id": "default", "name": "Default"});
        json!({"token": {
            "methods": methods,
            "user": {"domain": domain, "id": USER_ID, "name": USER, "password_expires_at": null},
            "audit_ids": ["mo8yQ6u6QGejNb4FjN7hMA"], "expires_at": format!("{}Z", self.written_finely(expires)),
            "issued_at": format!("{}Z", self.written_finely(self.now)),
            "project": {"domain": domain, "id": PROJECT_ID, "name": PROJECT}, "is_domain": false,
            "roles": [{"id": "a4b0000000004000800000000000000a", "name": "member"}], "catalog": self.catalogue(),
        }})
    }

    fn shown_project(&self) -> Value {
        json!({
            "id": PROJECT_ID, "name": PROJECT, "domain_id": "default", "description": "", "enabled": true,
            "parent_id": "default", "is_domain": false, "tags": [], "options": {},
            "links": {"self": format!("{}/projects/{PROJECT_ID}", self.auth_url())},
        })
    }

    fn catalogue(&self) -> Vec<Value> {
        let present = Service::ALL.into_iter().filter(|service| self.options.has(*service));
        let shown = present.zip(1_u64..).map(|(service, number)| {
            let base = format!("{}/{}", self.base, service.name());
            let (kind, url) = match service {
                Service::Identity => ("identity", format!("{base}/v3")),
                Service::Compute => ("compute", format!("{base}/v2.1")),
                Service::Image => ("image", base),
                Service::Network => ("network", base),
                Service::Volume => ("volumev3", format!("{base}/v3/{PROJECT_ID}")),
            };
            let endpoint = |(interface, place): (&str, u64)| {
                json!({
                    "id": format!("a5{:030x}", number * 10 + place), "interface": interface, "url": url,
                    "region_id": self.options.region, "region": self.options.region,
                })
            };
            let endpoints = ["public", "internal", "admin"].into_iter().zip(0..).map(endpoint);
            json!({
                "id": format!("a6{number:030x}"), "type": kind, "name": service.project(),
                "endpoints": endpoints.collect::<Vec<_>>(),
            })
        });
        shown.collect()
    }
}

fn is_user(user: &Value) -> bool {
    let named = user["name"] == USER && (user["domain"]["id"] == "default" || user["domain"]["name"] == "Default");
    (named || user["id"] == USER_ID) && user["password"] == PASSWORD
}

fn is_credential(credential: &Value) -> bool {
    let named = credential["name"] == CREDENTIAL_NAME
        && (credential["user"]["name"] == USER || credential["user"]["id"] == USER_ID);
    (named || credential["id"] == CREDENTIAL_ID) && credential["secret"] == CREDENTIAL_SECRET
}
