//! The insert of instances, and the creation of foreign ones by `/sim`.

use crate::faults::codes;
use crate::methods::spec::{InstanceSpec, parsed};
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::instance::{Instance, Status};
use crate::state::operation::OperationError;
use crate::state::places::region_of;
use crate::state::project::Compute;
use crate::state::quotas::ExceededQuota;
use crate::state::work::Step;

impl Compute<'_> {
    pub fn insert_instance(&mut self, call: &Call, zone: &'static str) -> ApiResult<Response> {
        let body = parsed(&call.body)?;
        let name = body["name"].as_str().unwrap_or_default();
        if let Some(response) = self.repeated(call, zone, name)? {
            return Ok(response);
        }
        let spec = self.spec(&body, zone)?;
        if self.project.zones[zone].instances.contains_key(name) {
            let path = self.path(&format!("zones/{zone}/instances/{name}"));
            return Err(ApiError::new("alreadyExists", format!("The resource '{path}' already exists")));
        }
        let id = self.world.new_id();
        let value = self.instance_json(&spec, zone, id);
        let mut instance = Instance::new(name, id, &spec.size.name, value);
        instance.is_spot = spec.scheduling.is_spot;
        instance.is_deleted_when_preempted = spec.scheduling.is_deleted_when_preempted;
        instance.is_external = spec.interfaces.is_external;
        instance.disks.clone_from(&spec.disks.sizes);
        instance.size = Some(spec.size.clone());
        let charges = instance.due_charges(&self.world.knobs, region_of(zone));
        let exceeded = self.project.usage.exceeded(&self.world.knobs, region_of(zone), &charges);
        if let Some(exceeded) = exceeded.as_ref().filter(|_| self.world.knobs.refuse_above_quota) {
            return Err(ApiError::new("quotaExceeded", exceeded.message()));
        }
        let fate = self.fate(&spec, zone, exceeded.as_ref());
        instance.is_charged = exceeded.is_none();
        let operation = self.start_insert(&spec, zone, instance, fate);
        Ok(self.accepted(call, zone, name, operation))
    }

    /// The error with which the operation of an insert will end.
    fn fate(&mut self, spec: &InstanceSpec, zone: &str, exceeded: Option<&ExceededQuota>) -> Option<OperationError> {
        if let Some(fault) = self.operation_fault("insert", zone, &spec.size.name, &spec.name) {
            return Some(fault);
        }
        if let Some(exceeded) = exceeded {
            let (message, details) = (exceeded.message(), Some(exceeded.details()));
            return Some(OperationError { code: "QUOTA_EXCEEDED".to_owned(), message, details });
        }
        let model = if spec.scheduling.is_spot { "spot" } else { "standard" };
        let is_full = self.world.knobs.full_zones.iter().any(|full| full.contains(zone, &spec.size.name, model));
        let code = self.world.knobs.full_code.clone();
        let (zone_path, target) = (self.path(&format!("zones/{zone}")), self.path(&format!("zones/{zone}/instances")));
        let message = codes::operation_message(&code, &zone_path, &target);
        is_full.then_some(OperationError { code, message, details: None })
    }

    /// Adds the instance and its operation, and schedules its boot or its failure.
    fn start_insert(
        &mut self,
        spec: &InstanceSpec,
        zone: &'static str,
        mut instance: Instance,
        fate: Option<OperationError>,
    ) -> String {
        let (name, id) = (instance.name.clone(), instance.id);
        let operation = self.add_operation(zone, "insert", (&name, id));
        let provider = spec.provider.clone().unwrap_or_default();
        instance.node = spec.node.as_ref().map(|node| format!("{provider} {node}"));
        instance.insert = Some(operation.clone());
        instance.is_doomed = fate.is_some();
        if fate.is_none() {
            self.world.stats.instance_created(instance.node.as_deref());
        }
        self.give_internal_address(&mut instance);
        self.add_instance(zone, instance, spec.provider.as_deref(), spec.node.as_deref());
        match fate {
            Some(fate) => self.doom(zone, &operation, fate),
            None => self.schedule_boot(zone, &name, id, spec.scheduling.is_spot),
        }
        operation
    }

    fn give_internal_address(&mut self, instance: &mut Instance) {
        instance.internal = self.world.internal.allocate();
        if let Some(number) = instance.internal {
            let address = self.world.internal.ipv4(number);
            instance.value_mut()["networkInterfaces"][0]["networkIP"] = address.into();
        }
    }

    fn schedule_boot(&mut self, zone: &'static str, name: &str, id: u64, is_spot: bool) {
        let place = self.place(zone);
        let boot = self.world.duration(self.world.knobs.boot_s);
        self.world.schedule(boot / 2.0, &place, Step::Stage(name.to_owned(), id));
        self.world.schedule(boot, &place, Step::Boot(name.to_owned(), id));
        let preempt_after_s = self.world.knobs.preempt_after_s;
        if is_spot && preempt_after_s > 0.0 {
            self.world.schedule(preempt_after_s, &place, Step::Preempt(name.to_owned(), id));
        }
    }

    /// Creates a RUNNING instance that no call asked for. `machine_type` may be one that does not exist.
    pub fn add_foreign(&mut self, zone: &'static str, mut spec: InstanceSpec, machine_type: &str) {
        let id = self.world.new_id();
        let is_known = machine_type == spec.size.name;
        machine_type.clone_into(&mut spec.size.name);
        let value = self.instance_json(&spec, zone, id);
        let mut instance = Instance::new(&spec.name, id, machine_type, value);
        instance.is_external = spec.interfaces.is_external;
        instance.disks.clone_from(&spec.disks.sizes);
        instance.size = is_known.then_some(spec.size.clone());
        self.world.stats.instance_created(None);
        self.give_internal_address(&mut instance);
        self.add_instance(zone, instance, None, None);
        self.set_status(zone, &spec.name, Status::Running);
    }
}
