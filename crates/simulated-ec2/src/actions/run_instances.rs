//! RunInstances: the checks of a launch, before anything is created.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::api::filters::Resource;
use crate::api::pages::not_found;
use crate::api::xml::Xml;
use crate::region::fixtures::INSTANCE_PROFILE;
use crate::region::instance::State;
use crate::region::instance_types::{self, InstanceType};
use crate::region::objects::{Image, Mapping};
use crate::region::region::{Ec2, Token};
use crate::region::tags::{self, Tags};
use crate::server::form::{Form, Scope, missing};
use crate::server::response::{ApiError, ApiResult};

/// A checked launch.
pub struct Launch {
    pub image: Image,
    pub instance_type: &'static InstanceType,
    pub zone: String,
    pub subnet: String,
    pub groups: Vec<(String, String)>,
    pub key_name: Option<String>,
    pub is_spot: bool,
    pub host: Option<String>,
    /// The ARN of its instance profile.
    pub profile: Option<String>,
    pub has_public_address: bool,
    pub ipv6_addresses: u32,
    pub volumes: Vec<NewVolume>,
    pub tags: Tags,
    pub volume_tags: Tags,
    /// All parameters, with those of the launch template.
    pub parameters: Form,
}

/// A volume that a launch, or CreateVolume, creates.
#[derive(Clone, Debug)]
pub struct NewVolume {
    pub device: String,
    pub snapshot: Option<String>,
    pub size_gib: u32,
    pub volume_type: String,
    pub iops: Option<u32>,
    pub throughput: Option<u32>,
    pub encrypted: bool,
    pub delete_on_termination: bool,
}

/// Resource types whose tags RunInstances takes; the last one only for spot instances.
const TAGGED: [&str; 4] = ["instance", "volume", "network-interface", "spot-instances-request"];

/// Maximum number of IPv6 addresses of an interface.
const MAX_IPV6_ADDRESSES: u32 = 50;
/// Maximum size of a volume in GiB.
const MAX_VOLUME_GIB: u32 = 65_536;

