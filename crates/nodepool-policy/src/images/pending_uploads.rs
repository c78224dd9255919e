//! Which builds are to be uploaded where: the newest of each image, to every provider that takes the image and lacks it.

use crate::inputs::Inputs;
use nodepool_model::config::upload_config::{UploadConfig, UploadEntry};
use nodepool_model::records::image_build::{BuildKey, ImageBuild};
use nodepool_model::records::image_upload::UploadState;
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::Versioned;
use nodepool_model::snapshot::images::UploadLockKey;

use super::build_schedule::name_problem;

/// One build to be uploaded. Whether this builder has its file is for the disk to say.
#[derive(Clone, Debug)]
pub struct PendingUpload {
    pub place: UploadLockKey,
    pub build: Versioned<ImageBuild>,
    pub entry: UploadEntry,
    pub format: String,
    pub name_format: String,
    pub hook: Option<String>,
    pub timeout: Seconds,
}

/// All that may be uploaded now: provider by provider.
pub fn due(world: &Inputs<'_>) -> Vec<PendingUpload> {
    let mut pending = Vec::new();
    for (provider, facts) in world.facts {
        let Some(uploading) = facts.upload_config.as_deref() else { continue };
        for (image, entry) in &uploading.images {
            if entry.paused || !world.config.diskimages.contains_key(image) || name_problem(image).is_some() {
                continue;
            }
            let Some(view) = world.snapshot.images.image(image) else { continue };
            let Some((build, stored)) = view.ready().first().map(|(id, stored)| ((*id).clone(), (*stored).clone()))
            else {
                continue;
            };
            let build = BuildKey { image: image.clone(), build };
            let place = UploadLockKey { build, provider: provider.clone() };
            if stored.record.formats.contains(&uploading.format) && is_missing(&place, world) {
                pending.push(pending_upload(place, stored, entry, uploading));
            }
        }
    }
    pending
}

fn is_missing(place: &UploadLockKey, world: &Inputs<'_>) -> bool {
    let images = &world.snapshot.images;
    let mut there = images.uploads_to(&place.provider, &place.build.image);
    let is_there =
        there.any(|(key, stored)| key.build == place.build.build && stored.record.state == UploadState::Ready);
    !is_there && !images.is_being_uploaded(place)
}

fn pending_upload(
    place: UploadLockKey,
    build: Versioned<ImageBuild>,
    entry: &UploadEntry,
    uploading: &UploadConfig,
) -> PendingUpload {
    PendingUpload {
        place,
        build,
        entry: entry.clone(),
        format: uploading.format.clone(),
        name_format: uploading.name_format.clone(),
        hook: uploading.hook.clone(),
        timeout: uploading.timeout,
    }
}
