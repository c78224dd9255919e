//! The JSON of a new instance, with its interface and its boot volume.

use serde_json::{Value, json};

use crate::methods::instance_spec::InstanceSpec;
use crate::state::ids::reference;
use crate::state::world::World;

/// Ids of the parts of an instance.
pub struct Parts {
    pub interface: String,
    pub virtual_interface: Option<String>,
    pub volume: String,
    pub address: String,
}

impl World {
    /// The JSON of a pending instance.
    pub fn instance_json(&mut self, spec: &InstanceSpec, id: &str, name: &str, parts: &Parts) -> Value {
        let path = format!("instances/{id}");
        let image = self.images.get(&spec.image).expect("the image of an instance exists").value();
        let vpc = self.vpcs.get(&spec.vpc).expect("the VPC of an instance exists").value();
        let (image, vpc) = (reference(image), reference(vpc));
        let boot = self.boot_attachment(spec, &path, parts);
        let (interface, attachment) = self.interface_json(spec, &path, parts);
        let profile = &spec.profile;
        let bandwidth = 1000 * profile.vcpus.min(32);
        let mut json = json!({
            "availability": {"class": "standard"},
            "availability_policy": {"host_failure": "restart", "preemption": "stop"}, "bandwidth": bandwidth,
            "boot_volume_attachment": boot, "cluster_network_attachments": [],
            "confidential_compute_mode": "disabled", "created_at": self.timestamp(),
            "crn": self.crn(&spec.zone, "instance", id), "disks": [], "enable_secure_boot": false,
            "health_reasons": [], "health_state": "ok", "href": self.href(&path), "id": id, "image": image,
            "lifecycle_reasons": [], "lifecycle_state": "pending", "memory": profile.memory_gib,
            "metadata_service": {"enabled": false, "protocol": "http", "response_hop_limit": 1}, "name": name,
            "network_attachments": [], "network_interfaces": [interface], "primary_network_interface": interface,
            "profile": {"href": self.href(&format!("instance/profiles/{}", profile.name)), "name": profile.name,
                "resource_type": "instance_profile"},
            "reservation_affinity": {"policy": "disabled", "pool": []},
            "resource_group": self.group_reference(&spec.group), "resource_type": "instance",
            "software_attachments": [], "startable": true, "status": "pending", "status_reasons": [],
            "threads_per_core": 2, "total_network_bandwidth": bandwidth - bandwidth / 4,
            "total_volume_bandwidth": bandwidth / 4,
            "vcpu": {"architecture": "amd64", "count": profile.vcpus, "manufacturer": "intel", "percentage": 100},
            "volume_attachments": [boot], "volume_bandwidth_qos_mode": "weighted", "vpc": vpc,
            "zone": self.zone_reference(&spec.zone),
        });
        if let Some(attachment) = attachment {
            json["network_attachments"] = json!([attachment]);
            json["primary_network_attachment"] = attachment;
        }
        json
    }

    fn boot_attachment(&mut self, spec: &InstanceSpec, path: &str, parts: &Parts) -> Value {
        let (id, device) = (self.zonal_id(&spec.zone), self.plain_id());
        let name = spec.boot_volume.attachment.clone().unwrap_or_else(|| self.new_name());
        let volume = self.volumes.get(&parts.volume).expect("the boot volume exists").value();
        json!({
            "device": {"id": device}, "href": self.href(&format!("{path}/volume_attachments/{id}")), "id": id,
            "name": name, "volume": reference(volume),
        })
    }

    /// The network interface, and the attachment if the instance has one, which has the same id.
    fn interface_json(&mut self, spec: &InstanceSpec, path: &str, parts: &Parts) -> (Value, Option<Value>) {
        let (ip, ip_name) = (self.zonal_id(&spec.zone), self.new_name());
        let name = spec.interface.name.clone().unwrap_or_else(|| self.new_name());
        let virtual_name = spec.interface.virtual_name.clone().unwrap_or_else(|| self.new_name());
        let subnet = self.subnets.get(&spec.interface.subnet).expect("the subnet of an instance exists");
        let (subnet, id) = (reference(subnet.value()), &parts.interface);
        let primary_ip = json!({
            "address": parts.address,
            "href": self.href(&format!("subnets/{}/reserved_ips/{ip}", spec.interface.subnet)), "id": ip,
            "name": ip_name, "resource_type": "subnet_reserved_ip",
        });
        let interface = json!({
            "href": self.href(&format!("{path}/network_interfaces/{id}")), "id": id, "name": name,
            "primary_ip": primary_ip, "resource_type": "network_interface", "subnet": subnet,
        });
        let attachment = parts.virtual_interface.as_ref().map(|virtual_id| {
            json!({
                "href": self.href(&format!("{path}/network_attachments/{id}")), "id": id, "name": name,
                "primary_ip": primary_ip, "resource_type": "instance_network_attachment", "subnet": subnet,
                "virtual_network_interface": {
                    "crn": self.crn(&spec.zone, "virtual-network-interface", virtual_id),
                    "href": self.href(&format!("virtual_network_interfaces/{virtual_id}")), "id": virtual_id,
                    "name": virtual_name, "resource_type": "virtual_network_interface"},
            })
        });
        (interface, attachment)
    }
}
