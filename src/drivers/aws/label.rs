//! A label of an aws pool: instance types and places in which its nodes may be launched, and their properties.

use std::collections::BTreeMap;
use std::fmt;

use super::config::VolumeSpec;
use crate::common::python_format::texts;
use nodepool_driver::facts::{LabelImage, Login};
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::config::{PoolConfig, ProviderConfig};
use nodepool_model::records::ids::LabelName;
use python_yaml::tree::{Position, YamlNode};

/// The source of an AMI.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImageSource {
    Id(String),
    /// The newest one that matches these filters.
    Filters(Vec<(String, Vec<String>)>),
    /// Uploaded by the builder; the order of a launch has its id.
    Uploaded,
    /// The configuration names none.
    Missing,
}

#[derive(Clone, Debug, PartialEq)]
pub struct AwsLabel {
    pub name: LabelName,
    pub image: LabelImage,
    pub source: ImageSource,
    pub login: Login,
    pub host_key_checking: bool,
    pub network: PoolNetwork,
    /// Tried in this order; one unless the label has a list.
    pub instance_types: Vec<String>,
    pub fleet: Option<Fleet>,
    pub market: Market,
    pub dedicated_host: bool,
    pub key_name: Option<String>,
    pub ebs_optimized: bool,
    pub volume: VolumeSpec,
    /// The root volume of the image, if it is an upload.
    pub image_volume: VolumeSpec,
    pub userdata: Option<String>,
    pub instance_profile: Option<InstanceProfile>,
    pub tags: BTreeMap<String, String>,
    /// Tags with fields of the request in braces.
    pub dynamic_tags: BTreeMap<String, String>,
    /// Whether the instance's metadata service requires tokens; `None` leaves it to the AMI.
    pub imds_tokens: Option<&'static str>,
    /// Why no node of this label can be launched.
    pub problem: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    pub instance_types: Vec<String>,
    pub strategy: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Market {
    OnDemand,
    Spot,
    /// On demand if there is no spot capacity.
    SpotOrOnDemand,
}

#[derive(Clone, Debug, PartialEq)]
pub enum InstanceProfile {
    Name(String),
    Arn(String),
}

/// Network settings of a pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolNetwork {
    pub locations: Vec<Location>,
    pub security_group: Option<String>,
    pub public_ipv4: bool,
    pub public_ipv6: bool,
    pub use_internal_ip: bool,
    pub host_key_checking: bool,
}

/// Where instances are launched. Without subnet and zone, AWS chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    pub subnet: Option<String>,
    pub zone: Option<String>,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.subnet, &self.zone) {
            (Some(place), _) | (None, Some(place)) => f.write_str(place),
            (None, None) => f.write_str("any zone"),
        }
    }
}

/// A combination that may be full: what is launched, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The types of a fleet are tried by AWS.
    pub instance_type: String,
    pub location: Location,
    pub is_spot: bool,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let market = if self.is_spot { "spot" } else { "on demand" };
        write!(f, "{} {market} in {}", self.instance_type, self.location)
    }
}

impl AwsLabel {
    /// All places, in the order in which they are tried.
    pub fn places(&self) -> Vec<Place> {
        let markets: &[bool] = match self.market {
            Market::OnDemand => &[false],
            Market::Spot => &[true],
            Market::SpotOrOnDemand => &[true, false],
        };
        let types = match &self.fleet {
            Some(fleet) => vec![fleet.instance_types.join(",")],
            None => self.instance_types.clone(),
        };
        let mut places = Vec::new();
        for is_spot in markets {
            for instance_type in &types {
                places.extend(self.network.locations.iter().map(|location| Place {
                    instance_type: instance_type.clone(),
                    location: location.clone(),
                    is_spot: *is_spot,
                }));
            }
        }
        places
    }

    /// All instance types that a node may have.
    pub fn possible_types(&self) -> &[String] {
        self.fleet.as_ref().map_or(&self.instance_types, |fleet| &fleet.instance_types)
    }
}

