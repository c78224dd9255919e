//! Instances and hosts of AWS as Nodepool sees them, and the ids of its nodes' records.

use serde_json::{Map, Value};

use super::api::api_types::{self, Ec2Instance};
use super::context::ProviderContext;
use super::label::AwsLabel;
use nodepool_driver::instance::{Instance, InstanceState, Inventory};
use nodepool_model::records::ids::ExternalId;

/// The name of the cloud in nodes' records.
const CLOUD: &str = "AWS";

/// The parts of a node's id: its instance and, on a host of its own, the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AwsId {
    pub instance: Option<String>,
    pub host: Option<String>,
}

impl AwsId {
    pub fn of(id: &ExternalId) -> Self {
        match id {
            // Older launchers recorded the instance alone.
            ExternalId::Text(instance) => Self { instance: Some(instance.clone()), host: None },
            ExternalId::Object(parts) => {
                let part = |name: &str| parts.get(name).and_then(Value::as_str).map(str::to_owned);
                Self { instance: part("instance"), host: part("host") }
            }
        }
    }

    pub fn to_external(&self) -> ExternalId {
        let parts = [("host", &self.host), ("instance", &self.instance)];
        let given = parts.into_iter().filter_map(|(name, part)| Some((name.to_owned(), part.clone()?.into())));
        ExternalId::Object(given.collect())
    }
}

/// The id under which inventories have an instance.
pub fn instance_key(instance: &str) -> ExternalId {
    AwsId { instance: Some(instance.to_owned()), host: None }.to_external()
}

/// The inventory of a complete listing. AWS shows terminated instances for about an hour.
pub fn inventory(context: &ProviderContext, instances: &[Ec2Instance]) -> Inventory {
    context.record_ended(instances);
    let is_terminated = |instance: &&Ec2Instance| instance.instance_state.name == "terminated";
    let (ended, existing): (Vec<&Ec2Instance>, Vec<&Ec2Instance>) = instances.iter().partition(is_terminated);
    let mut inventory = Inventory::new(existing.into_iter().map(|instance| to_instance(context, instance)).collect());
    for instance in ended.into_iter().map(|instance| to_instance(context, instance)) {
        if let Some(node) = instance.node().filter(|_| instance.belongs_to(&context.provider)) {
            inventory.add_ended(node.into(), instance.external_id.clone());
        }
    }
    inventory
}

fn to_instance(context: &ProviderContext, instance: &Ec2Instance) -> Instance {
    let catalog = context.catalog();
    let resources = match &instance.placement.host_id {
        Some(_) => catalog.host_resources(&instance.instance_type),
        None => catalog.instance_resources(&instance.instance_type, instance.is_spot()),
    };
    let resources = catalog.with_volumes(resources, &instance.instance_id);
    let given = |address: &Option<String>| address.clone().filter(|address| !address.is_empty());
    let (public_ipv4, private_ipv4) = (given(&instance.ip_address), given(&instance.private_ip_address));
    let public_ipv6 = instance.ipv6().map(str::to_owned);
    Instance {
        interface_ip: public_ipv4.clone().or_else(|| public_ipv6.clone()).or_else(|| private_ipv4.clone()),
        public_ipv4,
        public_ipv6,
        private_ipv4,
        cloud: Some(CLOUD.to_owned()),
        zone: instance.placement.availability_zone.clone(),
        region: Some(context.settings.region.clone()),
        metadata: api_types::tags(&instance.tag_set),
        resources,
        state: state_of(instance),
        node_properties: node_properties(false, instance.is_spot()),
        ..Instance::new(instance_key(&instance.instance_id))
    }
}

fn state_of(instance: &Ec2Instance) -> InstanceState {
    match instance.instance_state.name.as_str() {
        "running" => InstanceState::Running,
        "shutting-down" | "terminated" => InstanceState::Stopping,
        // It still exists, and serves no node.
        state @ ("stopping" | "stopped") => InstanceState::Failed(format!("the instance is {state}")),
        _ => InstanceState::Starting,
    }
}

/// A running instance as the node of a label: with its whole id, its address and its volumes.
pub fn launched(context: &ProviderContext, instance: &Instance, id: &AwsId, label: &AwsLabel, image: &str) -> Instance {
    let (catalog, mut instance) = (context.catalog(), instance.clone());
    if label.network.use_internal_ip && instance.private_ipv4.is_some() {
        instance.interface_ip = instance.private_ipv4.clone();
    }
    let is_known = id.instance.as_ref().is_some_and(|own| catalog.volumes.contains_key(own));
    if !is_known {
        instance.resources.add(&catalog.label_volumes(label, Some(image)));
    }
    instance.external_id = id.to_external();
    instance.node_properties.insert("fleet".to_owned(), label.fleet.is_some().into());
    instance
}

/// Properties of a node that consumers may read.
fn node_properties(is_fleet: bool, is_spot: bool) -> Map<String, Value> {
    [("fleet", is_fleet), ("spot", is_spot)].map(|(name, is)| (name.to_owned(), is.into())).into_iter().collect()
}
