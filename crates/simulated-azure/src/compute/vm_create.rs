//! PUT of a virtual machine: its checks, its creation, and its repetition.

use serde_json::{Value, json};

use crate::cloud::cloud::Cloud;
use crate::cloud::operations::Effect;
use crate::cloud::resources::{Provisioning, Vm, key};
use crate::cloud::work::Step;
use crate::compute::vm_image::ChosenImage;
use crate::compute::vm_os_profile::{check_data, check_os_profile, missing};
use crate::compute::vm_parts::{NewDisk, VmParts, delete_option, tags_of};
use crate::compute::vm_properties::check_properties;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::server::target::Kind;

impl Cloud {
    pub fn put_vm(&mut self, call: &Call, group: &str, name: &str) -> ApiResult<Response> {
        let body = call.json.as_ref().expect("the body was checked");
        check_properties(body, call.version())?;
        check_name(name)?;
        let tags = tags_of(body)?;
        let location = self.location_of(body)?;
        let vm_key = key(group, name);
        if self.vms.contains(&vm_key) {
            return self.put_existing_vm(call, &vm_key, body, &location);
        }
        let mut vm = self.new_vm(body, group, name, &location)?;
        vm.meta.tags = tags;
        vm.meta.zones = zones_of(body)?;
        let meta = vm.meta.clone();
        self.stats.vm_created(&meta.tags);
        self.created(Kind::Vm, &meta);
        self.usage.add(&location, &vm.usage);
        self.vms.insert(vm_key.clone(), vm);
        self.run_after(self.knobs.parts_s, Step::MakeParts { vm: vm_key.clone(), guid: meta.guid });
        let operation = self.start_vm_creation(&vm_key, &location);
        let vm = self.vms.get(&vm_key).expect("the virtual machine was created");
        Ok(self.with_operation(Response::json(201, &self.resource_json(vm)), call, &operation))
    }

    fn start_vm_creation(&mut self, vm_key: &str, location: &str) -> String {
        let random = self.random();
        let seconds = self.knobs.boot_s.at(random);
        let operation = self.start_operation(Effect::CreateVm(vm_key.to_owned()), location, seconds);
        let vm = self.vms.get_mut(vm_key).expect("the virtual machine was created");
        vm.operation.clone_from(&operation);
        operation
    }

    /// The virtual machine of a body, without tags and zones.
    fn new_vm(&mut self, body: &Value, group: &str, name: &str, location: &str) -> ApiResult<Vm> {
        let properties = &body["properties"];
        let size = self.size_of(&properties["hardwareProfile"], location)?;
        let is_spot = match properties["priority"].as_str() {
            None | Some("Regular") => false,
            Some("Spot" | "Low") => true,
            Some(other) => return Err(ApiError::invalid("priority", format!("The value '{other}' is not allowed."))),
        };
        let storage = &properties["storageProfile"];
        if storage["osDisk"]["createOption"] != "FromImage" {
            let text =
                "The value of parameter 'osDisk.createOption' is not allowed: this simulation has only FromImage.";
            return Err(ApiError::invalid("osDisk.createOption", text));
        }
        let image = self.chosen_image(&storage["imageReference"], location)?;
        check_os_profile(&properties["osProfile"], &image.os_type)?;
        check_data(&properties["userData"], "userData", "User data")?;
        let disk = self.new_disk(&storage["osDisk"], name, image)?;
        let parts = VmParts::parse(self, &properties["networkProfile"], disk, location)?;
        parts.check_names(self, group, name)?;
        let mut usage = self.vm_usages(&size, is_spot);
        let wanted: Vec<(String, u64)> = usage.iter().cloned().chain(parts.usages()).collect();
        match self.check_quota(location, &wanted) {
            Err(error) if self.knobs.quota_in_operation => {
                self.planned_failure.get_or_insert(error);
                usage.clear();
            }
            checked => checked?,
        }
        Ok(Vm {
            meta: self.new_meta(group, name, location, Default::default()),
            state: Provisioning::Creating,
            power: "starting".to_owned(),
            size,
            properties: shown_properties(properties),
            immutable: immutable_of(body),
            operation: String::new(),
            is_deleting: false,
            failure: None,
            succeeded: None,
            missing_parts: Some(parts),
            nics: Vec::new(),
            os_disk: None,
            usage,
        })
    }

    /// A PUT of a virtual machine that exists: only tags may differ. It repeats a creation that has failed.
    fn put_existing_vm(&mut self, call: &Call, vm_key: &str, body: &Value, location: &str) -> ApiResult<Response> {
        let vm = self.vms.get(vm_key).expect("the virtual machine exists");
        if call.header("if-none-match") == "*" {
            let text = format!("The virtual machine '{}' exists, which the condition excludes.", vm.meta.name);
            return Err(ApiError::new("PreconditionFailed", text));
        }
        if vm.is_deleting {
            let text = format!("The virtual machine '{}' is being deleted.", vm.meta.name);
            return Err(ApiError::new("OperationNotAllowed", text));
        }
        if vm.meta.location != location {
            let (name, old) = (&vm.meta.name, &vm.meta.location);
            let text = format!(
                "The resource '{name}' already exists in location '{old}'. A resource with the same name cannot be \
                 created in location '{location}'. Please select a new resource name."
            );
            return Err(ApiError::new("InvalidResourceLocation", text));
        }
        if let Some(property) = changed_property(&vm.immutable, &immutable_of(body), "") {
            let text = format!("Changing property '{property}' is not allowed.");
            return Err(ApiError { target: Some(property), ..ApiError::new("PropertyChangeNotAllowed", text) });
        }
        let tags = tags_of(body)?;
        let has_failed = vm.state == Provisioning::Failed;
        let operation = vm.operation.clone();
        let vm = self.vms.get_mut(vm_key).expect("the virtual machine exists");
        vm.meta.tags = tags;
        if has_failed {
            (vm.state, vm.failure) = (Provisioning::Updating, None);
        }
        let operation = if has_failed { self.start_vm_creation(vm_key, location) } else { operation };
        let vm = self.vms.get(vm_key).expect("the virtual machine exists");
        let response = Response::json(200, &self.resource_json(vm));
        Ok(match self.operations.is_running(&operation) {
            true => self.with_operation(response, call, &operation),
            false => response,
        })
    }