impl PoolNetwork {
    pub fn read(pool: &PoolConfig, provider: &ProviderConfig, diagnostics: &mut Diagnostics) -> Self {
        let node = &pool.section;
        let flag =
            |key: &str, default: bool| node.boolean(key).or_else(|| provider.section.boolean(key)).unwrap_or(default);
        let public_ipv4 = node.boolean("public-ip-address").unwrap_or_else(|| flag("public-ipv4", true));
        Self {
            locations: locations(node, diagnostics),
            security_group: diagnostics.or_default(node.text("security-group-id")),
            public_ipv4,
            public_ipv6: flag("public-ipv6", false),
            use_internal_ip: flag("use-internal-ip", false),
            host_key_checking: flag("host-key-checking", true),
        }
    }
}

/// The subnets or zones of a pool. A subnet is in one zone, so zones beside several subnets have no effect.
fn locations(node: &YamlNode, diagnostics: &mut Diagnostics) -> Vec<Location> {
    let subnet = diagnostics.or_default(node.text("subnet-id"));
    let zone = diagnostics.or_default(node.text("availability-zone"));
    let subnets = list(node, "subnet-ids", "subnet-id", diagnostics);
    let zones = list(node, "availability-zones", "availability-zone", diagnostics);
    match (subnets, zones) {
        (None, None) => vec![Location { subnet, zone }],
        (Some(subnets), zones) => {
            if zones.is_some() {
                let at = at(node, "availability-zones");
                diagnostics.warning(
                    at,
                    "availability-zones has no effect beside subnet-ids",
                    "each subnet has its zone",
                );
            }
            subnets.into_iter().map(|subnet| Location { subnet: Some(subnet), zone: None }).collect()
        }
        (None, Some(zones)) => {
            zones.into_iter().map(|zone| Location { subnet: subnet.clone(), zone: Some(zone) }).collect()
        }
    }
}

/// A list that replaces a single key.
fn list(node: &YamlNode, key: &str, single: &str, diagnostics: &mut Diagnostics) -> Option<Vec<String>> {
    node.given(key)?;
    let values = diagnostics.or_default(node.texts(key));
    if node.given(single).is_some() {
        diagnostics.warning(at(node, single), format!("{single} has no effect beside {key}"), format!("drop {single}"));
    }
    Some(values).filter(|values| !values.is_empty())
}

fn at(node: &YamlNode, key: &str) -> Position {
    node.get(key).map_or(node.at, |value| value.at)
}

/// Reads one label. Settings that AWS would refuse at each launch put the label out of service.
struct LabelReader<'a, 'd> {
    node: &'a YamlNode,
    name: LabelName,
    diagnostics: &'d mut Diagnostics,
    problem: Option<String>,
}

pub fn read_label(
    node: &YamlNode,
    name: LabelName,
    image: Result<(LabelImage, ImageSource, Login), String>,
    network: &PoolNetwork,
    diagnostics: &mut Diagnostics,
) -> AwsLabel {
    let mut reader = LabelReader { node, name, diagnostics, problem: image.as_ref().err().cloned() };
    let missing = || (LabelImage::Cloud(String::new()), ImageSource::Missing, Login::default());
    reader.read(image.unwrap_or_else(|_| missing()), network)
}

