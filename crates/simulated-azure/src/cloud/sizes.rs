//! Sizes of virtual machines, and the SKUs of each location.

use std::collections::HashMap;

/// Family, name with `#` for the number of vCPUs, numbers of vCPUs, GiB per vCPU, and whether the processor is ARM.
type Family = (&'static str, &'static str, &'static [u32], f64, bool);

const FAMILIES: &[Family] = &[
    ("standardDSv2Family", "Standard_DS#_v2", &[1, 2, 3, 4, 5], 3.5, false),
    ("standardDSv3Family", "Standard_D#s_v3", &[2, 4, 8, 16, 32, 48, 64], 4.0, false),
    ("standardDv3Family", "Standard_D#_v3", &[2, 4, 8, 16, 32, 48, 64], 4.0, false),
    ("standardDSv4Family", "Standard_D#s_v4", &[2, 4, 8, 16, 32, 48, 64], 4.0, false),
    ("standardDSv5Family", "Standard_D#s_v5", &[2, 4, 8, 16, 32, 48, 64, 96], 4.0, false),
    ("standardDDSv5Family", "Standard_D#ds_v5", &[2, 4, 8, 16, 32, 48, 64, 96], 4.0, false),
    ("standardDASv5Family", "Standard_D#as_v5", &[2, 4, 8, 16, 32, 48, 64, 96], 4.0, false),
    ("standardDLSv5Family", "Standard_D#ls_v5", &[2, 4, 8, 16, 32, 48, 64, 96], 2.0, false),
    ("standardDPSv5Family", "Standard_D#ps_v5", &[2, 4, 8, 16, 32, 48, 64], 4.0, true),
    ("standardESv5Family", "Standard_E#s_v5", &[2, 4, 8, 16, 20, 32, 48, 64, 96], 8.0, false),
    ("standardFSFamily", "Standard_F#s", &[1, 2, 4, 8, 16], 2.0, false),
    ("standardFSv2Family", "Standard_F#s_v2", &[2, 4, 8, 16, 32, 48, 64, 72], 2.0, false),
    ("standardBSFamily", "Standard_B#ms", &[1, 2, 4, 8, 12, 16, 20], 4.0, false),
    ("standardBSFamily", "Standard_B#s", &[1, 2], 2.0, false),
    ("Standard NCASv3_T4 Family", "Standard_NC#as_T4_v3", &[4, 8, 16, 64], 7.0, false),
];

/// Cores of the sizes whose name is not their number of cores: DS1_v2 to DS5_v2.
const DSV2_CORES: [u32; 5] = [1, 2, 4, 8, 16];

#[derive(Clone, Debug)]
pub struct Size {
    pub name: String,
    pub family: String,
    pub cores: u32,
    pub memory_gb: f64,
    pub is_arm: bool,
}

/// All sizes; each location has all of them.
pub struct Sizes {
    pub all: Vec<Size>,
    pub locations: Vec<String>,
    /// Index by name in lower case.
    indices: HashMap<String, usize>,
}

impl Sizes {
    pub fn new(locations: &[String], extra: u32) -> Self {
        let mut all = Vec::new();
        for (family, pattern, numbers, gb_per_core, is_arm) in FAMILIES {
            for (index, number) in numbers.iter().enumerate() {
                let cores = if *family == "standardDSv2Family" { DSV2_CORES[index] } else { *number };
                let name = pattern.replace('#', &number.to_string());
                let memory_gb = f64::from(cores) * gb_per_core;
                all.push(Size { name, family: (*family).to_owned(), cores, memory_gb, is_arm: *is_arm });
            }
        }
        for number in 0..extra {
            let (name, family) = (format!("Standard_X{number}_v9"), "standardXv9Family".to_owned());
            all.push(Size { name, family, cores: 2, memory_gb: 8.0, is_arm: false });
        }
        let indices = all.iter().enumerate().map(|(index, size)| (size.name.to_ascii_lowercase(), index)).collect();
        Self { all, locations: locations.to_vec(), indices }
    }

    pub fn get(&self, name: &str) -> Option<&Size> {
        self.indices.get(&name.to_ascii_lowercase()).map(|index| &self.all[*index])
    }

    /// The families, in the order of their first size.
    pub fn families(&self) -> Vec<&str> {
        let mut families: Vec<&str> = self.all.iter().map(|size| size.family.as_str()).collect();
        families.dedup();
        families
    }
}
