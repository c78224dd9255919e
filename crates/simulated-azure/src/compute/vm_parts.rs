//! The parts of a new virtual machine: its interfaces and public IPs as the body configures them, and its disk.

use serde_json::{Map, Value};

use crate::cloud::cloud::Cloud;
use crate::cloud::resources::{
    DeleteOption, Disk, IpConfiguration, IpVersion, Nic, Provisioning, PublicIp, Tags, Vm, key,
};
use crate::cloud::work::Step;
use crate::compute::vm_os_profile::missing;
use crate::network::subnets::subnet_not_found;
use crate::server::response::{ApiError, ApiResult};
use crate::server::target::Kind;

/// Versions of the network's API that the configuration of an interface may name.
const NETWORK_VERSIONS: [&str; 2] = ["2020-11-01", "2022-11-01"];

#[derive(Clone, Debug)]
pub struct VmParts {
    nics: Vec<NewNic>,
    disk: NewDisk,
}

#[derive(Clone, Debug)]
struct NewNic {
    name: String,
    tags: Tags,
    is_primary: bool,
    on_vm_deletion: DeleteOption,
    configurations: Vec<NewConfiguration>,
}

#[derive(Clone, Debug)]
struct NewConfiguration {
    name: String,
    version: IpVersion,
    subnet: String,
    is_primary: bool,
    public_ip: Option<NewPublicIp>,
}

#[derive(Clone, Debug)]
struct NewPublicIp {
    name: String,
    tags: Tags,
    version: IpVersion,
    sku: String,
    allocation: String,
    on_vm_deletion: DeleteOption,
}

#[derive(Clone, Debug)]
pub struct NewDisk {
    pub name: String,
    pub size_gb: u64,
    pub os_type: String,
    pub sku: String,
    pub on_vm_deletion: DeleteOption,
}

impl VmParts {
    /// Reads `networkProfile`.
    pub fn parse(cloud: &Cloud, profile: &Value, disk: NewDisk, location: &str) -> ApiResult<Self> {
        let configurations = profile["networkInterfaceConfigurations"].as_array();
        let configurations = configurations.filter(|all| !all.is_empty());
        let configurations =
            configurations.ok_or_else(|| missing("networkProfile", "networkInterfaceConfigurations"))?;
        match profile["networkApiVersion"].as_str() {
            None => return Err(missing("networkProfile.networkApiVersion", "networkApiVersion")),
            Some(version) if !NETWORK_VERSIONS.contains(&version) => {
                let text = format!("The value '{version}' of parameter 'networkApiVersion' is not allowed.");
                return Err(ApiError::invalid("networkProfile.networkApiVersion", text));
            }
            Some(_) => {}
        }
        let mut nics = Vec::new();
        for configuration in configurations {
            nics.push(new_nic(cloud, configuration, location, configurations.len())?);
        }
        match nics.iter().filter(|nic| nic.is_primary).count() {
            1 => Ok(Self { nics, disk }),
            _ => Err(ApiError::invalid(
                "networkProfile",
                "Virtual machine must have exactly one primary network interface.",
            )),
        }
    }

    /// Amounts of the usages of the network.
    pub fn usages(&self) -> Vec<(String, u64)> {
        let ips = self.nics.iter().flat_map(|nic| &nic.configurations).filter_map(|one| one.public_ip.as_ref());
        let standard = ips.clone().filter(|ip| ip.sku == "Standard").count() as u64;
        let amounts = [
            ("NetworkInterfaces", self.nics.len() as u64),
            ("PublicIPAddresses", ips.count() as u64),
            ("StandardSkuPublicIpAddresses", standard),
        ];
        amounts.into_iter().filter(|(_, amount)| *amount > 0).map(|(name, amount)| (name.to_owned(), amount)).collect()
    }

    /// Refuses names of interfaces and public IPs that others use.
    pub fn check_names(&self, cloud: &Cloud, group: &str, vm: &str) -> ApiResult<()> {
        for nic in &self.nics {
            let nic_key = key(group, &nic.name);
            if let Some(existing) = cloud.nics.get(&nic_key) {
                cloud.check_nic_is_free(existing, Some(vm))?;
            }
            for ip in nic.configurations.iter().filter_map(|one| one.public_ip.as_ref()) {
                let user = cloud.ips.get(&key(group, &ip.name)).and_then(|existing| existing.configuration.as_ref());
                if user.is_some_and(|(user, _)| *user != nic_key) {
                    let text = format!("The public IP address {} is referenced by multiple ipconfigs.", ip.name);
                    return Err(ApiError::new("PublicIPAddressInUse", text));
                }
            }
        }
        Ok(())
    }
}

