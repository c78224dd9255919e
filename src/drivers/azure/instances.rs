//! Machines of Azure as Nodepool sees them.

use super::api::api_types::{Address, Interface, Machine};
use super::context::ProviderContext;
use super::label::PoolNetwork;
use nodepool_driver::instance::{Instance, InstanceState, Inventory};
use nodepool_model::records::ids::ExternalId;

/// The name of the cloud in nodes' records.
const CLOUD: &str = "Azure";

/// Machines and parts that one look at the cloud has found.
#[derive(Debug, Default)]
pub struct Found {
    pub machines: Vec<Machine>,
    pub interfaces: Vec<Interface>,
    pub addresses: Vec<Address>,
}

pub fn inventory(context: &ProviderContext, found: &Found) -> Inventory {
    context.record_machines(&found.machines);
    Inventory::new(found.machines.iter().map(|machine| to_instance(context, machine, found)).collect())
}

fn to_instance(context: &ProviderContext, machine: &Machine, found: &Found) -> Instance {
    let mut instance = Instance {
        cloud: Some(CLOUD.to_owned()),
        // A machine without a zone has an empty one, as in Nodepool 11.
        zone: Some(machine.zones.first().cloned().unwrap_or_default()),
        region: Some(machine.location.clone()),
        metadata: machine.tags.clone(),
        resources: context.resources(&machine.properties.hardware_profile.vm_size),
        state: state_of(&machine.properties.provisioning_state),
        ..Instance::new(ExternalId::text(&machine.name))
    };
    add_addresses(&mut instance, machine, found);
    let public = instance.public_ipv4.clone().or_else(|| instance.public_ipv6.clone());
    instance.interface_ip = public.or_else(|| instance.private_ipv4.clone()).or_else(|| instance.private_ipv6.clone());
    instance
}

/// The machine names its interfaces, and these their addresses, by ids alone.
fn add_addresses(instance: &mut Instance, machine: &Machine, found: &Found) {
    let mut references: Vec<_> = machine.properties.network_profile.network_interfaces.iter().collect();
    references.sort_by_key(|reference| !reference.properties.primary);
    let same = |one: &str, other: &str| one.eq_ignore_ascii_case(other);
    for reference in references {
        let interface = found.interfaces.iter().find(|interface| same(&interface.id, &reference.id));
        for configuration in interface.iter().flat_map(|interface| &interface.properties.ip_configurations) {
            let properties = &configuration.properties;
            let is_ipv6 = properties.version == "IPv6";
            let private = if is_ipv6 { &mut instance.private_ipv6 } else { &mut instance.private_ipv4 };
            if private.is_none() {
                private.clone_from(&properties.private_address);
            }
            let Some(public) = &properties.public_address else { continue };
            let Some(address) = found.addresses.iter().find(|address| same(&address.id, &public.id)) else { continue };
            let is_ipv6 = address.properties.version == "IPv6";
            let own = if is_ipv6 { &mut instance.public_ipv6 } else { &mut instance.public_ipv4 };
            if own.is_none() {
                own.clone_from(&address.properties.ip_address);
            }
        }
    }
}

fn state_of(provisioning: &str) -> InstanceState {
    match provisioning {
        "Succeeded" => InstanceState::Running,
        "Deleting" => InstanceState::Stopping,
        state @ ("Failed" | "Canceled") => InstanceState::Failed(format!("the machine is {state}")),
        _ => InstanceState::Starting,
    }
}

/// Whether an instance has all addresses of its pool.
pub fn is_addressed(instance: &Instance, network: &PoolNetwork) -> bool {
    (!network.ipv4 || instance.private_ipv4.is_some())
        && (!network.ipv6 || instance.private_ipv6.is_some())
        && (!network.public_ipv4 || instance.public_ipv4.is_some())
        && (!network.public_ipv6 || instance.public_ipv6.is_some())
}

/// A running instance as the node of a pool.
pub fn launched(instance: &Instance, network: &PoolNetwork) -> Instance {
    let private = instance.private_ipv4.clone().or_else(|| instance.private_ipv6.clone());
    match private {
        Some(private) if network.use_internal_ip => Instance { interface_ip: Some(private), ..instance.clone() },
        _ => instance.clone(),
    }
}
