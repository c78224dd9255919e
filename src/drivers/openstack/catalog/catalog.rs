//! Catalog of a cloud as of the last refresh: flavors, images, networks, zones.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;

use crate::openstack::api_types::{Flavor, Network, Router, SecurityGroup, Subnet, Volume};
use crate::openstack::config::{ImageRef, ServerSpec};
use crate::openstack::http::Services;
use nodepool_driver::facts::Unavailable;
use nodepool_model::records::ids::{LabelName, PoolName};
use nodepool_model::records::resources::{FLOATING_IPS, PORTS, Resources};
use openstack_clouds::{CloudSettings, FloatingIps, NetworkRole};

#[derive(Clone, Debug, Default)]
pub struct CloudCatalog {
    pub services: Services,
    /// Sorted by ram, then by name.
    flavors: Vec<Flavor>,
    by_id: HashMap<String, usize>,
    /// The id of each cloud image that labels name, or the reason why it has none.
    pub images: BTreeMap<String, Result<String, String>>,
    /// Names of several active images.
    pub ambiguous_images: BTreeSet<String>,
    networks: Networks,
    pub zones: Vec<String>,
    /// Labels whose servers have had a floating address. Only a running server shows whether it needs one.
    pub floating_ip_labels: BTreeSet<(PoolName, LabelName)>,
    /// Reason why the pools that respect the cloud's limits are unavailable.
    pub limits_unavailable: Option<Unavailable>,
    pub fallback: FallbackData,
}

/// Results of earlier refreshes, used when the cloud does not respond to a query. `None`: the cloud has never responded
/// to this query.
#[derive(Clone, Debug, Default)]
pub struct FallbackData {
    pub subnets: Option<Vec<Subnet>>,
    pub routers: Option<Vec<Router>>,
    /// Those of the project.
    pub security_groups: Option<Vec<SecurityGroup>>,
    pub volumes: Option<Vec<Volume>>,
    /// Limits of Nova; the next field has those of Cinder.
    pub limits: Option<Resources>,
    pub volume_limits: Option<Resources>,
    pub network: Option<NetworkQuota>,
}

/// Limits and usage of a project's network resources; unlimited ones are left out.
#[derive(Clone, Debug)]
pub struct NetworkQuota {
    pub limits: Resources,
    pub used: Resources,
}

impl NetworkQuota {
    /// Parses Neutron's quota details.
    pub fn from_json(answer: &Value) -> Self {
        let (mut limits, mut used) = (Resources::unlimited(), Resources::none());
        for (theirs, ours) in [("port", PORTS), ("floatingip", FLOATING_IPS)] {
            let number = |key: &str| answer.pointer(&format!("/quota/{theirs}/{key}")).and_then(Value::as_f64);
            if let (Some(limit), Some(number)) = (number("limit").filter(|limit| *limit >= 0.0), number("used")) {
                limits.set(ours, limit);
                used.set(ours, number);
            }
        }
        Self { limits, used }
    }
}

/// Networks and their roles.
#[derive(Clone, Debug, Default)]
pub struct Networks {
    all: Vec<Network>,
    /// Names of networks whose addresses are reachable from outside; the next field has the other networks.
    pub external: BTreeSet<String>,
    pub internal: BTreeSet<String>,
    pub floating_ip_source: FloatingIpSource,
    /// Ids of networks that floating addresses can lead to; `None` while unknown.
    pub floating_ip_destinations: Option<BTreeSet<String>>,
    /// The network whose addresses are used, if the cloud's settings name one.
    pub default_interface: Option<String>,
    /// Set if a network that clouds.yaml gives a role is not the only one of its name.
    ambiguous_role: Option<Unavailable>,
}

/// The network that floating addresses are allocated from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FloatingIpSource {
    /// From the network with this id.
    Network(String),
    Absent,
    /// The cloud has not reported it yet.
    #[default]
    Unknown,
}

