//! From an operation of the APIs to its execution.

use crate::api::lists::List;
use crate::methods::places::found;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::world::World;

const SUBNET_FILTERS: [&str; 7] =
    ["resource_group.id", "zone.name", "vpc.id", "vpc.crn", "vpc.name", "routing_table.id", "routing_table.name"];
const GROUP_FILTERS: [&str; 4] = ["resource_group.id", "vpc.id", "vpc.crn", "vpc.name"];

impl World {
    /// Executes an operation of the VPC API.
    pub fn dispatch_vpc(&mut self, call: &Call) -> ApiResult<Response> {
        match call.action {
            "" => Err(ApiError::new("invalid_route")),
            "list_instances" => self.list_instances(call),
            "create_instance" => self.create_instance(call),
            "get_instance" => self.get_instance(call),
            "update_instance" => self.update_instance(call),
            "delete_instance" => self.delete_instance(call),
            "get_instance_initialization" => self.get_instance_initialization(call),
            "create_instance_action" => self.create_instance_action(call),
            "list_instance_network_interfaces" => self.list_network_interfaces(call),
            "get_instance_network_interface" => self.get_network_interface(call),
            "list_instance_network_attachments" => self.list_network_attachments(call),
            "get_instance_network_attachment" => self.get_network_attachment(call),
            "list_instance_volume_attachments" => self.list_volume_attachments(call),
            "get_instance_volume_attachment" => self.get_volume_attachment(call),
            "list_images" => self.list_images(call),
            "create_image" => self.create_image(call),
            "get_image" => self.get_image(call),
            "update_image" => self.update_image(call),
            "delete_image" => self.delete_image(call),
            "list_volumes" => self.list_volumes(call),
            "get_volume" => found(call, &self.volumes, "volume"),
            "delete_volume" => self.delete_volume(call),
            "create_key" => self.create_key(call),
            "get_key" => found(call, &self.keys, "key"),
            "delete_key" => self.delete_key(call),
            _ => self.dispatch_floating_ips(call),
        }
    }

    fn dispatch_floating_ips(&mut self, call: &Call) -> ApiResult<Response> {
        match call.action {
            "list_floating_ips" => self.list_floating_ips(call),
            "create_floating_ip" => self.create_floating_ip(call),
            "get_floating_ip" => self.get_floating_ip(call),
            "update_floating_ip" => self.update_floating_ip(call),
            "delete_floating_ip" => self.delete_floating_ip(call),
            "list_instance_network_interface_floating_ips" => self.list_interface_floating_ips(call),
            "get_instance_network_interface_floating_ip" => self.get_interface_floating_ip(call),
            "add_instance_network_interface_floating_ip" => self.add_interface_floating_ip(call),
            "remove_instance_network_interface_floating_ip" => self.remove_interface_floating_ip(call),
            "add_network_interface_floating_ip" => self.add_virtual_floating_ip(call),
            "remove_network_interface_floating_ip" => self.remove_virtual_floating_ip(call),
            _ => self.dispatch_places(call),
        }
    }

    fn dispatch_places(&self, call: &Call) -> ApiResult<Response> {
        let list = |key, path| List { key, path };
        match call.action {
            "list_regions" => Ok(self.list_regions()),
            "get_region" => self.get_region(call),
            "list_region_zones" => self.list_zones(call),
            "get_region_zone" => self.get_zone(call),
            "list_instance_profiles" => {
                self.list_table(call, &list("profiles", "instance/profiles"), &[], &self.profiles)
            }
            "get_instance_profile" => found(call, &self.profiles, "instance profile"),
            "list_operating_systems" => {
                let list = list("operating_systems", "operating_systems");
                self.list_table(call, &list, &[], &self.operating_systems)
            }
            "get_operating_system" => found(call, &self.operating_systems, "operating system"),
            "list_keys" => self.list_table(call, &list("keys", "keys"), &["resource_group.id"], &self.keys),
            "list_vpcs" => {
                self.list_table(call, &list("vpcs", "vpcs"), &["resource_group.id", "classic_access"], &self.vpcs)
            }
            "get_vpc" => found(call, &self.vpcs, "VPC"),
            "list_subnets" => self.list_table(call, &list("subnets", "subnets"), &SUBNET_FILTERS, &self.subnets),
            "get_subnet" => found(call, &self.subnets, "subnet"),
            "list_security_groups" => {
                let list = list("security_groups", "security_groups");
                self.list_table(call, &list, &GROUP_FILTERS, &self.security_groups)
            }
            "get_security_group" => found(call, &self.security_groups, "security group"),
            other => match other.strip_prefix("list_") {
                Some(path) => self.empty_list(call, path),
                None => unreachable!("the operation {other} has no implementation"),
            },
        }
    }

    /// Executes an operation of the resource manager or the resource controller.
    pub fn dispatch_resources(&mut self, call: &Call) -> ApiResult<Response> {
        match call.action {
            "list_resource_groups" => Ok(self.list_resource_groups(call)),
            "create_resource_group" => self.create_resource_group(call),
            "get_resource_group" => self.get_resource_group(call),
            "update_resource_group" => self.update_resource_group(call),
            "delete_resource_group" => self.delete_resource_group(call),
            "list_resource_instances" => Ok(self.list_resource_instances(call)),
            "get_resource_instance" => self.get_resource_instance(call),
            _ => Err(ApiError::new("invalid_route")),
        }
    }
}
