//! The body of an instance's creation, checked.

use serde_json::Value;

use crate::methods::boot_volume::{BootVolume, not_unique};
use crate::methods::fields::Fields;
use crate::methods::references::{item_id, referenced, referenced_name};
use crate::server::response::{ApiError, ApiResult};
use crate::state::ids::reference;
use crate::state::profiles::Profile;
use crate::state::world::World;

/// A valid creation.
pub struct InstanceSpec {
    pub name: Option<String>,
    pub zone: String,
    pub profile: Profile,
    /// Ids.
    pub image: String,
    pub vpc: String,
    pub group: String,
    pub interface: InterfaceSpec,
    pub keys: Vec<Value>,
    pub boot_volume: BootVolume,
}

/// The primary network interface or attachment of a creation.
pub struct InterfaceSpec {
    pub name: Option<String>,
    pub subnet: String,
    /// It is an attachment of a virtual network interface, which may have a name.
    pub is_attachment: bool,
    pub virtual_name: Option<String>,
    /// Ids; without any, the interface has the default group of the VPC.
    pub security_groups: Vec<String>,
}

/// Fields of a creation that are accepted; those after `zone` have no effect.
const KNOWN: [&str; 26] = [
    "boot_volume_attachment",
    "image",
    "keys",
    "name",
    "primary_network_attachment",
    "primary_network_interface",
    "profile",
    "resource_group",
    "user_data",
    "vpc",
    "zone",
    "availability",
    "availability_policy",
    "cluster_network_attachments",
    "confidential_compute_mode",
    "default_trusted_profile",
    "enable_secure_boot",
    "metadata_service",
    "network_attachments",
    "network_interfaces",
    "placement_target",
    "reservation_affinity",
    "threads_per_core",
    "total_volume_bandwidth",
    "volume_attachments",
    "volume_bandwidth_qos_mode",
];
/// Characters of user data.
const MAX_USER_DATA: usize = 64 << 10;

impl World {
    /// Checks the body of a creation.
    pub fn instance_spec(&self, body: &Value) -> ApiResult<InstanceSpec> {
        let fields = Fields::new(body, "", &KNOWN)?;
        let name = fields.name()?.map(str::to_owned);
        if name.as_ref().is_some_and(|name| self.instances.by_name(name).is_some()) {
            return Err(not_unique(&fields));
        }
        let zone = self.referenced_zone(&fields, "zone")?.ok_or_else(|| fields.missing("zone"))?;
        let image = referenced(&self.images, &fields, "image", "image")?.ok_or_else(|| fields.missing("image"))?;
        let image_json = self.images.get(&image).expect("the image was found").value();
        if !matches!(image_json["status"].as_str(), Some("available" | "deprecated")) {
            let status = image_json["status"].as_str().unwrap_or_default();
            let message = format!("The image {image} cannot be used, because its status is {status}.");
            return Err(ApiError::field("bad_field", "image.id", &image, message));
        }
        let profile = self.profile(&fields)?;
        let interface = interface(&fields)?;
        let vpc = self.checked_network(&fields, &interface, &zone)?;
        if fields.text("user_data")?.is_some_and(|data| data.len() > MAX_USER_DATA) {
            return Err(fields.invalid("user_data", "validation_max_value", "The user data is too long."));
        }
        Ok(InstanceSpec {
            name,
            zone,
            profile,
            boot_volume: self.boot_volume(&fields, image_json)?,
            image,
            vpc,
            group: self.referenced_group(&fields)?,
            interface,
            keys: self.key_references(&fields)?,
        })
    }

    fn profile(&self, fields: &Fields<'_>) -> ApiResult<Profile> {
        // IBM selects a profile if a creation names none.
        let name = referenced_name(&self.profiles, fields, "profile", "instance profile")?;
        let name = name.unwrap_or_else(|| "bx2-2x8".to_owned());
        Ok(self.profiles.get(&name).expect("the profile was found").details.clone())
    }