impl CloudCatalog {
    pub fn new(services: Services, mut flavors: Vec<Flavor>) -> Self {
        flavors.sort_by(|one, other| one.ram.total_cmp(&other.ram).then_with(|| one.name.cmp(&other.name)));
        let by_id = flavors.iter().enumerate().map(|(index, flavor)| (flavor.id.clone(), index)).collect();
        Self { services, flavors, by_id, ..Self::default() }
    }

    pub fn with_networks(mut self, networks: Networks) -> Self {
        self.networks = networks;
        self
    }

    pub fn networks(&self) -> &Networks {
        &self.networks
    }

    pub fn flavor_with_id(&self, id: &str) -> Option<&Flavor> {
        self.by_id.get(id).map(|index| &self.flavors[*index])
    }

    /// The flavor of a label. With `min-ram`, it is the smallest flavor that has at least this ram and whose name
    /// contains `flavor-name`. Without `min-ram`, it is the flavor with exactly this name or id.
    pub fn flavor(&self, spec: &ServerSpec) -> Result<&Flavor, Unavailable> {
        let name = spec.flavor.as_deref().unwrap_or_default();
        if spec.min_ram > 0 {
            let suits = |flavor: &&Flavor| flavor.ram >= spec.min_ram as f64 && flavor.name.contains(name);
            return self.flavors.iter().find(suits).ok_or_else(|| {
                let named = spec.flavor.as_ref().map(|name| format!(" and a name that contains {name}"));
                missing("flavor", &format!("with {} MiB{}", spec.min_ram, named.unwrap_or_default()))
            });
        }
        let matching = self.flavors.iter().filter(|flavor| flavor.name == name || flavor.id == name);
        let name = spec.flavor.as_deref().unwrap_or("(none)");
        only_one("flavor", name, matching, |flavor| &flavor.id)?
            .ok_or_else(|| missing("flavor", &format!("named {name}")))
    }

    /// The id of a label's cloud image.
    pub fn image<'a>(&'a self, spec: &'a ServerSpec) -> Result<&'a str, Unavailable> {
        match &spec.image {
            ImageRef::Id(id) => Ok(id),
            ImageRef::Name(name) => match self.images.get(name) {
                Some(Ok(id)) => Ok(id),
                Some(Err(why)) => Err(Unavailable::Temporary(why.clone())),
                None => Err(Unavailable::Temporary(format!("image {name} has not been looked up yet"))),
            },
            ImageRef::Uploaded => {
                let name = &spec.image_name;
                Err(Unavailable::Temporary(format!("image {name} has not been uploaded to this provider")))
            }
        }
    }

    /// The ids of a label's networks, in the order of the configuration.
    pub fn network_ids(&self, spec: &ServerSpec) -> Result<Vec<&str>, Unavailable> {
        let id = |name: &String| {
            let matching = self.networks.all.iter().filter(|network| network.name == *name || network.id == *name);
            let found = only_one("network", name, matching, |network| &network.id)?;
            found.map(|network| network.id.as_str()).ok_or_else(|| missing("network", name))
        };
        spec.networks.iter().map(id).collect()
    }

    /// Checks that no name of a label's security groups stands for several groups.
    fn check_security_groups(&self, spec: &ServerSpec) -> Result<(), Unavailable> {
        let groups = self.fallback.security_groups.as_deref().unwrap_or_default();
        spec.security_groups.iter().try_for_each(|name| {
            let matching = groups.iter().filter(|group| group.name == *name);
            only_one("security group", name, matching, |group| &group.id).map(drop)
        })
    }

    /// The id of the network that clouds.yaml makes the default.
    pub fn default_network(&self) -> Option<&str> {
        self.default_interface().map(|network| network.id.as_str())
    }

    /// The name of the default network, which is Nova's key for the addresses on it. If the network is unknown, as
    /// without Neutron, the configured value is used.
    pub fn default_network_name(&self) -> Option<&str> {
        let written = self.networks.default_interface.as_deref()?;
        Some(self.default_interface().map_or(written, |network| network.name.as_str()))
    }

    fn default_interface(&self) -> Option<&Network> {
        let written = self.networks.default_interface.as_ref()?;
        self.networks.all.iter().find(|network| network.name == *written || network.id == *written)
    }

