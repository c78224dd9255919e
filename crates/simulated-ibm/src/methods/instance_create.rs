//! The creation of instances, by calls and by `/sim`.

use crate::faults::codes;
use crate::faults::outcome_fault::Creation;
use crate::methods::boot_volume::volume_side;
use crate::methods::fields::parsed;
use crate::methods::instance_json::Parts;
use crate::methods::instance_spec::InstanceSpec;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::instance::{Instance, LaunchFailure};
use crate::state::volume::NewVolume;
use crate::state::world::World;

impl World {
    pub fn create_instance(&mut self, call: &Call) -> ApiResult<Response> {
        let spec = self.instance_spec(&parsed(&call.body)?)?;
        self.check_quotas(&[
            ("instances", self.instances.len() as u64, 1),
            ("vcpus", self.used_vcpus, spec.profile.vcpus),
            ("memory_gib", self.used_memory_gib, spec.profile.memory_gib),
            ("volumes", self.volumes.len() as u64, 1),
        ])?;
        let is_full = self.is_full(&spec.zone, &spec.profile.name);
        if is_full && self.knobs.refuse_when_full {
            return Err(ApiError::new("insufficient_capacity"));
        }
        let fate = match is_full {
            true => Some(LaunchFailure { code: self.knobs.full_code.clone(), is_stopped: false }),
            false => self.launch_fault(&spec.zone, &spec.profile.name),
        };
        let id = self.add_instance(spec)?;
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.details.fate = fate;
        }
        self.begin_boot(&id, "pending");
        self.instance_response(call, 201, &id)
    }

    /// Whether a zone has no capacity for a profile.
    pub fn is_full(&self, zone: &str, profile: &str) -> bool {
        self.knobs.full_zones.iter().any(|full| full.contains(zone, profile))
    }

    /// The reason for which the next instance of this kind will not start.
    fn launch_fault(&mut self, zone: &str, profile: &str) -> Option<LaunchFailure> {
        let (faults, counts) = (&self.knobs.launch_faults, &mut self.stats.launch_faults_struck);
        let struck = counts.strike(faults, &Creation::Instance { zone, profile });
        struck.first().map(|fault| LaunchFailure { code: fault.code.clone(), is_stopped: fault.is_stopped })
    }

    /// Checks quotas: for each resource its name, its use, and the addition.
    pub fn check_quotas(&self, charges: &[(&str, u64, u64)]) -> ApiResult<()> {
        for (resource, used, added) in charges {
            if self.knobs.quotas.get(resource).is_some_and(|limit| used + added > limit) {
                let code = &self.knobs.quota_code;
                let message = format!("{} ({resource})", codes::message("over_quota"));
                return Err(ApiError { status: self.knobs.quota_status, ..ApiError::with_message(code, message) });
            }
        }
        Ok(())
    }

    /// Adds a pending instance with its boot volume, and returns its id.
    pub fn add_instance(&mut self, spec: InstanceSpec) -> ApiResult<String> {
        let subnet = self.subnets.get_mut(&spec.interface.subnet).expect("the subnet of an instance exists");
        let Some(address) = subnet.details.addresses.allocate() else {
            return Err(ApiError::new("subnet_out_of_ip_addresses"));
        };
        let (text, free) = (subnet.details.addresses.ipv4(address), subnet.details.addresses.free());
        subnet.value_mut()["available_ipv4_address_count"] = free.into();
        let name = spec.name.clone().unwrap_or_else(|| self.new_name());
        let image = self.images.get(&spec.image).expect("the image of an instance exists").value().clone();
        let volume_name = spec.boot_volume.name.clone().unwrap_or_else(|| self.new_name());
        let volume = self.add_volume(&NewVolume {
            name: &volume_name,
            profile: &spec.boot_volume.profile,
            capacity: spec.boot_volume.capacity,
            zone: &spec.zone,
            group: spec.boot_volume.group.as_deref().unwrap_or(&spec.group),
            image: Some(&image),
        });
        let id = self.instance_id(&spec.zone);
        let parts = Parts {
            interface: self.zonal_id(&spec.zone),
            virtual_interface: spec.interface.is_attachment.then(|| self.zonal_id(&spec.zone)),
            volume: volume.clone(),
            address: text,
        };
        let json = self.instance_json(&spec, &id, &name, &parts);
        let is_deleted = spec.boot_volume.is_deleted_with_instance;
        let attachment = volume_side(&json["boot_volume_attachment"], &json, is_deleted);
        self.interfaces.insert(parts.interface.clone(), id.clone());
        if let Some(virtual_id) = &parts.virtual_interface {
            self.interfaces.insert(virtual_id.clone(), id.clone());
        }
        let details = Instance {
            zone: spec.zone,
            profile: spec.profile.name,
            vcpus: spec.profile.vcpus,
            memory_gib: spec.profile.memory_gib,
            subnet: spec.interface.subnet,
            address,
            interface: parts.interface,
            virtual_interface: parts.virtual_interface,
            security_groups: spec.interface.security_groups,
            volume: volume.clone(),
            deletes_volume: is_deleted,
            keys: spec.keys.into(),
            change: 0,
            boot_rest_s: 0.0,
            fate: None,
            node: None,
        };
        self.instances.insert(&id, json, details);
        self.attach_volume(&volume, &id, attachment);
        self.record_instance(&id);
        Ok(id)
    }
}
