//! DescribeImages, RegisterImage, DeregisterImage.

use crate::actions::run_instances::mapping;
use crate::api::pages::not_found;
use crate::api::xml::Xml;
use crate::region::objects::{Image, Mapping};
use crate::region::region::Ec2;
use crate::region::tags;
use crate::server::form::{Form, missing};
use crate::server::response::{ApiError, ApiResult};

impl Ec2<'_> {
    pub fn describe_images(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        for id in form.list("ImageId") {
            self.image(id)?;
        }
        let account = self.world.options.account.as_str();
        let owners = form.list("Owner");
        let is_owner = |image: &Image| {
            owners.iter().any(|wanted| match *wanted {
                "self" => image.owner == account,
                "amazon" => image.is_public,
                wanted => image.owner == wanted,
            })
        };
        let mut query = self.query(form, "ImageId", ("InvalidAMIID.NotFound", "image id"));
        query.sizes = 1..=1000;
        let page = query.page(&self.region.images, |image| owners.is_empty() || is_owner(image))?;
        page.write(xml, "imagesSet", |xml, image| image.write(xml));
        Ok(())
    }

    pub fn register_image(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let name = form.required("Name")?;
        let is_allowed = |sign: char| sign.is_ascii_alphanumeric() || "()[] ./-'@_".contains(sign);
        if !(3..=128).contains(&name.len()) || !name.chars().all(is_allowed) {
            let text = "AMI names must be between 3 and 128 characters long, and may contain letters, numbers, '(', ')', \
                        '.', '-', '/' and '_'";
            return Err(ApiError::new("InvalidAMIName.Malformed", text));
        }
        let account = &self.world.options.account;
        if let Some(other) = self.region.images.values().find(|image| image.name == name && image.owner == *account) {
            let text = format!("AMI name {name} is already in use by AMI {}", other.id);
            return Err(ApiError::new("InvalidAMIName.Duplicate", text));
        }
        let root_device = form.get("RootDeviceName").unwrap_or("/dev/sda1").to_owned();
        let mappings = self.registered_mappings(form, &root_device)?;
        let tags = tags::specified(form, &["image", "snapshot"])?.remove("image").unwrap_or_default();
        let text = |name: &str| form.get(name).map(str::to_owned);
        let image = Image {
            id: self.world.new_id("ami"),
            name: name.to_owned(),
            description: text("Description"),
            owner: self.world.options.account.clone(),
            is_public: false,
            architecture: form.get("Architecture").unwrap_or("i386").to_owned(),
            root_device,
            mappings,
            ena_support: form.get("EnaSupport") == Some("true"),
            imds_support: text("ImdsSupport"),
            boot_mode: text("BootMode"),
            created: self.world.timestamp(),
            tags,
        };
        xml.text("imageId", &image.id);
        self.add_image(image);
        Ok(())
    }

    pub fn add_image(&mut self, image: Image) {
        self.created("images", &image.id, &image.name, &image.tags);
        self.region.images.insert(&image.id.clone(), image);
    }

    /// The mappings of a new image; the sizes by default are those of the snapshots.
    fn registered_mappings(&self, form: &Form, root_device: &str) -> ApiResult<Vec<Mapping>> {
        let mut mappings = Vec::new();
        for item in form.items("BlockDeviceMapping") {
            let mut mapping = mapping(&item)?;
            let volume = self.new_volume(&mapping)?;
            mapping.size_gib = Some(volume.size_gib);
            mapping.volume_type = Some(volume.volume_type);
            mapping.iops = mapping.iops.or(volume.iops.filter(|_| volume.throughput.is_some()));
            mapping.throughput = volume.throughput;
            mappings.push(mapping);
        }
        match mappings.iter().any(|mapping| mapping.device == root_device && mapping.snapshot.is_some()) {
            true => Ok(mappings),
            false => Err(missing("blockDeviceMapping for the root device, with a snapshot")),
        }
    }

    pub fn deregister_image(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let id = form.required("ImageId")?;
        if self.image(id)?.owner != self.world.options.account {
            return Err(ApiError::new("AuthFailure", format!("Not authorized for images: [{id}]")));
        }
        self.region.images.remove(id).ok_or_else(|| not_found(("InvalidAMIID.Unavailable", "image"), &[id]))?;
        self.deleted("images", id);
        xml.value("return", true);
        Ok(())
    }
}
