//! Control calls that change resources behind the API: deletions by hand, states, and resources of others.

use serde_json::{Map, Value, json};

use crate::api::control::{Controlled, number};
use crate::cloud::cloud::Cloud;
use crate::cloud::resources::{
    DeleteOption, Disk, Image, IpConfiguration, IpVersion, Meta, Nic, Provisioning, PublicIp, Tags, Vm, key,
};
use crate::cloud::work::Step;
use crate::server::call::Call;
use crate::server::response::ApiError;
use crate::server::target::Kind;

/// Maximum number of resources of one call.
const MAX_CREATED: u64 = 100_000;

impl Cloud {
    fn group_of_parameter(&self, call: &Call) -> String {
        call.parameter("group").unwrap_or(&self.options.resource_groups[0]).to_owned()
    }

    /// The key of the resource that a parameter names, in the group that another one names.
    pub fn key_of_parameter(&self, call: &Call, name: &str) -> Option<String> {
        Some(key(&self.group_of_parameter(call), call.parameter(name)?))
    }

    /// Removes a virtual machine at once. Its parts stay, except for those that `delete` lists.
    pub fn remove_vm_by_hand(&mut self, call: &Call) -> Controlled {
        let vm_key = self.key_of_parameter(call, "vm").filter(|key| self.vms.contains(key));
        let vm_key = vm_key.ok_or_else(|| (404, "no such virtual machine".to_owned()))?;
        self.reserve_nics(&vm_key);
        let vm = self.vms.get(&vm_key).expect("the virtual machine exists");
        let ips = self.ips_of(vm);
        let vm = self.remove_vm(&vm_key).expect("the virtual machine exists");
        for part in call.parameter("delete").unwrap_or_default().split(',').filter(|part| !part.is_empty()) {
            match part {
                "nic" => vm.nics.iter().for_each(|key| self.remove_nic(key)),
                "ip" => ips.iter().for_each(|key| self.remove_ip(key)),
                "disk" => vm.os_disk.iter().for_each(|(key, _)| self.remove_disk(key)),
                _ => return Err((400, "delete is a list of nic, ip and disk".to_owned())),
            }
        }
        Ok(json!({"nics": vm.nics, "ips": ips, "disk": vm.os_disk.map(|(key, _)| key)}))
    }

    /// Sets state, power state or failure of a virtual machine.
    pub fn set_vm_state(&mut self, call: &Call) -> Controlled {
        let vm_key = self.key_of_parameter(call, "vm").filter(|key| self.vms.contains(key));
        let vm_key = vm_key.ok_or_else(|| (404, "no such virtual machine".to_owned()))?;
        let state = call.parameter("state").map(|name| {
            let state = Provisioning::ALL.into_iter().find(|state| state.name() == name);
            state.ok_or_else(|| {
                let names: Vec<&str> = Provisioning::ALL.iter().map(|state| state.name()).collect();
                (400, format!("the states are {}", names.join(", ")))
            })
        });
        let state = state.transpose()?;
        let operation = self.vms.get(&vm_key).expect("the virtual machine exists").operation.clone();
        if state.is_some() {
            self.cancel_operation(&operation);
        }
        let vm = self.vms.get_mut(&vm_key).expect("the virtual machine exists");
        if let Some(state) = state {
            (vm.state, vm.is_deleting) = (state, state == Provisioning::Deleting);
        }
        if let Some(power) = call.parameter("power") {
            power.clone_into(&mut vm.power);
        }
        if let Some(code) = call.parameter("code") {
            vm.failure = Some(ApiError::new(code, call.parameter("message").unwrap_or(code)));
        }
        Ok(json!({}))
    }

    /// Creates resources of others: `kind=nic count=500 prefix=other tags={…}`.
    pub fn create_foreign(&mut self, call: &Call) -> Controlled {
        let wanted = call.parameter("kind").unwrap_or_default();
        let kind = Kind::ALL.into_iter().find(|kind| kind.label() == wanted);
        let kind = kind.ok_or_else(|| (400, "kind is vm, nic, ip, disk or image".to_owned()))?;
        let count = number(call, "count")?.unwrap_or(1.0) as u64;
        if count > MAX_CREATED {
            return Err((400, format!("count is {MAX_CREATED} at most")));
        }
        let prefix = call.parameter("prefix").unwrap_or("foreign-").to_owned();
        let tags: Tags = match call.parameter("tags") {
            Some(text) => serde_json::from_str(text).map_err(|error| (400, error.to_string()))?,
            None => Map::new(),
        };
        let group = self.group_of_parameter(call);
        let location = call.parameter("location").unwrap_or(&self.options.locations[0]).to_owned();
        let size = self.sizes.get(call.parameter("size").unwrap_or("Standard_D2s_v3"));
        let size = size.ok_or_else(|| (400, "no such size".to_owned()))?.name.clone();
        let mut created = 0;
        for number in 0..count {
            let name = if count == 1 { prefix.clone() } else { format!("{prefix}{number}") };
            let meta = self.new_meta(&group, &name, &location, tags.clone());
            created += u64::from(self.insert_foreign(kind, meta, &size));
        }
        Ok(json!({"created": created}))
    }

