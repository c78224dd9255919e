//! Limits: vCPUs, hosts and volumes in use, compared with their quotas.

use crate::actions::run_instances::NewVolume;
use crate::region::instance_types::InstanceType;
use crate::region::quotas;
use crate::region::region::Ec2;
use crate::server::response::{ApiError, ApiResult};

impl Ec2<'_> {
    /// The applied value of a quota.
    fn quota(&self, code: &str, default: f64) -> f64 {
        self.world.knobs.quotas.0.get(code).copied().unwrap_or(default)
    }

    pub fn check_vcpus(&self, instance_type: &InstanceType, is_spot: bool, count: u32) -> ApiResult<()> {
        let Some(code) = quotas::vcpu_code(instance_type.name, is_spot) else { return Ok(()) };
        let limit = self.quota(code, quotas::DEFAULT_VCPUS);
        let used = self.region.usage.vcpus.get(code).copied().unwrap_or_default();
        if f64::from(used + instance_type.vcpus * count) <= limit {
            return Ok(());
        }
        Err(if is_spot {
            ApiError::new("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
        } else {
            let text = format!(
                "You have requested more vCPU capacity than your current vCPU limit of {limit} allows for the instance \
                 bucket that the specified instance type belongs to. Please visit \
                 http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit."
            );
            ApiError::new("VcpuLimitExceeded", text)
        })
    }

    /// Counts vCPUs of an instance that is not on a dedicated host.
    pub fn use_vcpus(&mut self, instance_type: &InstanceType, is_spot: bool) {
        if let Some(code) = quotas::vcpu_code(instance_type.name, is_spot) {
            *self.region.usage.vcpus.entry(code).or_default() += instance_type.vcpus;
        }
    }

    pub fn free_vcpus(&mut self, instance_type: &InstanceType, is_spot: bool) {
        let code = quotas::vcpu_code(instance_type.name, is_spot);
        if let Some(used) = code.and_then(|code| self.region.usage.vcpus.get_mut(code)) {
            *used -= instance_type.vcpus;
        }
    }

    pub fn check_volumes<'v>(&self, volumes: impl Iterator<Item = &'v NewVolume> + Clone, count: u32) -> ApiResult<()> {
        for volume in volumes.clone() {
            let Some((storage, iops)) = quotas::volume_codes(&volume.volume_type) else { continue };
            let same = volumes.clone().filter(|other| other.volume_type == volume.volume_type);
            let size: u32 = same.clone().map(|one| one.size_gib).sum();
            let used = self.region.usage.storage.get(&volume.volume_type).copied().unwrap_or_default();
            let limit_gib = self.quota(storage, quotas::DEFAULT_STORAGE_TIB) * 1024.0;
            if (used + u64::from(size) * u64::from(count)) as f64 > limit_gib {
                let text = format!("You have exceeded the maximum {} storage limit", volume.volume_type);
                return Err(ApiError::new("VolumeLimitExceeded", text));
            }
            let Some(code) = iops else { continue };
            let wanted: u32 = same.filter_map(|one| one.iops).sum();
            let used = self.region.usage.iops.get(&volume.volume_type).copied().unwrap_or_default();
            if (used + u64::from(wanted) * u64::from(count)) as f64 > self.quota(code, quotas::DEFAULT_IOPS) {
                let text = format!("You have exceeded the maximum {} IOPS limit", volume.volume_type);
                return Err(ApiError::new("MaxIOPSLimitExceeded", text));
            }
        }
        Ok(())
    }

    pub fn check_hosts(&self, family: &str, count: u32) -> ApiResult<()> {
        let Some(code) = quotas::host_code(family) else { return Ok(()) };
        let used = self.region.usage.hosts.get(family).copied().unwrap_or_default();
        if f64::from(used + count) <= self.quota(code, quotas::DEFAULT_HOSTS) {
            return Ok(());
        }
        let text = format!("You have reached the maximum number of dedicated hosts of the family {family}.");
        Err(ApiError::new("HostLimitExceeded", text))
    }
}