    /// Limits of the project; infinite if the cloud reports none.
    pub fn limits(&self) -> Resources {
        let mut limits = self.fallback.limits.clone().unwrap_or_else(Resources::unlimited);
        match &self.fallback.volume_limits {
            Some(of_volumes) => of_volumes.iter().for_each(|(name, limit)| limits.set(name, limit)),
            // Without Cinder there are no volumes.
            None if !self.services.block_storage => {
                ["volumes", "volume-gb"].iter().for_each(|name| limits.set(name, 0.0))
            }
            None => {}
        }
        if let Some(network) = &self.fallback.network {
            network.limits.iter().for_each(|(name, limit)| limits.set(name, limit));
        }
        limits
    }

    /// Limited network resources that a server of a label uses.
    fn network_need(&self, pool: &PoolName, spec: &ServerSpec) -> Resources {
        let has_floating_ip = self.floating_ip_labels.contains(&(pool.clone(), spec.label.clone()));
        let need = [(PORTS, spec.networks.len().max(1)), (FLOATING_IPS, usize::from(has_floating_ip))];
        let limited = self.fallback.network.iter().flat_map(|network| network.limits.names());
        let need = |name: &str| need.iter().find(|(known, _)| *known == name).map_or(0, |(_, number)| *number);
        limited.map(|name| (name.to_owned(), need(name) as f64)).collect()
    }

    /// Network resources that the project uses, without those of our servers.
    pub fn network_usage_by_others<'a>(&self, ours: impl Iterator<Item = (&'a PoolName, &'a ServerSpec)>) -> Resources {
        let Some(network) = &self.fallback.network else { return Resources::none() };
        let mut others = network.used.clone();
        ours.for_each(|(pool, spec)| others.subtract(&self.network_need(pool, spec)));
        // Servers that are being created have no ports yet, so the difference may be negative.
        others.iter().map(|(name, amount)| (name.to_owned(), amount.max(0.0))).collect()
    }

    /// Resources of one server of a label, or the reason why it cannot be launched.
    pub fn need(&self, pool: &PoolName, spec: &ServerSpec) -> Result<Resources, Unavailable> {
        let flavor = self.flavor(spec)?;
        self.network_ids(spec)?;
        self.check_security_groups(spec)?;
        if let Some(unavailable) = &self.networks.ambiguous_role {
            return Err(unavailable.clone());
        }
        if spec.image != ImageRef::Uploaded {
            self.image(spec)?;
        }
        let mut need = amounts(flavor.vcpus, flavor.ram);
        if let Some(size) = spec.volume {
            need.set("volumes", 1.0);
            need.set("volume-gb", size as f64);
        }
        need.add(&self.network_need(pool, spec));
        Ok(need)
    }
}

/// The only one of the entries with a name or id. Several are refused, as openstacksdk refuses them: any of them may be
/// meant.
fn only_one<'a, T>(
    kind: &str,
    name: &str,
    mut matching: impl Iterator<Item = &'a T>,
    id: impl Fn(&T) -> &String,
) -> Result<Option<&'a T>, Unavailable> {
    match (matching.next(), matching.next()) {
        (found, None) => Ok(found),
        (None, _) => Ok(None),
        (Some(first), Some(second)) => Err(Unavailable::Permanent(format!(
            "several {kind}s are named {name}, among them {} and {}; configure the id instead of the name",
            id(first),
            id(second)
        ))),
    }
}

fn missing(kind: &str, description: &str) -> Unavailable {
    Unavailable::Permanent(format!("Unable to find {kind} {description}"))
}

/// Resources of one server, with its ram in MiB.
pub fn amounts(vcpus: f64, ram: f64) -> Resources {
    Resources::none().with("cores", vcpus).with("instances", 1.0).with("ram", ram)
}

