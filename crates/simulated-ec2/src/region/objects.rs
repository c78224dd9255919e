//! Images, volumes, snapshots and the other objects besides instances, with their XML.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use simulated_service::network::Addresses;

use crate::api::filters::Resource;
use crate::api::xml::Xml;
use crate::region::tags::{self, Tags};
use crate::server::form::Form;

/// A volume of an image, of a launch, or of a launch template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    pub device: String,
    pub snapshot: Option<String>,
    pub size_gib: Option<u32>,
    pub volume_type: Option<String>,
    pub iops: Option<u32>,
    pub throughput: Option<u32>,
    pub delete_on_termination: Option<bool>,
    pub encrypted: Option<bool>,
}

#[derive(Clone)]
pub struct Image {
    pub id: String,
    pub name: String,
    pub description: Option<String>,
    pub owner: String,
    pub is_public: bool,
    pub architecture: String,
    pub root_device: String,
    pub mappings: Vec<Mapping>,
    pub ena_support: bool,
    pub imds_support: Option<String>,
    pub boot_mode: Option<String>,
    pub created: String,
    pub tags: Tags,
}

impl Image {
    pub fn write(&self, xml: &mut Xml) {
        xml.text("imageId", &self.id).text("imageLocation", &format!("{}/{}", self.owner, self.name));
        xml.text("imageState", "available").text("imageOwnerId", &self.owner).text("creationDate", &self.created);
        xml.value("isPublic", self.is_public).text("architecture", &self.architecture).text("imageType", "machine");
        xml.text("name", &self.name).optional("description", self.description.as_deref());
        xml.text("platformDetails", "Linux/UNIX").text("usageOperation", "RunInstances");
        xml.text("rootDeviceType", "ebs").text("rootDeviceName", &self.root_device);
        xml.items("blockDeviceMapping", &self.mappings, |xml, mapping| mapping.write(xml));
        xml.text("virtualizationType", "hvm").text("hypervisor", "xen").value("enaSupport", self.ena_support);
        xml.optional("imdsSupport", self.imds_support.as_deref()).optional("bootMode", self.boot_mode.as_deref());
        tags::write(xml, &self.tags);
    }
}

impl Mapping {
    fn write(&self, xml: &mut Xml) {
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        xml.text("deviceName", &self.device).within("ebs", |xml| {
            xml.optional("snapshotId", self.snapshot.as_deref());
            xml.optional("volumeSize", number(self.size_gib).as_deref());
            xml.value("deleteOnTermination", self.delete_on_termination.unwrap_or(true));
            xml.optional("volumeType", self.volume_type.as_deref());
            xml.optional("iops", number(self.iops).as_deref());
            xml.optional("throughput", number(self.throughput).as_deref());
            xml.value("encrypted", self.encrypted.unwrap_or(false))
        });
    }
}

impl Resource for Image {
    fn id(&self) -> &str {
        &self.id
    }

    fn tags(&self) -> &Tags {
        &self.tags
    }

    fn field(&self, name: &str) -> Option<Vec<String>> {
        let text = |text: &str| vec![text.to_owned()];
        Some(match name {
            "image-id" => text(&self.id),
            "name" => text(&self.name),
            "description" => self.description.clone().into_iter().collect(),
            "state" => text("available"),
            "owner-id" => text(&self.owner),
            "owner-alias" => {
                if self.is_public {
                    text("amazon")
                } else {
                    Vec::new()
                }
            }
            "is-public" => vec![self.is_public.to_string()],
            "architecture" => text(&self.architecture),
            "root-device-name" => text(&self.root_device),
            "root-device-type" => text("ebs"),
            "virtualization-type" => text("hvm"),
            "image-type" => text("machine"),
            "creation-date" => text(&self.created),
            "ena-support" => vec![self.ena_support.to_string()],
            "hypervisor" => text("xen"),
            "block-device-mapping.snapshot-id" => {
                self.mappings.iter().filter_map(|mapping| mapping.snapshot.clone()).collect()
            }
            "block-device-mapping.volume-type" => {
                self.mappings.iter().filter_map(|mapping| mapping.volume_type.clone()).collect()
            }
            _ => return None,
        })
    }
}

pub struct Volume {
    pub id: String,
    pub size_gib: u32,
    pub volume_type: String,
    pub iops: Option<u32>,
    pub throughput: Option<u32>,
    pub snapshot: Option<String>,
    pub encrypted: bool,
    pub zone: String,
    /// `in-use`, `available` or `error`.
    pub state: &'static str,
    /// Instance, device, and whether it ends with the instance.
    pub attachment: Option<(String, String, bool)>,
    pub created: String,
    pub tags: Tags,
}

