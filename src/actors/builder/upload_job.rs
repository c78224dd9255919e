//! One upload job of an UploadWorker, from the lock on the upload to the final record.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use super::build_job::BuildEnvironment;
use super::write_retry;
use crate::actors::provider::provider_client::ProviderClient;
use crate::actors::runtime::blocking::run_blocking;
use crate::actors::runtime::clock;
use crate::actors::telemetry::builder_metrics;
use nodepool_driver::error::CloudError;
use nodepool_driver::job::{Job, JobEvent, Outcome};
use nodepool_drivers::common::checksums::{self, Checksums};
use nodepool_drivers::common::hook::{self, HookExit};
use nodepool_drivers::common::python_format;
use nodepool_model::config::upload_config::{Progress, UploadOrder};
use nodepool_model::config::{Config, DiskImage};
use nodepool_model::records::ids::{ExternalId, UploadId};
use nodepool_model::records::image_upload::{ImageUpload, UploadState};
use nodepool_model::records::time::{Seconds, Timestamp};
use nodepool_model::snapshot::WriteError;
use nodepool_policy::images::pending_uploads::PendingUpload;
use nodepool_zk::txn::image_upload::UploadGrant;
use nodepool_zk::txn::store::Store;

/// Interval of progress writes.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time without progress after which an upload is abandoned, so that a cloud that keeps throttling does not
/// block a worker forever. A cloud needs up to an hour to store an image.
const MIN_STALL_TIMEOUT: Duration = Duration::from_secs(2 * 3600);
/// Time without progress that is allowed beyond the upload timeout of the provider.
const STALL_MARGIN: Duration = Duration::from_secs(3600);
/// Timeout for deleting the image of a failed upload. After it, the CleanupWorker deletes the image.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(60);

/// Inputs of an upload besides the `PendingUpload`.
#[derive(Clone)]
pub struct UploadContext {
    pub store: Store,
    pub build_env: BuildEnvironment,
    pub client: ProviderClient,
    /// The configuration that decided the upload.
    pub config: Arc<Config>,
    /// Configuration of the image.
    pub image: Arc<DiskImage>,
    pub hook_timeout: Seconds,
}

/// Result of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadOutcome {
    /// Another builder uploads the build, the upload is no longer due, or the configuration is outdated.
    Skipped,
    /// This builder does not have the file.
    NoLocalFile,
    Ready,
    Failed,
}

/// The file of a build in the format of a provider.
struct ImageFile {
    file: PathBuf,
    size: u64,
    sums: Checksums,
}

pub async fn upload(context: UploadContext, pending: PendingUpload) -> UploadOutcome {
    let (lock_key, build) = (&pending.lock_key, &pending.build.record);
    let (image, provider) = (&lock_key.build.image, &lock_key.provider);
    let image_file = match open_image_file(&context, &pending).await {
        Ok(image_file) => image_file,
        Err(error) => {
            // The files of other builders are on other machines, so only an own missing file is an error.
            if build.builder_id.as_ref() == Some(&context.build_env.builder_id) {
                error!(target: "nodepool.builder.UploadWorker", %image, %provider, "cannot upload: {error}");
            }
            return UploadOutcome::NoLocalFile;
        }
    };
    let now = clock::now();
    if let Err(error) = external_name(&pending, &UploadId::from("0000000001"), now) {
        error!(
            target: "nodepool.builder.UploadWorker",
            %image, %provider, "image-name-format {:?} cannot be used: {error}", pending.name_format
        );
        return UploadOutcome::Failed;
    }
    let started = ImageUpload {
        username: build.username.clone(),
        python_path: build.python_path.clone(),
        shell_type: build.shell_type.clone(),
        ..ImageUpload::new(UploadState::Uploading, now)
    };
    if !context.build_env.config_status.may_begin(&context.config).await {
        debug!(target: "nodepool.builder.UploadWorker", %image, %provider, "upload postponed: the configuration has changed");
        return UploadOutcome::Skipped;
    }
    let mut grant = match context.store.begin_upload(lock_key, started.clone()).await {
        Ok(grant) => grant,
        Err(WriteError::Contended | WriteError::Conflict) => return UploadOutcome::Skipped,
        Err(error) => {
            warn!(target: "nodepool.builder.UploadWorker", %image, %provider, %error, "cannot start an upload");
            return UploadOutcome::Failed;
        }
    };
    let started_at = Instant::now();
    let record = transfer(&context, &pending, &image_file, &mut grant, started).await;
    finish(&context, &pending, &mut grant, &record, started_at).await
}

