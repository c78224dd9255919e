//! CreateTags and DeleteTags, for objects of all kinds.

use crate::api::xml::Xml;
use crate::region::region::Ec2;
use crate::region::tags::{self, Tags};
use crate::server::form::{Form, missing};
use crate::server::response::{ApiError, ApiResult};

impl Ec2<'_> {
    /// Adds tags to all objects, or to none if one is unknown.
    pub fn create_tags(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let new = tags::of_scope(&form.root())?;
        if new.is_empty() {
            return Err(missing("Tag"));
        }
        let ids = self.tagged(form)?;
        for id in &ids {
            let mut tags = self.tags_mut(id).cloned().unwrap_or_default();
            tags.extend(new.clone());
            tags::check_count(&tags)?;
        }
        for id in &ids {
            if let Some(tags) = self.tags_mut(id) {
                tags.extend(new.clone());
            }
        }
        xml.value("return", true);
        Ok(())
    }

    pub fn delete_tags(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let items = form.items("Tag");
        for id in self.tagged(form)? {
            let Some(tags) = self.tags_mut(&id) else { continue };
            if items.is_empty() {
                tags.retain(|key, _| key.starts_with("aws:"));
            }
            for item in &items {
                let key = item.get("Key").unwrap_or_default();
                let has_value = |value: &str| tags.get(key).is_some_and(|known| known == value);
                if item.get("Value").is_none_or(has_value) && !key.starts_with("aws:") {
                    tags.remove(key);
                }
            }
        }
        xml.value("return", true);
        Ok(())
    }

    /// The ids of a call, which must be known.
    fn tagged(&mut self, form: &Form) -> ApiResult<Vec<String>> {
        let ids = form.list("ResourceId");
        if ids.is_empty() {
            return Err(missing("ResourceId"));
        }
        for id in &ids {
            if self.tags_mut(id).is_none() {
                return Err(unknown(id));
            }
        }
        Ok(ids.into_iter().map(str::to_owned).collect())
    }

    fn tags_mut(&mut self, id: &str) -> Option<&mut Tags> {
        let prefix = id.rsplit_once('-').map_or("", |(prefix, _)| prefix);
        if prefix == "i" {
            return self.instance_mut(id).map(|instance| &mut instance.tags);
        }
        let region = &mut self.region;
        match prefix {
            "vol" => region.volumes.get_mut(id).map(|one| &mut one.tags),
            "ami" => region.images.get_mut(id).map(|one| &mut one.tags),
            "snap" => region.snapshots.get_mut(id).map(|one| &mut one.tags),
            "h" => region.hosts.get_mut(id).map(|one| &mut one.tags),
            "lt" => region.templates.get_mut(id).map(|one| &mut one.tags),
            "key" => region.key_pairs.get_mut(id).map(|one| &mut one.tags),
            "subnet" => region.subnets.get_mut(id).map(|one| &mut one.tags),
            "sg" => region.groups.get_mut(id).map(|one| &mut one.tags),
            "import-snap" => region.snapshot_imports.get_mut(id).map(|one| &mut one.tags),
            "import-ami" => region.image_imports.get_mut(id).map(|one| &mut one.tags),
            _ => None,
        }
    }
}

fn unknown(id: &str) -> ApiError {
    let code = match id.rsplit_once('-').map_or("", |(prefix, _)| prefix) {
        "i" => "InvalidInstanceID.NotFound",
        "vol" => "InvalidVolume.NotFound",
        "ami" => "InvalidAMIID.NotFound",
        "snap" => "InvalidSnapshot.NotFound",
        "h" => "InvalidHostID.NotFound",
        "lt" => "InvalidLaunchTemplateId.NotFound",
        "subnet" => "InvalidSubnetID.NotFound",
        "sg" => "InvalidGroup.NotFound",
        "key" => "InvalidKeyPair.NotFound",
        _ => return ApiError::new("InvalidID", format!("The ID '{id}' is not valid")),
    };
    ApiError::new(code, format!("The ID '{id}' does not exist"))
}