    /// Checks that the subnet is in the zone and in the VPC, and returns the id of the VPC.
    fn checked_network(&self, fields: &Fields<'_>, interface: &InterfaceSpec, zone: &str) -> ApiResult<String> {
        let subnet_field = match interface.is_attachment {
            true => "primary_network_attachment.virtual_network_interface.subnet.id",
            false => "primary_network_interface.subnet.id",
        };
        let Some(subnet) = self.subnets.get(&interface.subnet) else {
            let message = format!("The subnet {} cannot be found.", interface.subnet);
            return Err(ApiError::field("bad_field", subnet_field, &interface.subnet, message));
        };
        if subnet.details.zone != zone {
            let message = format!("The subnet is in zone {}, the instance in zone {zone}.", subnet.details.zone);
            return Err(ApiError::field("invalid_zone", subnet_field, &interface.subnet, message));
        }
        if let Some(id) = interface.security_groups.iter().find(|id| self.security_groups.get(id).is_none()) {
            let message = format!("The security group {id} cannot be found.");
            return Err(ApiError::field("bad_field", "security_groups", id, message));
        }
        let vpc = subnet.value()["vpc"]["id"].as_str().unwrap_or_default().to_owned();
        match referenced(&self.vpcs, fields, "vpc", "VPC")? {
            Some(wanted) if wanted != vpc => {
                let message = "The subnet is not in the VPC of the instance.";
                Err(ApiError::field("bad_field", subnet_field, &interface.subnet, message))
            }
            _ => Ok(vpc),
        }
    }

    fn key_references(&self, fields: &Fields<'_>) -> ApiResult<Vec<Value>> {
        let mut keys = Vec::new();
        for (index, item) in fields.list("keys")?.iter().enumerate() {
            let path = format!("keys[{index}]");
            let id = item_id(item, &path)?;
            let is_wanted = |key: &Value| key["id"] == id.as_str() || key["fingerprint"] == id.as_str();
            let Some(key) = self.keys.iter().find(|key| is_wanted(key.value())) else {
                let message = format!("The key {id} cannot be found.");
                return Err(ApiError::field("bad_field", &format!("{path}.id"), &id, message));
            };
            keys.push(reference(key.value()));
        }
        Ok(keys)
    }
}

fn security_groups(interface: &Fields<'_>) -> ApiResult<Vec<String>> {
    let path = interface.field("security_groups");
    interface.list("security_groups")?.iter().map(|item| item_id(item, &path)).collect()
}

fn interface(fields: &Fields<'_>) -> ApiResult<InterfaceSpec> {
    let (old, new) = ("primary_network_interface", "primary_network_attachment");
    match (fields.value(old), fields.value(new)) {
        (Some(_), Some(_)) => {
            Err(fields.invalid(new, "validation_only_one", "The value must match one of the subschemas."))
        }
        (None, None) => Err(fields.missing(old)),
        (Some(value), None) => {
            let known = ["allow_ip_spoofing", "name", "port_speed", "primary_ip", "security_groups", "subnet"];
            let interface = Fields::new(value, old, &known)?;
            Ok(InterfaceSpec {
                name: interface.name()?.map(str::to_owned),
                subnet: item_id(interface.required("subnet")?, &interface.field("subnet"))?,
                is_attachment: false,
                virtual_name: None,
                security_groups: security_groups(&interface)?,
            })
        }
        (None, Some(value)) => {
            let attachment = Fields::new(value, new, &["name", "virtual_network_interface"])?;
            let known = [
                "allow_ip_spoofing",
                "auto_delete",
                "enable_infrastructure_nat",
                "ips",
                "name",
                "primary_ip",
                "protocol_state_filtering_mode",
                "resource_group",
                "security_groups",
                "subnet",
            ];
            let path = attachment.field("virtual_network_interface");
            let interface = Fields::new(attachment.required("virtual_network_interface")?, &path, &known)?;
            Ok(InterfaceSpec {
                name: attachment.name()?.map(str::to_owned),
                subnet: item_id(interface.required("subnet")?, &interface.field("subnet"))?,
                is_attachment: true,
                virtual_name: interface.name()?.map(str::to_owned),
                security_groups: security_groups(&interface)?,
            })
        }
    }
}
