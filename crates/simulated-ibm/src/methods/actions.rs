//! Actions on instances: start, stop and reboot.

use serde_json::json;

use crate::methods::fields::{Fields, parsed};
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::instance::LaunchFailure;
use crate::state::world::World;

impl World {
    pub fn create_instance_action(&mut self, call: &Call) -> ApiResult<Response> {
        let instance = self.instance(call)?;
        let (id, status) = (instance.id.clone(), instance.status().to_owned());
        let (zone, profile) = (instance.details.zone.clone(), instance.details.profile.clone());
        let body = parsed(&call.body)?;
        let fields = Fields::new(&body, "", &["type", "force"])?;
        let is_forced = fields.boolean("force")?.unwrap_or(false);
        let kind = fields.text("type")?.ok_or_else(|| fields.missing("type"))?;
        match (kind, status.as_str()) {
            ("stop", "running") | ("stop", "starting" | "stopping" | "restarting")
                if status == "running" || is_forced =>
            {
                self.begin_stop(&id);
            }
            ("start", "stopped" | "failed") => {
                if self.is_full(&zone, &profile)
                    && let Some(instance) = self.instances.get_mut(&id)
                {
                    let code = self.knobs.full_code.clone();
                    instance.details.fate = Some(LaunchFailure { code, is_stopped: true });
                }
                self.begin_boot(&id, "starting");
            }
            ("reboot", "running") => self.begin_boot(&id, "restarting"),
            ("start" | "stop" | "reboot", _) => return Err(ApiError::new("invalid_state")),
            _ => {
                let message = "The value supplied was not a valid option.";
                return Err(fields.invalid("type", "validation_enum", message));
            }
        }
        let (action, now) = (self.plain_id(), self.timestamp());
        Ok(Response::json(
            201,
            &json!({
                "created_at": now, "force": is_forced, "href": self.href(&format!("instances/{id}/actions/{action}")),
                "id": action, "started_at": now, "status": "running", "type": kind,
            }),
        ))
    }
}
