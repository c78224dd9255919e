//! Calls to `/sim/…`: knobs, counters, history, logins.

use chrono::SecondsFormat;
use serde_json::{Value, json};

use crate::api::simulation::Simulation;
use crate::cluster::accounts::Login;
use crate::server::call::Call;
use crate::server::kubeconfig::kubeconfig;
use crate::server::response::Response;

impl Simulation {
    pub fn control(&mut self, call: &Call, body: &[u8]) -> Response {
        let cluster = &mut self.cluster;
        match (call.method.as_str(), &call.parts()[..]) {
            ("GET", ["sim", "knobs"]) => Response::ok(&json!(cluster.knobs)),
            ("PUT", ["sim", "knobs"]) => self.set_knobs(body),
            ("GET", ["sim", "state"]) => Response::ok(&cluster.state_json(&self.control)),
            ("GET", ["sim", "history"]) => Response::ok(&cluster.history_json()),
            ("POST", ["sim", "reset"]) => {
                cluster.reset();
                Response::ok(&json!({}))
            }
            ("POST", ["sim", "revoke-tokens"]) => {
                cluster.tokens.revoke_logins();
                Response::ok(&json!({}))
            }
            ("POST", ["sim", "kubeconfig"]) => match self.write_kubeconfig() {
                Ok(text) => Response::text(200, &text),
                Err(error) => Response::json(500, &json!({"error": format!("{error:#}")})),
            },
            ("GET", ["sim", "credential"]) => self.credential(call),
            _ => Response::json(404, &json!({"error": "no such endpoint"})),
        }
    }

    fn set_knobs(&mut self, body: &[u8]) -> Response {
        let cluster = &mut self.cluster;
        let change = serde_json::from_slice(body).map_err(|error| error.to_string());
        let updated = change.and_then(|change: Value| {
            let has_faults = change.get("faults").is_some();
            Ok((has_faults, cluster.knobs.updated(change)?))
        });
        match updated {
            Ok((has_faults, knobs)) => {
                let is_released = knobs.stuck_namespaces_every == 0;
                cluster.knobs = knobs;
                if has_faults {
                    cluster.stats.faults_struck.clear();
                }
                if is_released {
                    cluster.release_namespaces();
                }
                cluster.store.trim(cluster.knobs.history_size);
                cluster.replan_pods();
                Response::ok(&json!(cluster.knobs))
            }
            Err(error) => Response::json(400, &json!({"error": error})),
        }
    }

    /// Writes a kubeconfig with new tokens to the path of the option; returns its text.
    pub fn write_kubeconfig(&mut self) -> anyhow::Result<String> {
        let (admin, _) = self.cluster.issue_login(Login::Admin);
        let (nodepool, _) = self.cluster.issue_login(Login::Nodepool);
        let authority = Some(&*self.cluster.authority).filter(|_| self.cluster.options.tls);
        let text = kubeconfig(&self.base, authority, &admin, &nodepool);
        if let Some(path) = &self.kubeconfig {
            // Readers never find half a file.
            let new = path.with_extension("new");
            std::fs::write(&new, &text).and_then(|()| std::fs::rename(&new, path))?;
        }
        Ok(text)
    }

    /// A new token, in the form that an exec plugin of a kubeconfig prints.
    fn credential(&mut self, call: &Call) -> Response {
        let login = match call.parameter("user") {
            Some("admin") => Login::Admin,
            Some("nodepool") | None => Login::Nodepool,
            Some(_) => return Response::json(400, &json!({"error": "the users are admin and nodepool"})),
        };
        let (token, expires) = self.cluster.issue_login(login);
        let mut status = json!({"token": token});
        if let Some(expires) = expires {
            let expires = (self.cluster.started + expires).to_rfc3339_opts(SecondsFormat::Secs, true);
            status["expirationTimestamp"] = json!(expires);
        }
        Response::ok(&json!({
            "apiVersion": call.parameter("version").unwrap_or("client.authentication.k8s.io/v1"),
            "kind": "ExecCredential", "status": status,
        }))
    }
}