/// Writes the final record.
async fn finish(
    context: &UploadContext,
    pending: &PendingUpload,
    grant: &mut UploadGrant,
    record: &ImageUpload,
    started_at: Instant,
) -> UploadOutcome {
    let (build, provider) = (&pending.lock_key.build, &pending.lock_key.provider);
    let image = &build.image;
    let recorded = write_retry::write_with_retry(&context.store, "upload result", async || {
        context.store.finish_upload(grant, record).await
    });
    match (record.state, recorded.await) {
        (UploadState::Ready, Ok(())) => {
            let duration_ms = started_at.elapsed().as_secs_f64() * 1000.0;
            builder_metrics::upload_samples(image, provider, duration_ms)
                .into_iter()
                .for_each(|sample| context.build_env.samples.send(sample));
            let id = record.external_id.as_ref().map(ToString::to_string).unwrap_or_default();
            let build = build.file_name();
            info!(
                target: "nodepool.builder.UploadWorker",
                "Image build {build} (external_id {id}) in {provider} is ready"
            );
            UploadOutcome::Ready
        }
        (UploadState::Ready, Err(error)) => {
            error!(target: "nodepool.builder.UploadWorker", %image, %provider, %error, "cannot record the upload");
            // If the session ended, the record names the image, and the builder that takes over finds it.
            if error == WriteError::Conflict
                && let Some(id) = &record.external_id
            {
                remove(context, id).await;
            }
            UploadOutcome::Failed
        }
        (_, Ok(())) => UploadOutcome::Failed,
        (_, Err(error)) => {
            warn!(target: "nodepool.builder.UploadWorker", %image, %provider, %error, "cannot record the failed upload");
            UploadOutcome::Failed
        }
    }
}

