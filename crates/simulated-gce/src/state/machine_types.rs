//! Machine types: those of a table, and custom ones.

use serde_json::{Value, json};

use crate::state::places::BASE;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineType {
    pub name: String,
    pub cpus: u32,
    pub memory_mb: u32,
    is_shared: bool,
    /// The quota that its vCPUs count against.
    pub metric: &'static str,
}

/// Name, vCPUs and MB. Shared-core types have their names in `SHARED`.
const TABLE: [(&str, u32, u32); 30] = [
    ("c2-standard-4", 4, 16384),
    ("c2-standard-8", 8, 32768),
    ("e2-highcpu-2", 2, 2048),
    ("e2-highcpu-8", 8, 8192),
    ("e2-medium", 2, 4096),
    ("e2-micro", 2, 1024),
    ("e2-small", 2, 2048),
    ("e2-standard-16", 16, 65536),
    ("e2-standard-2", 2, 8192),
    ("e2-standard-4", 4, 16384),
    ("e2-standard-8", 8, 32768),
    ("f1-micro", 1, 614),
    ("g1-small", 1, 1740),
    ("n1-highcpu-4", 4, 3686),
    ("n1-highmem-2", 2, 13312),
    ("n1-standard-1", 1, 3840),
    ("n1-standard-16", 16, 61440),
    ("n1-standard-2", 2, 7680),
    ("n1-standard-4", 4, 15360),
    ("n1-standard-8", 8, 30720),
    ("n2-highmem-4", 4, 32768),
    ("n2-standard-16", 16, 65536),
    ("n2-standard-2", 2, 8192),
    ("n2-standard-4", 4, 16384),
    ("n2-standard-8", 8, 32768),
    ("n2d-standard-2", 2, 8192),
    ("n2d-standard-4", 4, 16384),
    ("t2a-standard-1", 1, 4096),
    ("t2a-standard-4", 4, 16384),
    ("t2d-standard-2", 2, 8192),
];
const SHARED: [&str; 5] = ["e2-medium", "e2-micro", "e2-small", "f1-micro", "g1-small"];
/// Zones with Arm processors.
const ARM_ZONES: [&str; 3] = ["us-central1-a", "us-central1-b", "us-central1-f"];

impl MachineType {
    /// The type with this name, if the zone has it.
    pub fn find(zone: &str, name: &str) -> Option<Self> {
        let row = TABLE.iter().find(|(known, _, _)| *known == name);
        match row {
            Some((_, cpus, memory_mb)) => is_in(zone, name).then(|| Self::new(name, *cpus, *memory_mb)),
            None => custom(name),
        }
    }

    /// All types of a zone but custom ones, ordered by name.
    pub fn all(zone: &str) -> Vec<Self> {
        let types = TABLE.iter().filter(|(name, _, _)| is_in(zone, name));
        types.map(|(name, cpus, memory_mb)| Self::new(name, *cpus, *memory_mb)).collect()
    }

    fn new(name: &str, cpus: u32, memory_mb: u32) -> Self {
        let metric = match name.split('-').next().unwrap_or_default() {
            "n2" => "N2_CPUS",
            "n2d" => "N2D_CPUS",
            "c2" => "C2_CPUS",
            "t2a" => "T2A_CPUS",
            "t2d" => "T2D_CPUS",
            _ => "CPUS",
        };
        Self { name: name.to_owned(), cpus, memory_mb, is_shared: SHARED.contains(&name), metric }
    }

    pub fn platform(&self) -> &'static str {
        match self.metric {
            "N2_CPUS" | "C2_CPUS" => "Intel Cascade Lake",
            "N2D_CPUS" | "T2D_CPUS" => "AMD Milan",
            "T2A_CPUS" => "Ampere Altra",
            _ => "Intel Broadwell",
        }
    }

    pub fn json(&self, project: &str, zone: &str) -> Value {
        let Self { name, cpus, memory_mb, is_shared, .. } = self;
        let memory_gb = f64::from(*memory_mb) / 1024.0;
        json!({
            "kind": "compute#machineType", "id": id(name).to_string(), "name": name,
            "creationTimestamp": "1969-12-31T16:00:00.000-08:00",
            "description": format!("{cpus} vCPUs, {memory_gb} GB RAM"), "guestCpus": cpus, "memoryMb": memory_mb,
            "imageSpaceGb": 0, "maximumPersistentDisks": if *is_shared { 16 } else { 128 },
            "maximumPersistentDisksSizeGb": if *is_shared { "3072" } else { "263168" },
            "architecture": if self.metric == "T2A_CPUS" { "ARM64" } else { "X86_64" }, "zone": zone,
            "isSharedCpu": is_shared, "selfLink": format!("{BASE}projects/{project}/zones/{zone}/machineTypes/{name}"),
        })
    }
}

fn is_in(zone: &str, name: &str) -> bool {
    !name.starts_with("t2a-") || ARM_ZONES.contains(&zone)
}

/// A number that depends on the name only (FNV-1a).
pub fn id(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A custom type: `custom-4-8192`, `n2-custom-4-8192`, with `-ext` beyond the usual memory of a vCPU.
fn custom(name: &str) -> Option<MachineType> {
    let (family, size) = match name.strip_prefix("custom-") {
        Some(size) => ("n1", size),
        None => name.split_once("-custom-")?,
    };
    // Cores at most, and the memory of each in MB.
    let (most, least_mb, most_mb) = match family {
        "n1" => (96, 922, 6656),
        "n2" => (128, 512, 8192),
        "n2d" => (224, 512, 8192),
        "e2" => (32, 512, 8192),
        _ => return None,
    };
    let (size, is_extended) = size.strip_suffix("-ext").map_or((size, false), |size| (size, true));
    let (cpus, memory_mb) = size.split_once('-')?;
    let (cpus, memory_mb): (u32, u32) = (cpus.parse().ok()?, memory_mb.parse().ok()?);
    let is_core_number = (1..=most).contains(&cpus) && (cpus.is_multiple_of(2) || cpus == 1 && family == "n1");
    let is_within = memory_mb <= cpus * most_mb || is_extended && memory_mb <= 640 * 1024;
    let is_valid = is_core_number && memory_mb.is_multiple_of(256) && memory_mb >= cpus * least_mb && is_within;
    is_valid.then(|| MachineType::new(name, cpus, memory_mb))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn custom_types_have_even_cores_and_multiples_of_256_mb() {
        let size = |name: &str| MachineType::find("us-central1-a", name).map(|found| (found.cpus, found.memory_mb));
        assert_eq!(size("custom-4-8192"), Some((4, 8192)));
        assert_eq!(size("n2-custom-4-8192"), Some((4, 8192)));
        assert_eq!(size("e2-custom-2-32768-ext"), Some((2, 32768)));
        assert_eq!(size("custom-1-1024"), Some((1, 1024)));
        for wrong in ["custom-3-8192", "custom-4-8191", "custom-4-65536", "c9-custom-4-8192", "n2-custom-4", "custom-"]
        {
            assert_eq!(size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn arm_types_exist_in_some_zones_only() {
        assert!(MachineType::find("us-central1-a", "t2a-standard-1").is_some());
        assert!(MachineType::find("us-central1-c", "t2a-standard-1").is_none());
        assert_eq!(MachineType::all("us-central1-a").len() - MachineType::all("us-central1-c").len(), 2);
        assert!(TABLE.is_sorted_by_key(|(name, _, _)| *name), "pages follow this order");
    }
}