impl LabelReader<'_, '_> {
    fn read(&mut self, (image, source, login): (LabelImage, ImageSource, Login), network: &PoolNetwork) -> AwsLabel {
        let (node, mut network) = (self.node, network.clone());
        let fleet = self.fleet();
        let market = self.market();
        let instance_types = self.instance_types(fleet.is_some());
        let dedicated_host = node.boolean("dedicated-host").unwrap_or(false);
        let key_name = self.text("key-name");
        if let Some(fleet) = &fleet {
            self.check_fleet(fleet, market, dedicated_host, &network);
            network.locations.iter_mut().for_each(|location| location.zone = None);
        }
        if dedicated_host {
            self.check_host(market, &network);
        }
        if key_name.is_none() {
            self.refuse("name", format!("label {} has no key-name", self.name), "name a key pair of the region");
        }
        let imds_tokens = self.text("imdsv2").and_then(|value| match value.as_str() {
            "required" => Some("required"),
            "optional" => Some("optional"),
            _ => None,
        });
        AwsLabel {
            name: self.name.clone(),
            image,
            source,
            login,
            host_key_checking: network.host_key_checking,
            instance_types,
            fleet,
            market,
            dedicated_host,
            key_name,
            ebs_optimized: node.boolean("ebs-optimized").unwrap_or(false),
            volume: VolumeSpec::read(node, self.diagnostics),
            image_volume: VolumeSpec::default(),
            userdata: self.text("userdata"),
            instance_profile: self.instance_profile(),
            tags: texts(node, "tags"),
            dynamic_tags: texts(node, "dynamic-tags"),
            imds_tokens,
            network,
            problem: self.problem.take(),
        }
    }

    fn text(&mut self, key: &str) -> Option<String> {
        self.diagnostics.or_default(self.node.text(key))
    }

    /// Puts the label out of service.
    fn refuse(&mut self, key: &str, problem: String, help: &str) {
        let help = format!("{help}; label {} is out of service", self.name);
        self.diagnostics.warning(at(self.node, key), problem.clone(), help);
        self.problem.get_or_insert(problem);
    }

    fn instance_types(&mut self, has_fleet: bool) -> Vec<String> {
        let single = self.text("instance-type");
        let several = list(self.node, "instance-types", "instance-type", self.diagnostics);
        let types = several.unwrap_or_else(|| single.into_iter().collect());
        if types.is_empty() && !has_fleet {
            let problem = format!("label {} has no instance type", self.name);
            self.refuse("name", problem, "add `instance-type`, `instance-types` or `fleet`");
        }
        types
    }

    fn market(&mut self) -> Market {
        let is_spot = self.node.boolean("use-spot").unwrap_or(false);
        let fallback = self.text("spot-fallback");
        match (is_spot, fallback.as_deref()) {
            (true, Some("on-demand")) => Market::SpotOrOnDemand,
            (true, _) => Market::Spot,
            (false, Some(_)) => {
                let at = at(self.node, "spot-fallback");
                self.diagnostics.warning(at, "spot-fallback has no effect without use-spot", "add `use-spot: true`");
                Market::OnDemand
            }
            (false, None) => Market::OnDemand,
        }
    }

    fn fleet(&mut self) -> Option<Fleet> {
        let node = self.node.given("fleet")?;
        let instance_types = self.diagnostics.or_default(node.texts("instance-types"));
        let strategy = self.diagnostics.or_default(node.text("allocation-strategy")).unwrap_or_default();
        Some(Fleet { instance_types, strategy })
    }

    fn check_fleet(&mut self, fleet: &Fleet, market: Market, dedicated_host: bool, network: &PoolNetwork) {
        let known: &[&str] = match market {
            Market::OnDemand => &["lowest-price", "prioritized"],
            Market::Spot | Market::SpotOrOnDemand => {
                &["lowest-price", "diversified", "capacity-optimized", "price-capacity-optimized"]
            }
        };
        if !known.contains(&fleet.strategy.as_str()) {
            let kind = if market == Market::OnDemand { "on-demand" } else { "spot" };
            let problem = format!("allocation-strategy {} is none of {kind} fleets", fleet.strategy);
            self.refuse("fleet", problem, &format!("use {}", known.join(" or ")));
        }
        if market == Market::SpotOrOnDemand && fleet.strategy != "lowest-price" {
            let help = "only lowest-price is a strategy of both";
            self.refuse("spot-fallback", "spot-fallback needs a strategy of on-demand fleets, too".to_owned(), help);
        }
        if dedicated_host {
            let problem = "dedicated-host with a fleet would pay for a host that the fleet does not use".to_owned();
            self.refuse("dedicated-host", problem, "use `instance-type`");
        }
        if fleet.instance_types.is_empty() {
            self.refuse("fleet", "the fleet has no instance types".to_owned(), "list at least one");
        }
        let has_subnets = network.locations.iter().all(|location| location.subnet.is_some());
        if !has_subnets || network.security_group.is_none() {
            let help = "set `subnet-id` and `security-group-id` in the pool";
            self.refuse("fleet", "a fleet needs a subnet and a security group".to_owned(), help);
        }
    }

