//! How uploads and builds go: first in the cloud, then their records; and the files of builds that are here no more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use crate::actors::provider::provider_client::ProviderClient;
use crate::actors::runtime::blocking::run_blocking;
use crate::actors::runtime::{clock, invariant_guard};
use nodepool_driver::job::{Job, Outcome};
use nodepool_drivers::common::image_files::ImagesDir;
use nodepool_drivers::common::process_group;
use nodepool_model::records::ids::{BuildId, ImageName};
use nodepool_model::records::image_build::{BuildKey, BuildState, ImageBuild};
use nodepool_model::records::image_upload::{ImageUpload, UploadKey, UploadState};
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::images::UploadLockKey;
use nodepool_model::snapshot::{Versioned, WriteError};
use nodepool_policy::invariants::images::check_image_deletion;
use nodepool_zk::locks::lock::Lock;
use nodepool_zk::txn::store::Store;

/// A cloud that takes longer is asked again later.
const CLOUD_TIMEOUT: Duration = Duration::from_secs(600);
/// Between two looks for what a dead builder may have asked a cloud for: that may take effect a little after its death.
const LATE_EFFECT_DELAY: Duration = Duration::from_secs(10);
/// Between two looks whether a build that was left running has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// An upload that has failed so long ago has nothing under way any more.
const RECENT_FAILURE_AGE: Seconds = Seconds(60.0);

/// Deletes an upload: marked first, so that nobody boots from it any more. One that has failed, and of which no image is known, stays
/// as it is until its cloud has said that there is none: the next attempt goes on with its record (`Store::begin_upload`).
pub async fn delete_upload(
    store: Store,
    client: ProviderClient,
    key: UploadKey,
    stored: Versioned<ImageUpload>,
) -> Result<(), WriteError> {
    let mut record = ImageUpload::clone(&stored.record);
    let is_unchanged = record.state == UploadState::Deleting || record.has_failed_without_image();
    let change = (!is_unchanged).then(|| {
        record.set_state(UploadState::Deleting, clock::now());
        record.clone()
    });
    let lock = store.mark_upload_deleting(&key, stored.version, change).await?;
    // Attempts of which nobody has heard may have left other images than the one that the record names, also of one that is ready: what
    // a dead builder had asked for may have come after all looks for it. What was asked for a moment ago may take effect a little late.
    let is_recent = record.external_name.is_none() && clock::now() - stored.record.state_time < RECENT_FAILURE_AGE;
    let passes = if is_recent { 2 } else { 1 };
    delete_from_cloud(&store, &client, lock, &key, &record, passes).await
}

async fn delete_from_cloud(
    store: &Store,
    client: &ProviderClient,
    lock: Lock,
    key: &UploadKey,
    record: &ImageUpload,
    passes: usize,
) -> Result<(), WriteError> {
    let deleted = match &record.external_id {
        Some(id) => {
            let (image, build, provider) = (&key.image, &key.build, &key.provider);
            invariant_guard::enforce(
                store.mirror().with_snapshot(|snapshot| check_image_deletion(id, key, &snapshot.images)),
            )?;
            info!(target: "nodepool.builder.CleanupWorker.0", "Deleting image build {image}-{build} from {provider}");
            client.delete_image(id, CLOUD_TIMEOUT).await.map_err(|error| {
                let name = record.external_name.clone().unwrap_or_else(|| id.to_string());
                warn!(target: "nodepool.builder.CleanupWorker.0", "Unable to delete image {name} from {provider}: {error}");
                WriteError::Failed(error)
            })
        }
        None => Ok(()),
    };
    let leftovers_deleted = match &deleted {
        Ok(()) => delete_leftover_images(store, client, key, passes).await,
        Err(_) => Ok(()),
    };
    match deleted.and(leftovers_deleted) {
        Ok(()) => store.remove_upload(lock, key).await,
        Err(error) => {
            // Where that fails, it goes on in the background.
            let _ = lock.release().await;
            Err(error)
        }
    }
}

/// Ends what a dead builder has begun. Nobody goes on with it meanwhile: its lock is held here.
pub async fn end_stale_upload(store: Store, client: ProviderClient, key: UploadKey) -> Result<(), WriteError> {
    let place = UploadLockKey::of(&key);
    let lock = store.lock_uploads(&place).await?;
    let ended = end_stale_upload_of(&store, &client, &place, &key).await;
    // Where that fails, it goes on in the background.
    let _ = lock.release().await;
    ended
}

async fn end_stale_upload_of(
    store: &Store,
    client: &ProviderClient,
    place: &UploadLockKey,
    key: &UploadKey,
) -> Result<(), WriteError> {
    let uploads = store.read_uploads(place).await.map_err(|error| WriteError::Failed(error.to_string()))?;
    // Gone, or not to be read any more: the picture has not heard of that, or never will.
    let Some(stored) = uploads.get(&key.upload).filter(|upload| upload.record.state == UploadState::Uploading) else {
        return Err(WriteError::Conflict);
    };
    warn!(
        target: "nodepool.builder.CleanupWorker.0",
        "the upload {} of {}-{} to {} was left by its builder; it is removed", key.upload, key.image, key.build, key.provider
    );
    let lock = store.mark_upload_deleting(key, stored.version, None).await?;
    let passes = if stored.record.external_id.is_some() { 1 } else { 2 };
    delete_from_cloud(store, client, lock, key, &stored.record, passes).await
}

/// So many looks, one after the other.
async fn delete_leftover_images(
    store: &Store,
    client: &ProviderClient,
    key: &UploadKey,
    passes: usize,
) -> Result<(), WriteError> {
    for pass in 0..passes {
        if pass > 0 {
            tokio::time::sleep(LATE_EFFECT_DELAY).await;
        }
        delete_marked_images(store, client, key).await?;
    }
    Ok(())
}

