//! The disks of a new instance.

use serde_json::{Value, json};

use crate::methods::fields::Fields;
use crate::methods::known_fields;
use crate::methods::places::DISK_TYPES;
use crate::server::response::{ApiError, ApiResult};
use crate::state::places::{BASE, reference};
use crate::state::project::Compute;
use crate::state::quotas::disk_metric;

/// GB of a disk without size and image.
const DEFAULT_GB: u64 = 500;
const MAX_GB: u64 = 65536;

/// The JSON of disks, and their GB by the metric of their quota.
pub struct Disks {
    pub json: Vec<Value>,
    pub sizes: Vec<(&'static str, f64)>,
}

impl Compute<'_> {
    /// Checks the disks of an insert.
    pub fn disks(&self, resource: &Fields<'_>, zone: &str, instance: &str) -> ApiResult<Disks> {
        let list = resource.list("disks")?;
        if list.is_empty() {
            return Err(resource.invalid("disks", "No disks are specified."));
        }
        let mut disks = Disks { json: Vec::new(), sizes: Vec::new() };
        for (index, value) in list.iter().enumerate() {
            let fields = Fields::new(value, &format!("resource.disks[{index}]"), known_fields::DISK)?;
            let is_boot = fields.boolean("boot")?.unwrap_or(false);
            if is_boot != (index == 0) {
                return Err(fields.invalid("boot", "The first disk, and no other, must be a boot disk."));
            }
            self.disk(&fields, zone, instance, index, &mut disks)?;
        }
        Ok(disks)
    }

    fn disk(&self, fields: &Fields<'_>, zone: &str, instance: &str, index: usize, disks: &mut Disks) -> ApiResult<()> {
        if fields.value("source").is_some() {
            return Err(fields.invalid("source", "The referenced disk resource cannot be found."));
        }
        let empty = json!({});
        let params = fields.value("initializeParams").unwrap_or(&empty);
        let params = Fields::new(params, &fields.field("initializeParams"), known_fields::DISK_PARAMS)?;
        let image = match params.text("sourceImage")? {
            None if index == 0 => {
                return Err(fields.invalid("initializeParams", "A boot disk must have a source."));
            }
            None => None,
            Some(source) => {
                let image = self.world.images.find(source, &self.project.name);
                let missing = || params.invalid("sourceImage", "The referenced image resource cannot be found.");
                Some(image.ok_or_else(missing)?)
            }
        };
        let size_gb = disk_size(fields, &params, image.map(|image| image.size_gb))?;
        let disk_type = self.disk_type(&params, zone)?;
        disks.sizes.push((disk_metric(disk_type), size_gb as f64));
        let default_name = if index == 0 { instance.to_owned() } else { format!("{instance}-{index}") };
        let name = params.text("diskName")?.unwrap_or(&default_name);
        let mut disk = json!({
            "kind": "compute#attachedDisk", "type": "PERSISTENT", "mode": "READ_WRITE",
            "source": format!("{BASE}{}", self.path(&format!("zones/{zone}/disks/{name}"))),
            "deviceName": fields.text("deviceName")?.map_or_else(|| format!("persistent-disk-{index}"), str::to_owned),
            "index": index, "boot": index == 0, "autoDelete": fields.boolean("autoDelete")?.unwrap_or(false),
            "interface": "SCSI", "diskSizeGb": size_gb.to_string(), "architecture": "X86_64",
        });
        if image.is_some() {
            disk["licenses"] = json!([]);
            disk["guestOsFeatures"] = json!([{"type": "UEFI_COMPATIBLE"}, {"type": "VIRTIO_SCSI_MULTIQUEUE"}]);
        }
        disks.json.push(disk);
        Ok(())
    }

    fn disk_type<'a>(&self, params: &Fields<'a>, zone: &str) -> ApiResult<&'a str> {
        let Some(text) = params.text("diskType")? else { return Ok("pd-standard") };
        let (project, path) = reference(text);
        match path[..] {
            ["zones", other, "diskTypes", name]
                if other == zone
                    && DISK_TYPES.contains(&name)
                    && project.is_none_or(|project| project == self.project.name) =>
            {
                Ok(text.rsplit('/').next().unwrap_or(text))
            }
            ["zones", _, "diskTypes", _] => {
                Err(params.invalid("diskType", "The referenced diskType resource cannot be found."))
            }
            _ => Err(params.invalid("diskType", "The URL is malformed.")),
        }
    }
}

/// The size of a disk, which must hold its image.
fn disk_size(fields: &Fields<'_>, params: &Fields<'_>, image_gb: Option<u64>) -> ApiResult<u64> {
    let Some(size_gb) = params.number("diskSizeGb")?.or(fields.number("diskSizeGb")?) else {
        return Ok(image_gb.unwrap_or(DEFAULT_GB));
    };
    let refused = |why: &str| -> ApiError { params.invalid("diskSizeGb", why) };
    match image_gb {
        Some(image_gb) if size_gb < image_gb => {
            Err(refused(&format!("Requested disk size cannot be smaller than the image size ({image_gb} GB)")))
        }
        _ if size_gb == 0 || size_gb > MAX_GB => Err(refused("Disk size must be between 1 GB and 65536 GB.")),
        _ => Ok(size_gb),
    }
}