    fn check_host(&mut self, market: Market, network: &PoolNetwork) {
        if market != Market::OnDemand {
            let problem = "spot instances cannot be used on dedicated hosts".to_owned();
            self.refuse("dedicated-host", problem, "drop `use-spot` or `dedicated-host`");
        }
        if network.locations.iter().any(|location| location.zone.is_none()) {
            let help = "set `availability-zone` in the pool";
            self.refuse("dedicated-host", "a dedicated host needs an availability zone".to_owned(), help);
        }
    }

    fn instance_profile(&mut self) -> Option<InstanceProfile> {
        let node = self.node.given("iam-instance-profile")?;
        let mut text = |key: &str| self.diagnostics.or_default(node.text(key));
        let name = text("name").map(InstanceProfile::Name);
        name.or_else(|| text("arn").map(InstanceProfile::Arn))
    }
}

#[cfg(test)]
mod tests {
    use crate::aws::test_settings::{label, settings};

    fn places(pool: &str, keys: &str) -> Vec<String> {
        let (settings, _) = settings("", pool, keys);
        settings.labels().next().unwrap().places().iter().map(ToString::to_string).collect()
    }

    fn problem(pool: &str, keys: &str) -> Option<String> {
        settings("", pool, keys).0.labels().next().unwrap().problem.clone()
    }

    #[test]
    fn places_are_markets_then_types_then_subnets() {
        assert_eq!(places("", ""), ["t3.medium on demand in any zone"]);
        let pool = "subnet-ids: [s-1, s-2]";
        let keys = "instance-types: [a.b, c.d], use-spot: true, spot-fallback: on-demand";
        let places = places(pool, keys);
        assert_eq!(places.len(), 8);
        assert_eq!(places[..3], ["a.b spot in s-1", "a.b spot in s-2", "c.d spot in s-1"]);
        assert_eq!(places[7], "c.d on demand in s-2");
    }

    #[test]
    fn labels_that_aws_would_refuse_are_out_of_service() {
        let subnet = "subnet-id: s-1, security-group-id: sg-1";
        let fleet = |strategy: &str| format!("fleet: {{instance-types: [a.b], allocation-strategy: {strategy}}}");
        assert_eq!(problem(subnet, &fleet("prioritized")), None);
        assert!(problem(subnet, &format!("{}, use-spot: true", fleet("prioritized"))).is_some());
        assert!(problem(subnet, &fleet("diversified")).is_some());
        assert!(problem("", &fleet("lowest-price")).unwrap().contains("subnet"));
        let with_zone = format!("{subnet}, availability-zone: z");
        assert!(problem(&with_zone, &format!("{}, dedicated-host: true", fleet("lowest-price"))).is_some());
        assert_eq!(problem("availability-zone: z", "dedicated-host: true"), None);
        assert_eq!(problem("availability-zones: [y, z]", "dedicated-host: true"), None);
    }

    #[test]
    fn network_keys_of_the_provider_are_defaults() {
        let network =
            |provider: &str, pool: &str| settings(provider, pool, "").0.labels().next().unwrap().network.clone();
        let own = network(
            "public-ipv6: true, use-internal-ip: true",
            "public-ipv6: false, public-ip-address: false, public-ipv4: true",
        );
        assert_eq!((own.public_ipv4, own.public_ipv6, own.use_internal_ip), (false, false, true));
        assert!(label("").network.public_ipv4);
    }
}
