//! Parameters of the calls that make an AMI: imports, snapshots of blocks and registration.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::api::api_types::Snapshot;
use super::api::form::Form;
use super::config::DiskImageSpec;
use super::request_body::hexadecimal;
use nodepool_model::config::upload_config::UploadOrder;

const BYTES_PER_GIB: u64 = 1 << 30;
const ROOT_DEVICE: &str = "/dev/sda1";

/// One upload with its settings.
pub struct ImageBody<'a> {
    pub order: &'a UploadOrder,
    pub spec: &'a DiskImageSpec,
    pub tags: &'a BTreeMap<String, String>,
    pub bucket: &'a str,
    pub key: &'a str,
}

impl ImageBody<'_> {
    /// Names this attempt of the upload. The name of the image has the time of the attempt.
    fn token(&self) -> String {
        let marks: Vec<String> = self.order.marks.iter().map(|(key, value)| format!("{key}={value}")).collect();
        hexadecimal(&Sha256::digest(format!("{} {}", self.order.name, marks.join(" ")).as_bytes()))
    }

    pub fn import_snapshot(&self) -> Form {
        let mut form = Form::new("ImportSnapshot")
            .with("ClientToken", self.token())
            .with("DiskContainer.Format", &self.order.format)
            .with("DiskContainer.UserBucket.S3Bucket", self.bucket)
            .with("DiskContainer.UserBucket.S3Key", self.key);
        form.add_tags(&["import-snapshot-task"], self.tags);
        form
    }

    pub fn import_image(&self) -> Form {
        let mut form = Form::new("ImportImage")
            .with("ClientToken", self.token())
            .with("Architecture", &self.spec.architecture)
            .with("DiskContainer.1.Format", &self.order.format)
            .with("DiskContainer.1.UserBucket.S3Bucket", self.bucket)
            .with("DiskContainer.1.UserBucket.S3Key", self.key);
        form.add_tags(&["import-image-task"], self.tags);
        form
    }

    pub fn start_snapshot(&self) -> Value {
        let tags: Vec<Value> = self.tags.iter().map(|(key, value)| json!({"Key": key, "Value": value})).collect();
        json!({
            "VolumeSize": self.order.size.div_ceil(BYTES_PER_GIB).max(1),
            "ClientToken": self.token(),
            "Tags": tags,
        })
    }

    pub fn register_image(&self, snapshot: &Snapshot) -> Form {
        const MAPPING: &str = "BlockDeviceMapping.1";
        let volume = &self.spec.volume;
        let mut form = Form::new("RegisterImage")
            .with("Name", &self.order.name)
            .with("Architecture", &self.spec.architecture)
            .with("RootDeviceName", ROOT_DEVICE)
            .with("VirtualizationType", "hvm")
            .with("EnaSupport", self.spec.ena_support)
            .with(&format!("{MAPPING}.DeviceName"), ROOT_DEVICE)
            .with(&format!("{MAPPING}.Ebs.DeleteOnTermination"), true)
            .with(&format!("{MAPPING}.Ebs.SnapshotId"), &snapshot.snapshot_id);
        let size = volume.size_gib.or(Some(snapshot.volume_size as i64).filter(|size| *size > 0));
        form.add_given(&format!("{MAPPING}.Ebs.VolumeSize"), size);
        form.add_given(&format!("{MAPPING}.Ebs.VolumeType"), volume.kind.as_ref());
        form.add_given(&format!("{MAPPING}.Ebs.Iops"), volume.iops);
        form.add_given(&format!("{MAPPING}.Ebs.Throughput"), volume.throughput);
        if self.spec.imds_v2 {
            form.add("ImdsSupport", "v2.0");
        }
        form.add_tags(&["image"], self.tags);
        form
    }
}