async fn open_image_file(context: &UploadContext, pending: &PendingUpload) -> Result<ImageFile, String> {
    let file = context.build_env.images.file(&pending.lock_key.build, &pending.format);
    run_blocking(move || {
        let metadata = std::fs::metadata(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let sums = checksums::read(&file);
        Ok(ImageFile { file, size: metadata.len(), sums })
    })
    .await
}

fn external_name(pending: &PendingUpload, upload: &UploadId, now: Timestamp) -> Result<String, String> {
    let field = |name: &str| match name {
        "image_name" => Some(json!(pending.lock_key.build.image)),
        "upload_id" => Some(json!(upload)),
        "timestamp" => Some(Value::String(format!("{:.0}", now.0.floor()))),
        _ => None,
    };
    python_format::interpolate(&pending.name_format, field)
}

/// Uploads the image and runs the hook; returns the final record.
async fn transfer(
    context: &UploadContext,
    pending: &PendingUpload,
    image_file: &ImageFile,
    grant: &mut UploadGrant,
    started: ImageUpload,
) -> ImageUpload {
    let (image, provider) = (&pending.lock_key.build.image, &pending.lock_key.provider);
    let progress = Progress::default();
    let order = match upload_order(context, pending, image_file, grant, started.state_time, progress) {
        Ok(order) => order,
        Err(error) => {
            error!(target: "nodepool.builder.UploadWorker", %image, %provider, "{error}");
            return ImageUpload::new(UploadState::Failed, clock::now());
        }
    };
    info!(
        target: "nodepool.builder.UploadWorker",
        "Uploading DIB image build {} from {} to {provider}", pending.lock_key.build.build, image_file.file.display()
    );
    let sending =
        ImageUpload { external_name: Some(order.name.clone()), format: Some(pending.format.clone()), ..started };
    let mut known_id = grant.prior_record.as_ref().and_then(|before| before.external_id.clone());
    let stall_timeout = MIN_STALL_TIMEOUT.max(pending.timeout.to_duration() + STALL_MARGIN);
    let failure = match send(context, grant, &sending, order, stall_timeout, &mut known_id).await {
        Ok(id) => {
            known_id = Some(id.clone());
            match call_hook(context, pending, image_file, &id).await {
                Ok(()) => {
                    let mut ready = ImageUpload { external_id: Some(id), ..sending };
                    ready.set_state(UploadState::Ready, context.store.upload_ready_time(&grant.key, clock::now()));
                    return ready;
                }
                Err(error) => error,
            }
        }
        Err(error) => format!("Failed to upload image {image} to provider {provider}: {error}"),
    };
    error!(target: "nodepool.builder.UploadWorker", %image, %provider, "{failure}");
    let mut failed = ImageUpload::new(UploadState::Failed, clock::now());
    if let Some(id) = known_id
        && !remove(context, &id).await
    {
        // The CleanupWorker deletes the image later.
        failed.external_id = Some(id);
    }
    failed
}

fn upload_order(
    context: &UploadContext,
    pending: &PendingUpload,
    image_file: &ImageFile,
    grant: &UploadGrant,
    now: Timestamp,
    progress: Progress,
) -> Result<UploadOrder, String> {
    let key = &grant.key;
    let marks = key.marks();
    let mut meta = context.image.metadata.clone();
    meta.extend(pending.entry.meta.clone());
    meta.retain(|name, _| !marks.contains_key(name));
    Ok(UploadOrder {
        image: key.image.clone(),
        name: external_name(pending, &key.upload, now)?,
        file: image_file.file.clone(),
        size: image_file.size,
        format: pending.format.clone(),
        meta,
        marks,
        md5: image_file.sums.md5.clone(),
        sha256: image_file.sums.sha256.clone(),
        may_exist: grant.prior_record.is_some(),
        progress,
    })
}

/// Submits the upload and waits for its end. The image's id is recorded as soon as it is known, so that another builder
/// can take over.
async fn send(
    context: &UploadContext,
    grant: &mut UploadGrant,
    sending: &ImageUpload,
    order: UploadOrder,
    stall_timeout: Duration,
    known_id: &mut Option<ExternalId>,
) -> Result<ExternalId, CloudError> {
    let (progress, size) = (order.progress.clone(), order.size);
    let mut job = context.client.submit(Job::Upload(Arc::new(order)));
    let (mut reported, mut max_bytes, mut progressed_at) = (u64::MAX, 0, Instant::now());
    loop {
        tokio::select! {
            biased;
            event = job.next() => match event {
                JobEvent::InstanceKnown(id) => {
                    *known_id = Some(id.clone());
                    let record = ImageUpload { external_id: Some(id), ..sending.clone() };
                    let recorded = write_retry::write_with_retry(&context.store, "image id", async || {
                        context.store.update_upload(grant, &record).await
                    });
                    if let Err(error) = recorded.await {
                        warn!(target: "nodepool.builder.UploadWorker", %error, "cannot record the image id");
                        if error == WriteError::Conflict {
                            return Err(CloudError::abandoned("its record was deleted"));
                        }
                    }
                }
                JobEvent::NoInstance | JobEvent::Waiting(_) => {}
                JobEvent::Finished(Ok(Outcome::Uploaded(id))) => return Ok(id),
                JobEvent::Finished(Ok(_)) => return Err(CloudError::abandoned("the upload ended without an image")),
                JobEvent::Finished(Err(error)) => return Err(error),
            },
            () = tokio::time::sleep(PROGRESS_INTERVAL) => {
                let bytes = progress.get();
                if bytes > max_bytes {
                    (max_bytes, progressed_at) = (bytes, Instant::now());
                }
                if progressed_at.elapsed() > stall_timeout {
                    return Err(CloudError::abandoned(format!("no progress beyond byte {max_bytes} for {} s", stall_timeout.as_secs())));
                }
                if bytes != reported && bytes > 0 {
                    reported = bytes;
                    context.store.write_progress(grant, json!({"bytes": bytes, "of": size}).to_string()).await;
                }
            }
        }
    }
}

/// Runs the post-upload-hook. The upload becomes ready only if the hook succeeds.
async fn call_hook(
    context: &UploadContext,
    pending: &PendingUpload,
    image_file: &ImageFile,
    id: &ExternalId,
) -> Result<(), String> {
    let Some(command) = &pending.hook else { return Ok(()) };
    let (id, file) = (id.to_string(), image_file.file.display().to_string());
    let arguments = [pending.lock_key.provider.as_str(), &id, &file];
    let outcome = hook::run(command, &arguments, context.hook_timeout).await;
    let outcome = outcome.map_err(|error| format!("Post upload hook {command} cannot be run: {error}"))?;
    match outcome.exit {
        HookExit::Exited(0) => {
            if !outcome.output.is_empty() {
                info!(target: "nodepool.builder.UploadWorker", "Post upload hook: {}", outcome.output);
            }
            Ok(())
        }
        HookExit::Exited(code) => Err(format!("Post upload hook failed with exit code {code}\n{}", outcome.output)),
        HookExit::TimedOut => {
            let limit = context.hook_timeout.0;
            Err(format!("Post upload hook {command} was killed after {limit} s\n{}", outcome.output))
        }
    }
}

/// Deletes the image; `false` if it may still exist.
async fn remove(context: &UploadContext, id: &ExternalId) -> bool {
    let deleted = context.client.delete_image(id, REMOVAL_TIMEOUT).await;
    if let Err(error) = &deleted {
        let provider = &context.client.provider.provider;
        warn!(target: "nodepool.builder.UploadWorker", %provider, "Unable to delete image {id}: {error}");
    }
    deleted.is_ok()
}
