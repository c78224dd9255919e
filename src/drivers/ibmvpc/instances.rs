//! Instances of IBM Cloud as Nodepool sees them.

use std::collections::{BTreeMap, HashMap};

use super::api::api_types::{FloatingIp, VpcInstance};
use super::api::errors;
use super::config::IbmLabel;
use super::context::{Catalog, MIB_PER_GIB, ProviderContext};
use super::names;
use nodepool_driver::instance::{Instance, InstanceState, Inventory};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::resources::Resources;

/// The name of the cloud in nodes' records.
const CLOUD: &str = "IBM";

/// The inventory of a complete listing.
pub fn inventory(context: &ProviderContext, instances: &[VpcInstance], floating_ips: &[FloatingIp]) -> Inventory {
    context.record_seen(instances, floating_ips);
    let targets = floating_ips.iter().filter_map(|ip| Some((ip.target.as_ref()?.id.as_str(), ip)));
    let by_target: HashMap<&str, &FloatingIp> = targets.collect();
    let catalog = context.catalog();
    let all = instances.iter().map(|instance| to_instance(context, &catalog, instance, &by_target));
    Inventory::new(all.collect())
}

fn to_instance(
    context: &ProviderContext,
    catalog: &Catalog,
    instance: &VpcInstance,
    by_target: &HashMap<&str, &FloatingIp>,
) -> Instance {
    let attachment = instance.primary_network_attachment.as_ref();
    let targets =
        [Some(&instance.primary_network_interface.id), attachment.map(|own| &own.virtual_network_interface.id)];
    let floating_ip = targets.into_iter().flatten().find_map(|target| by_target.get(target.as_str()));
    let public_ipv4 = floating_ip.map(|ip| ip.address.clone()).filter(|address| !address.is_empty());
    let private_ipv4 = instance.private_ipv4();
    let group = catalog.group_name(&instance.resource_group).unwrap_or_default();
    Instance {
        interface_ip: public_ipv4.clone().or_else(|| private_ipv4.clone()),
        public_ipv4,
        private_ipv4,
        cloud: Some(CLOUD.to_owned()),
        zone: Some(instance.zone.name.clone()),
        region: Some(context.settings.region.clone()),
        metadata: match context.is_foreign(&instance.id) {
            true => BTreeMap::new(),
            false => names::metadata(&group, &instance.name),
        },
        resources: resources(catalog, instance),
        state: state_of(instance),
        ..Instance::new(ExternalId::text(&instance.name))
    }
}

/// Resources of an instance. Those of its profile count, as for a label; the instance itself shows those of profiles
/// that are unknown or have a range of sizes.
fn resources(catalog: &Catalog, instance: &VpcInstance) -> Resources {
    let profile = catalog.profiles.as_ref().and_then(|profiles| profiles.get(&instance.profile.name));
    match profile {
        Some(profile) if profile.vcpu_count.value > 0.0 => catalog.profile_resources(profile),
        _ => {
            let mut resources = Resources::none().with("instances", 1.0);
            resources.set("cores", instance.vcpu.count);
            resources.set("ram", instance.memory * MIB_PER_GIB);
            resources
        }
    }
}

fn state_of(instance: &VpcInstance) -> InstanceState {
    match instance.status.as_str() {
        "running" => InstanceState::Running,
        "deleting" => InstanceState::Stopping,
        // It still exists, and serves no node.
        status @ ("failed" | "stopping" | "stopped") => {
            InstanceState::Failed(errors::ended(status, &instance.status_reasons).to_string())
        }
        _ => InstanceState::Starting,
    }
}

/// A running instance as the node of a label.
pub fn launched(instance: &Instance, label: &IbmLabel) -> Instance {
    let mut instance = instance.clone();
    if label.use_internal_ip && instance.private_ipv4.is_some() {
        instance.interface_ip = instance.private_ipv4.clone();
    }
    instance
}
