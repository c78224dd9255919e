//! The token endpoints, and the check of the token of each call.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::cloud::cloud::Cloud;
use crate::cloud::tokens::TokenState;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::server::target::TokenVersion;

/// The resource of tokens for the Resource Manager, beside the URL of this simulation.
const RESOURCES: [&str; 2] = ["https://management.azure.com", "https://management.core.windows.net"];

impl Cloud {
    /// A token for client credentials.
    pub fn token(&mut self, call: &Call, tenant: &str, version: TokenVersion) -> ApiResult<Response> {
        let form: Map<String, Value> =
            form_urlencoded::parse(&call.body).map(|(key, value)| (key.into_owned(), json!(value))).collect();
        let field = |name: &str| form.get(name).and_then(Value::as_str).unwrap_or_default();
        let error = |status: u16, code: &str, text: String| Err(ApiError { status, ..ApiError::new(code, text) });
        if call.method != "POST" {
            return error(405, "invalid_request", "AADSTS900561: The endpoint only accepts POST requests.".to_owned());
        }
        if !tenant.eq_ignore_ascii_case(&self.options.tenant) {
            let text =
                format!("AADSTS90002: Tenant '{tenant}' not found. Check to make sure you have the correct tenant ID.");
            return error(400, "invalid_request", text);
        }
        if field("grant_type") != "client_credentials" {
            let text = "AADSTS70003: The app requested an unsupported grant type. It must be client_credentials.";
            return error(400, "unsupported_grant_type", text.to_owned());
        }
        if field("client_id") != self.options.client_id {
            let text = format!(
                "AADSTS700016: Application with identifier '{}' was not found in the directory '{tenant}'.",
                field("client_id")
            );
            return error(400, "unauthorized_client", text);
        }
        if field("client_secret") != self.options.client_secret {
            let text = format!(
                "AADSTS7000215: Invalid client secret provided. Ensure the secret being sent in the request is the \
                 client secret value, not the client secret ID, for a secret added to app '{}'.",
                self.options.client_id
            );
            return error(401, "invalid_client", text);
        }
        let resource = match version {
            TokenVersion::V1 => field("resource"),
            TokenVersion::V2 => match field("scope").strip_suffix("/.default") {
                Some(resource) => resource,
                None => {
                    let text = "AADSTS1002012: The provided value for scope is not valid. Client credential flows must \
                                have a scope value with /.default suffixed to the resource identifier.";
                    return error(400, "invalid_scope", text.to_owned());
                }
            },
        };
        let plain = resource.trim_end_matches('/');
        if !RESOURCES.contains(&plain) && plain != self.base {
            let text = format!("AADSTS500011: The resource principal named {resource} was not found in the tenant.");
            return error(400, "invalid_resource", text);
        }
        let resource = resource.to_owned();
        Ok(self.new_token(version, &resource))
    }

    /// Issues a token. The endpoint of version 1 answers numbers as texts.
    fn new_token(&mut self, version: TokenVersion, resource: &str) -> Response {
        let lifetime = self.knobs.token_s;
        let token = format!("simulated.{}.{}", self.new_guid(), self.new_guid());
        let expires = self.now + Duration::from_secs(lifetime);
        self.tokens.issue(token.clone(), expires, self.now);
        let json = match version {
            TokenVersion::V1 => json!({
                "token_type": "Bearer", "expires_in": lifetime.to_string(), "ext_expires_in": lifetime.to_string(),
                "expires_on": self.epoch_s(expires).to_string(), "not_before": self.epoch_s(self.now).to_string(),
                "resource": resource, "access_token": token,
            }),
            TokenVersion::V2 => json!({
                "token_type": "Bearer", "expires_in": lifetime, "ext_expires_in": lifetime, "access_token": token,
            }),
        };
        Response::json(200, &json).with("Cache-Control", "no-store, no-cache")
    }

    /// Refuses a call without a valid token.
    pub fn authenticate(&self, call: &Call) -> ApiResult<()> {
        let header = call.header("authorization");
        let Some(token) = header.strip_prefix("Bearer ").or_else(|| header.strip_prefix("bearer ")) else {
            let text = "Authentication failed. The 'Authorization' header is missing or invalid.";
            return Err(ApiError::new("AuthenticationFailed", text));
        };
        match self.tokens.state(token, self.now) {
            TokenState::Valid => Ok(()),
            TokenState::Expired => {
                let text = format!(
                    "The access token expiry UTC time is earlier than current UTC time '{}'.",
                    self.timestamp(self.now)
                );
                Err(ApiError::new("ExpiredAuthenticationToken", text))
            }
            TokenState::Unknown => Err(ApiError::new("InvalidAuthenticationToken", "The access token is invalid.")),
        }
    }
}
