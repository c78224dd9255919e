//! Instance profiles: their vCPUs and memory, and their JSON.

use serde_json::{Value, json};

use crate::state::world::World;

/// The parts of a profile that creations and quotas need.
#[derive(Clone, Debug)]
pub struct Profile {
    pub name: String,
    pub vcpus: u64,
    pub memory_gib: u64,
    sizes: Sizes,
}

/// The type of `vcpu_count` and `memory`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sizes {
    Fixed,
    Range,
    Dependent,
}

/// Families with their vCPUs and GiB per vCPU.
const FAMILIES: [(&str, &[u64], f64); 6] = [
    ("bx2", &[2, 4, 8, 16, 32, 48], 4.0),
    ("cx2", &[2, 4, 8, 16, 32, 48], 2.0),
    ("mx2", &[2, 4, 8, 16, 32, 48], 8.0),
    ("bx3d", &[2, 4, 8, 16, 24], 5.0),
    ("cx3d", &[2, 4, 8, 16, 24], 2.5),
    ("bxf", &[2, 4, 8, 16], 4.0),
];

impl Profile {
    /// All profiles. The last two have no fixed sizes, so clients find no value in them.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for (family, cpus, ratio) in FAMILIES {
            for vcpus in cpus {
                let memory_gib = (*vcpus as f64 * ratio) as u64;
                let name = format!("{family}-{vcpus}x{memory_gib}");
                all.push(Self { name, vcpus: *vcpus, memory_gib, sizes: Sizes::Fixed });
            }
        }
        for (name, sizes) in [("sim-range", Sizes::Range), ("sim-dependent", Sizes::Dependent)] {
            all.push(Self { name: name.to_owned(), vcpus: 4, memory_gib: 16, sizes });
        }
        all
    }

    fn size(&self, value: u64) -> Value {
        match self.sizes {
            Sizes::Fixed => json!({"type": "fixed", "value": value}),
            Sizes::Range => json!({"type": "range", "default": value, "min": 1, "max": 2 * value, "step": 1}),
            Sizes::Dependent => json!({"type": "dependent"}),
        }
    }

    fn family(&self) -> &'static str {
        match self.name.as_bytes()[0] {
            b'c' => "compute",
            b'm' => "memory",
            _ => "balanced",
        }
    }

    pub fn json(&self, world: &World) -> Value {
        let bandwidth = 1000 * self.vcpus.min(32);
        let fixed = |value: Value| json!({"type": "fixed", "value": value});
        let zones: Vec<Value> = world.zones().map(|zone| world.zone_reference(&zone)).collect();
        json!({
            "availability_class": {"default": "standard", "type": "enum", "values": ["standard"]},
            "bandwidth": fixed(bandwidth.into()), "cluster_network_attachment_count": {"type": "dependent"},
            "confidential_compute_modes": {"default": "disabled", "type": "enum", "values": ["disabled"]},
            "disks": [], "family": self.family(), "href": world.href(&format!("instance/profiles/{}", self.name)),
            "memory": self.size(self.memory_gib), "name": self.name,
            "network_attachment_count": {"type": "range", "min": 1, "max": 5},
            "network_bandwidth_mode": fixed("divided".into()),
            "network_interface_count": {"type": "range", "min": 1, "max": 5},
            "os_architecture": {"default": "amd64", "type": "enum", "values": ["amd64"]},
            "port_speed": fixed(16000.into()), "reservation_terms": {"type": "enum", "values": []},
            "resource_type": "instance_profile",
            "secure_boot_modes": {"default": false, "type": "enum", "values": [false]}, "status": "current",
            "supported_cluster_network_profiles": [],
            "threads_per_core": {"default": 2, "type": "enum", "values": [2]},
            "total_volume_bandwidth": fixed((bandwidth / 4).into()),
            "vcpu_architecture": {"type": "fixed", "value": "amd64"}, "vcpu_burst_limit": fixed(100.into()),
            "vcpu_count": self.size(self.vcpus), "vcpu_manufacturer": fixed("intel".into()),
            "vcpu_percentage": {"default": 100, "type": "enum", "values": [100]},
            "volume_bandwidth_qos_modes": {"default": "weighted", "type": "enum", "values": ["weighted", "pooled"]},
            "zones": zones,
        })
    }
}
