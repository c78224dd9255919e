//! The token endpoint: `POST /identity/token` with an API key or with a refresh token.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::json;

use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::world::World;

const APIKEY: &str = "urn:ibm:params:oauth:grant-type:apikey";

impl World {
    pub fn token(&mut self, call: &Call) -> ApiResult<Response> {
        let form: HashMap<String, String> = form_urlencoded::parse(&call.body).into_owned().collect();
        let field = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
        match field("grant_type") {
            APIKEY if field("apikey").is_empty() => {
                return Err(refused("BXNIM0109E", "Property missing or empty: apikey"));
            }
            APIKEY if field("apikey") != self.options.apikey => {
                return Err(refused("BXNIM0415E", "Provided API key could not be found."));
            }
            APIKEY => {}
            "refresh_token" if !self.tokens.can_refresh(field("refresh_token")) => {
                return Err(refused("BXNIM0408E", "Provided refresh_token is invalid."));
            }
            "refresh_token" => {}
            "" => return Err(refused("BXNIM0109E", "Property missing or empty: grant_type")),
            other => return Err(refused("BXNIM0106E", &format!("The grant_type {other} is not supported."))),
        }
        let valid = Duration::from_secs_f64(self.knobs.token_s);
        let issued_s = (self.epoch_ms(self.now) / 1000.0) as u64;
        let (expires, expiration) = (self.now + valid, issued_s + valid.as_secs());
        let access_token = self.tokens.issue(self.now, expires, (issued_s, expiration));
        // Only clients that identify themselves, such as the command line of IBM, get refresh tokens.
        let is_client = call.header("authorization").is_some_and(|value| value.starts_with("Basic "));
        let refresh_token = if is_client { self.tokens.issue_refresh_token() } else { "not_supported".to_owned() };
        Ok(Response::json(
            200,
            &json!({
                "access_token": access_token, "refresh_token": refresh_token, "token_type": "Bearer",
                "expires_in": valid.as_secs(), "expiration": expiration, "scope": "ibm openid",
            }),
        ))
    }
}

fn refused(code: &str, text: &str) -> ApiError {
    ApiError { status: 400, ..ApiError::with_message(code, text) }
}