impl Ec2<'_> {
    pub fn run_instances(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let ids = match self.repeated("RunInstances", form)? {
            Some(ids) => {
                self.check_not_terminated(&ids)?;
                ids
            }
            None => {
                let parameters = self.with_template(form)?;
                let (minimum, maximum) = counts(form)?;
                let launch = self.check_launch(parameters)?;
                let count = self.admitted(&launch, minimum, maximum)?;
                let ids = self.launch(launch, count, form.get("ClientToken"));
                self.remember("RunInstances", form, ids.clone());
                ids
            }
        };
        self.write_reservation(&ids, xml);
        Ok(())
    }

    /// A client token whose instances were terminated launches nothing, and returns nothing.
    fn check_not_terminated(&self, ids: &[String]) -> ApiResult<()> {
        let is_terminated =
            |id: &String| self.region.instances.get(id).is_none_or(|one| one.state == State::Terminated);
        if !ids.iter().any(is_terminated) {
            return Ok(());
        }
        let text = "The request uses the same client token as a previous request whose instance has been terminated.";
        Err(ApiError::new("IdempotentInstanceTerminated", text))
    }

    /// The result of an earlier call with the same client token.
    pub fn repeated(&mut self, action: &str, form: &Form) -> ApiResult<Option<Vec<String>>> {
        let Some(token) = form.get("ClientToken") else { return Ok(None) };
        if token.len() > 64 || !token.is_ascii() {
            return Err(ApiError::invalid("The client token must have at most 64 ASCII characters."));
        }
        let Some(known) = self.region.tokens.get(&format!("{action} {token}")) else { return Ok(None) };
        if known.fingerprint != form.fingerprint() {
            let text = "The request uses the same client token as a previous, but non-identical request. Do not reuse a \
                        client token with different requests, unless the requests are identical.";
            return Err(ApiError::new("IdempotentParameterMismatch", text));
        }
        self.world.stats.tokens_repeated += 1;
        Ok(Some(known.result.clone()))
    }

    pub fn remember(&mut self, action: &str, form: &Form, result: Vec<String>) {
        if let Some(token) = form.get("ClientToken") {
            let fingerprint = form.fingerprint();
            self.region.tokens.insert(format!("{action} {token}"), Token { fingerprint, result });
        }
    }

    /// Checks the parameters of a launch, and chooses its place.
    pub fn check_launch(&self, parameters: Form) -> ApiResult<Launch> {
        let form = &parameters;
        let image = self.image(form.required("ImageId")?)?.clone();
        let name = form.get("InstanceType").unwrap_or("m1.small");
        let unknown = || ApiError::invalid(format!("Invalid value '{name}' for InstanceType."));
        let instance_type = instance_types::find(name).ok_or_else(unknown)?;
        if instance_type.architecture != image.architecture {
            let text = format!(
                "The architecture '{}' of the specified instance type does not match the architecture '{}' of the \
                 specified AMI.",
                instance_type.architecture, image.architecture
            );
            return Err(ApiError::invalid(text));
        }
        let key_name = form.get("KeyName").map(str::to_owned);
        if let Some(key) = &key_name
            && !self.region.key_pairs.values().any(|pair| pair.name == *key)
        {
            return Err(not_found(("InvalidKeyPair.NotFound", "key pair"), &[key]));
        }
        check_user_data(form)?;
        check_options(form)?;
        let profile = self.profile(form)?;
        let is_spot = form.get("InstanceMarketOptions.MarketType") == Some("spot");
        let interfaces = form.items("NetworkInterface");
        let groups = self.groups(form, interfaces.first())?;
        let host = self.host_of_launch(form, instance_type, is_spot)?;
        let (zone, subnet) = self.place(form, interfaces.first(), host.as_deref(), instance_type, is_spot)?;
        let volumes = self.volumes_of_launch(form, &image)?;
        let mut specified = tags::specified(form, if is_spot { &TAGGED } else { &TAGGED[..3] })?;
        let mut tags_of = |resource: &str| specified.remove(resource).unwrap_or_default();
        let (tags, volume_tags) = (tags_of("instance"), tags_of("volume"));
        // Subnets of the default VPC assign public addresses.
        let public = interfaces.first().and_then(|interface| interface.get("AssociatePublicIpAddress"));
        let has_public_address = public.is_none_or(|text| text.eq_ignore_ascii_case("true"));
        let ipv6 = interfaces.first().map(|interface| interface.number("Ipv6AddressCount")).transpose()?.flatten();
        let ipv6_addresses = ipv6.or(form.number("Ipv6AddressCount")?).unwrap_or(0);
        if ipv6_addresses > MAX_IPV6_ADDRESSES {
            return Err(ApiError::invalid(format!("At most {MAX_IPV6_ADDRESSES} IPv6 addresses are possible.")));
        }
        Ok(Launch {
            image,
            instance_type,
            zone,
            subnet,
            groups,
            key_name,
            is_spot,
            host,
            profile,
            has_public_address,
            ipv6_addresses,
            volumes,
            tags,
            volume_tags,
            parameters,
        })
    }

    pub fn image(&self, id: &str) -> ApiResult<&Image> {
        if !id.starts_with("ami-") {
            let text = format!("Invalid id: \"{id}\" (expecting \"ami-...\")");
            return Err(ApiError::new("InvalidAMIID.Malformed", text));
        }
        let unknown = || ApiError::new("InvalidAMIID.NotFound", format!("The image id '[{id}]' does not exist"));
        self.region.images.get(id).ok_or_else(unknown)
    }

    /// Ids and names of the security groups.
    fn groups(&self, form: &Form, interface: Option<&Scope<'_>>) -> ApiResult<Vec<(String, String)>> {
        let own = interface.map(|interface| interface.list("SecurityGroupId")).unwrap_or_default();
        let (ids, names) = (form.list("SecurityGroupId"), form.list("SecurityGroup"));
        if interface.is_some() && (!ids.is_empty() || !names.is_empty()) {
            let text =
                "Network interfaces and an instance-level security groups may not be specified on the same request";
            return Err(ApiError::new("InvalidParameterCombination", text));
        }
        let groups = &self.region.groups;
        let mut found = Vec::new();
        for id in own.into_iter().chain(ids) {
            let unknown = || not_found(("InvalidGroup.NotFound", "security group"), &[id]);
            let group = groups.get(id).ok_or_else(unknown)?;
            found.push((group.id.clone(), group.name.clone()));
        }
        for name in names {
            let unknown = || not_found(("InvalidGroup.NotFound", "security group"), &[name]);
            let group = groups.values().find(|group| group.name == name).ok_or_else(unknown)?;
            found.push((group.id.clone(), group.name.clone()));
        }
        if found.is_empty() {
            let default = groups.values().find(|group| group.name == "default");
            found.extend(default.map(|group| (group.id.clone(), group.name.clone())));
        }
        Ok(found)
    }

    /// The ARN of the instance profile.
    fn profile(&self, form: &Form) -> ApiResult<Option<String>> {
        let (name, arn) = (form.get("IamInstanceProfile.Name"), form.get("IamInstanceProfile.Arn"));
        if name.is_some() && arn.is_some() {
            let text =
                "The parameter iamInstanceProfile.name may not be used in combination with iamInstanceProfile.arn";
            return Err(ApiError::new("InvalidParameterCombination", text));
        }
        let known = format!("arn:aws:iam::{}:instance-profile/{INSTANCE_PROFILE}", self.world.options.account);
        let invalid = |key: &str, value: &str| {
            Err(ApiError::invalid(format!(
                "Value ({value}) for parameter iamInstanceProfile.{key} is invalid. Invalid IAM Instance Profile {key}"
            )))
        };
        match (name, arn) {
            (None, None) => Ok(None),
            (Some(name), _) if name != INSTANCE_PROFILE => invalid("name", name),
            (_, Some(arn)) if arn != known => invalid("arn", arn),
            _ => Ok(Some(known)),
        }
    }

    fn host_of_launch(&self, form: &Form, one: &InstanceType, is_spot: bool) -> ApiResult<Option<String>> {
        let Some(id) = form.get("Placement.HostId") else {
            if one.is_mac() {
                let text = "The requested configuration is currently not supported. Please check the documentation for \
                            supported configurations.";
                return Err(ApiError::new("Unsupported", text));
            }
            return Ok(None);
        };
        let combination = |text: &str| Err(ApiError::new("InvalidParameterCombination", text));
        if form.get("Placement.Tenancy").is_some_and(|tenancy| tenancy != "host") {
            return combination("A host id requires the tenancy host");
        }
        if is_spot {
            return combination("Spot instances cannot be launched on a Dedicated Host");
        }
        let unknown = || not_found(("InvalidHostID.NotFound", "host ID"), &[id]);
        let host = self.region.hosts.get(id).ok_or_else(unknown)?;
        if host.state != "available" {
            return Err(ApiError::new("InvalidHostState", format!("The host {id} is in the state {}", host.state)));
        }
        if host.instance_type != one.name {
            return combination("The instance type does not match the one of the Dedicated Host");
        }
        Ok(Some(id.to_owned()))
    }

    /// Zone and subnet of a launch. If it names neither, the first zone with room is chosen.
    fn place(
        &self,
        form: &Form,
        interface: Option<&Scope<'_>>,
        host: Option<&str>,
        one: &InstanceType,
        is_spot: bool,
    ) -> ApiResult<(String, String)> {
        let subnet = match (interface, form.get("SubnetId")) {
            (Some(_), Some(_)) => {
                let text =
                    "Network interfaces and an instance-level subnet ID may not be specified on the same request";
                return Err(ApiError::new("InvalidParameterCombination", text));
            }
            (Some(interface), None) => interface.get("SubnetId"),
            (None, subnet) => subnet,
        };
        let host_zone = host.and_then(|host| self.region.hosts.get(host)).map(|host| host.zone.as_str());
        let zone = form.get("Placement.AvailabilityZone").or(host_zone);
        if let Some(zone) = zone
            && !self.zones().iter().any(|known| known == zone)
        {
            return Err(ApiError::invalid(format!("Invalid availability zone: [{zone}]")));
        }
        let subnets = &self.region.subnets;
        if let Some(id) = subnet {
            let unknown = || ApiError::new("InvalidSubnetID.NotFound", format!("The subnet ID '{id}' does not exist"));
            let found = subnets.get(id).ok_or_else(unknown)?;
            if let Some(zone) = zone
                && zone != found.zone
            {
                let text = format!("The availability zone {zone} does not match the one of the subnet {id}");
                return Err(ApiError::new("InvalidParameterCombination", text));
            }
            return Ok((found.zone.clone(), found.id.clone()));
        }
        let limit = self.world.knobs.subnet_addresses;
        let is_full = |zone: &str, subnet: &str| {
            self.world.knobs.full_places.iter().any(|place| place.contains(one.name, zone, subnet, is_spot))
        };
        let candidates = || subnets.values().filter(|subnet| zone.is_none_or(|zone| zone == subnet.zone));
        let roomy = candidates().find(|one| !is_full(&one.zone, &one.id) && one.free_addresses(limit) > 0);
        let chosen = roomy.or(candidates().next()).expect("each zone has a subnet");
        Ok((chosen.zone.clone(), chosen.id.clone()))
    }

    /// The volumes of the image, as the mappings of the launch change them, and those that the launch adds.
    fn volumes_of_launch(&self, form: &Form, image: &Image) -> ApiResult<Vec<NewVolume>> {
        let mut mappings = image.mappings.clone();
        for item in form.items("BlockDeviceMapping") {
            let device = item.get("DeviceName").unwrap_or_default();
            let position = mappings.iter().position(|mapping| mapping.device == device);
            // Instance stores are no volumes.
            if item.get("NoDevice").is_some() || item.get("VirtualName").is_some() {
                position.map(|position| mappings.remove(position));
                continue;
            }
            let wanted = mapping(&item)?;
            match position {
                Some(position) => mappings[position].change(wanted),
                None => mappings.push(wanted),
            }
        }
        mappings.iter().map(|mapping| self.new_volume(mapping)).collect()
    }

    /// A volume with the values by default that a mapping leaves out.
    pub fn new_volume(&self, mapping: &Mapping) -> ApiResult<NewVolume> {
        let invalid = |text: String| Err(ApiError::new("InvalidBlockDeviceMapping", text));
        let mut minimum = None;
        if let Some(id) = &mapping.snapshot {
            let unknown = || not_found(("InvalidSnapshot.NotFound", "snapshot"), &[id]);
            let snapshot = self.region.snapshots.get(id).ok_or_else(unknown)?;
            if snapshot.state != "completed" {
                return Err(ApiError::new(
                    "IncorrectState",
                    format!("Snapshot is in invalid state - {}", snapshot.state),
                ));
            }
            minimum = Some(snapshot.size_gib);
        }
        let size = mapping.size_gib.or(minimum);
        let Some(size_gib) = size else {
            return Err(missing("size/snapshot"));
        };
        if !(1..=MAX_VOLUME_GIB).contains(&size_gib) {
            return Err(ApiError::invalid(format!(
                "Volume of {size_gib}GiB is not between 1 and {MAX_VOLUME_GIB}GiB."
            )));
        }
        if let Some(minimum) = minimum.filter(|minimum| size_gib < *minimum) {
            let id = mapping.snapshot.as_deref().unwrap_or_default();
            return invalid(format!(
                "Volume of size {size_gib}GB is smaller than snapshot '{id}', expect size>= {minimum}GB"
            ));
        }
        let volume_type = mapping.volume_type.clone().unwrap_or_else(|| "gp2".to_owned());
        let (iops, throughput) = performance(&volume_type, size_gib, mapping)?;
        Ok(NewVolume {
            device: mapping.device.clone(),
            snapshot: mapping.snapshot.clone(),
            size_gib,
            volume_type,
            iops,
            throughput,
            encrypted: mapping.encrypted.unwrap_or(false),
            delete_on_termination: mapping.delete_on_termination.unwrap_or(true),
        })
    }

    /// Number of instances that there is room for, between the minimum and the maximum.
    pub fn admitted(&self, launch: &Launch, minimum: u32, maximum: u32) -> ApiResult<u32> {
        let mut count = maximum;
        loop {
            match self.admit(launch, count) {
                Ok(()) => return Ok(count),
                Err(error) if count == minimum => return Err(error),
                Err(_) => count -= 1,
            }
        }
    }

    fn admit(&self, launch: &Launch, count: u32) -> ApiResult<()> {
        let (name, knobs) = (launch.instance_type.name, &self.world.knobs);
        if launch.host.is_none() {
            let (zone, subnet) = (launch.zone.as_str(), launch.subnet.as_str());
            let is_full = |zone: &str, subnet: &str| {
                knobs.full_places.iter().any(|place| place.contains(name, zone, subnet, launch.is_spot))
            };
            if is_full(zone, subnet) {
                let subnets = self.region.subnets.values().filter(|subnet| !is_full(&subnet.zone, &subnet.id));
                let others: Vec<&str> = subnets.map(|subnet| subnet.zone.as_str()).collect();
                return Err(no_capacity(name, zone, &others));
            }
            self.check_vcpus(launch.instance_type, launch.is_spot, count)?;
        }
        if let Some(host) = launch.host.as_ref().and_then(|host| self.region.hosts.get(host))
            && host.instances.len() + count as usize > launch.instance_type.per_host() as usize
        {
            let text = format!(
                "Dedicated host {} has insufficient capacity to launch the instances in this request.",
                host.id
            );
            return Err(ApiError::new("InsufficientCapacityOnHost", text));
        }
        let subnet = self.region.subnets.get(&launch.subnet).expect("the place of a launch has a subnet");
        if subnet.free_addresses(knobs.subnet_addresses) < count {
            let text = format!(
                "There are not enough free addresses in subnet '{}' to satisfy the requested number of instances.",
                subnet.id()
            );
            return Err(ApiError::new("InsufficientFreeAddressesInSubnet", text));
        }
        if launch.has_public_address && self.world.public_addresses.free() < count {
            return Err(ApiError::new("InsufficientAddressCapacity", "Not enough available addresses"));
        }
        if knobs.late_volume_limit { Ok(()) } else { self.check_volumes(launch.volumes.iter(), count) }
    }
}

