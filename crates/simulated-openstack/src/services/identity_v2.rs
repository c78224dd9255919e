//! Keystone v2.0: tokens by password or another token.

use serde_json::{Value, json};

use crate::call::{Call, Service};
use crate::cloud::cloud::{Cloud, PROJECT_ID, Token, USER_ID};
use crate::response::Response;
use crate::services::identity::{PROJECT, ROLE, ROLE_ID, is_own_project, named_user};

impl Cloud {
    pub fn identity_v2(&mut self, call: &Call, body: &[u8]) -> Response {
        match (call.method.as_str(), &call.below_version()[..]) {
            ("POST", ["tokens"]) => self.authenticate_v2(body),
            _ if !self.authorized(&call.token) => self.unauthorized(),
            _ => Response::not_found(Service::Identity),
        }
    }

    fn authenticate_v2(&mut self, body: &[u8]) -> Response {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let auth = &body["auth"];
        let token = match (auth.get("passwordCredentials"), auth.get("token")) {
            (Some(credentials), _) => named_user(&user_of_v3(credentials)).map(|user| self.new_token(user)),
            (None, Some(other)) => self.renewed_token(&other["id"]),
            (None, None) => {
                let message = "Expecting to find passwordCredentials or token in auth.";
                return Response::error(Service::Identity, 400, message);
            }
        };
        let Some(token) = token.filter(|_| is_own_project(&auth["tenantId"], &auth["tenantName"])) else {
            return self.unauthorized();
        };
        let id = self.issue(token.clone());
        Response::ok(&self.access_json(&id, &token))
    }

    fn access_json(&self, id: &str, Token { user, expires }: &Token) -> Value {
        let tenant = json!({"id": PROJECT_ID, "name": PROJECT, "description": "", "enabled": true});
        json!({"access": {
            "token": {
                "id": id, "expires": self.timestamp(*expires),
                "issued_at": format!("{}Z", self.timestamp_micros(self.now)), "tenant": tenant,
            },
            "serviceCatalog": self.catalog_v2(),
            "user": {"id": USER_ID, "name": user, "username": user, "roles": [{"name": ROLE}], "roles_links": []},
            "metadata": {"is_admin": 0, "roles": [ROLE_ID]},
        }})
    }
}

/// The user of password credentials in the format of v3. All users of v2.0 are in the default domain.
fn user_of_v3(credentials: &Value) -> Value {
    json!({
        "id": credentials["userId"], "name": credentials["username"], "password": credentials["password"],
        "domain": {"id": "default"},
    })
}
