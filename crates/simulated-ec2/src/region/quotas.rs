//! Quotas: their codes, and their values by default.

use crate::region::host_quotas::HOST_QUOTAS;

/// Quotas of vCPUs: families, and the codes for on-demand and spot instances.
const VCPU_QUOTAS: [(&[&str], &str, Option<&str>); 10] = [
    (&["a", "c", "d", "h", "i", "m", "r", "t", "z", "im", "is"], "L-1216C47A", Some("L-34B43A08")),
    (&["dl"], "L-6E869C2A", Some("L-85EED4F7")),
    (&["f"], "L-74FC7D96", Some("L-88CF9481")),
    (&["g", "vt", "gr"], "L-DB2E81BA", Some("L-3819A6DF")),
    (&["u-"], "L-43DA4232", None),
    (&["inf"], "L-1945791B", Some("L-B5D1601B")),
    (&["p"], "L-417A185B", Some("L-7212CCBC")),
    (&["x"], "L-7295265B", Some("L-E3A00192")),
    (&["trn"], "L-2C3B7624", Some("L-6B0D517C")),
    (&["hpc"], "L-F7808C92", None),
];

/// Quotas of volumes: type, and the codes for storage in TiB and for IOPS.
const VOLUME_QUOTAS: [(&str, &str, Option<&str>); 7] = [
    ("io1", "L-FD252861", Some("L-B3A130E6")),
    ("io2", "L-09BD8365", Some("L-8D977E7E")),
    ("sc1", "L-17AF77E8", None),
    ("gp2", "L-D18FCD1D", None),
    ("gp3", "L-7A658B76", None),
    ("standard", "L-9CF3C2EB", None),
    ("st1", "L-82ACEF56", None),
];

/// Large enough for all benchmarks.
pub const DEFAULT_VCPUS: f64 = 1_000_000.0;
pub const DEFAULT_HOSTS: f64 = 1000.0;
pub const DEFAULT_STORAGE_TIB: f64 = 100_000.0;
pub const DEFAULT_IOPS: f64 = 10_000_000.0;

pub struct Quota {
    pub service: &'static str,
    pub code: &'static str,
    pub name: String,
    pub value: f64,
}

/// The code of the vCPU quota of an instance type.
pub fn vcpu_code(instance_type: &str, is_spot: bool) -> Option<&'static str> {
    let end = instance_type.find(|sign: char| sign.is_ascii_digit()).unwrap_or(instance_type.len());
    let family = &instance_type[..end];
    let (_, on_demand, spot) = VCPU_QUOTAS.iter().find(|(families, _, _)| families.contains(&family))?;
    if is_spot { *spot } else { Some(on_demand) }
}

/// The codes of storage and IOPS of a volume type.
pub fn volume_codes(volume_type: &str) -> Option<(&'static str, Option<&'static str>)> {
    VOLUME_QUOTAS.iter().find(|(name, _, _)| *name == volume_type).map(|(_, storage, iops)| (*storage, *iops))
}

pub fn host_code(family: &str) -> Option<&'static str> {
    let index = HOST_QUOTAS.binary_search_by_key(&family, |(name, _)| name).ok()?;
    Some(HOST_QUOTAS[index].1)
}

/// All quotas of a service with their default values.
pub fn defaults(service: &str) -> Vec<Quota> {
    let quota = |service, code, name, value| Quota { service, code, name, value };
    let mut quotas = Vec::new();
    if service == "ec2" {
        for (families, on_demand, spot) in VCPU_QUOTAS {
            let families = families.join(", ").to_uppercase();
            quotas.push(quota("ec2", on_demand, format!("Running On-Demand {families} instances"), DEFAULT_VCPUS));
            if let Some(spot) = spot {
                let name = format!("All {families} Spot Instance Requests");
                quotas.push(quota("ec2", spot, name, DEFAULT_VCPUS));
            }
        }
        for (family, code) in HOST_QUOTAS {
            quotas.push(quota("ec2", code, format!("Running Dedicated {family} Hosts"), DEFAULT_HOSTS));
        }
    } else if service == "ebs" {
        for (name, storage, iops) in VOLUME_QUOTAS {
            let text = format!("Storage for {name} volumes, in TiB");
            quotas.push(quota("ebs", storage, text, DEFAULT_STORAGE_TIB));
            if let Some(iops) = iops {
                quotas.push(quota("ebs", iops, format!("IOPS for {name} volumes"), DEFAULT_IOPS));
            }
        }
    }
    quotas
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_their_codes() {
        assert_eq!(vcpu_code("t3.medium", false), Some("L-1216C47A"));
        assert_eq!(vcpu_code("t3.medium", true), Some("L-34B43A08"));
        assert_eq!(vcpu_code("u-6tb1.56xlarge", false), Some("L-43DA4232"));
        assert_eq!(vcpu_code("u-6tb1.56xlarge", true), None);
        assert_eq!(host_code("mac2"), Some("L-5D8DADF5"));
        assert!(HOST_QUOTAS.is_sorted());
    }
}
