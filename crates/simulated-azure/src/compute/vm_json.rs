//! The JSON of a virtual machine, and its instance view.

use serde_json::{Map, Value, json};

use crate::cloud::cloud::Cloud;
use crate::cloud::resources::{Meta, Provisioning, Resource, Vm};
use crate::cloud::table::Table;
use crate::server::target::Kind;

impl Resource for Vm {
    const KIND: Kind = Kind::Vm;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }

    fn table(cloud: &Cloud) -> &Table<Self> {
        &cloud.vms
    }

    fn table_mut(cloud: &mut Cloud) -> &mut Table<Self> {
        &mut cloud.vms
    }

    fn describe(&self, cloud: &Cloud, json: &mut Map<String, Value>) {
        let mut properties = self.properties.clone();
        properties["hardwareProfile"]["vmSize"] = json!(self.size);
        properties["provisioningState"] = json!(self.state.name());
        properties["vmId"] = json!(self.meta.guid);
        properties["timeCreated"] = json!(cloud.timestamp(self.meta.created));
        self.describe_disk(cloud, &mut properties["storageProfile"]);
        if let Some(profile) = properties.get_mut("osProfile") {
            profile["secrets"] = json!([]);
            profile["allowExtensionOperations"] = json!(true);
            profile["requireGuestProvisionSignal"] = json!(true);
        }
        let reference = |key: &String| {
            let nic = cloud.nics.get(key)?;
            let properties = json!({"primary": nic.is_primary, "deleteOption": nic.on_vm_deletion.name()});
            Some(json!({"id": cloud.id_of(nic), "properties": properties}))
        };
        let nics: Vec<Value> = self.nics.iter().filter_map(reference).collect();
        properties["networkProfile"] = json!({"networkInterfaces": nics});
        json.insert("properties".to_owned(), properties);
    }
}

impl Vm {
    fn describe_disk(&self, cloud: &Cloud, storage: &mut Value) {
        storage["dataDisks"] = json!([]);
        let reference = &mut storage["imageReference"];
        if reference["version"] == "latest" {
            reference["exactVersion"] = json!("1.0.20260101");
        }
        let Some((key, option)) = &self.os_disk else { return };
        let Some(disk) = cloud.disks.get(key) else { return };
        let shown = &mut storage["osDisk"];
        shown["osType"] = json!(disk.os_type);
        shown["name"] = json!(disk.meta.name);
        shown["caching"] = json!("ReadWrite");
        shown["managedDisk"] = json!({"storageAccountType": disk.sku, "id": cloud.id_of(disk)});
        shown["deleteOption"] = json!(option.name());
        shown["diskSizeGB"] = json!(disk.size_bytes >> 30);
    }

    /// The instance view: the statuses of provisioning and power, and those of the disk.
    pub fn instance_view(&self, cloud: &Cloud) -> Value {
        let state = match self.state {
            Provisioning::Succeeded => "succeeded",
            Provisioning::Failed => "failed",
            Provisioning::Creating => "creating",
            Provisioning::Updating => "updating",
            Provisioning::Canceled => "canceled",
            Provisioning::Deleting => "deleting",
            Provisioning::Migrating => "migrating",
        };
        let mut provisioning = json!({"code": format!("ProvisioningState/{state}"), "level": "Info"});
        let mut display = state.to_owned();
        display[..1].make_ascii_uppercase();
        provisioning["displayStatus"] = json!(format!("Provisioning {state}"));
        if let Some(error) = &self.failure {
            provisioning["code"] = json!(format!("ProvisioningState/{state}/{}", error.code));
            provisioning["level"] = json!("Error");
            provisioning["message"] = json!(error.message);
        } else if self.state != Provisioning::Succeeded && self.state != Provisioning::Failed {
            provisioning["displayStatus"] = json!(display);
        }
        let moment = self.succeeded.unwrap_or(self.meta.created);
        provisioning["time"] = json!(cloud.timestamp(moment));
        let mut statuses = vec![provisioning];
        // A machine that never started has no power state.
        if self.succeeded.is_some() {
            let power = &self.power;
            let display = format!("VM {power}");
            statuses.push(json!({"code": format!("PowerState/{power}"), "level": "Info", "displayStatus": display}));
        }
        let disk = self.os_disk.as_ref().and_then(|(key, _)| cloud.disks.get(key));
        let disks: Vec<Value> = disk
            .iter()
            .map(|disk| {
                let status = json!({"code": "ProvisioningState/succeeded", "level": "Info",
                    "displayStatus": "Provisioning succeeded", "time": cloud.timestamp(disk.meta.created)});
                json!({"name": disk.meta.name, "statuses": [status]})
            })
            .collect();
        json!({"hyperVGeneration": "V2", "disks": disks, "statuses": statuses})
    }
}
