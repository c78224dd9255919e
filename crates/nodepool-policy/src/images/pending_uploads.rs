//! Pending uploads: the newest build of each image, for every provider that takes the image and lacks this build.

use crate::inputs::Inputs;
use nodepool_model::config::upload_config::{UploadConfig, UploadEntry};
use nodepool_model::records::image_build::{BuildKey, ImageBuild};
use nodepool_model::records::image_upload::UploadState;
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::Versioned;
use nodepool_model::snapshot::images::UploadLockKey;

use super::build_schedule::name_problem;

/// A build to upload. The builder checks on its disk whether it has the file.
#[derive(Clone, Debug)]
pub struct PendingUpload {
    pub lock_key: UploadLockKey,
    pub build: Versioned<ImageBuild>,
    pub entry: UploadEntry,
    pub format: String,
    pub name_format: String,
    pub hook: Option<String>,
    pub timeout: Seconds,
}

/// All uploads that may start now, provider by provider.
pub fn due(inputs: &Inputs<'_>) -> Vec<PendingUpload> {
    let mut pending = Vec::new();
    for (provider, facts) in inputs.facts {
        let Some(upload_config) = facts.upload_config.as_deref() else { continue };
        for (image, entry) in &upload_config.images {
            if entry.paused || !inputs.config.diskimages.contains_key(image) || name_problem(image).is_some() {
                continue;
            }
            let Some(view) = inputs.snapshot.images.image(image) else { continue };
            let Some((build, stored)) = view.ready().first().map(|(id, stored)| ((*id).clone(), (*stored).clone()))
            else {
                continue;
            };
            let build = BuildKey { image: image.clone(), build };
            let lock_key = UploadLockKey { build, provider: provider.clone() };
            if stored.record.formats.contains(&upload_config.format) && is_missing(&lock_key, inputs) {
                pending.push(pending_upload(lock_key, stored, entry, upload_config));
            }
        }
    }
    pending
}

fn is_missing(lock_key: &UploadLockKey, inputs: &Inputs<'_>) -> bool {
    let images = &inputs.snapshot.images;
    let mut uploads = images.uploads_to(&lock_key.provider, &lock_key.build.image);
    let is_uploaded =
        uploads.any(|(key, stored)| key.build == lock_key.build.build && stored.record.state == UploadState::Ready);
    !is_uploaded && !images.is_being_uploaded(lock_key)
}

fn pending_upload(
    lock_key: UploadLockKey,
    build: Versioned<ImageBuild>,
    entry: &UploadEntry,
    upload_config: &UploadConfig,
) -> PendingUpload {
    PendingUpload {
        lock_key,
        build,
        entry: entry.clone(),
        format: upload_config.format.clone(),
        name_format: upload_config.name_format.clone(),
        hook: upload_config.hook.clone(),
        timeout: upload_config.timeout,
    }
}
