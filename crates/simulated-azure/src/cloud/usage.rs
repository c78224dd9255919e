//! Usages of resources that have limits, by location.

use std::collections::BTreeMap;

use crate::cloud::cloud::Cloud;
use crate::server::response::{ApiError, ApiResult};

/// The limit of each usage that the knob `limits` does not name.
const DEFAULT_LIMIT: u64 = 100_000;

#[derive(Default)]
pub struct Usage {
    by_location: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Usage {
    pub fn of(&self, location: &str, name: &str) -> u64 {
        self.by_location.get(location).and_then(|usages| usages.get(name)).copied().unwrap_or_default()
    }

    pub fn add(&mut self, location: &str, usages: &[(String, u64)]) {
        let all = self.by_location.entry(location.to_owned()).or_default();
        for (name, amount) in usages {
            *all.entry(name.clone()).or_default() += amount;
        }
    }

    pub fn remove(&mut self, location: &str, usages: &[(String, u64)]) {
        for (name, amount) in usages {
            let used = self.by_location.get_mut(location).and_then(|all| all.get_mut(name));
            let used = used.expect("an amount was added before it is removed");
            assert!(*used >= *amount, "usage of {name} is not less than what is removed");
            *used -= amount;
        }
    }

    pub fn all(&self) -> &BTreeMap<String, BTreeMap<String, u64>> {
        &self.by_location
    }
}

impl Cloud {
    pub fn limit(&self, name: &str) -> u64 {
        self.knobs.limits.0.get(name).copied().unwrap_or(DEFAULT_LIMIT)
    }

    /// Usage in a location, with that of others.
    pub fn used(&self, location: &str, name: &str) -> u64 {
        self.usage.of(location, name) + self.knobs.foreign_usage.0.get(name).copied().unwrap_or_default()
    }

    /// Refuses usages of virtual machines that would exceed a limit.
    pub fn check_quota(&self, location: &str, usages: &[(String, u64)]) -> ApiResult<()> {
        for (name, amount) in usages {
            let (used, limit) = (self.used(location, name), self.limit(name));
            if used + amount <= limit {
                continue;
            }
            let new_limit = used + amount;
            return Err(match name.as_str() {
                "PublicIPAddresses" | "StandardSkuPublicIpAddresses" | "NetworkInterfaces" => {
                    let (code, what) = match name.as_str() {
                        "NetworkInterfaces" => ("NetworkInterfaceCountLimitReached", "network interfaces"),
                        _ => ("PublicIPCountLimitReached", "public IP addresses"),
                    };
                    let text = format!("Cannot create more than {limit} {what} for this subscription in this region.");
                    ApiError::new(code, text)
                }
                _ => {
                    let quota = match name.as_str() {
                        "cores" => "Total Regional Cores",
                        "lowPriorityCores" => "LowPriorityCores",
                        "virtualMachines" => "Virtual Machines",
                        family => &format!("{family} Cores"),
                    };
                    let text = format!(
                        "Operation could not be completed as it results in exceeding approved {quota} quota. \
                         Additional details - Deployment Model: Resource Manager, Location: {location}, Current Limit: \
                         {limit}, Current Usage: {used}, Additional Required: {amount}, (Minimum) New Limit Required: \
                         {new_limit}. Submit a request for Quota increase at \
                         https://aka.ms/ProdportalCRP/#blade/Microsoft_Azure_Capacity/UsageAndQuota.ReactView. Please \
                         read more about quota limits at \
                         https://docs.microsoft.com/azure/azure-supportability/per-vm-quota-requests"
                    );
                    ApiError::new("OperationNotAllowed", text)
                }
            });
        }
        Ok(())
    }
}