    /// Inserts a finished resource. `false` means that its name was taken.
    fn insert_foreign(&mut self, kind: Kind, meta: Meta, size: &str) -> bool {
        let new_key = meta.key();
        let is_taken = match kind {
            Kind::Vm => self.vms.contains(&new_key),
            Kind::Nic => self.nics.contains(&new_key),
            Kind::Ip => self.ips.contains(&new_key),
            Kind::Disk => self.disks.contains(&new_key),
            Kind::Image => self.images.contains(&new_key),
        };
        if is_taken {
            return false;
        }
        self.created(kind, &meta);
        self.history.ready(kind, &meta.guid, self.now);
        match kind {
            Kind::Vm => {
                let vm = self.foreign_vm(meta, size);
                self.stats.vm_created(&vm.meta.tags);
                self.usage.add(&vm.meta.location, &vm.usage);
                self.vms.insert(new_key, vm);
            }
            Kind::Nic => self.insert_foreign_nic(new_key, meta),
            Kind::Ip => self.insert_foreign_ip(new_key, meta),
            Kind::Disk => {
                let disk = Disk {
                    meta,
                    state: Provisioning::Succeeded,
                    create_option: "Empty".to_owned(),
                    size_bytes: 30 << 30,
                    os_type: None,
                    sku: "Standard_LRS".to_owned(),
                    managed_by: None,
                    upload: None,
                    is_deleting: false,
                };
                self.disks.insert(new_key, disk);
            }
            Kind::Image => {
                let os_disk = json!({"osType": "Linux", "osState": "Generalized"});
                let properties = json!({"hyperVGeneration": "V2", "storageProfile": {"osDisk": os_disk}});
                let (state, os_type) = (Provisioning::Succeeded, "Linux".to_owned());
                let image = Image { meta, state, properties, os_type, size_gb: 30, blob: None, is_deleting: false };
                self.images.insert(new_key, image);
            }
        }
        true
    }

    fn foreign_vm(&self, meta: Meta, size: &str) -> Vm {
        Vm {
            state: Provisioning::Succeeded,
            power: "running".to_owned(),
            size: size.to_owned(),
            properties: json!({"hardwareProfile": {}, "storageProfile": {"imageReference": {}, "osDisk": {}}}),
            immutable: Value::Null,
            operation: String::new(),
            is_deleting: false,
            failure: None,
            succeeded: Some(self.now),
            missing_parts: None,
            nics: Vec::new(),
            os_disk: None,
            usage: self.vm_usages(size, false),
            meta,
        }
    }

    fn insert_foreign_nic(&mut self, new_key: String, meta: Meta) {
        let subnet = self.options.subnets.first().map(|one| one.replace('/', " ")).unwrap_or_default();
        let parts: Vec<&str> = subnet.split(' ').collect();
        let subnet = match parts[..] {
            [group, network, subnet] => self.subnet_path(group, network, subnet),
            _ => String::new(),
        };
        let configuration = IpConfiguration {
            name: "ipconfig".to_owned(),
            version: IpVersion::V4,
            subnet,
            is_primary: true,
            address: None,
            public_ip: None,
        };
        self.usage.add(&meta.location, &[("NetworkInterfaces".to_owned(), 1)]);
        let guid = meta.guid.clone();
        let nic = Nic {
            meta,
            vm: None,
            is_primary: true,
            on_vm_deletion: DeleteOption::Detach,
            configurations: vec![configuration],
            reserved: None,
            is_deleting: false,
        };
        self.nics.insert(new_key.clone(), nic);
        self.run(Step::NicAddresses { nic: new_key, guid });
    }

    fn insert_foreign_ip(&mut self, new_key: String, meta: Meta) {
        let guid = meta.guid.clone();
        let ip = PublicIp {
            meta,
            version: IpVersion::V4,
            sku: "Standard".to_owned(),
            allocation: "Static".to_owned(),
            on_vm_deletion: DeleteOption::Detach,
            configuration: None,
            address: None,
            is_deleting: false,
        };
        self.usage.add(&ip.meta.location, &ip.usages());
        self.ips.insert(new_key.clone(), ip);
        self.run(Step::PublicAddress { ip: new_key, guid });
    }
}
