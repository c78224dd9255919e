//! The image of a virtual machine: one of the resource group, of a gallery, or of the platform.

use serde_json::Value;

use crate::cloud::cloud::Cloud;
use crate::cloud::resources::{Provisioning, key_of_id};
use crate::server::response::{ApiError, ApiResult};
use crate::server::target::Kind;

/// GiB of an image that does not say its size.
const USUAL_SIZE_GB: u64 = 30;

pub struct ChosenImage {
    pub os_type: String,
    pub size_gb: u64,
}

impl Cloud {
    /// The image that `imageReference` names.
    pub fn chosen_image(&self, reference: &Value, location: &str) -> ApiResult<ChosenImage> {
        let text = |name: &str| reference[name].as_str().filter(|text| !text.is_empty());
        if let Some(id) = text("sharedGalleryImageId") {
            return gallery_image(id, "SharedGalleries", &self.options.shared_images, text("version"));
        }
        if let Some(id) = text("communityGalleryImageId") {
            return gallery_image(id, "CommunityGalleries", &self.options.community_images, text("version"));
        }
        if let Some(id) = text("id") {
            return self.image_of_id(id, location);
        }
        let [Some(publisher), Some(offer), Some(sku), Some(version)] =
            ["publisher", "offer", "sku", "version"].map(text)
        else {
            let message = "Required parameter 'imageReference' is missing (null) or incomplete.";
            return Err(ApiError::invalid("imageReference", message));
        };
        let name = format!("{publisher}:{offer}:{sku}");
        if !self.options.platform_images.iter().any(|known| known.eq_ignore_ascii_case(&name)) {
            let message = format!(
                "The platform image '{name}:{version}' is not available. Verify that all fields in the storage profile \
                 are correct. For more details about storage profile information, please refer to \
                 https://aka.ms/storageprofile"
            );
            return Err(ApiError {
                target: Some("imageReference".to_owned()),
                ..ApiError::new("PlatformImageNotFound", message)
            });
        }
        let is_windows = publisher.eq_ignore_ascii_case("MicrosoftWindowsServer");
        let (os_type, size_gb) = if is_windows { ("Windows", 127) } else { ("Linux", USUAL_SIZE_GB) };
        Ok(ChosenImage { os_type: os_type.to_owned(), size_gb })
    }

    fn image_of_id(&self, id: &str, location: &str) -> ApiResult<ChosenImage> {
        let parts: Vec<&str> = id.split('/').filter(|part| !part.is_empty()).collect();
        if let [_, _, _, _, _, _, galleries, gallery, images, image, ..] = parts[..]
            && galleries.eq_ignore_ascii_case("galleries")
            && images.eq_ignore_ascii_case("images")
        {
            return known_gallery_image(gallery, image, &self.options.gallery_images, id);
        }
        let not_found = || {
            let message = format!("The Image '{id}' cannot be found in '{location}' region.");
            ApiError { target: Some("imageReference".to_owned()), ..ApiError::new("ImageNotFound", message) }
        };
        let key = key_of_id(id, Kind::Image).ok_or_else(|| {
            ApiError::invalid(
                "imageReference.id",
                format!("The value '{id}' of parameter 'imageReference.id' is invalid."),
            )
        })?;
        let is_own = parts[1].eq_ignore_ascii_case(&self.options.subscription);
        let image = self.images.get(&key).filter(|image| is_own && image.meta.location == location);
        let image = image.ok_or_else(not_found)?;
        if image.state != Provisioning::Succeeded || image.is_deleting {
            let message = format!("The Image '{id}' is not in the state Succeeded.");
            return Err(ApiError::new("OperationNotAllowed", message));
        }
        Ok(ChosenImage { os_type: image.os_type.clone(), size_gb: image.size_gb.max(1) })
    }
}

/// An image of a shared or community gallery: `/SharedGalleries/<gallery>/Images/<image>[/Versions/<version>]`.
fn gallery_image(id: &str, kind: &str, known: &[String], version: Option<&str>) -> ApiResult<ChosenImage> {
    let parts: Vec<&str> = id.split('/').filter(|part| !part.is_empty()).collect();
    let is = |part: &str, name: &str| part.eq_ignore_ascii_case(name);
    let is_valid = version.is_none() && id.starts_with('/');
    match parts[..] {
        [galleries, gallery, images, image] | [galleries, gallery, images, image, _, _]
            if is_valid && is(galleries, kind) && is(images, "Images") =>
        {
            known_gallery_image(gallery, image, known, id)
        }
        _ => Err(ApiError::invalid("imageReference", format!("The value '{id}' of an image of a gallery is invalid."))),
    }
}

fn known_gallery_image(gallery: &str, image: &str, known: &[String], id: &str) -> ApiResult<ChosenImage> {
    let name = format!("{gallery}/{image}");
    if known.iter().any(|one| one.eq_ignore_ascii_case(&name)) {
        return Ok(ChosenImage { os_type: "Linux".to_owned(), size_gb: USUAL_SIZE_GB });
    }
    let message = format!("The gallery image {id} is not available or does not exist.");
    Err(ApiError { target: Some("imageReference".to_owned()), ..ApiError::new("GalleryImageNotFound", message) })
}