async fn delete_marked_images(store: &Store, client: &ProviderClient, key: &UploadKey) -> Result<(), WriteError> {
    let marks = key.marks();
    let listed = match tokio::time::timeout(CLOUD_TIMEOUT, client.run(Job::ListImages)).await {
        Ok(Ok(Outcome::Images(images))) => images,
        Ok(Ok(_)) => Vec::new(),
        Ok(Err(error)) => return Err(WriteError::Failed(format!("cannot list images: {error}"))),
        Err(_) => return Err(WriteError::Failed("cannot list images: no answer".to_owned())),
    };
    for image in listed.iter().filter(|image| image.has_marks(&marks)) {
        invariant_guard::enforce(
            store.mirror().with_snapshot(|snapshot| check_image_deletion(&image.id, key, &snapshot.images)),
        )?;
        client.delete_image(&image.id, CLOUD_TIMEOUT).await.map_err(WriteError::Failed)?;
    }
    Ok(())
}

pub async fn mark_build(store: Store, key: BuildKey, stored: Versioned<ImageBuild>) -> Result<(), WriteError> {
    let mut record = ImageBuild::clone(&stored.record);
    record.set_state(BuildState::Deleting, clock::now());
    store.mark_build_deleting(&key, stored.version, record).await
}

pub async fn remove_build(store: Store, key: BuildKey, stored: Versioned<ImageBuild>) -> Result<(), WriteError> {
    store.remove_build(&key, stored.version).await?;
    info!(target: "nodepool.builder.CleanupWorker.0", "the build {} is gone", key.file_name());
    Ok(())
}

/// What is known of builds when their files are looked at.
pub struct FilesView {
    pub store: Store,
    pub images: ImagesDir,
    pub builder_id: String,
    /// The builds that are made here at the moment.
    pub running_builds: BTreeMap<ImageName, BuildId>,
    /// With the formats that are still needed, where not all are.
    pub builds: BTreeMap<BuildKey, (Versioned<ImageBuild>, Option<BTreeSet<String>>)>,
}

/// Removes what belongs to builds of ours that are gone or going, and formats that nobody needs.
pub async fn clean_files(view: FilesView) -> Result<(), String> {
    let own = view.builds.iter().filter(|(_, (stored, _))| stored.record.builder_id.as_ref() == Some(&view.builder_id));
    let own: Vec<BuildKey> = own.map(|(key, _)| key.clone()).collect();
    let images = view.images.clone();
    let claimed = run_blocking(move || claimed_builds(&images, own)).await?;
    let mut outcome = Ok(());
    for key in claimed {
        // What cannot be removed keeps nothing else from it; the first error is told in the end.
        outcome = outcome.and(clean_build_files(&view, &key).await);
    }
    outcome
}

async fn clean_build_files(view: &FilesView, key: &BuildKey) -> Result<(), String> {
    match view.builds.get(key) {
        Some((stored, _)) if stored.record.state == BuildState::Deleting => remove_files(view, key).await,
        Some((_, Some(needed))) => prune_formats(&view.images, key, needed.clone()).await,
        Some(_) => Ok(()),
        None if view.running_builds.get(&key.image) == Some(&key.build) => Ok(()),
        None => match view.store.build_exists(key).await {
            // The picture may be younger than the claim.
            Ok(true) => Ok(()),
            Ok(false) => remove_files(view, key).await,
            Err(error) => Err(error.to_string()),
        },
    }
}

/// The builds whose files are ours; those of a builder of Nodepool 11 that was here before among them.
fn claimed_builds(images: &ImagesDir, own: Vec<BuildKey>) -> Result<BTreeSet<BuildKey>, String> {
    let unreadable = |error| format!("cannot read images-dir {}: {error}", images.path().display());
    let mut claimed = images.claimed().map_err(unreadable)?;
    for key in own {
        if !claimed.contains(&key) && !images.existing_suffixes(&key).map_err(unreadable)?.is_empty() {
            images.claim(&key).map_err(unreadable)?;
            claimed.insert(key);
        }
    }
    Ok(claimed)
}

async fn remove_files(view: &FilesView, key: &BuildKey) -> Result<(), String> {
    let run_check = async |check: fn(&ImagesDir, &BuildKey) -> bool| {
        let (images, key) = (view.images.clone(), key.clone());
        run_blocking(move || Ok(check(&images, &key))).await
    };
    let begun = Instant::now();
    if run_check(ImagesDir::request_termination).await? {
        while begun.elapsed() < process_group::GRACE_PERIOD && run_check(ImagesDir::is_being_built).await? {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
    let (images, key) = (view.images.clone(), key.clone());
    run_blocking(move || {
        let removed = images.remove(&key);
        let removed = removed.map_err(|error| format!("cannot remove all files of {}: {error}", key.file_name()))?;
        for path in removed {
            info!(target: "nodepool.builder.CleanupWorker.0", "Removed {}", path.display());
        }
        Ok(())
    })
    .await
}

async fn prune_formats(images: &ImagesDir, key: &BuildKey, needed: BTreeSet<String>) -> Result<(), String> {
    let (images, key) = (images.clone(), key.clone());
    run_blocking(move || {
        let failed = |error| format!("cannot remove a format of {}: {error}", key.file_name());
        let formats = images.existing_suffixes(&key).map_err(failed)?.into_iter();
        for format in formats.filter(|format| !format.contains('.') && format != "d" && !needed.contains(format)) {
            images.remove_format(&key, &format).map_err(failed)?;
            let file = images.file(&key, &format);
            info!(target: "nodepool.builder.CleanupWorker.0", "Removed {}: it is uploaded everywhere", file.display());
        }
        Ok(())
    })
    .await
}