fn new_nic(cloud: &Cloud, configuration: &Value, location: &str, count: usize) -> ApiResult<NewNic> {
    let properties = &configuration["properties"];
    let name = name_of(configuration, "networkInterfaceConfigurations.name")?;
    let configurations = properties["ipConfigurations"].as_array().filter(|all| !all.is_empty());
    let configurations = configurations.ok_or_else(|| missing("ipConfigurations", "ipConfigurations"))?;
    let mut new = Vec::new();
    for (index, one) in configurations.iter().enumerate() {
        new.push(new_configuration(cloud, one, location, index == 0)?);
    }
    // Azure requires one IPv4 configuration, but a pool without IPv4 must be tested as well: this is not enforced.
    let is_primary = properties["primary"].as_bool().unwrap_or(count == 1);
    let on_vm_deletion = delete_option(properties)?;
    Ok(NewNic { name, tags: tags_of(configuration)?, is_primary, on_vm_deletion, configurations: new })
}

fn new_configuration(cloud: &Cloud, one: &Value, location: &str, is_first: bool) -> ApiResult<NewConfiguration> {
    let properties = &one["properties"];
    let name = name_of(one, "ipConfigurations.name")?;
    let version = ip_version(&properties["privateIPAddressVersion"])?;
    let subnet = properties["subnet"]["id"].as_str().ok_or_else(|| missing("subnet.id", "subnet"))?;
    let subnet = cloud.subnet_id(subnet).ok_or_else(|| subnet_not_found(subnet))?;
    if cloud.options.locations[0] != location {
        let text = format!("The resource '{subnet}' is not in the location '{location}' of the virtual machine.");
        return Err(ApiError::new("InvalidResourceReference", text));
    }
    let is_primary = properties["primary"].as_bool().unwrap_or(is_first);
    let public = &properties["publicIPAddressConfiguration"];
    let public_ip = if public.is_null() { None } else { Some(new_public_ip(public, version)?) };
    Ok(NewConfiguration { name, version, subnet, is_primary, public_ip })
}

fn new_public_ip(public: &Value, private_version: IpVersion) -> ApiResult<NewPublicIp> {
    let properties = &public["properties"];
    let name = name_of(public, "publicIPAddressConfiguration.name")?;
    let version = match &properties["publicIPAddressVersion"] {
        Value::Null => private_version,
        value => ip_version(value)?,
    };
    let sku = public["sku"]["name"].as_str().unwrap_or("Basic").to_owned();
    let allocation = properties["publicIPAllocationMethod"].as_str().unwrap_or("Dynamic").to_owned();
    if sku == "Standard" && allocation != "Static" {
        let text = format!("Standard sku publicIp {name} must have AllocationMethod set to Static.");
        return Err(ApiError::new("StandardSkuPublicIPAddressesMustBeStatic", text));
    }
    Ok(NewPublicIp {
        name,
        tags: tags_of(public)?,
        version,
        sku,
        allocation,
        on_vm_deletion: delete_option(properties)?,
    })
}

fn name_of(value: &Value, target: &str) -> ApiResult<String> {
    match value["name"].as_str() {
        Some(name) if !name.is_empty() && name.len() <= 80 => Ok(name.to_owned()),
        _ => Err(missing(target, "name")),
    }
}

/// The tags of a resource, which are texts.
pub fn tags_of(value: &Value) -> ApiResult<Tags> {
    let tags = match &value["tags"] {
        Value::Null => return Ok(Map::new()),
        Value::Object(tags) => tags,
        _ => return Err(ApiError::new("InvalidRequestContent", "The request content was invalid: tags is no object.")),
    };
    if tags.len() > 50 {
        return Err(ApiError::new("TooManyTags", "Too many tags specified. The maximum number of tags is 50."));
    }
    for (name, value) in tags {
        let text = value.as_str().ok_or_else(|| {
            ApiError::new("InvalidRequestContent", format!("The request content was invalid: tag {name} is no text."))
        })?;
        if name.is_empty() || name.len() > 512 || name.contains(['<', '>', '%', '&', '\\', '?', '/']) {
            let message =
                format!("The tag name '{name}' has reserved characters '<,>,%,&,\\,?,/' or control characters.");
            return Err(ApiError::new("InvalidTagNameCharacters", message));
        }
        if text.len() > 256 {
            let message =
                format!("Tag value too large. Following tag value '{text}' exceeded the maximum length of 256.");
            return Err(ApiError::new("InvalidTagValueLength", message));
        }
    }
    Ok(tags.clone())
}

fn ip_version(value: &Value) -> ApiResult<IpVersion> {
    match value.as_str() {
        None | Some("IPv4") => Ok(IpVersion::V4),
        Some("IPv6") => Ok(IpVersion::V6),
        Some(other) => Err(ApiError::invalid("IPAddressVersion", format!("'{other}' is neither IPv4 nor IPv6."))),
    }
}

pub fn delete_option(properties: &Value) -> ApiResult<DeleteOption> {
    match properties["deleteOption"].as_str() {
        None | Some("Detach") => Ok(DeleteOption::Detach),
        Some("Delete") => Ok(DeleteOption::Delete),
        Some(other) => Err(ApiError::invalid("deleteOption", format!("The value '{other}' is not allowed."))),
    }
}

