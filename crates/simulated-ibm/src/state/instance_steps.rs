//! The life of an instance: it is created, boots or fails, stops, and is deleted.

use serde_json::{Value, json};
use simulated_service::knobs::is_nth;

use crate::faults::codes;
use crate::state::history::Lifetime;
use crate::state::ids::reference;
use crate::state::instance::{Instance, LaunchFailure, lifecycle_state, node_of};
use crate::state::table::Entry;
use crate::state::work::Step;
use crate::state::world::World;

impl World {
    /// Records and counts an instance that was added to the table.
    pub fn record_instance(&mut self, id: &str) {
        let Some(instance) = self.instances.get_mut(id) else { return };
        let group = instance.value()["resource_group"]["name"].as_str().unwrap_or_default().to_owned();
        let (provider, node) = node_of(&group, instance.name());
        let key = node.as_ref().map(|node| format!("{} {node}", provider.as_deref().unwrap_or_default()));
        instance.details.node = key.clone();
        let lifetime = Lifetime {
            kind: "instances",
            id: id.to_owned(),
            name: instance.name().to_owned(),
            zone: instance.details.zone.clone(),
            profile: instance.details.profile.clone(),
            provider,
            node,
            created: self.now,
            ready: None,
            end_asked: None,
            ended: None,
            reason: None,
        };
        self.used_vcpus += instance.details.vcpus;
        self.used_memory_gib += instance.details.memory_gib;
        self.history.created(lifetime);
        self.stats.count_created("instances");
        self.stats.instance_created(key.as_deref(), self.instances.len() as u64);
    }

    /// Sets the status of an instance, and returns the number of this change.
    pub fn set_instance_status(&mut self, id: &str, status: &str, reason: Option<&str>) -> Option<u64> {
        let instance = self.instances.get_mut(id)?;
        instance.details.change += 1;
        let change = instance.details.change;
        instance.set_status(status);
        let value = instance.value_mut();
        value["lifecycle_state"] = json!(lifecycle_state(status));
        value["status_reasons"] = reason.map_or_else(|| json!([]), |code| json!([status_reason(code)]));
        if status == "running" {
            self.history.ready(id, self.now);
        }
        Some(change)
    }

    /// Whether no status change has followed the one with this number.
    fn is_current(&self, id: &str, change: u64) -> bool {
        self.instances.get(id).is_some_and(|instance| instance.details.change == change)
    }

    /// Begins to boot a pending instance, or one that is started again, unless it is bound to fail.
    pub fn begin_boot(&mut self, id: &str, status: &str) {
        let Some(change) = self.set_instance_status(id, status, None) else { return };
        if self.instances.get(id).is_some_and(|instance| instance.details.fate.is_some()) {
            let time = self.duration(self.knobs.fail_s);
            self.schedule(time, Step::Fail(id.to_owned(), change));
            return;
        }
        let time = self.duration(self.knobs.boot_s);
        if status != "pending" {
            self.schedule(time, Step::Run(id.to_owned(), change));
            return;
        }
        if let Some(instance) = self.instances.get_mut(id) {
            instance.details.boot_rest_s = time / 2.0;
        }
        self.schedule(time / 2.0, Step::Start(id.to_owned(), change));
    }

    pub fn start(&mut self, id: &str, change: u64) {
        if !self.is_current(id, change) {
            return;
        }
        let rest = self.instances.get(id).map_or(0.0, |instance| instance.details.boot_rest_s);
        if let Some(change) = self.set_instance_status(id, "starting", None) {
            self.schedule(rest, Step::Run(id.to_owned(), change));
        }
    }

    pub fn finish_boot(&mut self, id: &str, change: u64) {
        if self.is_current(id, change) {
            self.set_instance_status(id, "running", None);
        }
    }

    pub fn fail(&mut self, id: &str, change: u64) {
        if !self.is_current(id, change) {
            return;
        }
        let fate = self.instances.get_mut(id).and_then(|instance| instance.details.fate.take());
        let Some(LaunchFailure { code, is_stopped }) = fate else { return };
        *self.stats.launch_failures.entry(code.clone()).or_default() += 1;
        self.set_instance_status(id, if is_stopped { "stopped" } else { "failed" }, Some(&code));
    }

    pub fn begin_stop(&mut self, id: &str) {
        if let Some(change) = self.set_instance_status(id, "stopping", None) {
            let time = self.duration(self.knobs.stop_s);
            self.schedule(time, Step::FinishStop(id.to_owned(), change));
        }
    }

    pub fn finish_stop(&mut self, id: &str, change: u64) {
        if self.is_current(id, change) {
            self.set_instance_status(id, "stopped", None);
        }
    }

    /// Begins to delete an instance.
    pub fn begin_delete(&mut self, id: &str) {
        self.history.end_asked(id, "deleted", self.now);
        self.set_instance_status(id, "deleting", None);
        self.stats.instance_deletions += 1;
        if is_nth(self.knobs.stuck_deleting_every, self.stats.instance_deletions) {
            self.stats.left_behind += 1;
            return;
        }
        if is_nth(self.knobs.volumes_stay_every, self.stats.instance_deletions)
            && let Some(instance) = self.instances.get_mut(id)
        {
            instance.details.deletes_volume = false;
            self.stats.left_behind += 1;
        }
        let time = self.duration(self.knobs.delete_s);
        self.schedule(time, Step::FinishDelete(id.to_owned()));
    }

    /// Removes an instance at once. Its floating IP stays without a target, its boot volume with the instance's name.
    pub fn remove_instance(&mut self, id: &str, reason: &str) {
        let Some(Entry { details: instance, .. }) = self.instances.remove(id) else { return };
        self.used_vcpus -= instance.vcpus;
        self.used_memory_gib -= instance.memory_gib;
        if let Some(subnet) = self.subnets.get_mut(&instance.subnet) {
            subnet.details.addresses.release(instance.address);
            let free = subnet.details.addresses.free();
            subnet.value_mut()["available_ipv4_address_count"] = json!(free);
        }
        self.release_interfaces(&instance);
        match instance.deletes_volume {
            true => self.remove_volume(&instance.volume, reason),
            false => self.detach_volume(&instance.volume),
        }
        self.history.ended(id, reason, self.now);
        self.stats.count_deleted("instances");
        self.stats.instance_deleted(instance.node.as_deref());
    }

    fn release_interfaces(&mut self, instance: &Instance) {
        for interface in [Some(&instance.interface), instance.virtual_interface.as_ref()].into_iter().flatten() {
            self.interfaces.remove(interface);
            if let Some(floating_ip) = self.attached.get(interface).cloned() {
                self.detach(&floating_ip);
            }
        }
    }

    /// The JSON to which the target of a floating IP refers: a network interface, or a virtual network interface.
    pub fn interface_reference(&self, interface: &str) -> Option<Value> {
        let instance = self.instances.get(self.interfaces.get(interface)?)?;
        let value = instance.value();
        let mut found = reference(&value["primary_network_interface"]);
        if instance.details.virtual_interface.as_deref() == Some(interface) {
            found = reference(&value["primary_network_attachment"]["virtual_network_interface"]);
            found["subnet"] = value["primary_network_attachment"]["subnet"].clone();
        }
        found["primary_ip"] = value["primary_network_interface"]["primary_ip"].clone();
        Some(found)
    }
}

/// An item of `status_reasons`.
pub fn status_reason(code: &str) -> Value {
    let anchor = code.replace('_', "-");
    json!({
        "code": code, "message": codes::reason_message(code),
        "more_info": format!("https://cloud.ibm.com/docs/vpc?topic=vpc-instance-status-messages#{anchor}"),
    })
}
