//! The objects that exist in each region from the start: a network with three subnets, security groups, a key pair, and
//! public images.

use simulated_service::network::{Addresses, Network};

use crate::options::Options;
use crate::region::objects::{Image, KeyPair, Mapping, SecurityGroup, Snapshot, Subnet};
use crate::region::region::Region;
use crate::region::tags::Tags;

/// Addresses that AWS reserves at the beginning and at the end of a subnet.
pub const RESERVED: (u32, u32) = (4, 1);
/// The owner of public images.
pub const PUBLIC_OWNER: &str = "137112412989";
pub const VPC: &str = "vpc-00000000000000001";
/// The only instance profile of the account.
pub const INSTANCE_PROFILE: &str = "nodepool";

/// Name, architecture and root device of each public image, and the time of its creation.
const IMAGES: [(&str, &str, &str, &str); 6] = [
    ("simulated-linux-20260101", "x86_64", "/dev/sda1", "2026-01-01T00:00:00.000Z"),
    ("simulated-two-volumes-20260101", "x86_64", "/dev/xvda", "2026-01-01T00:00:00.000Z"),
    ("simulated-arm-20260101", "arm64", "/dev/xvda", "2026-01-01T00:00:00.000Z"),
    ("simulated-macos-20260101", "x86_64_mac", "/dev/sda1", "2026-01-01T00:00:00.000Z"),
    ("simulated-macos-arm-20260101", "arm64_mac", "/dev/sda1", "2026-01-01T00:00:00.000Z"),
    ("simulated-linux-20250101", "x86_64", "/dev/sda1", "2025-01-01T00:00:00.000Z"),
];

/// GiB of a root volume.
const ROOT_SIZE: u32 = 8;

impl Region {
    pub fn new(name: &str, options: &Options) -> Self {
        let mut region = Self { name: name.to_owned(), ..Self::default() };
        region.create_network(options.network);
        let id = "key-00000000000000001".to_owned();
        let (key_type, created) = ("ed25519".to_owned(), "2026-01-01T00:00:00.000Z".to_owned());
        let (public_key, fingerprint) = (String::new(), "00:00:00:00".to_owned());
        let name = "nodepool".to_owned();
        region
            .key_pairs
            .insert(&id.clone(), KeyPair { id, name, key_type, public_key, fingerprint, created, tags: Tags::new() });
        for (index, image) in IMAGES.into_iter().enumerate() {
            region.create_image(index + 1, image);
        }
        region
    }

    fn create_network(&mut self, network: Network) {
        for (index, letter) in (0..).zip(["a", "b", "c"]) {
            let (id, zone) = (format!("subnet-0000000000000000{letter}"), format!("{}{letter}", self.name));
            let addresses = Addresses::new(network.quarter(index), RESERVED);
            self.subnets.insert(&id.clone(), Subnet { id, zone, vpc: VPC.to_owned(), addresses, tags: Tags::new() });
        }
        for (id, name) in [("sg-00000000000000001", "default"), ("sg-00000000000000002", "nodepool")] {
            let [id, name] = [id, name].map(str::to_owned);
            self.groups.insert(&id.clone(), SecurityGroup { id, name, vpc: VPC.to_owned(), tags: Tags::new() });
        }
    }

    fn create_image(&mut self, number: usize, image: (&str, &str, &str, &str)) {
        let (name, architecture, root_device, created) = image;
        let snapshot = format!("snap-{number:017}");
        let root = Mapping {
            device: root_device.to_owned(),
            snapshot: Some(snapshot.clone()),
            size_gib: Some(ROOT_SIZE),
            volume_type: Some("gp3".to_owned()),
            delete_on_termination: Some(true),
            ..Mapping::default()
        };
        let mut mappings = vec![root];
        if name.contains("two-volumes") {
            mappings.push(Mapping {
                device: "/dev/xvdb".to_owned(),
                size_gib: Some(4),
                volume_type: Some("gp2".to_owned()),
                // Such images leak volumes.
                delete_on_termination: Some(false),
                ..Mapping::default()
            });
        }
        self.snapshots.insert(
            &snapshot.clone(),
            Snapshot {
                id: snapshot,
                volume: "vol-ffffffff".to_owned(),
                state: "completed",
                size_gib: ROOT_SIZE,
                owner: PUBLIC_OWNER.to_owned(),
                description: String::new(),
                encrypted: false,
                started: created.to_owned(),
                started_s: 0.0,
                tags: Tags::new(),
                blocks: std::collections::BTreeMap::new(),
                is_open: false,
            },
        );
        let id = format!("ami-{number:017}");
        self.images.insert(
            &id.clone(),
            Image {
                id,
                name: name.to_owned(),
                description: None,
                owner: PUBLIC_OWNER.to_owned(),
                is_public: true,
                architecture: architecture.to_owned(),
                root_device: root_device.to_owned(),
                mappings,
                ena_support: true,
                imds_support: None,
                boot_mode: None,
                created: created.to_owned(),
                tags: Tags::new(),
            },
        );
    }
}
