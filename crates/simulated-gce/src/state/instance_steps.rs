//! The life of an instance: it is created, boots, stops, is preempted or deleted.

use crate::faults::codes;
use crate::state::history::Lifetime;
use crate::state::instance::{Instance, Status};
use crate::state::operation::OperationError;
use crate::state::places::region_of;
use crate::state::project::Compute;
use crate::state::work::Step;

impl Compute<'_> {
    /// Adds a PROVISIONING instance, counts and records it, and gives it its internal address.
    pub fn add_instance(&mut self, zone: &str, instance: Instance, provider: Option<&str>, node: Option<&str>) {
        let (name, id) = (instance.name.clone(), instance.id);
        self.world.history.created(Lifetime {
            id,
            name: name.clone(),
            project: self.project.name.clone(),
            zone: zone.to_owned(),
            machine_type: instance.machine_type.clone(),
            provider: provider.map(str::to_owned),
            node: node.map(str::to_owned),
            created: self.world.now,
            running: None,
            end_asked: None,
            ended: None,
            reason: None,
        });
        let earlier = self.project.zone(zone).instances.insert(name.clone(), instance);
        assert!(earlier.is_none(), "a second instance has the name {name}");
        self.set_status(zone, &name, Status::Provisioning);
    }

    fn instance(&mut self, zone: &str, name: &str) -> Option<&mut Instance> {
        self.project.zone(zone).instances.get_mut(name)
    }

    /// Whether the instance is the one with this id and has one of these statuses.
    fn is_in(&mut self, zone: &str, name: &str, id: u64, statuses: &[Status]) -> bool {
        self.instance(zone, name).is_some_and(|one| one.id == id && statuses.contains(&one.status()))
    }

    /// Sets the status of an instance, with its external address and its charges.
    pub fn set_status(&mut self, zone: &str, name: &str, status: Status) {
        let (world, region) = (&mut *self.world, region_of(zone));
        let Some(instance) = self.project.zones.get_mut(zone).and_then(|zone| zone.instances.get_mut(name)) else {
            return;
        };
        instance.set_status(status);
        match (instance.external, instance.is_external && status.has_external_address()) {
            (None, true) => {
                instance.external = world.external.allocate();
                instance.show_external(instance.external.map(|number| world.external.ipv4(number)));
            }
            (Some(number), false) => {
                world.external.release(number);
                instance.external = None;
                instance.show_external(None);
            }
            (None, false) | (Some(_), true) => {}
        }
        let charges = instance.due_charges(&world.knobs, region);
        self.project.usage.remove(region, &instance.charges);
        self.project.usage.add(region, &charges);
        instance.charges = charges;
        if status == Status::Running {
            let (id, now) = (instance.id, world.timestamp());
            instance.value_mut()["lastStartTimestamp"] = now.into();
            world.history.running(id, world.now);
        }
    }

    pub fn stage(&mut self, zone: &str, name: &str, id: u64) {
        if self.is_in(zone, name, id, &[Status::Provisioning]) {
            self.set_status(zone, name, Status::Staging);
        }
    }

    pub fn boot(&mut self, zone: &str, name: &str, id: u64) {
        if !self.is_in(zone, name, id, &[Status::Provisioning, Status::Staging]) {
            return;
        }
        self.set_status(zone, name, Status::Running);
        self.finish_insert(zone, name, None);
    }

    /// Sets the status of an instance by hand. An insert that is still running ends, unless the instance boots on.
    pub fn force_status(&mut self, zone: &str, name: &str, status: Status) {
        self.set_status(zone, name, status);
        if !matches!(status, Status::Provisioning | Status::Staging) {
            self.finish_insert(zone, name, None);
        }
    }

    /// Ends the insert of an instance, if it is still running.
    fn finish_insert(&mut self, zone: &str, name: &str, error: Option<OperationError>) {
        if let Some(operation) = self.instance(zone, name).and_then(|instance| instance.insert.take()) {
            self.finish_operation(zone, &operation, error);
        }
    }

    /// Ends an operation with the error that was decided at its call. The instance of an insert no longer exists; a
    /// deletion may be asked for again.
    pub fn fail_operation(&mut self, zone: &str, name: &str) {
        let Some(operation) = self.project.zone(zone).operations.get_mut(name) else { return };
        let (kind, target, id) = (operation.kind, operation.target.clone(), operation.target_id);
        let Some(error) = operation.fate.take().filter(|_| !operation.is_done()) else { return };
        if let Some(instance) = self.instance(zone, &target).filter(|instance| instance.id == id) {
            if kind == "insert" {
                instance.insert = None;
                self.remove(zone, &target, &error.code);
            } else {
                instance.delete = None;
            }
        }
        self.finish_operation(zone, name, Some(error));
    }

    /// Begins to delete an instance. An insert that is still running is canceled.
    pub fn begin_delete(&mut self, zone: &str, name: &str, id: u64) {
        self.world.history.end_asked(id, "deleted", self.world.now);
        let message = codes::operation_message("OPERATION_CANCELED_BY_USER", zone, name);
        let canceled = OperationError { code: "OPERATION_CANCELED_BY_USER".to_owned(), message, details: None };
        self.finish_insert(zone, name, Some(canceled));
        self.set_status(zone, name, Status::Stopping);
        let time = self.world.duration(self.world.knobs.delete_s);
        self.world.schedule(time, &self.place(zone), Step::FinishDelete(name.to_owned(), id));
    }

    pub fn finish_delete(&mut self, zone: &str, name: &str, id: u64) {
        if self.is_in(zone, name, id, &Status::ALL) {
            self.remove(zone, name, "deleted");
        }
    }

    /// Removes an instance at once, and ends the operations on it.
    pub fn remove(&mut self, zone: &str, name: &str, reason: &str) {
        let Some(instance) = self.project.zone(zone).instances.remove(name) else { return };
        self.project.usage.remove(region_of(zone), &instance.charges);
        self.release_addresses(&instance);
        self.world.history.ended(instance.id, reason, self.world.now);
        if !instance.is_doomed {
            self.world.stats.instance_deleted(instance.node.as_deref());
        }
        for operation in [instance.insert, instance.delete].into_iter().flatten() {
            self.finish_operation(zone, &operation, None);
        }
    }

    fn release_addresses(&mut self, instance: &Instance) {
        if let Some(number) = instance.internal {
            self.world.internal.release(number);
        }
        if let Some(number) = instance.external {
            self.world.external.release(number);
        }
    }

    /// Begins to stop an instance, for this reason.
    pub fn begin_stop(&mut self, zone: &str, name: &str, reason: &str) {
        if let Some(id) = self.begin_shutdown(zone, name, reason) {
            let time = self.world.duration(self.world.knobs.stop_s);
            self.world.schedule(time, &self.place(zone), Step::FinishStop(name.to_owned(), id));
        }
    }

    /// Makes an instance STOPPING, and returns its id.
    fn begin_shutdown(&mut self, zone: &str, name: &str, reason: &str) -> Option<u64> {
        let id = self.instance(zone, name)?.id;
        self.world.history.end_asked(id, reason, self.world.now);
        self.finish_insert(zone, name, None);
        self.set_status(zone, name, Status::Stopping);
        Some(id)
    }

    pub fn finish_stop(&mut self, zone: &str, name: &str, id: u64) {
        let is_deleted = self.instance(zone, name).is_some_and(|instance| instance.delete.is_some());
        if !self.is_in(zone, name, id, &[Status::Stopping]) || is_deleted {
            return;
        }
        self.set_status(zone, name, Status::Terminated);
        let now = self.world.timestamp();
        if let Some(instance) = self.instance(zone, name) {
            instance.value_mut()["lastStopTimestamp"] = now.into();
        }
    }

    /// Preempts an instance, as Google does with spot instances: it is stopped, or deleted if its insert said so.
    pub fn preempt(&mut self, zone: &str, name: &str) {
        let Some(instance) = self.instance(zone, name) else { return };
        let (id, is_deleted) = (instance.id, instance.is_deleted_when_preempted);
        if instance.delete.is_some() {
            return;
        }
        let event = self.add_operation(zone, "compute.instances.preempted", (name, id));
        self.finish_operation(zone, &event, None);
        self.world.stats.preempted += 1;
        if !is_deleted {
            self.begin_stop(zone, name, "preempted");
        } else if self.begin_shutdown(zone, name, "preempted").is_some() {
            let time = self.world.duration(self.world.knobs.delete_s);
            self.world.schedule(time, &self.place(zone), Step::FinishDelete(name.to_owned(), id));
        }
    }

    /// Preempts an instance after the knob's time, if it is not stopped.
    pub fn preempt_after(&mut self, zone: &str, name: &str, id: u64) {
        if self.is_in(zone, name, id, &[Status::Provisioning, Status::Staging, Status::Running]) {
            self.preempt(zone, name);
        }
    }
}