    /// The location of a new resource.
    pub fn location_of(&self, body: &Value) -> ApiResult<String> {
        let name = body["location"].as_str().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| {
            ApiError::new("LocationRequired", "The location property is required for this definition.")
        })?;
        self.options.location(name).map(str::to_owned).ok_or_else(|| {
            let known = self.options.locations.join(",");
            let text = format!(
                "The provided location '{name}' is not available for resource type. List of available regions for the \
                 resource type is '{known}'."
            );
            ApiError::new("LocationNotAvailableForResourceType", text)
        })
    }

    fn size_of(&self, profile: &Value, location: &str) -> ApiResult<String> {
        let wanted = profile["vmSize"].as_str().ok_or_else(|| missing("vmSize", "vmSize"))?;
        let size = self.sizes.get(wanted).ok_or_else(|| {
            let text = format!("The value {wanted} provided for the VM size is not valid in the location {location}.");
            ApiError::invalid("vmSize", text)
        })?;
        if self.is_blocked(&size.name, location) {
            let text = format!(
                "The requested VM size for resource 'Following SKUs have failed for Capacity Restrictions: {wanted}' \
                 is currently not available in location '{location}'. Please try another size or deploy to a different \
                 location or different zone. See https://aka.ms/azureskunotavailable for details."
            );
            return Err(ApiError::new("SkuNotAvailable", text));
        }
        Ok(size.name.clone())
    }

    fn new_disk(&mut self, disk: &Value, vm: &str, image: ChosenImage) -> ApiResult<NewDisk> {
        let size_gb = match &disk["diskSizeGB"] {
            Value::Null => image.size_gb,
            value => value.as_u64().filter(|size| (1..=4095).contains(size)).ok_or_else(|| {
                ApiError::invalid("osDisk.diskSizeGB", "The value of parameter 'osDisk.diskSizeGB' is out of range.")
            })?,
        };
        if size_gb < image.size_gb {
            let text = format!(
                "The specified disk size {size_gb} GB is smaller than the size of the corresponding disk in the VM \
                 image: {} GB.",
                image.size_gb
            );
            return Err(ApiError::invalid("osDisk.diskSizeGB", text));
        }
        let name = match disk["name"].as_str() {
            Some(name) => name.to_owned(),
            None => format!("{vm}_OsDisk_1_{}", self.new_guid().replace('-', "")),
        };
        let sku = disk["managedDisk"]["storageAccountType"].as_str().unwrap_or("Premium_LRS").to_owned();
        Ok(NewDisk { name, size_gb, os_type: image.os_type, sku, on_vm_deletion: delete_option(disk)? })
    }
}

fn check_name(name: &str) -> ApiResult<()> {
    let is_valid = name.len() <= 64
        && name.chars().all(|sign| sign.is_ascii_alphanumeric() || "-._".contains(sign))
        && !name.ends_with(['-', '.']);
    if is_valid {
        return Ok(());
    }
    let text = format!(
        "The entity name 'vmName' is invalid according to its validation rule: {name} must have at most 64 letters, \
         digits, '-', '_' and '.', and must not end with '-' or '.'."
    );
    Err(ApiError::invalid("vmName", text))
}

fn zones_of(body: &Value) -> ApiResult<Vec<String>> {
    let zones: Vec<String> =
        body["zones"].as_array().into_iter().flatten().filter_map(|zone| zone.as_str().map(str::to_owned)).collect();
    match &zones[..] {
        [] => Ok(zones),
        [zone] if matches!(zone.as_str(), "1" | "2" | "3") => Ok(zones),
        _ => {
            let text = format!("The zone(s) '{}' for resource is not supported.", zones.join(","));
            Err(ApiError::new("AvailabilityZoneNotSupported", text))
        }
    }
}

/// The properties of a body as the resource shows them: secrets and data are not shown.
fn shown_properties(properties: &Value) -> Value {
    let mut shown = json!({});
    for (name, value) in properties.as_object().into_iter().flatten() {
        if !matches!(name.as_str(), "userData" | "networkProfile" | "provisioningState" | "vmId") {
            shown[name] = value.clone();
        }
    }
    if let Some(profile) = shown.get_mut("osProfile").and_then(Value::as_object_mut) {
        profile.remove("adminPassword");
        profile.remove("customData");
    }
    shown
}

/// The properties that a repeated PUT must not change.
fn immutable_of(body: &Value) -> Value {
    let properties = &body["properties"];
    json!({
        "zones": body["zones"],
        "osProfile": properties["osProfile"],
        "imageReference": properties["storageProfile"]["imageReference"],
        "osDisk.createOption": properties["storageProfile"]["osDisk"]["createOption"],
        "priority": properties["priority"],
        "networkInterfaceConfigurations": properties["networkProfile"]["networkInterfaceConfigurations"],
    })
}

/// The first property that both have, with different values.
fn changed_property(old: &Value, new: &Value, at: &str) -> Option<String> {
    match (old, new) {
        (_, Value::Null) => None,
        (Value::Object(old), Value::Object(new)) => new.iter().find_map(|(name, value)| {
            let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
            old.get(name).and_then(|old| changed_property(old, value, &path))
        }),
        _ => (old != new).then(|| at.to_owned()),
    }
}
