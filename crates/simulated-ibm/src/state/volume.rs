//! Volumes: the boot volumes of instances, and those that stay behind.

use serde_json::{Value, json};

use crate::state::ids::reference;
use crate::state::world::World;

/// A volume, with the instance that it is attached to.
pub struct Volume {
    pub instance: Option<String>,
}

/// A volume to be added.
pub struct NewVolume<'a> {
    pub name: &'a str,
    pub profile: &'a str,
    pub capacity: u64,
    pub zone: &'a str,
    pub group: &'a str,
    /// The JSON of the image that it is a copy of.
    pub image: Option<&'a Value>,
}

/// Volume profiles with their IOPS per GB.
pub const PROFILES: [(&str, u64); 5] =
    [("general-purpose", 3), ("5iops-tier", 5), ("10iops-tier", 10), ("custom", 10), ("sdp", 3)];

impl World {
    /// Adds a volume that is attached to nothing.
    pub fn add_volume(&mut self, volume: &NewVolume<'_>) -> String {
        let NewVolume { name, profile, capacity, zone, group, image } = volume;
        let (id, now) = (self.regional_id(), self.timestamp());
        let iops_per_gb = PROFILES.iter().find(|(known, _)| known == profile).map_or(3, |(_, iops)| *iops);
        let mut json = json!({
            "active": false, "adjustable_capacity_states": ["attached"], "adjustable_iops_states": [],
            "attachment_state": "unattached", "bandwidth": 393, "busy": false, "capacity": capacity,
            "created_at": now, "crn": self.crn(zone, "volume", &id), "encryption": "provider_managed",
            "health_reasons": [], "health_state": "ok", "href": self.href(&format!("volumes/{id}")), "id": id,
            "iops": (capacity * iops_per_gb).max(3000), "name": name,
            "profile": {"href": self.href(&format!("volume/profiles/{profile}")), "name": profile},
            "resource_group": self.group_reference(group), "resource_type": "volume", "software_attachments": [],
            "status": "available", "status_reasons": [], "storage_generation": 1, "user_tags": [],
            "volume_attachments": [], "zone": self.zone_reference(zone),
        });
        if let Some(image) = image {
            json["source_image"] = reference(image);
            json["operating_system"] = image["operating_system"].clone();
        }
        self.volumes.insert(&id, json, Volume { instance: None });
        self.record("volumes", &id, name, zone);
        id
    }

    /// Shows the boot volume of an instance as attached. `attachment` is the JSON of the attachment.
    pub fn attach_volume(&mut self, id: &str, instance: &str, attachment: Value) {
        if let Some(volume) = self.volumes.get_mut(id) {
            volume.details.instance = Some(instance.to_owned());
            let value = volume.value_mut();
            value["attachment_state"] = json!("attached");
            value["active"] = json!(true);
            value["volume_attachments"] = json!([attachment]);
            self.history.ready(id, self.now);
        }
    }

    pub fn detach_volume(&mut self, id: &str) {
        if let Some(volume) = self.volumes.get_mut(id) {
            volume.details.instance = None;
            let value = volume.value_mut();
            value["attachment_state"] = json!("unattached");
            value["active"] = json!(false);
            value["volume_attachments"] = json!([]);
        }
    }

    /// Removes a volume at once.
    pub fn remove_volume(&mut self, id: &str, reason: &str) {
        if self.volumes.remove(id).is_some() {
            self.history.ended(id, reason, self.now);
            self.stats.count_deleted("volumes");
        }
    }
}