impl Cloud {
    /// Creates the parts that a virtual machine lacks.
    pub fn make_parts(&mut self, vm_key: &str, guid: &str) {
        let Some(vm) = self.vms.get_mut(vm_key).filter(|vm| vm.meta.guid == guid) else { return };
        let Some(parts) = vm.missing_parts.take() else { return };
        let (group, location, zones) = (vm.meta.group.clone(), vm.meta.location.clone(), vm.meta.zones.clone());
        let nics: Vec<String> = parts.nics.iter().map(|nic| self.make_nic(vm_key, &group, &location, nic)).collect();
        let mut meta = self.new_meta(&group, &parts.disk.name, &location, Map::new());
        meta.zones = zones;
        let disk_key = meta.key();
        self.remove_disk(&disk_key);
        self.created(Kind::Disk, &meta);
        self.history.ready(Kind::Disk, &meta.guid, self.now);
        let disk = Disk {
            meta,
            state: Provisioning::Succeeded,
            create_option: "FromImage".to_owned(),
            size_bytes: parts.disk.size_gb << 30,
            os_type: Some(parts.disk.os_type),
            sku: parts.disk.sku,
            managed_by: Some(vm_key.to_owned()),
            upload: None,
            is_deleting: false,
        };
        self.disks.insert(disk_key.clone(), disk);
        let vm = self.vms.get_mut(vm_key).expect("the virtual machine lacked parts");
        vm.nics = nics;
        vm.os_disk = Some((disk_key, parts.disk.on_vm_deletion));
    }

    fn make_nic(&mut self, vm_key: &str, group: &str, location: &str, new: &NewNic) -> String {
        let meta = self.new_meta(group, &new.name, location, new.tags.clone());
        let (nic_key, guid) = (meta.key(), meta.guid.clone());
        self.remove_nic(&nic_key);
        let mut configurations = Vec::new();
        for one in &new.configurations {
            let public_ip = one.public_ip.as_ref().map(|ip| self.make_ip(group, location, &nic_key, &one.name, ip));
            configurations.push(IpConfiguration {
                name: one.name.clone(),
                version: one.version,
                subnet: one.subnet.clone(),
                is_primary: one.is_primary,
                address: None,
                public_ip,
            });
        }
        self.usage.add(location, &[("NetworkInterfaces".to_owned(), 1)]);
        self.created(Kind::Nic, &meta);
        let (is_primary, on_vm_deletion) = (new.is_primary, new.on_vm_deletion);
        let vm = Some(vm_key.to_owned());
        let nic = Nic { meta, vm, is_primary, on_vm_deletion, configurations, reserved: None, is_deleting: false };
        self.nics.insert(nic_key.clone(), nic);
        self.run_after(self.knobs.address_s, Step::NicAddresses { nic: nic_key.clone(), guid });
        nic_key
    }

    fn make_ip(&mut self, group: &str, location: &str, nic: &str, configuration: &str, new: &NewPublicIp) -> String {
        let meta = self.new_meta(group, &new.name, location, new.tags.clone());
        let (ip_key, guid) = (meta.key(), meta.guid.clone());
        self.remove_ip(&ip_key);
        self.created(Kind::Ip, &meta);
        let ip = PublicIp {
            meta,
            version: new.version,
            sku: new.sku.clone(),
            allocation: new.allocation.clone(),
            on_vm_deletion: new.on_vm_deletion,
            configuration: Some((nic.to_owned(), configuration.to_owned())),
            address: None,
            is_deleting: false,
        };
        self.usage.add(location, &ip.usages());
        self.ips.insert(ip_key.clone(), ip);
        self.run_after(self.knobs.public_address_s, Step::PublicAddress { ip: ip_key.clone(), guid });
        ip_key
    }

    /// Deletes parts of a virtual machine that no longer exists.
    pub fn remove_parts(&mut self, nics: &[String], ips: &[String], disks: &[String]) {
        // A part that belongs to a new virtual machine of the same name stays.
        for key in nics {
            if self.nics.get(key).is_some_and(|nic| nic.vm.is_none()) {
                self.remove_nic(key);
            }
        }
        for key in ips {
            if self.ips.get(key).is_some_and(|ip| ip.configuration.is_none()) {
                self.remove_ip(key);
            }
        }
        for key in disks {
            if self.disks.get(key).is_some_and(|disk| disk.managed_by.is_none()) {
                self.remove_disk(key);
            }
        }
    }

    /// Name and keys of the public IPs of a virtual machine's interfaces.
    pub fn ips_of(&self, vm: &Vm) -> Vec<String> {
        let nics = vm.nics.iter().filter_map(|key| self.nics.get(key));
        nics.flat_map(|nic| nic.configurations.iter().filter_map(|one| one.public_ip.clone())).collect()
    }
}
