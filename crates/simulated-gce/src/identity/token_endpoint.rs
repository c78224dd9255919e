//! The token endpoint: `POST /token` with an assertion of the service account, or with a refresh token.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::simulation::Simulation;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};

const ASSERTION: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
/// The refresh token of `GET /sim/authorized-user`, with its client.
const REFRESH_TOKEN: &str = "1//simulated-refresh-token";
const CLIENT: (&str, &str) = ("simulated.apps.googleusercontent.com", "simulated-client-secret");

impl Simulation {
    pub fn token(&mut self, call: &Call) -> ApiResult<Response> {
        if call.method != "POST" {
            return Err(refused("invalid_request", "Only POST is supported."));
        }
        let form: HashMap<String, String> = form_urlencoded::parse(&call.body).into_owned().collect();
        let field = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
        let mut answer = match field("grant_type") {
            ASSERTION => {
                let now_s = (self.world.epoch_ms(self.world.now) / 1000.0) as i64;
                self.account.check(field("assertion"), now_s).map_err(|text| refused("invalid_grant", text))?;
                json!({})
            }
            "refresh_token" => {
                if (field("client_id"), field("client_secret")) != CLIENT {
                    return Err(ApiError {
                        status: 401,
                        ..refused("invalid_client", "The OAuth client was not found.")
                    });
                }
                if field("refresh_token") != REFRESH_TOKEN {
                    return Err(refused("invalid_grant", "Token has been expired or revoked."));
                }
                json!({"scope": "https://www.googleapis.com/auth/cloud-platform"})
            }
            other => return Err(refused("unsupported_grant_type", &format!("Invalid grant_type: {other}"))),
        };
        let (token, expires_in) = self.issue_token();
        answer["access_token"] = json!(token);
        answer["expires_in"] = json!(expires_in);
        answer["token_type"] = json!("Bearer");
        Ok(Response::json(200, &answer))
    }

    /// A new token, and the whole seconds for which it is valid.
    pub fn issue_token(&mut self) -> (String, u64) {
        let (now, valid) = (self.world.now, Duration::from_secs_f64(self.world.knobs.token_s));
        (self.world.tokens.issue(now, now + valid), valid.as_secs())
    }

    /// The content of a file with the credentials of a user.
    pub fn authorized_user(&self) -> Value {
        json!({
            "type": "authorized_user", "client_id": CLIENT.0, "client_secret": CLIENT.1, "refresh_token": REFRESH_TOKEN,
            "token_uri": format!("{}/token", self.base), "universe_domain": "googleapis.com",
        })
    }
}

fn refused(error: &str, text: &str) -> ApiError {
    ApiError { status: 400, reason: error.to_owned(), message: text.to_owned() }
}
