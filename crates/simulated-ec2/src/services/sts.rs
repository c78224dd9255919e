//! STS: the caller's identity, and credentials of roles.

use std::time::Duration;

use crate::api::xml::Xml;
use crate::region::world::World;
use crate::server::call::Call;
use crate::server::credentials::Session;
use crate::server::form::missing;
use crate::server::response::{ApiError, ApiResult, Response};

const NAMESPACE: &str = "xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"";

impl World {
    pub fn sts(&mut self, call: &Call) -> ApiResult<Response> {
        match call.action.as_str() {
            "GetCallerIdentity" => Ok(self.caller_identity(call)),
            "AssumeRole" => self.assume_role(call),
            "AssumeRoleWithWebIdentity" => {
                call.form.get("WebIdentityToken").ok_or_else(|| missing("WebIdentityToken"))?;
                self.assume_role(call)
            }
            action => Err(ApiError::new("InvalidAction", format!("Could not find operation {action}"))),
        }
    }

    fn result(&mut self, action: &str, content: impl FnOnce(&mut Xml) -> &mut Xml) -> Response {
        let mut xml = Xml::document();
        let (response, result) = (format!("{action}Response"), format!("{action}Result"));
        xml.open_with(&response, NAMESPACE).within(&result, content);
        let id = self.request_id();
        xml.within("ResponseMetadata", |xml| xml.text("RequestId", &id)).close(&response);
        Response::xml(xml.finish())
    }

    fn caller_identity(&mut self, call: &Call) -> Response {
        let account = self.options.account.clone();
        let key = call.signature.as_ref().map(|signature| signature.access_key.clone()).unwrap_or_default();
        let arn = match self.credentials.session(&key) {
            Some(session) => format!("arn:aws:sts::{account}:assumed-role/{}/session", session.role),
            None => format!("arn:aws:iam::{account}:user/simulated"),
        };
        self.result("GetCallerIdentity", |xml| {
            xml.text("Arn", &arn).text("UserId", "AIDASIMULATED").text("Account", &account)
        })
    }

    fn assume_role(&mut self, call: &Call) -> ApiResult<Response> {
        let arn = call.form.required("RoleArn")?.to_owned();
        call.form.required("RoleSessionName")?;
        let role = arn.rsplit('/').next().unwrap_or(&arn).to_owned();
        let seconds: Option<f64> = call.form.number("DurationSeconds")?;
        let session = self.issue_session(&role, seconds);
        let expiration = self.timestamp_of(session.expires);
        Ok(self.result(&call.action, |xml| {
            xml.within("Credentials", |xml| {
                xml.text("AccessKeyId", &session.access_key).text("SecretAccessKey", &session.secret_key);
                xml.text("SessionToken", &session.token).text("Expiration", &expiration)
            });
            xml.within("AssumedRoleUser", |xml| xml.text("AssumedRoleId", "AROASIMULATED:session").text("Arn", &arn))
        }))
    }

    /// Credentials of a role, valid for `session_s`, or for the shorter time that the client has requested.
    pub fn issue_session(&mut self, role: &str, requested_s: Option<f64>) -> Session {
        let seconds = requested_s.unwrap_or(f64::MAX).min(self.knobs.session_s).max(0.0);
        self.credentials.issue(role, self.now + Duration::from_secs_f64(seconds))
    }
}
