//! DescribeVolumes, CreateVolume, DeleteVolume.

use crate::api::pages::not_found;
use crate::api::xml::Xml;
use crate::region::objects::Mapping;
use crate::region::region::Ec2;
use crate::region::tags;
use crate::server::form::Form;
use crate::server::response::{ApiError, ApiResult};

const NOT_FOUND: (&str, &str) = ("InvalidVolume.NotFound", "volume");

impl Ec2<'_> {
    pub fn describe_volumes(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let page = self.query(form, "VolumeId", NOT_FOUND).page(&self.region.volumes, |_| true)?;
        page.write(xml, "volumeSet", |xml, volume| volume.write(xml));
        Ok(())
    }

    pub fn create_volume(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        if let Some(ids) = self.repeated("CreateVolume", form)? {
            self.write_volume(&ids[0], xml);
            return Ok(());
        }
        let zone = form.required("AvailabilityZone")?;
        if !self.zones().iter().any(|known| known == zone) {
            let text = format!("The zone '{zone}' does not exist.");
            return Err(ApiError::new("InvalidZone.NotFound", text));
        }
        let text = |name: &str| form.get(name).map(str::to_owned);
        let new = self.new_volume(&Mapping {
            device: String::new(),
            snapshot: text("SnapshotId"),
            size_gib: form.number("Size")?,
            volume_type: text("VolumeType"),
            iops: form.number("Iops")?,
            throughput: form.number("Throughput")?,
            delete_on_termination: None,
            encrypted: form.get("Encrypted").map(|value| value.eq_ignore_ascii_case("true")),
        })?;
        self.check_volumes(std::iter::once(&new), 1)?;
        let tags = tags::specified_for(form, "volume")?;
        let id = self.add_volume(&new, zone, None, tags);
        self.remember("CreateVolume", form, vec![id.clone()]);
        self.write_volume(&id, xml);
        Ok(())
    }

    fn write_volume(&self, id: &str, xml: &mut Xml) {
        if let Some(volume) = self.region.volumes.get(id) {
            volume.write(xml);
        }
    }

    pub fn delete_volume(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let id = form.required("VolumeId")?;
        let volume = self.region.volumes.get(id).ok_or_else(|| not_found(NOT_FOUND, &[id]))?;
        if let Some((instance, _, _)) = &volume.attachment {
            let text = format!("Volume {id} is currently attached to {instance}");
            return Err(ApiError::new("VolumeInUse", text));
        }
        self.remove_volume(id);
        xml.value("return", true);
        Ok(())
    }
}
