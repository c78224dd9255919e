//! Instance types: cores, vCPUs, memory and architecture.

pub struct InstanceType {
    pub name: &'static str,
    pub cores: u32,
    pub vcpus: u32,
    pub memory_mib: u64,
    pub architecture: &'static str,
}

const fn x86(name: &'static str, cores: u32, vcpus: u32, memory_mib: u64) -> InstanceType {
    InstanceType { name, cores, vcpus, memory_mib, architecture: "x86_64" }
}

const fn arm(name: &'static str, cores: u32, memory_mib: u64) -> InstanceType {
    InstanceType { name, cores, vcpus: cores, memory_mib, architecture: "arm64" }
}

/// The types that the simulation knows.
pub const INSTANCE_TYPES: [InstanceType; 46] = [
    x86("t2.micro", 1, 1, 1024),
    x86("t2.medium", 2, 2, 4096),
    x86("t3.nano", 1, 2, 512),
    x86("t3.micro", 1, 2, 1024),
    x86("t3.small", 1, 2, 2048),
    x86("t3.medium", 1, 2, 4096),
    x86("t3.large", 1, 2, 8192),
    x86("t3.xlarge", 2, 4, 16384),
    x86("t3.2xlarge", 4, 8, 32768),
    x86("t3a.medium", 1, 2, 4096),
    x86("m4.large", 1, 2, 8192),
    x86("m5.large", 1, 2, 8192),
    x86("m5.xlarge", 2, 4, 16384),
    x86("m5.2xlarge", 4, 8, 32768),
    x86("m5.4xlarge", 8, 16, 65536),
    x86("m6i.large", 1, 2, 8192),
    x86("m6i.xlarge", 2, 4, 16384),
    x86("m7i.large", 1, 2, 8192),
    x86("m7a.large", 2, 2, 8192),
    x86("c5.large", 1, 2, 4096),
    x86("c5.xlarge", 2, 4, 8192),
    x86("c5.2xlarge", 4, 8, 16384),
    x86("c6i.large", 1, 2, 4096),
    x86("c7i.large", 1, 2, 4096),
    x86("r5.large", 1, 2, 16384),
    x86("r5.xlarge", 2, 4, 32768),
    x86("i3.large", 1, 2, 15616),
    x86("i3.metal", 36, 72, 524_288),
    x86("x1.16xlarge", 32, 64, 999_424),
    x86("p3.2xlarge", 4, 8, 62464),
    x86("g4dn.xlarge", 2, 4, 16384),
    x86("inf1.xlarge", 2, 4, 8192),
    x86("f1.2xlarge", 4, 8, 124_928),
    x86("dl1.24xlarge", 48, 96, 786_432),
    x86("trn1.2xlarge", 4, 8, 32768),
    x86("hpc6a.48xlarge", 96, 96, 393_216),
    x86("u-6tb1.56xlarge", 112, 224, 6_291_456),
    arm("t4g.micro", 2, 1024),
    arm("t4g.medium", 2, 4096),
    arm("m6g.large", 2, 8192),
    arm("c6g.large", 2, 4096),
    arm("c7g.large", 2, 4096),
    arm("r6g.large", 2, 16384),
    arm("a1.large", 2, 4096),
    InstanceType { name: "mac1.metal", cores: 6, vcpus: 12, memory_mib: 32768, architecture: "x86_64_mac" },
    InstanceType { name: "mac2.metal", cores: 8, vcpus: 8, memory_mib: 16384, architecture: "arm64_mac" },
];

pub fn find(name: &str) -> Option<&'static InstanceType> {
    INSTANCE_TYPES.iter().find(|one| one.name == name)
}

impl InstanceType {
    /// The part before the dot.
    pub fn family(&self) -> &'static str {
        self.name.split('.').next().unwrap_or(self.name)
    }

    pub fn is_mac(&self) -> bool {
        self.name.starts_with("mac")
    }

    /// Number of instances of this type on a dedicated host.
    pub fn per_host(&self) -> u32 {
        /// The vCPUs of most hosts.
        const HOST_VCPUS: u32 = 96;
        let is_metal = self.name.ends_with(".metal");
        if is_metal { 1 } else { (HOST_VCPUS / self.vcpus).max(1) }
    }
}