impl Networks {
    /// Classifies networks by their roles in clouds.yaml, else by their attributes.
    pub fn new(
        all: Vec<Network>,
        subnets: Option<&[Subnet]>,
        routers: Option<&[Router]>,
        cloud: &CloudSettings,
    ) -> Self {
        let role =
            |network: &Network| cloud.networks.iter().find(|role| role.name == network.name || role.name == network.id);
        let mut found = Self::default();
        for network in &all {
            let has_external_attributes =
                network.is_external || network.physical.as_ref().is_some_and(|name| !name.is_empty());
            let is_external = role(network).map_or(has_external_attributes, |role| role.routes_ipv4_externally);
            let names = if is_external { &mut found.external } else { &mut found.internal };
            names.insert(network.name.clone());
        }
        let names_with = |has: fn(&NetworkRole) -> bool| {
            let marked = cloud.networks.iter().filter(move |role| has(role)).map(|role| role.name.clone());
            marked.collect::<Vec<_>>()
        };
        let ids = |names: &[String]| {
            let meant = all.iter().filter(|network| names.contains(&network.name) || names.contains(&network.id));
            meant.map(|network| network.id.clone()).collect::<Vec<_>>()
        };
        let sources = names_with(|role| role.nat_source);
        found.floating_ip_source = match (cloud.floating_ips, sources.is_empty()) {
            (FloatingIps::Neutron, false) => {
                ids(&sources).into_iter().next().map_or(FloatingIpSource::Absent, FloatingIpSource::Network)
            }
            (FloatingIps::Neutron, true) => external_network(&all, routers),
            (FloatingIps::Nova | FloatingIps::None, _) => FloatingIpSource::Absent,
        };
        let destinations = names_with(|role| role.nat_destination);
        found.floating_ip_destinations = match destinations.is_empty() {
            false => Some(ids(&destinations).into_iter().collect()),
            true => subnets.map(|subnets| {
                let is_external = |id: &String| all.iter().any(|network| network.id == *id && network.is_external);
                let routed = subnets.iter().filter(|subnet| subnet.gateway_ip.is_some());
                routed.map(|subnet| subnet.network_id.clone()).filter(|id| !is_external(id)).collect()
            }),
        };
        found.default_interface = names_with(|role| role.default_interface).into_iter().next();
        found.ambiguous_role = ambiguous_role(&all, cloud);
        found.all = all;
        found
    }
}

/// The reason why no server can be launched, if clouds.yaml gives a role to a name of several networks. Openstacksdk
/// refuses these three roles, because only one network can have them.
fn ambiguous_role(all: &[Network], cloud: &CloudSettings) -> Option<Unavailable> {
    let is_only_one = |role: &&NetworkRole| role.nat_source || role.nat_destination || role.default_interface;
    cloud.networks.iter().filter(is_only_one).find_map(|role| {
        let matching = all.iter().filter(|network| network.name == role.name || network.id == role.name);
        match only_one("network", &role.name, matching, |network| &network.id).err()? {
            Unavailable::Permanent(why) => Some(Unavailable::Permanent(format!("{why} in clouds.yaml"))),
            other => Some(other),
        }
    })
}

