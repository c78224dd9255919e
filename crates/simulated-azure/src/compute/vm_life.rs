//! The end of a creation, the deletion, and events of a virtual machine.

use std::time::Duration;

use crate::cloud::cloud::Cloud;
use crate::cloud::operations::Effect;
use crate::cloud::resources::{DeleteOption, Provisioning, Vm, key};
use crate::cloud::work::{Step, gone};
use crate::faults::values::{FailedCreation, Part};
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::server::target::Kind;

impl Cloud {
    pub fn finish_vm_creation(&mut self, vm_key: &str) -> ApiResult<()> {
        let guid = self.vms.get(vm_key).ok_or_else(gone)?.meta.guid.clone();
        self.make_parts(vm_key, &guid);
        let now = self.now;
        let vm = self.vms.get_mut(vm_key).ok_or_else(gone)?;
        (vm.state, vm.failure) = (Provisioning::Succeeded, None);
        "running".clone_into(&mut vm.power);
        vm.succeeded.get_or_insert(now);
        self.history.ready(Kind::Vm, &guid, now);
        Ok(())
    }

    /// An accepted creation fails: its cores are free, and its interfaces are reserved for a while.
    pub fn fail_vm_creation(&mut self, vm_key: &str, error: &ApiError) {
        let Some(vm) = self.vms.get(vm_key) else { return };
        let guid = vm.meta.guid.clone();
        self.make_parts(vm_key, &guid);
        self.history.failed(Kind::Vm, &guid, &error.code);
        let vm = self.vms.get_mut(vm_key).expect("the virtual machine exists");
        (vm.state, vm.failure) = (Provisioning::Failed, Some(error.clone()));
        "stopped".clone_into(&mut vm.power);
        let (location, usage) = (vm.meta.location.clone(), std::mem::take(&mut vm.usage));
        self.usage.remove(&location, &usage);
        match self.knobs.failed_creation {
            FailedCreation::Vm => self.reserve_nics(vm_key),
            FailedCreation::Parts => {
                self.reserve_nics(vm_key);
                self.remove_vm(vm_key);
            }
            FailedCreation::Nothing => {
                let (nics, ips, disks) = self.parts_of(vm_key);
                self.remove_vm(vm_key);
                self.remove_parts(&nics, &ips, &disks);
            }
        }
    }

    /// Reserves the interfaces of a virtual machine for it.
    pub fn reserve_nics(&mut self, vm_key: &str) {
        let Some(vm) = self.vms.get(vm_key) else { return };
        let (name, nics) = (vm.meta.name.clone(), vm.nics.clone());
        let until = self.now + Duration::from_secs_f64(self.knobs.nic_reserved_s);
        for nic_key in nics {
            if let Some(nic) = self.nics.get_mut(&nic_key) {
                nic.reserved = Some((name.clone(), until));
            }
        }
    }

    pub fn delete_vm(&mut self, call: &Call, group: &str, name: &str) -> ApiResult<Response> {
        let vm_key = key(group, name);
        let Some(vm) = self.vms.get(&vm_key) else { return Ok(Response::empty(204)) };
        if vm.is_deleting && self.operations.is_running(&vm.operation) {
            return Ok(self.with_operation(Response::empty(202), call, &vm.operation));
        }
        let (location, creation, guid) = (vm.meta.location.clone(), vm.operation.clone(), vm.meta.guid.clone());
        self.cancel_operation(&creation);
        self.history.end_asked(Kind::Vm, &guid, self.now);
        let random = self.random();
        let seconds = self.knobs.delete_s.at(random);
        let operation = self.start_operation(Effect::DeleteVm(vm_key.clone()), &location, seconds);
        let vm = self.vms.get_mut(&vm_key).expect("the virtual machine exists");
        (vm.state, vm.is_deleting) = (Provisioning::Deleting, true);
        vm.operation.clone_from(&operation);
        Ok(self.with_operation(Response::empty(202), call, &operation))
    }

    pub fn finish_vm_deletion(&mut self, vm_key: &str) {
        if !self.vms.contains(vm_key) {
            return;
        }
        let (mut nics, mut ips, mut disks) = self.parts_of(vm_key);
        self.vms_deleted += 1;
        let leaves = simulated_service::knobs::is_nth(self.knobs.leave_parts_every, self.vms_deleted);
        let remaining = if leaves { self.knobs.leave_parts.clone() } else { Vec::new() };
        for part in remaining {
            match part {
                Part::Nic => {
                    nics.clear();
                    self.reserve_nics(vm_key);
                }
                Part::Ip => ips.clear(),
                Part::Disk => disks.clear(),
            }
        }
        self.remove_vm(vm_key);
        // A public IP that is to be deleted is taken from an interface that remains.
        for ip_key in &ips {
            let user = self.ips.get(ip_key).and_then(|ip| ip.configuration.as_ref());
            if user.is_some_and(|(nic, _)| !nics.contains(nic)) {
                self.detach_ip(ip_key);
            }
        }
        self.run_after(self.knobs.parts_delete_s, Step::RemoveParts { nics, ips, disks });
    }

    pub fn fail_vm_deletion(&mut self, vm_key: &str, error: &ApiError) {
        if let Some(vm) = self.vms.get_mut(vm_key) {
            (vm.state, vm.is_deleting, vm.failure) = (Provisioning::Failed, false, Some(error.clone()));
        }
    }

    /// Keys of the interfaces, public IPs and disks that are deleted with a virtual machine.
    fn parts_of(&self, vm_key: &str) -> (Vec<String>, Vec<String>, Vec<String>) {
        let Some(vm) = self.vms.get(vm_key) else { return Default::default() };
        let is_nic = |key: &&String| self.nics.get(key).is_some_and(|nic| nic.on_vm_deletion == DeleteOption::Delete);
        let is_ip = |key: &String| self.ips.get(key).is_some_and(|ip| ip.on_vm_deletion == DeleteOption::Delete);
        let nics = vm.nics.iter().filter(is_nic).cloned().collect();
        let ips = self.ips_of(vm).into_iter().filter(is_ip).collect();
        let disks = vm.os_disk.iter().filter(|(_, option)| *option == DeleteOption::Delete);
        (nics, ips, disks.map(|(key, _)| key.clone()).collect())
    }

    /// Removes a virtual machine; its parts stay, unattached.
    pub fn remove_vm(&mut self, vm_key: &str) -> Option<Vm> {
        let vm = self.vms.remove(vm_key)?;
        let operation = vm.operation.clone();
        if !vm.is_deleting {
            self.cancel_operation(&operation);
        }
        for nic_key in &vm.nics {
            if let Some(nic) = self.nics.get_mut(nic_key) {
                nic.vm = None;
            }
        }
        if let Some((disk_key, _)) = &vm.os_disk
            && let Some(disk) = self.disks.get_mut(disk_key)
        {
            disk.managed_by = None;
        }
        self.usage.remove(&vm.meta.location, &vm.usage);
        self.stats.vm_ended(&vm.meta.tags);
        self.ended(Kind::Vm, &vm.meta);
        Some(vm)
    }
}
