//! The boot volume of a new instance.

use serde_json::{Value, json};

use crate::methods::fields::Fields;
use crate::methods::references::referenced;
use crate::server::response::{ApiError, ApiResult};
use crate::state::volume::PROFILES;
use crate::state::world::World;

const MAX_GB: u64 = 250;

pub struct BootVolume {
    pub name: Option<String>,
    pub attachment: Option<String>,
    pub profile: String,
    pub capacity: u64,
    pub is_deleted_with_instance: bool,
    pub group: Option<String>,
}

impl World {
    /// Checks the boot volume of a creation from this image.
    pub fn boot_volume(&self, body: &Fields<'_>, image: &Value) -> ApiResult<BootVolume> {
        let minimum = image["minimum_provisioned_size"].as_u64().unwrap_or_default();
        let mut boot = BootVolume {
            name: None,
            attachment: None,
            profile: "general-purpose".to_owned(),
            capacity: minimum.max(100),
            is_deleted_with_instance: true,
            group: None,
        };
        let Some(value) = body.value("boot_volume_attachment") else { return Ok(boot) };
        let known = ["delete_volume_on_instance_delete", "name", "volume"];
        let attachment = Fields::new(value, "boot_volume_attachment", &known)?;
        boot.attachment = attachment.name()?.map(str::to_owned);
        boot.is_deleted_with_instance = attachment.boolean("delete_volume_on_instance_delete")?.unwrap_or(true);
        let known = [
            "allowed_use",
            "bandwidth",
            "capacity",
            "encryption_key",
            "iops",
            "name",
            "profile",
            "resource_group",
            "user_tags",
        ];
        let volume = Fields::new(attachment.required("volume")?, "boot_volume_attachment.volume", &known)?;
        boot.name = volume.name()?.map(str::to_owned);
        if boot.name.as_ref().is_some_and(|name| self.volumes.by_name(name).is_some()) {
            return Err(not_unique(&volume));
        }
        boot.profile = volume_profile(&volume)?;
        boot.group = referenced(&self.groups, &volume, "resource_group", "resource group")?;
        if let Some(capacity) = volume.number("capacity")? {
            if !(minimum..=MAX_GB).contains(&capacity) {
                let message = format!("The capacity must be between {minimum} and {MAX_GB} GB.");
                return Err(volume.invalid("capacity", "volume_capacity_invalid", &message));
            }
            boot.capacity = capacity;
        }
        Ok(boot)
    }
}

/// The error for a name that another resource of the kind has.
pub fn not_unique(fields: &Fields<'_>) -> ApiError {
    let name = fields.value("name").and_then(Value::as_str).unwrap_or_default();
    fields.invalid("name", "validation_unique_failed", &format!("Provided Name ({name}) is not unique"))
}

fn volume_profile(volume: &Fields<'_>) -> ApiResult<String> {
    let profile = Fields::new(volume.required("profile")?, &volume.field("profile"), &["name", "href"])?;
    let text = match profile.text("name")? {
        Some(name) => name,
        None => profile.text("href")?.ok_or_else(|| profile.missing("name"))?,
    };
    let name = text.rsplit('/').next().unwrap_or(text);
    match PROFILES.iter().any(|(known, _)| *known == name) {
        true => Ok(name.to_owned()),
        false => {
            let message = "A volume profile with the specified name is not found.";
            Err(profile.invalid("name", "volume_profile_not_found", message))
        }
    }
}

/// The attachment of a boot volume, as the volume shows it.
pub fn volume_side(attachment: &Value, instance: &Value, is_deleted_with_instance: bool) -> Value {
    json!({
        "delete_volume_on_instance_delete": is_deleted_with_instance, "device": attachment["device"],
        "href": attachment["href"], "id": attachment["id"], "name": attachment["name"], "type": "boot",
        "instance": {"crn": instance["crn"], "href": instance["href"], "id": instance["id"], "name": instance["name"]},
    })
}
