//! Networks of a cloud in clouds.yaml: the list `networks`, and the two keys that it replaced.

use crate::error::CloudsError;
use crate::merge::{Map, Node};
use crate::settings::NetworkRole;

pub fn networks(entry: &Map) -> Result<Vec<NetworkRole>, CloudsError> {
    let mut networks = Vec::new();
    for node in entry.list("networks")? {
        networks.push((network_from_node(node)?, node));
    }
    for key in ["external_network", "internal_network"] {
        let Some(node) = entry.given(key) else { continue };
        if entry.get("networks").is_some() {
            let help = format!("drop {key} and describe the network in `networks`");
            return Err(node.origin.invalid(format!("{key} and networks are both given"), help));
        }
        networks.push((network_from_legacy_key(key, node)?, node));
    }
    check_at_most_one(&networks, "nat_destination", |network| network.nat_destination)?;
    check_at_most_one(&networks, "default_interface", |network| network.default_interface)?;
    Ok(networks.into_iter().map(|(network, _)| network).collect())
}

fn network_from_node(node: &Node) -> Result<NetworkRole, CloudsError> {
    let map = node.map("a network")?;
    let name = map.text("name")?;
    let name = name
        .ok_or_else(|| node.origin.invalid("a network has no name", "add a `name`: the name or id of the network"))?;
    let routes_externally = map.flag_or("routes_externally", false)?;
    Ok(NetworkRole {
        name,
        routes_externally,
        routes_ipv4_externally: map.flag_or("routes_ipv4_externally", routes_externally)?,
        routes_ipv6_externally: map.flag_or("routes_ipv6_externally", routes_externally)?,
        nat_source: map.flag_or("nat_source", false)?,
        nat_destination: map.flag_or("nat_destination", false)?,
        default_interface: map.flag_or("default_interface", false)?,
    })
}

fn network_from_legacy_key(key: &str, node: &Node) -> Result<NetworkRole, CloudsError> {
    let name = node.scalar(key)?.filter(|name| !name.is_empty());
    let external = key == "external_network";
    Ok(NetworkRole {
        name: name.ok_or_else(|| node.origin.invalid(format!("{key} is empty"), "name a network, or drop the line"))?,
        routes_externally: external,
        routes_ipv4_externally: external,
        routes_ipv6_externally: external,
        nat_source: false,
        nat_destination: !external,
        default_interface: external,
    })
}

fn check_at_most_one(
    networks: &[(NetworkRole, &Node)],
    key: &str,
    is_set: impl Fn(&NetworkRole) -> bool,
) -> Result<(), CloudsError> {
    let mut flagged = networks.iter().filter(|(network, _)| is_set(network));
    let (Some((first, _)), Some((second, node))) = (flagged.next(), flagged.next()) else { return Ok(()) };
    let message = format!("{key} is set for two networks, {} and {}", first.name, second.name);
    Err(node.origin.invalid(message, "only one network can have it"))
}