impl Volume {
    pub fn write(&self, xml: &mut Xml) {
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        xml.text("volumeId", &self.id).value("size", self.size_gib);
        xml.text("snapshotId", self.snapshot.as_deref().unwrap_or_default()).text("availabilityZone", &self.zone);
        xml.text("status", self.state).text("createTime", &self.created);
        xml.items("attachmentSet", &self.attachment, |xml, (instance, device, is_deleted)| {
            xml.text("volumeId", &self.id).text("instanceId", instance).text("device", device);
            xml.text("status", "attached").text("attachTime", &self.created);
            xml.value("deleteOnTermination", is_deleted);
        });
        xml.text("volumeType", &self.volume_type).value("encrypted", self.encrypted);
        xml.optional("iops", number(self.iops).as_deref());
        xml.optional("throughput", number(self.throughput).as_deref()).value("multiAttachEnabled", false);
        tags::write(xml, &self.tags);
    }
}

impl Resource for Volume {
    fn id(&self) -> &str {
        &self.id
    }

    fn tags(&self) -> &Tags {
        &self.tags
    }

    fn field(&self, name: &str) -> Option<Vec<String>> {
        let text = |text: &str| vec![text.to_owned()];
        let attachment = self.attachment.as_ref();
        Some(match name {
            "volume-id" => text(&self.id),
            "status" => text(self.state),
            "availability-zone" => text(&self.zone),
            "snapshot-id" => self.snapshot.clone().into_iter().collect(),
            "size" => vec![self.size_gib.to_string()],
            "volume-type" => text(&self.volume_type),
            "encrypted" => vec![self.encrypted.to_string()],
            "attachment.instance-id" => attachment.map(|(instance, _, _)| instance.clone()).into_iter().collect(),
            "attachment.device" => attachment.map(|(_, device, _)| device.clone()).into_iter().collect(),
            "attachment.status" => attachment.map(|_| "attached".to_owned()).into_iter().collect(),
            "attachment.delete-on-termination" => {
                attachment.map(|(_, _, is_deleted)| is_deleted.to_string()).into_iter().collect()
            }
            _ => return None,
        })
    }
}

pub struct Snapshot {
    pub id: String,
    pub volume: String,
    /// `pending`, `completed` or `error`.
    pub state: &'static str,
    pub size_gib: u32,
    pub owner: String,
    pub description: String,
    pub encrypted: bool,
    pub started: String,
    pub started_s: f64,
    pub tags: Tags,
    /// Blocks that EBS direct has written.
    pub blocks: BTreeMap<u32, Bytes>,
    /// Whether EBS direct still accepts blocks.
    pub is_open: bool,
}

impl Snapshot {
    pub fn write(&self, xml: &mut Xml) {
        xml.text("snapshotId", &self.id).text("volumeId", &self.volume).text("status", self.state);
        xml.text("startTime", &self.started).text("progress", if self.state == "completed" { "100%" } else { "" });
        xml.text("ownerId", &self.owner).value("volumeSize", self.size_gib);
        xml.text("description", &self.description).value("encrypted", self.encrypted).text("storageTier", "standard");
        tags::write(xml, &self.tags);
    }
}

impl Resource for Snapshot {
    fn id(&self) -> &str {
        &self.id
    }

    fn tags(&self) -> &Tags {
        &self.tags
    }

    fn field(&self, name: &str) -> Option<Vec<String>> {
        let text = |text: &str| vec![text.to_owned()];
        Some(match name {
            "snapshot-id" => text(&self.id),
            "status" => text(self.state),
            "volume-id" => text(&self.volume),
            "volume-size" => vec![self.size_gib.to_string()],
            "description" => text(&self.description),
            "owner-id" => text(&self.owner),
            "encrypted" => vec![self.encrypted.to_string()],
            "start-time" => text(&self.started),
            _ => return None,
        })
    }
}

pub struct Host {
    pub id: String,
    /// `pending`, `available`, `under-assessment`, `permanent-failure`, `released` or `released-permanent-failure`.
    pub state: String,
    pub instance_type: String,
    pub zone: String,
    pub auto_placement: String,
    pub recovery: String,
    pub maintenance: String,
    pub instances: Vec<String>,
    pub allocated: Duration,
    pub allocation_time: String,
    pub release_time: Option<String>,
    pub client_token: String,
    pub tags: Tags,
}

