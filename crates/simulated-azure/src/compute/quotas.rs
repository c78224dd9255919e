//! Usages and SKUs of a location.

use serde_json::{Value, json};

use crate::cloud::cloud::Cloud;
use crate::cloud::sizes::Size;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::server::target::Provider;

/// Usages besides those of families, with their texts.
const COMPUTE: [(&str, &str); 4] = [
    ("availabilitySets", "Availability Sets"),
    ("cores", "Total Regional vCPUs"),
    ("virtualMachines", "Virtual Machines"),
    ("lowPriorityCores", "Total Regional Low-priority vCPUs"),
];
const NETWORK: [(&str, &str); 4] = [
    ("VirtualNetworks", "Virtual Networks"),
    ("NetworkInterfaces", "Network Interfaces"),
    ("PublicIPAddresses", "Public IP Addresses"),
    ("StandardSkuPublicIpAddresses", "Public IPv4 Addresses - Standard"),
];

impl Cloud {
    /// Usages of a virtual machine of this size.
    pub fn vm_usages(&self, size: &str, is_spot: bool) -> Vec<(String, u64)> {
        let size = self.sizes.get(size).expect("the size was checked");
        let cores = u64::from(size.cores);
        let machine = ("virtualMachines".to_owned(), 1);
        match is_spot {
            true => vec![("lowPriorityCores".to_owned(), cores), machine],
            false => vec![("cores".to_owned(), cores), (size.family.clone(), cores), machine],
        }
    }

    pub fn is_blocked(&self, size: &str, location: &str) -> bool {
        self.knobs.blocked_skus.iter().any(|blocked| {
            let (name, place) = blocked.split_once('@').unwrap_or((blocked, location));
            name.eq_ignore_ascii_case(size) && place.eq_ignore_ascii_case(location)
        })
    }

    pub fn usages(&self, provider: Provider, location: &str) -> ApiResult<Response> {
        let Some(location) = self.options.location(location) else {
            let text = format!("The location '{location}' is not available for subscription.");
            return Err(ApiError::new("NoRegisteredProviderFound", text));
        };
        let usage = |name: &str, text: &str| {
            json!({"unit": "Count", "currentValue": self.used(location, name), "limit": self.limit(name),
                "name": {"value": name, "localizedValue": text}})
        };
        let fixed = if provider == Provider::Compute { COMPUTE } else { NETWORK };
        let mut all: Vec<Value> = fixed.iter().map(|(name, text)| usage(name, text)).collect();
        if provider == Provider::Compute {
            all.extend(self.sizes.families().into_iter().map(|family| usage(family, &format!("{family} vCPUs"))));
        }
        Ok(Response::json(200, &json!({"value": all})))
    }

    /// The SKUs of all locations, or of the one that a filter names.
    pub fn skus(&self, call: &Call) -> ApiResult<Response> {
        let filter = call.parameter("$filter").map(str::trim).filter(|filter| !filter.is_empty());
        let wanted = match filter {
            None => None,
            Some(filter) => Some(location_of_filter(filter).ok_or_else(|| {
                ApiError::invalid("$filter", format!("The filter '{filter}' is invalid: expected location eq 'NAME'."))
            })?),
        };
        let mut skus = Vec::new();
        for location in &self.sizes.locations {
            if wanted.is_none_or(|wanted| wanted.eq_ignore_ascii_case(location)) {
                skus.extend(["Premium_LRS", "Standard_LRS"].map(|name| disk_sku(name, location)));
                skus.extend(self.sizes.all.iter().map(|size| self.vm_sku(size, location)));
            }
        }
        self.page_of_values(call, skus)
    }

    fn vm_sku(&self, size: &Size, location: &str) -> Value {
        let restrictions = match self.is_blocked(&size.name, location) {
            true => json!([{"type": "Location", "values": [location],
                "restrictionInfo": {"locations": [location]}, "reasonCode": "NotAvailableForSubscription"}]),
            false => json!([]),
        };
        let capability = |name: &str, value: String| json!({"name": name, "value": value});
        let architecture = if size.is_arm { "Arm64" } else { "x64" };
        json!({
            "resourceType": "virtualMachines", "name": size.name, "tier": "Standard",
            "size": size.name.trim_start_matches("Standard_"), "family": size.family, "locations": [location],
            "locationInfo": [{"location": location, "zones": ["1", "2", "3"], "zoneDetails": []}],
            "capabilities": [
                capability("MaxResourceVolumeMB", "16384".to_owned()),
                capability("vCPUs", size.cores.to_string()),
                capability("HyperVGenerations", "V1,V2".to_owned()),
                capability("MemoryGB", size.memory_gb.to_string()),
                capability("CpuArchitectureType", architecture.to_owned()),
                capability("LowPriorityCapable", "True".to_owned()),
                capability("PremiumIO", "True".to_owned()),
            ],
            "restrictions": restrictions,
        })
    }
}

/// A SKU of disks, which has other capabilities than those of virtual machines.
fn disk_sku(name: &str, location: &str) -> Value {
    json!({
        "resourceType": "disks", "name": name, "tier": name.split('_').next(), "size": "P10", "locations": [location],
        "locationInfo": [{"location": location, "zones": [], "zoneDetails": []}],
        "capabilities": [{"name": "MaxSizeGiB", "value": "128"}], "restrictions": [],
    })
}

/// The location of `location eq 'eastus'`.
fn location_of_filter(filter: &str) -> Option<&str> {
    let (name, value) = filter.split_once(" eq ")?;
    let value = value.trim().strip_prefix('\'')?.strip_suffix('\'')?;
    name.trim().eq_ignore_ascii_case("location").then_some(value)
}
