//! The operations of the APIs by method and path, with the ids that IBM gives them.

/// Method, path with `*` for an id, and the id of the operation.
type Route = (&'static str, &'static str, &'static str);

const ROUTES: [Route; 67] = [
    ("POST", "identity/token", "token"),
    ("GET", "v2/resource_groups", "list_resource_groups"),
    ("POST", "v2/resource_groups", "create_resource_group"),
    ("GET", "v2/resource_groups/*", "get_resource_group"),
    ("PATCH", "v2/resource_groups/*", "update_resource_group"),
    ("DELETE", "v2/resource_groups/*", "delete_resource_group"),
    ("GET", "v2/resource_instances", "list_resource_instances"),
    ("GET", "v2/resource_instances/*", "get_resource_instance"),
    ("GET", "v1/regions", "list_regions"),
    ("GET", "v1/regions/*", "get_region"),
    ("GET", "v1/regions/*/zones", "list_region_zones"),
    ("GET", "v1/regions/*/zones/*", "get_region_zone"),
    ("GET", "v1/instance/profiles", "list_instance_profiles"),
    ("GET", "v1/instance/profiles/*", "get_instance_profile"),
    ("GET", "v1/operating_systems", "list_operating_systems"),
    ("GET", "v1/operating_systems/*", "get_operating_system"),
    ("GET", "v1/instances", "list_instances"),
    ("POST", "v1/instances", "create_instance"),
    ("GET", "v1/instances/*", "get_instance"),
    ("PATCH", "v1/instances/*", "update_instance"),
    ("DELETE", "v1/instances/*", "delete_instance"),
    ("GET", "v1/instances/*/initialization", "get_instance_initialization"),
    ("POST", "v1/instances/*/actions", "create_instance_action"),
    ("GET", "v1/instances/*/network_interfaces", "list_instance_network_interfaces"),
    ("GET", "v1/instances/*/network_interfaces/*", "get_instance_network_interface"),
    ("GET", "v1/instances/*/network_interfaces/*/floating_ips", "list_instance_network_interface_floating_ips"),
    ("GET", "v1/instances/*/network_interfaces/*/floating_ips/*", "get_instance_network_interface_floating_ip"),
    ("PUT", "v1/instances/*/network_interfaces/*/floating_ips/*", "add_instance_network_interface_floating_ip"),
    ("DELETE", "v1/instances/*/network_interfaces/*/floating_ips/*", "remove_instance_network_interface_floating_ip"),
    ("GET", "v1/instances/*/network_attachments", "list_instance_network_attachments"),
    ("GET", "v1/instances/*/network_attachments/*", "get_instance_network_attachment"),
    ("GET", "v1/instances/*/volume_attachments", "list_instance_volume_attachments"),
    ("GET", "v1/instances/*/volume_attachments/*", "get_instance_volume_attachment"),
    ("PUT", "v1/virtual_network_interfaces/*/floating_ips/*", "add_network_interface_floating_ip"),
    ("DELETE", "v1/virtual_network_interfaces/*/floating_ips/*", "remove_network_interface_floating_ip"),
    ("GET", "v1/floating_ips", "list_floating_ips"),
    ("POST", "v1/floating_ips", "create_floating_ip"),
    ("GET", "v1/floating_ips/*", "get_floating_ip"),
    ("PATCH", "v1/floating_ips/*", "update_floating_ip"),
    ("DELETE", "v1/floating_ips/*", "delete_floating_ip"),
    ("GET", "v1/images", "list_images"),
    ("POST", "v1/images", "create_image"),
    ("GET", "v1/images/*", "get_image"),
    ("PATCH", "v1/images/*", "update_image"),
    ("DELETE", "v1/images/*", "delete_image"),
    ("GET", "v1/volumes", "list_volumes"),
    ("GET", "v1/volumes/*", "get_volume"),
    ("DELETE", "v1/volumes/*", "delete_volume"),
    ("GET", "v1/keys", "list_keys"),
    ("POST", "v1/keys", "create_key"),
    ("GET", "v1/keys/*", "get_key"),
    ("DELETE", "v1/keys/*", "delete_key"),
    ("GET", "v1/vpcs", "list_vpcs"),
    ("GET", "v1/vpcs/*", "get_vpc"),
    ("GET", "v1/subnets", "list_subnets"),
    ("GET", "v1/subnets/*", "get_subnet"),
    ("GET", "v1/security_groups", "list_security_groups"),
    ("GET", "v1/security_groups/*", "get_security_group"),
    // Resources without objects here: clients list them beside instances, so their lists are empty.
    ("GET", "v1/placement_groups", "list_placement_groups"),
    ("GET", "v1/dedicated_hosts", "list_dedicated_hosts"),
    ("GET", "v1/snapshots", "list_snapshots"),
    ("GET", "v1/public_gateways", "list_public_gateways"),
    ("GET", "v1/flow_log_collectors", "list_flow_log_collectors"),
    ("GET", "v1/load_balancers", "list_load_balancers"),
    ("GET", "v1/virtual_network_interfaces", "list_virtual_network_interfaces"),
    ("GET", "v1/reservations", "list_reservations"),
    ("GET", "v1/bare_metal_servers", "list_bare_metal_servers"),
];

/// The operation with this method and path, and the ids in the path.
pub fn find<'a>(method: &str, parts: &[&'a str]) -> Option<(&'static str, Vec<&'a str>)> {
    ROUTES.iter().filter(|(wanted, _, _)| *wanted == method).find_map(|(_, pattern, action)| {
        let mut ids = Vec::new();
        let mut rest = parts.iter();
        for wanted in pattern.split('/') {
            let part = rest.next()?;
            match wanted {
                "*" => ids.push(*part),
                _ if wanted == *part => {}
                _ => return None,
            }
        }
        rest.next().is_none().then_some((*action, ids))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_operation_and_its_ids() {
        let parts = ["v1", "instances", "i", "network_interfaces", "n", "floating_ips", "f"];
        let found = find("PUT", &parts).unwrap();
        assert_eq!(found, ("add_instance_network_interface_floating_ip", vec!["i", "n", "f"]));
        assert_eq!(find("GET", &["v1", "instances"]).unwrap().0, "list_instances");
        assert_eq!((find("GET", &["v1"]), find("PUT", &["v1", "instances"])), (None, None));
        assert_eq!(find("GET", &["v1", "instances", "i", "none"]), None);
    }
}
