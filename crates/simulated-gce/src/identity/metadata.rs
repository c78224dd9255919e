//! The metadata server of an instance: project, zone, and the tokens of the default service account.

use serde_json::json;

use crate::api::simulation::Simulation;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::places::DEFAULT_ZONE;

const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

impl Simulation {
    pub fn metadata(&mut self, call: &Call) -> ApiResult<Response> {
        if call.header("metadata-flavor") != Some("Google") {
            let message = "Missing Metadata-Flavor:Google header.".to_owned();
            return Err(ApiError { status: 403, reason: "forbidden".to_owned(), message });
        }
        let answer = match &call.parts()[..] {
            [] => text("computeMetadata/\n"),
            ["computeMetadata", "v1", path @ ..] => self.meta_data(call, path)?,
            _ => return Err(ApiError::not_found(&call.path)),
        };
        Ok(answer.with("metadata-flavor", "Google"))
    }

    fn meta_data(&mut self, call: &Call, path: &[&str]) -> ApiResult<Response> {
        let project = self.world.options.projects.first().cloned().unwrap_or_default();
        let number = self.projects.get(&project).map_or(0, |project| project.number);
        let email = self.account.email.clone();
        Ok(match path {
            [] => text("instance/\nproject/\nuniverse/\n"),
            ["project", "project-id"] => text(&project),
            ["project", "numeric-project-id"] => text(&number.to_string()),
            ["universe", "universe-domain"] => text("googleapis.com"),
            ["instance", "zone"] => text(&format!("projects/{number}/zones/{DEFAULT_ZONE}")),
            ["instance", "service-accounts"] => text(&format!("default/\n{email}/\n")),
            ["instance", "service-accounts", account, rest @ ..] if *account == "default" || **account == email => {
                match rest {
                    ["email"] => text(&email),
                    ["scopes"] => text(&format!("{SCOPE}\n")),
                    ["token"] => {
                        let (token, expires_in) = self.issue_token();
                        let answer = json!({"access_token": token, "expires_in": expires_in, "token_type": "Bearer"});
                        Response::json(200, &answer)
                    }
                    [] if call.parameter("recursive") == Some("true") => {
                        Response::json(200, &json!({"aliases": ["default"], "email": email, "scopes": [SCOPE]}))
                    }
                    [] => text("aliases\nemail\nscopes\ntoken\n"),
                    _ => return Err(ApiError::not_found(&call.path)),
                }
            }
            _ => return Err(ApiError::not_found(&call.path)),
        })
    }
}

fn text(text: &str) -> Response {
    Response::new(200, "application/text", text.to_owned())
}