fn no_capacity(name: &str, zone: &str, others: &[&str]) -> ApiError {
    let mut text = format!(
        "We currently do not have sufficient {name} capacity in the Availability Zone you requested ({zone}). Our system \
         will be working on provisioning additional capacity."
    );
    if !others.is_empty() {
        text.push_str(&format!(
            " You can currently get {name} capacity by not specifying an Availability Zone in your request or choosing {}.",
            others.join(", ")
        ));
    }
    ApiError::new("InsufficientInstanceCapacity", text)
}

fn counts(form: &Form) -> ApiResult<(u32, u32)> {
    let count = |name: &str| form.number(name)?.ok_or_else(|| missing(name));
    let (minimum, maximum) = (count("MinCount")?, count("MaxCount")?);
    match 1 <= minimum && minimum <= maximum && maximum <= 1000 {
        true => Ok((minimum, maximum)),
        false => Err(ApiError::invalid("MinCount and MaxCount must be 1 to 1000, and MinCount the smaller one.")),
    }
}

fn check_user_data(form: &Form) -> ApiResult<()> {
    /// Maximum size of user data before its encoding.
    const MAX_USER_DATA: usize = 16384;
    let Some(text) = form.get("UserData") else { return Ok(()) };
    match STANDARD.decode(text) {
        Ok(data) if data.len() <= MAX_USER_DATA => Ok(()),
        Ok(_) => Err(ApiError::invalid("User data is limited to 16384 bytes")),
        Err(_) => Err(ApiError::invalid("Invalid BASE64 encoding of user data.")),
    }
}

