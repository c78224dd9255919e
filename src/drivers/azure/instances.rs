//! Machines of Azure as Nodepool sees them.

use super::api::api_types::{Address, Interface, Machine, Tags};
use super::context::{ProviderContext, WaitKind};
use super::label::PoolNetwork;
use super::leaks;
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
        metadata: metadata(context, machine),
        resources: context.resources(&machine.properties.hardware_profile.vm_size),
        state: state_of(&machine.properties.provisioning_state),
        ..Instance::new(ExternalId::text(&machine.name))
    };
    let is_addressed = add_addresses(&mut instance, machine, found);
    if instance.state == InstanceState::Running
        && !is_addressed
        && context.is_waited_for(&machine.name, WaitKind::Addresses)
    {
        instance.state = InstanceState::Starting;
    }
    let public = instance.public_ipv4.clone().or_else(|| instance.public_ipv6.clone());
    instance.interface_ip = public.or_else(|| instance.private_ipv4.clone()).or_else(|| instance.private_ipv6.clone());
    instance
}

/// The tags of a machine. One that has our tags and not the name of its node, or that has another owner, is not ours.
fn metadata(context: &ProviderContext, machine: &Machine) -> Tags {
    let node = machine.node(context.provider.as_str());
    let is_other =
        node.is_some() && (leaks::node_of_machine(&machine.name) != node || context.is_foreign(&machine.name));
    if is_other { Tags::new() } else { machine.tags.clone() }
}

/// The machine names its interfaces, and these their addresses, by ids alone. Returns whether all of them have their
/// addresses.
fn add_addresses(instance: &mut Instance, machine: &Machine, found: &Found) -> bool {
    let mut is_complete = !machine.properties.network_profile.network_interfaces.is_empty();
    let mut references: Vec<_> = machine.properties.network_profile.network_interfaces.iter().collect();
    references.sort_by_key(|reference| !reference.properties.primary);
    let same = |one: &str, other: &str| one.eq_ignore_ascii_case(other);
    for reference in references {
        let interface = found.interfaces.iter().find(|interface| same(&interface.id, &reference.id));
        is_complete &= interface.is_some_and(|interface| !interface.properties.ip_configurations.is_empty());
        for configuration in interface.iter().flat_map(|interface| &interface.properties.ip_configurations) {
            let properties = &configuration.properties;
            let is_ipv6 = properties.version == "IPv6";
            is_complete &= properties.private_address.is_some();
            let private = if is_ipv6 { &mut instance.private_ipv6 } else { &mut instance.private_ipv4 };
            if private.is_none() {
                private.clone_from(&properties.private_address);
            }
            let Some(public) = &properties.public_address else { continue };
            let address = found.addresses.iter().find(|address| same(&address.id, &public.id));
            is_complete &= address.is_some_and(|address| address.properties.ip_address.is_some());
            let Some(address) = address else { continue };
            let is_ipv6 = address.properties.version == "IPv6";
            let own = if is_ipv6 { &mut instance.public_ipv6 } else { &mut instance.public_ipv4 };
            if own.is_none() {
                own.clone_from(&address.properties.ip_address);
            }
        }
    }
    is_complete
}

fn state_of(provisioning: &str) -> InstanceState {
    match provisioning {
        "Succeeded" => InstanceState::Running,
        "Deleting" => InstanceState::Stopping,
        state @ ("Failed" | "Canceled") => InstanceState::Failed(format!("the machine is {state}")),
        _ => InstanceState::Starting,
    }
}

/// A running instance as the node of a pool.
pub fn launched(instance: &Instance, network: &PoolNetwork) -> Instance {
    let private = instance.private_ipv4.clone().or_else(|| instance.private_ipv6.clone());
    match private {
        Some(private) if network.use_internal_ip => Instance { interface_ip: Some(private), ..instance.clone() },
        _ => instance.clone(),
    }
}
