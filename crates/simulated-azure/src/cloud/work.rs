//! Work that is due at a time: the ends of operations, the parts of virtual machines, and addresses.

use serde_json::Value;
use simulated_service::timers;

use crate::cloud::cloud::Cloud;
use crate::cloud::operations::{Effect, Outcome};
use crate::cloud::resources::Provisioning;
use crate::server::response::{ApiError, ApiResult};
use crate::server::target::Kind;

/// Texts are keys or guids of resources. A guid tells a resource from a later one with the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// An operation ends.
    Finish(String),
    /// A new virtual machine gets its interfaces, public IPs and disk.
    MakeParts {
        vm: String,
        guid: String,
    },
    /// The parts of a virtual machine that no longer exists are deleted.
    RemoveParts {
        nics: Vec<String>,
        ips: Vec<String>,
        disks: Vec<String>,
    },
    NicAddresses {
        nic: String,
        guid: String,
    },
    PublicAddress {
        ip: String,
        guid: String,
    },
}

pub type Timers = timers::Timers<Step>;

impl Cloud {
    pub fn run(&mut self, step: Step) {
        match step {
            Step::Finish(id) => self.finish_operation(&id),
            Step::MakeParts { vm, guid } => self.make_parts(&vm, &guid),
            Step::RemoveParts { nics, ips, disks } => self.remove_parts(&nics, &ips, &disks),
            Step::NicAddresses { nic, guid } => self.give_private_addresses(&nic, &guid),
            Step::PublicAddress { ip, guid } => self.give_public_address(&ip, &guid),
        }
    }

    fn finish_operation(&mut self, id: &str) {
        if !self.operations.is_running(id) {
            return;
        }
        let operation = self.operations.table.get_mut(id).expect("a running operation is known");
        let (effect, failure) = (operation.effect.clone(), operation.failure.take());
        let result = match failure {
            Some(error) => {
                self.fail_effect(&effect, &error);
                Err(error)
            }
            None => self.apply_effect(&effect),
        };
        let now = self.now;
        if let Err(error) = &result {
            *self.stats.failures_by_code.entry(error.code.clone()).or_default() += 1;
        }
        let operation = self.operations.table.get_mut(id).expect("a running operation is known");
        operation.ended = Some(now);
        (operation.outcome, operation.output) = match result {
            Ok(output) => (Outcome::Succeeded, output),
            Err(error) => (Outcome::Failed(error), Value::Null),
        };
    }

    /// Executes the change of an operation, and returns its result.
    fn apply_effect(&mut self, effect: &Effect) -> ApiResult<Value> {
        match effect {
            Effect::CreateVm(key) => self.finish_vm_creation(key)?,
            Effect::DeleteVm(key) => self.finish_vm_deletion(key),
            Effect::CreateDisk(key) => {
                let now = self.now;
                let disk = self.disks.get_mut(key).ok_or_else(gone)?;
                disk.state = Provisioning::Succeeded;
                self.history.ready(Kind::Disk, &disk.meta.guid, now);
            }
            Effect::DeleteDisk(key) => self.remove_disk(key),
            Effect::GrantAccess { disk, seconds, may_write } => return self.grant_access(disk, *seconds, *may_write),
            Effect::RevokeAccess(key) => self.end_access(key),
            Effect::CreateImage(key) => return self.finish_image_creation(key),
            Effect::DeleteImage(key) => self.remove_image(key),
            Effect::DeleteNic(key) => self.remove_nic(key),
            Effect::DeleteIp(key) => self.remove_ip(key),
        }
        Ok(Value::Null)
    }

    /// Leaves the resource of a failed operation as Azure does.
    fn fail_effect(&mut self, effect: &Effect, error: &ApiError) {
        match effect {
            Effect::CreateVm(key) => self.fail_vm_creation(key, error),
            Effect::DeleteVm(key) => self.fail_vm_deletion(key, error),
            Effect::CreateDisk(key) => self.fail_disk(key),
            Effect::DeleteDisk(key) => self.fail_disk(key),
            Effect::CreateImage(key) | Effect::DeleteImage(key) => self.fail_image(key, error),
            Effect::DeleteNic(key) => {
                if let Some(nic) = self.nics.get_mut(key) {
                    nic.is_deleting = false;
                }
            }
            Effect::DeleteIp(key) => {
                if let Some(ip) = self.ips.get_mut(key) {
                    ip.is_deleting = false;
                }
            }
            Effect::GrantAccess { .. } | Effect::RevokeAccess(_) => {}
        }
    }

    fn fail_disk(&mut self, key: &str) {
        if let Some(disk) = self.disks.get_mut(key) {
            (disk.state, disk.is_deleting) = (Provisioning::Failed, false);
        }
    }
}

/// The error of an operation whose resource was deleted meanwhile.
pub fn gone() -> ApiError {
    ApiError::new("NotFound", "The resource of the operation no longer exists.")
}