/// Checks parameters that are one of a few words.
fn check_options(form: &Form) -> ApiResult<()> {
    let options: [(&str, &[&str]); 6] = [
        ("MetadataOptions.HttpTokens", &["optional", "required"]),
        ("MetadataOptions.HttpEndpoint", &["enabled", "disabled"]),
        ("InstanceMarketOptions.MarketType", &["spot", "capacity-block"]),
        ("InstanceMarketOptions.SpotOptions.SpotInstanceType", &["one-time", "persistent"]),
        ("InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior", &["terminate", "stop", "hibernate"]),
        ("Placement.Tenancy", &["default", "dedicated", "host"]),
    ];
    for (name, words) in options {
        if let Some(value) = form.get(name)
            && !words.contains(&value)
        {
            return Err(ApiError::invalid(format!(
                "Invalid value '{value}' for {name}: expected {}",
                words.join(", ")
            )));
        }
    }
    Ok(())
}

/// A mapping of a call.
pub fn mapping(item: &Scope<'_>) -> ApiResult<Mapping> {
    let text = |name: &str| item.get(name).map(str::to_owned);
    let flag = |name: &str| item.get(name).map(|value| value.eq_ignore_ascii_case("true"));
    let device = text("DeviceName").ok_or_else(|| missing("DeviceName"))?;
    Ok(Mapping {
        device,
        snapshot: text("Ebs.SnapshotId"),
        size_gib: item.number("Ebs.VolumeSize")?,
        volume_type: text("Ebs.VolumeType"),
        iops: item.number("Ebs.Iops")?,
        throughput: item.number("Ebs.Throughput")?,
        delete_on_termination: flag("Ebs.DeleteOnTermination"),
        encrypted: flag("Ebs.Encrypted"),
    })
}