fn external_network(all: &[Network], routers: Option<&[Router]>) -> FloatingIpSource {
    if let Some(external) = all.iter().find(|network| network.is_external) {
        return FloatingIpSource::Network(external.id.clone());
    }
    let Some(routers) = routers else { return FloatingIpSource::Unknown };
    let mut gateways = routers.iter().filter(|router| router.is_up).filter_map(|router| router.gateway.as_ref());
    gateways.find_map(|gateway| gateway.network_id.clone()).map_or(FloatingIpSource::Absent, FloatingIpSource::Network)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openstack::test_settings::cloud_with;
    use serde_json::json;

    /// Networks `a`, `b` and `more`. Network `a` (id `1`) and the external network have a subnet with a gateway.
    fn networks(keys: &str, more: serde_json::Value, routers: Option<serde_json::Value>) -> Networks {
        let mut all = vec![json!({"id": "1", "name": "a"}), json!({"id": "2", "name": "b"})];
        all.extend(more.as_array().unwrap().clone());
        let all: Vec<Network> = serde_json::from_value(json!(all)).unwrap();
        let subnets = json!([
            {"network_id": "1", "gateway_ip": "10.0.0.1"}, {"network_id": "2", "gateway_ip": null},
            {"network_id": "3", "gateway_ip": "198.51.100.1"},
        ]);
        let subnets: Vec<Subnet> = serde_json::from_value(subnets).unwrap();
        let routers: Option<Vec<Router>> = routers.map(|routers| serde_json::from_value(routers).unwrap());
        Networks::new(all, Some(&subnets), routers.as_deref(), &cloud_with(keys))
    }

    fn outside() -> serde_json::Value {
        json!([{"id": "3", "name": "outside", "router:external": true}])
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn from(id: &str) -> FloatingIpSource {
        FloatingIpSource::Network(id.to_owned())
    }

    #[test]
    fn the_floating_ip_source_is_nat_source_external_network_or_gateway() {
        let gateway = |up: bool| {
            let up = json!({"admin_state_up": up, "external_gateway_info": {"network_id": "9"}});
            json!([{"admin_state_up": true, "external_gateway_info": null}, up])
        };
        let source = |keys: &str, more, routers| networks(keys, more, routers).floating_ip_source;
        for named in ["b", "'2'"] {
            let keys = format!("networks: [{{name: {named}, nat_source: true}}]");
            assert_eq!(source(&keys, outside(), None), from("2"), "{named}");
        }
        assert_eq!(source("networks: [{name: gone, nat_source: true}]", outside(), None), FloatingIpSource::Absent);
        assert_eq!(source("", outside(), Some(gateway(true))), from("3"));
        assert_eq!(source("", json!([]), Some(gateway(true))), from("9"));
        assert_eq!(source("", json!([]), Some(gateway(false))), FloatingIpSource::Absent);
        assert_eq!(source("", json!([]), Some(json!([]))), FloatingIpSource::Absent);
        assert_eq!(source("floating_ip_source: None", outside(), Some(gateway(true))), FloatingIpSource::Absent);
    }

    #[test]
    fn the_floating_ip_source_is_unknown_while_its_routers_are() {
        assert_eq!(networks("", json!([]), None).floating_ip_source, FloatingIpSource::Unknown);
        assert_eq!(networks("", outside(), None).floating_ip_source, from("3"));
        assert_eq!(networks("floating_ip_source: None", json!([]), None).floating_ip_source, FloatingIpSource::Absent);
    }

    #[test]
    fn floating_ips_lead_to_nat_destination_or_own_networks_with_gateway() {
        let destinations = |keys: &str| networks(keys, outside(), None).floating_ip_destinations;
        assert_eq!(destinations(""), Some(set(&["1"])));
        for named in ["b", "'2'"] {
            let keys = format!("networks: [{{name: {named}, nat_destination: true}}]");
            assert_eq!(destinations(&keys), Some(set(&["2"])), "{named}");
        }
        let all: Vec<Network> = serde_json::from_value(outside()).unwrap();
        assert_eq!(Networks::new(all.clone(), None, None, &cloud_with("")).floating_ip_destinations, None);
        let keys = "networks: [{name: outside, nat_destination: true}]";
        assert_eq!(Networks::new(all, None, None, &cloud_with(keys)).floating_ip_destinations, Some(set(&["3"])));
    }

    #[test]
    fn networks_are_external_by_their_role_or_by_their_attributes() {
        let physical = json!([{"id": "4", "name": "wire", "provider:physical_network": "eth0"}]);
        let found = networks("networks: [{name: b, routes_externally: true}, {name: '3'}]", outside(), None);
        assert_eq!((found.external, found.internal), (set(&["b"]), set(&["a", "outside"])));
        let found = networks("", physical, None);
        assert_eq!((found.external, found.internal), (set(&["wire"]), set(&["a", "b"])));
    }

    fn spec(flavor: &str, network: &str) -> ServerSpec {
        ServerSpec {
            flavor: Some(flavor.to_owned()),
            networks: vec![network.to_owned()],
            label: "a".into(),
            min_ram: 0,
            image_name: String::new(),
            image: ImageRef::Uploaded,
            security_groups: Vec::new(),
            key_name: None,
            config_drive: None,
            userdata: None,
            volume: None,
            properties: BTreeMap::new(),
            dynamic_properties: BTreeMap::new(),
            floating_ip: false,
        }
    }

    #[test]
    fn a_name_with_several_meanings_is_refused() {
        let flavors = ["f1", "f2"].map(|id| json!({"id": id, "name": "small"}));
        let catalog = CloudCatalog::new(Services::default(), serde_json::from_value(json!(flavors)).unwrap());
        let catalog = catalog.with_networks(networks("", json!([{"id": "3", "name": "a"}]), None));
        let reason = |found: Result<&str, Unavailable>| found.unwrap_err().reason().to_owned();
        let flavor = |name: &str| catalog.flavor(&spec(name, "b")).map(|flavor| flavor.id.as_str());
        let several = "several flavors are named small, among them f1 and f2; configure the id instead of the name";
        assert_eq!(reason(flavor("small")), several);
        assert_eq!(
            (flavor("f2").unwrap(), reason(flavor("none"))),
            ("f2", "Unable to find flavor named none".to_owned())
        );
        let network = |name: &str| catalog.network_ids(&spec("f1", name)).map(|ids| ids[0].to_owned());
        let several = "several networks are named a, among them 1 and 3; configure the id instead of the name";
        assert_eq!(network("a").unwrap_err().reason(), several);
        assert_eq!(network("3").unwrap(), "3");
    }

    #[test]
    fn an_ambiguous_security_group_or_role_in_clouds_yaml_is_refused() {
        let need = |keys: &str, groups: &[&str]| {
            let flavors = serde_json::from_value(json!([{"id": "f", "name": "f"}])).unwrap();
            let networks = networks(keys, json!([{"id": "3", "name": "a"}]), None);
            let mut catalog = CloudCatalog::new(Services::default(), flavors).with_networks(networks);
            let known = [("g1", "web"), ("g2", "web"), ("g3", "ssh"), ("g4", "g1")];
            let known = known.map(|(id, name)| SecurityGroup { id: id.to_owned(), name: name.to_owned() });
            catalog.fallback.security_groups = Some(known.to_vec());
            let security_groups = groups.iter().map(|group| (*group).to_owned()).collect();
            let need = catalog.need(&"main".into(), &ServerSpec { security_groups, ..spec("f", "b") });
            need.map(drop).map_err(|unavailable| unavailable.reason().to_owned())
        };
        // A name takes precedence over an id, and Nova knows groups that the listing does not show.
        assert_eq!(need("", &["ssh", "g1", "g2", "shared"]), Ok(()));
        let several =
            "several security groups are named web, among them g1 and g2; configure the id instead of the name";
        assert_eq!(need("", &["ssh", "web"]).unwrap_err(), several);
        let several =
            "several networks are named a, among them 1 and 3; configure the id instead of the name in clouds.yaml";
        for role in ["nat_source", "nat_destination", "default_interface"] {
            assert_eq!(need(&format!("networks: [{{name: a, {role}: true}}]"), &[]).unwrap_err(), several, "{role}");
            assert_eq!(need(&format!("networks: [{{name: '1', {role}: true}}]"), &[]), Ok(()), "{role}");
        }
        assert_eq!(need("networks: [{name: a, routes_externally: true}]", &[]), Ok(()));
    }

    #[test]
    fn the_default_network_is_found_by_name_or_id_or_keeps_its_name() {
        let default = |keys: &str| {
            let catalog = CloudCatalog::default().with_networks(networks(keys, json!([]), None));
            (catalog.default_network().map(str::to_owned), catalog.default_network_name().map(str::to_owned))
        };
        let b = (Some("2".to_owned()), Some("b".to_owned()));
        assert_eq!(default("networks: [{name: b, default_interface: true}]"), b);
        assert_eq!(default("networks: [{name: '2', default_interface: true}]"), b);
        assert_eq!(default("networks: [{name: c, default_interface: true}]"), (None, Some("c".to_owned())));
        assert_eq!(default(""), (None, None));
    }
}
