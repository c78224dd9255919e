//! Keystone v3: tokens by password, application credential or another token.

use std::time::Duration;

use serde_json::{Value, json};

use crate::call::{Call, Service};
use crate::cloud::cloud::{Cloud, PROJECT_ID, Token, USER_ID};
use crate::response::Response;

pub const USER: &str = "nodepool";
pub const PASSWORD: &str = "secret";
pub const PROJECT: &str = "nodepool";
pub const CREDENTIAL_ID: &str = "a3b0000000004000800000000000000a";
pub const CREDENTIAL_NAME: &str = "nodepool-credential";
pub const CREDENTIAL_SECRET: &str = "secret-of-the-credential";

pub const ROLE_ID: &str = "a4b0000000004000800000000000000a";
pub const ROLE: &str = "member";

impl Cloud {
    /// The address of Keystone's newest version.
    pub fn auth_url(&self) -> String {
        format!("{}/identity/{}", self.base, self.versions(Service::Identity)[0])
    }

    pub fn authorized(&self, token: &str) -> bool {
        self.user(token).is_some()
    }

    /// The user of a valid token.
    pub fn user(&self, token: &str) -> Option<&str> {
        self.tokens.get(token).filter(|token| token.expires > self.now).map(|token| &*token.user)
    }

    pub fn identity(&mut self, call: &Call, body: &[u8]) -> Response {
        match call.version() {
            version if !self.versions(Service::Identity).contains(&version) => Response::not_found(Service::Identity),
            "v3" => self.identity_v3(call, body),
            _ => self.identity_v2(call, body),
        }
    }

    fn identity_v3(&mut self, call: &Call, body: &[u8]) -> Response {
        let path = call.below_version();
        if let ("POST", ["auth", "tokens"]) = (call.method.as_str(), &path[..]) {
            return self.authenticate(body);
        }
        if !self.authorized(&call.token) {
            return self.unauthorized();
        }
        match (call.method.as_str(), &path[..]) {
            ("GET" | "HEAD", ["auth", "tokens"]) => match self.tokens.get(&call.subject_token) {
                Some(token) if token.expires > self.now => {
                    let shown = self.token_json(&json!(["password"]), token);
                    Response::ok(&shown).with("X-Subject-Token", call.subject_token.clone())
                }
                _ => Response::error(Service::Identity, 404, "Failed to validate token"),
            },
            ("DELETE", ["auth", "tokens"]) => match self.tokens.remove(&call.subject_token) {
                Some(_) => Response::empty(204),
                None => Response::error(Service::Identity, 404, "Failed to validate token"),
            },
            ("GET", ["auth", "catalog"]) => Response::ok(&json!({"catalog": self.catalog()})),
            ("GET", ["auth", "projects"]) => {
                let links =
                    json!({"self": format!("{}/auth/projects", self.auth_url()), "next": null, "previous": null});
                Response::ok(&json!({"projects": [self.project_json()], "links": links}))
            }
            ("GET", ["projects", id]) if *id == PROJECT_ID => Response::ok(&json!({"project": self.project_json()})),
            ("GET", ["projects"]) => {
                let message = "You are not authorized to perform the requested action: identity:list_projects.";
                Response::error(Service::Identity, 403, message)
            }
            _ => Response::not_found(Service::Identity),
        }
    }

    pub fn unauthorized(&self) -> Response {
        Response::unauthorized(Service::Identity, &self.auth_url())
    }

    fn authenticate(&mut self, body: &[u8]) -> Response {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let identity = &body["auth"]["identity"];
        let Some(methods) = identity["methods"].as_array() else {
            return Response::error(Service::Identity, 400, "'identity' is a required property");
        };
        let mut token = None;
        for method in methods {
            let granted = match method.as_str() {
                Some("password") => named_user(&identity["password"]["user"]).map(|user| self.new_token(user)),
                Some("application_credential") => {
                    is_valid_credential(&identity["application_credential"]).then(|| self.new_token(USER))
                }
                Some("token") => self.renewed_token(&identity["token"]["id"]),
                _ => None,
            };
            let Some(granted) = granted else { return self.unauthorized() };
            token = Some(granted);
        }
        let project = &body["auth"]["scope"]["project"];
        let Some(token) = token.filter(|_| is_own_project(&project["id"], &project["name"])) else {
            return self.unauthorized();
        };
        let shown = self.token_json(&json!(methods), &token);
        let id = self.issue(token);
        Response::json(201, &shown).with("X-Subject-Token", id)
    }

    /// A token that is not issued yet.
    pub fn new_token(&self, user: &str) -> Token {
        let lifetime = Duration::from_secs_f64(self.knobs.token_lifetime_s);
        Token { user: user.to_owned(), expires: self.now + lifetime }
    }

    /// A token for another token. It expires no later than that token.
    pub fn renewed_token(&self, other: &Value) -> Option<Token> {
        let other = other.as_str()?;
        let token = self.new_token(self.user(other)?);
        let expires = token.expires.min(self.tokens[other].expires);
        Some(Token { expires, ..token })
    }

    /// Makes a token valid, and returns its id.
    pub fn issue(&mut self, token: Token) -> String {
        self.stats.tokens_issued += 1;
        let id = format!("gAAAAA{}", uuid::Uuid::new_v4().simple());
        self.tokens.retain(|_, token| token.expires > self.now);
        self.tokens.insert(id.clone(), token);
        id
    }

    fn token_json(&self, methods: &Value, Token { user, expires }: &Token) -> Value {
        let domain = json!({"id": "default", "name": "Default"});
        json!({"token": {
            "methods": methods,
            "user": {"domain": domain, "id": USER_ID, "name": user, "password_expires_at": null},
            "audit_ids": ["mo8yQ6u6QGejNb4FjN7hMA"], "expires_at": format!("{}Z", self.timestamp_micros(*expires)),
            "issued_at": format!("{}Z", self.timestamp_micros(self.now)),
            "project": {"domain": domain, "id": PROJECT_ID, "name": PROJECT}, "is_domain": false,
            "roles": [{"id": ROLE_ID, "name": ROLE}], "catalog": self.catalog(),
        }})
    }

    fn project_json(&self) -> Value {
        json!({
            "id": PROJECT_ID, "name": PROJECT, "domain_id": "default", "description": "", "enabled": true,
            "parent_id": "default", "is_domain": false, "tags": [], "options": {},
            "links": {"self": format!("{}/projects/{PROJECT_ID}", self.auth_url())},
        })
    }
}

/// The user, or one of its aliases (`nodepool-1`), which the history distinguishes.
pub fn named_user(user: &Value) -> Option<&str> {
    if user["password"] != PASSWORD {
        return None;
    }
    if user["id"] == USER_ID {
        return Some(USER);
    }
    let is_here = user["domain"]["id"] == "default" || user["domain"]["name"] == "Default";
    let is_ours = |name: &&str| *name == USER || name.strip_prefix(USER).is_some_and(|rest| rest.starts_with('-'));
    user["name"].as_str().filter(|_| is_here).filter(is_ours)
}

/// Whether a requested scope is the only project. A call without a scope gets it, too.
pub fn is_own_project(id: &Value, name: &Value) -> bool {
    id.as_str().is_none_or(|id| id == PROJECT_ID) && name.as_str().is_none_or(|name| name == PROJECT)
}

fn is_valid_credential(credential: &Value) -> bool {
    let named = credential["name"] == CREDENTIAL_NAME
        && (credential["user"]["name"] == USER || credential["user"]["id"] == USER_ID);
    (named || credential["id"] == CREDENTIAL_ID) && credential["secret"] == CREDENTIAL_SECRET
}