impl Mapping {
    /// Changes the parts that the other mapping has.
    fn change(&mut self, other: Self) {
        if other.volume_type.is_some() && other.volume_type != self.volume_type {
            (self.iops, self.throughput) = (None, None);
        }
        self.snapshot = other.snapshot.or(self.snapshot.take());
        self.size_gib = other.size_gib.or(self.size_gib);
        self.volume_type = other.volume_type.or(self.volume_type.take());
        self.iops = other.iops.or(self.iops);
        self.throughput = other.throughput.or(self.throughput);
        self.delete_on_termination = other.delete_on_termination.or(self.delete_on_termination);
        self.encrypted = other.encrypted.or(self.encrypted);
    }
}

/// IOPS and throughput of a volume, by its type.
fn performance(volume_type: &str, size_gib: u32, mapping: &Mapping) -> ApiResult<(Option<u32>, Option<u32>)> {
    let unsupported = |name: &str| {
        let text = format!("The parameter {name} is not supported for {volume_type} volumes.");
        Err(ApiError::new("InvalidParameterCombination", text))
    };
    if mapping.throughput.is_some() && volume_type != "gp3" {
        return unsupported("throughput");
    }
    match volume_type {
        "gp3" => Ok((Some(mapping.iops.unwrap_or(3000)), Some(mapping.throughput.unwrap_or(125)))),
        "io1" | "io2" => match mapping.iops {
            Some(iops) => Ok((Some(iops), None)),
            None => Err(missing("iops")),
        },
        "gp2" | "st1" | "sc1" | "standard" if mapping.iops.is_some() => unsupported("iops"),
        "gp2" => Ok((Some((size_gib * 3).clamp(100, 16000)), None)),
        "st1" | "sc1" | "standard" => Ok((None, None)),
        _ => Err(ApiError::invalid(format!("Invalid value '{volume_type}' for VolumeType."))),
    }
}
