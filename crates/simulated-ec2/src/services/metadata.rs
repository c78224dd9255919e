//! Credentials of an instance (version 2 of the instance metadata service) and of a container (`/creds`).

use serde_json::{Value, json};

use crate::region::world::World;
use crate::server::call::Call;
use crate::server::response::Response;

/// The token that calls to the metadata service must have.
const TOKEN: &str = "simulated-metadata-token";
const ROLE: &str = "simulated-role";

impl World {
    pub fn metadata(&mut self, call: &Call) -> Response {
        let parts = call.parts();
        match (call.method.as_str(), &parts[..]) {
            ("GET", ["creds", ..]) => {
                let mut credentials = self.role_credentials();
                credentials["RoleArn"] = json!(format!("arn:aws:iam::{}:role/{ROLE}", self.options.account));
                Response::json(200, &credentials)
            }
            ("PUT", ["latest", "api", "token"]) => {
                Response::text(200, TOKEN).with("x-aws-ec2-metadata-token-ttl-seconds", "21600")
            }
            _ if call.header("x-aws-ec2-metadata-token") != TOKEN => Response::text(401, ""),
            ("GET", ["latest", "meta-data", rest @ ..]) => self.meta_data(rest),
            ("GET", ["latest", "dynamic", "instance-identity", "document"]) => {
                let region = &self.options.region;
                let document = json!({"region": region, "accountId": self.options.account});
                Response::text(200, document.to_string())
            }
            _ => Response::text(404, ""),
        }
    }

    fn meta_data(&mut self, path: &[&str]) -> Response {
        match path {
            ["iam", "security-credentials"] => Response::text(200, ROLE),
            ["iam", "security-credentials", ROLE] => {
                let mut credentials = self.role_credentials();
                credentials["Code"] = json!("Success");
                credentials["Type"] = json!("AWS-HMAC");
                credentials["LastUpdated"] = json!(self.timestamp_of(self.now));
                Response::json(200, &credentials)
            }
            ["placement", "region"] => Response::text(200, self.options.region.clone()),
            ["placement", "availability-zone"] => Response::text(200, format!("{}a", self.options.region)),
            _ => Response::text(404, ""),
        }
    }

    fn role_credentials(&mut self) -> Value {
        let session = self.issue_session(ROLE, None);
        json!({
            "AccessKeyId": session.access_key, "SecretAccessKey": session.secret_key, "Token": session.token,
            "Expiration": self.timestamp_of(session.expires),
        })
    }
}
