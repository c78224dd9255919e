//! The body of an insert, checked, and the JSON of the instance that it describes.

use serde_json::{Value, json};

use crate::methods::details;
use crate::methods::disks::Disks;
use crate::methods::fields::Fields;
use crate::methods::interfaces::Interfaces;
use crate::methods::known_fields;
use crate::methods::scheduling::{Scheduling, scheduling};
use crate::server::response::{ApiError, ApiResult};
use crate::state::machine_types::MachineType;
use crate::state::places::{BASE, reference};
use crate::state::project::Compute;

/// A valid insert.
pub struct InstanceSpec {
    pub name: String,
    pub size: MachineType,
    pub disks: Disks,
    pub interfaces: Interfaces,
    pub scheduling: Scheduling,
    /// Provider and node of the metadata.
    pub provider: Option<String>,
    pub node: Option<String>,
    items: Vec<Value>,
    tags: Vec<String>,
    labels: Option<Value>,
    accounts: Option<Value>,
    description: Option<String>,
}

/// Whether this is a name of a resource (RFC 1035).
pub fn is_name(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && !text.ends_with('-')
        && text.chars().all(|sign| sign.is_ascii_lowercase() || sign.is_ascii_digit() || sign == '-')
}

impl Compute<'_> {
    /// Checks the body of an insert.
    pub fn spec(&self, body: &Value, zone: &str) -> ApiResult<InstanceSpec> {
        let resource = Fields::new(body, "resource", known_fields::INSTANCE)?;
        let name = resource.text("name")?.unwrap_or_default();
        if !is_name(name) {
            let why = "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'";
            return Err(resource.invalid("name", why));
        }
        let size = self.size(&resource, zone)?;
        let items = details::metadata_items(&resource)?;
        let item = |key: &str| items.iter().find(|(name, _)| *name == key).map(|(_, value)| (*value).to_owned());
        Ok(InstanceSpec {
            size,
            disks: self.disks(&resource, zone, name)?,
            interfaces: self.interfaces(&resource, zone)?,
            scheduling: scheduling(&resource)?,
            provider: item("nodepool_provider_name"),
            node: item("nodepool_node_id"),
            items: items.iter().map(|(key, value)| json!({"key": key, "value": value})).collect(),
            tags: details::tags(&resource)?.into_iter().map(str::to_owned).collect(),
            labels: details::labels(&resource)?.cloned(),
            accounts: details::service_accounts(&resource, &self.project.default_account())?,
            description: resource.text("description")?.map(str::to_owned),
            name: name.to_owned(),
        })
    }

    fn size(&self, resource: &Fields<'_>, zone: &str) -> ApiResult<MachineType> {
        let (project, path) = reference(resource.text("machineType")?.unwrap_or_default());
        match path[..] {
            ["zones", other, "machineTypes", name]
                if other == zone && project.is_none_or(|project| project == self.project.name) =>
            {
                let text = format!("Machine type with name '{name}' does not exist in zone '{zone}'.");
                MachineType::find(zone, name).ok_or_else(|| resource.invalid("machineType", &text))
            }
            ["zones", other, "machineTypes", _] => {
                let text = format!("Machine type is specified in zone '{other}', the instance in zone '{zone}'.");
                Err(resource.invalid("machineType", &text))
            }
            _ => Err(resource.invalid("machineType", "The URL is malformed.")),
        }
    }

    /// The JSON of an instance with this id, which is PROVISIONING.
    pub fn instance_json(&mut self, spec: &InstanceSpec, zone: &str, id: u64) -> Value {
        let base = format!("{BASE}projects/{}", self.project.name);
        let zone_link = format!("{base}/zones/{zone}");
        let (name, size) = (&spec.name, &spec.size);
        let (fingerprint, metadata) = (self.world.fingerprint(), self.world.fingerprint());
        let mut instance = json!({
            "kind": "compute#instance", "id": id.to_string(), "creationTimestamp": self.world.timestamp(), "name": name,
            "tags": {"fingerprint": "42WmSpB8rSM="}, "machineType": format!("{zone_link}/machineTypes/{}", size.name),
            "status": "PROVISIONING", "zone": zone_link, "canIpForward": false,
            "networkInterfaces": spec.interfaces.json, "disks": spec.disks.json,
            "metadata": {"kind": "compute#metadata", "fingerprint": metadata},
            "selfLink": format!("{zone_link}/instances/{name}"), "scheduling": spec.scheduling.json,
            "cpuPlatform": size.platform(), "labelFingerprint": "42WmSpB8rSM=", "startRestricted": false,
            "deletionProtection": false, "fingerprint": fingerprint,
            "shieldedInstanceConfig": {
                "enableSecureBoot": false, "enableVtpm": true, "enableIntegrityMonitoring": true},
        });
        instance["networkInterfaces"][0]["fingerprint"] = json!(self.world.fingerprint());
        if !spec.items.is_empty() {
            instance["metadata"]["items"] = json!(spec.items);
        }
        if !spec.tags.is_empty() {
            instance["tags"] = json!({"items": spec.tags, "fingerprint": self.world.fingerprint()});
        }
        if let Some(labels) = &spec.labels {
            instance["labels"] = labels.clone();
            instance["labelFingerprint"] = json!(self.world.fingerprint());
        }
        if let Some(accounts) = &spec.accounts {
            instance["serviceAccounts"] = accounts.clone();
        }
        if let Some(description) = &spec.description {
            instance["description"] = json!(description);
        }
        instance
    }
}

/// The body of a call as JSON.
pub fn parsed(body: &[u8]) -> ApiResult<Value> {
    serde_json::from_slice(body).map_err(|_| ApiError::new("parseError", "Parse Error"))
}
