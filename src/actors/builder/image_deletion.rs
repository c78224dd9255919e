//! Deletion of uploads and builds (first the image in the cloud, then the record), and of the files of deleted builds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use crate::actors::provider::provider_client::ProviderClient;
use crate::actors::runtime::blocking::run_blocking;
use crate::actors::runtime::clock;
use nodepool_driver::job::{Job, Outcome};
use nodepool_drivers::common::image_files::ImagesDir;
use nodepool_drivers::common::process_group;
use nodepool_model::records::ids::{BuildId, ExternalId, ImageName};
use nodepool_model::records::image_build::{BuildKey, BuildState, ImageBuild};
use nodepool_model::records::image_upload::{ImageUpload, UploadKey, UploadState};
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::images::UploadLockKey;
use nodepool_model::snapshot::{Versioned, WriteError};
use nodepool_policy::images::retention;
use nodepool_zk::locks::lock::Lock;
use nodepool_zk::txn::store::Store;

/// Timeout of one call of the cloud; the deletion is retried later.
const CLOUD_TIMEOUT: Duration = Duration::from_secs(600);
/// Pause between two listings for images of a dead builder: its last call may take effect shortly after its death.
const LATE_EFFECT_DELAY: Duration = Duration::from_secs(10);
/// Interval of the check whether an abandoned build process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Age after which a failed upload cannot have a call in flight any more.
const RECENT_FAILURE_AGE: Seconds = Seconds(60.0);

/// Deletes an upload. Its record is marked `deleting` first, so that no launcher boots from the image any more. The
/// record of a failed upload without a known image stays unchanged until a listing shows that the cloud has no image of
/// this upload: the next attempt resumes the record (`Store::begin_upload`).
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
    // Attempts without a reply may have created other images than the recorded one, also for a ready upload: the call
    // of a dead builder may have taken effect after every listing. A recent call may still take effect, hence a second
    // listing.
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
        Some(id) if is_named_by_another(store, id, key) => Ok(()),
        Some(id) => {
            let (image, build, provider) = (&key.image, &key.build, &key.provider);
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
            // A failed release is retried in the background.
            let _ = lock.release().await;
            Err(error)
        }
    }
}

/// Deletes an upload that a dead builder abandoned. No builder can resume it meanwhile: its lock is held here.
pub async fn end_stale_upload(store: Store, client: ProviderClient, key: UploadKey) -> Result<(), WriteError> {
    let lock_key = UploadLockKey::of(&key);
    let lock = store.lock_uploads(&lock_key).await?;
    let result = delete_stale_upload_locked(&store, &client, &lock_key, &key).await;
    // A failed release is retried in the background.
    let _ = lock.release().await;
    result
}

async fn delete_stale_upload_locked(
    store: &Store,
    client: &ProviderClient,
    lock_key: &UploadLockKey,
    key: &UploadKey,
) -> Result<(), WriteError> {
    let uploads = store.read_uploads(lock_key).await.map_err(|error| WriteError::Failed(error.to_string()))?;
    // The record was deleted, or cannot be read any more. The snapshot does not show that yet, or never will.
    let Some(stored) = uploads.get(&key.upload).filter(|upload| upload.record.state == UploadState::Uploading) else {
        return Err(WriteError::Conflict);
    };
    warn!(
        target: "nodepool.builder.CleanupWorker.0",
        "upload {} of {}-{} to {} was abandoned by its builder; deleting it", key.upload, key.image, key.build, key.provider
    );
    let lock = store.mark_upload_deleting(key, stored.version, None).await?;
    let passes = if stored.record.external_id.is_some() { 1 } else { 2 };
    delete_from_cloud(store, client, lock, key, &stored.record, passes).await
}

/// Lists and deletes images of the upload `passes` times.
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
        Err(_) => return Err(WriteError::Failed("cannot list images: timed out".to_owned())),
    };
    for image in listed.iter().filter(|image| image.has_marks(&marks)) {
        if !is_named_by_another(store, &image.id, key) {
            client.delete_image(&image.id, CLOUD_TIMEOUT).await.map_err(WriteError::Failed)?;
        }
    }
    Ok(())
}

/// Whether another ready upload names the image, so that only the record is deleted.
fn is_named_by_another(store: &Store, image: &ExternalId, of: &UploadKey) -> bool {
    let owner = store.mirror().with_snapshot(|snapshot| retention::other_owner(image, of, &snapshot.images));
    if let Some(owner) = &owner {
        let (upload, owner) = (of.image_id(), owner.image_id());
        info!(target: "nodepool.builder.CleanupWorker.0", "image {image} of {upload} stays, because {owner} is ready and names it");
    }
    owner.is_some()
}

pub async fn mark_build(store: Store, key: BuildKey, stored: Versioned<ImageBuild>) -> Result<(), WriteError> {
    let mut record = ImageBuild::clone(&stored.record);
    record.set_state(BuildState::Deleting, clock::now());
    store.mark_build_deleting(&key, stored.version, record).await
}

pub async fn remove_build(store: Store, key: BuildKey, stored: Versioned<ImageBuild>) -> Result<(), WriteError> {
    store.remove_build(&key, stored.version).await?;
    info!(target: "nodepool.builder.CleanupWorker.0", "deleted build {}", key.file_name());
    Ok(())
}

/// Inputs of a file scan.
pub struct FilesView {
    pub store: Store,
    pub images: ImagesDir,
    pub builder_id: String,
    /// Builds that run in this process.
    pub running_builds: BTreeMap<ImageName, BuildId>,
    /// Builds with a record, with the formats that are still needed; `None`: all.
    pub builds: BTreeMap<BuildKey, (Versioned<ImageBuild>, Option<BTreeSet<String>>)>,
}

/// Deletes the files of our builds that are deleted or `deleting`, and formats that are no longer needed.
pub async fn clean_files(view: FilesView) -> Result<(), String> {
    let own = view.builds.iter().filter(|(_, (stored, _))| stored.record.builder_id.as_ref() == Some(&view.builder_id));
    let own: Vec<BuildKey> = own.map(|(key, _)| key.clone()).collect();
    let images = view.images.clone();
    let claimed = run_blocking(move || claimed_builds(&images, own)).await?;
    let mut outcome = Ok(());
    for key in claimed {
        // A failure does not stop the deletion of other files; the first error is returned at the end.
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
            // The build may be newer than the snapshot.
            Ok(true) => Ok(()),
            Ok(false) => remove_files(view, key).await,
            Err(error) => Err(error.to_string()),
        },
    }
}

/// The builds whose files belong to this builder, including those of a Nodepool 11 that used this directory before.
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
    let started_at = Instant::now();
    if run_check(ImagesDir::request_termination).await? {
        while started_at.elapsed() < process_group::GRACE_PERIOD && run_check(ImagesDir::is_being_built).await? {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
    let (images, key) = (view.images.clone(), key.clone());
    run_blocking(move || {
        let removed = images.remove(&key);
        let removed = removed.map_err(|error| format!("cannot delete all files of {}: {error}", key.file_name()))?;
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
        let failed = |error| format!("cannot delete a format of {}: {error}", key.file_name());
        let formats = images.existing_suffixes(&key).map_err(failed)?.into_iter();
        for format in formats.filter(|format| !format.contains('.') && format != "d" && !needed.contains(format)) {
            images.remove_format(&key, &format).map_err(failed)?;
            let file = images.file(&key, &format);
            info!(target: "nodepool.builder.CleanupWorker.0", "Removed {}: uploaded to all providers", file.display());
        }
        Ok(())
    })
    .await
}
