//! The scheduling of a new instance: standard or spot, and the reaction to maintenance and preemption.

use serde_json::{Value, json};

use crate::methods::fields::Fields;
use crate::methods::known_fields;
use crate::server::response::ApiResult;

pub struct Scheduling {
    pub json: Value,
    pub is_spot: bool,
    pub is_deleted_when_preempted: bool,
}

/// Checks the scheduling of an insert.
pub fn scheduling(resource: &Fields<'_>) -> ApiResult<Scheduling> {
    let empty = json!({});
    let fields =
        Fields::new(resource.value("scheduling").unwrap_or(&empty), "resource.scheduling", known_fields::SCHEDULING)?;
    let model = fields.one_of("provisioningModel", &["SPOT", "STANDARD"])?;
    let is_preemptible = fields.boolean("preemptible")?;
    let is_spot = model == Some("SPOT") || is_preemptible == Some(true);
    if is_spot && (model == Some("STANDARD") || is_preemptible == Some(false)) {
        return Err(fields.invalid("preemptible", "It does not fit the provisioning model."));
    }
    let restart = fields.boolean("automaticRestart")?;
    if is_spot && restart == Some(true) {
        return Err(
            fields.invalid("automaticRestart", "Scheduling must have automaticRestart be false when using SPOT.")
        );
    }
    let maintenance = fields.one_of("onHostMaintenance", &["MIGRATE", "TERMINATE"])?;
    if is_spot && maintenance == Some("MIGRATE") {
        return Err(
            fields.invalid("onHostMaintenance", "Scheduling must have onHostMaintenance be TERMINATE for SPOT.")
        );
    }
    let action = fields.one_of("instanceTerminationAction", &["DELETE", "STOP"])?;
    if action.is_some() && !is_spot && fields.value("maxRunDuration").is_none() {
        let why = "You cannot specify a termination action for a VM instance that has the standard provisioning model.";
        return Err(fields.invalid("instanceTerminationAction", why));
    }
    let mut json = json!({
        "onHostMaintenance": maintenance.unwrap_or(if is_spot { "TERMINATE" } else { "MIGRATE" }),
        "automaticRestart": restart.unwrap_or(!is_spot), "preemptible": is_spot,
        "provisioningModel": if is_spot { "SPOT" } else { "STANDARD" },
    });
    if is_spot || action.is_some() {
        json["instanceTerminationAction"] = json!(action.unwrap_or("STOP"));
    }
    Ok(Scheduling { json, is_spot, is_deleted_when_preempted: is_spot && action == Some("DELETE") })
}