impl Resource for Host {
    fn id(&self) -> &str {
        &self.id
    }

    fn tags(&self) -> &Tags {
        &self.tags
    }

    fn field(&self, name: &str) -> Option<Vec<String>> {
        let text = |text: &str| vec![text.to_owned()];
        Some(match name {
            "host-id" => text(&self.id),
            "state" => text(&self.state),
            "availability-zone" => text(&self.zone),
            "instance-type" => text(&self.instance_type),
            "auto-placement" => text(&self.auto_placement),
            "client-token" => text(&self.client_token),
            _ => return None,
        })
    }
}

pub struct LaunchTemplate {
    pub id: String,
    pub name: String,
    /// The parameters of launches.
    pub data: Form,
    pub creator: String,
    pub created: String,
    pub tags: Tags,
}

impl Resource for LaunchTemplate {
    fn id(&self) -> &str {
        &self.id
    }

    fn tags(&self) -> &Tags {
        &self.tags
    }

    fn field(&self, name: &str) -> Option<Vec<String>> {
        Some(match name {
            "launch-template-name" => vec![self.name.clone()],
            "create-time" => vec![self.created.clone()],
            _ => return None,
        })
    }
}

pub struct KeyPair {
    pub id: String,
    pub name: String,
    pub key_type: String,
    pub public_key: String,
    pub fingerprint: String,
    pub created: String,
    pub tags: Tags,
}

impl Resource for KeyPair {
    fn id(&self) -> &str {
        &self.id
    }

    fn tags(&self) -> &Tags {
        &self.tags
    }

    fn field(&self, name: &str) -> Option<Vec<String>> {
        Some(match name {
            "key-name" => vec![self.name.clone()],
            "key-pair-id" => vec![self.id.clone()],
            "fingerprint" => vec![self.fingerprint.clone()],
            _ => return None,
        })
    }
}

/// A task of ImportSnapshot or ImportImage.
pub struct ImportTask {
    pub id: String,
    /// `active`, `completed`, `deleting` or `deleted`.
    pub state: &'static str,
    pub message: String,
    pub progress: u32,
    pub description: String,
    pub format: String,
    pub bucket: String,
    pub key: String,
    pub size_bytes: u64,
    pub architecture: String,
    pub will_fail: bool,
    pub snapshot: Option<String>,
    pub image: Option<String>,
    pub tags: Tags,
}

impl Resource for ImportTask {
    fn id(&self) -> &str {
        &self.id
    }

    fn tags(&self) -> &Tags {
        &self.tags
    }

    fn field(&self, name: &str) -> Option<Vec<String>> {
        (name == "task-state").then(|| vec![self.state.to_owned()])
    }
}

pub struct Subnet {
    pub id: String,
    pub zone: String,
    pub vpc: String,
    pub addresses: Addresses,
    pub tags: Tags,
}

impl Subnet {
    /// Number of free addresses; `limit` is the size of the network, 0 its own size.
    pub fn free_addresses(&self, limit: u32) -> u32 {
        let free = self.addresses.free();
        if limit == 0 { free } else { free.min(limit.saturating_sub(self.addresses.used())) }
    }
}

impl Resource for Subnet {
    fn id(&self) -> &str {
        &self.id
    }

    fn tags(&self) -> &Tags {
        &self.tags
    }

    fn field(&self, name: &str) -> Option<Vec<String>> {
        Some(match name {
            "subnet-id" => vec![self.id.clone()],
            "availability-zone" => vec![self.zone.clone()],
            "vpc-id" => vec![self.vpc.clone()],
            "default-for-az" => vec!["true".to_owned()],
            "state" => vec!["available".to_owned()],
            "cidr-block" => vec![self.addresses.network().to_string()],
            _ => return None,
        })
    }
}

pub struct SecurityGroup {
    pub id: String,
    pub name: String,
    pub vpc: String,
    pub tags: Tags,
}

impl Resource for SecurityGroup {
    fn id(&self) -> &str {
        &self.id
    }

    fn tags(&self) -> &Tags {
        &self.tags
    }

    fn field(&self, name: &str) -> Option<Vec<String>> {
        Some(match name {
            "group-id" => vec![self.id.clone()],
            "group-name" => vec![self.name.clone()],
            "vpc-id" => vec![self.vpc.clone()],
            _ => return None,
        })
    }
}
