//! One upload from its lock to its record: what an UploadWorker does with a shipment.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::build_job::BuildEnvironment;
use super::write_retry;
use crate::actors::provider::provider_client::Counter;
use crate::actors::runtime::blocking::on_a_thread_that_may_wait;
use crate::actors::runtime::clock;
use crate::actors::telemetry::builder_metrics;
use nodepool_driver::error::CloudError;
use nodepool_driver::job::{Job, JobEvent, Outcome};
use nodepool_drivers::common::checksums::{self, Checksums};
use nodepool_drivers::common::format;
use nodepool_drivers::common::hook::{self, End};
use nodepool_model::config::DiskImage;
use nodepool_model::config::upload_config::{Progress, UploadOrder};
use nodepool_model::records::ids::{ExternalId, UploadId};
use nodepool_model::records::image_upload::{ImageUpload, UploadState};
use nodepool_model::records::time::{Seconds, Timestamp};
use nodepool_model::snapshot::WriteError;
use nodepool_policy::images::pending_uploads::Shipment;
use nodepool_zk::txn::image_upload::UploadGrant;
use nodepool_zk::txn::store::Store;

/// Between two notes of how far an upload is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// A cloud that tells us again and again to come later holds up a worker no longer than this; one that stores an image needs an hour.
const MIN_STALL_TIMEOUT: Duration = Duration::from_secs(2 * 3600);
/// And no longer than this beyond the time that it is given for what it was sent.
const STALL_MARGIN: Duration = Duration::from_secs(3600);
/// A cloud has so long for the removal of what a failed upload has left; then the clean-up goes on with it.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(60);

/// What an upload needs to know besides what is uploaded where.
#[derive(Clone)]
pub struct Carrier {
    pub store: Store,
    pub build_env: BuildEnvironment,
    pub counter: Counter,
    /// As the configuration describes it.
    pub image: Arc<DiskImage>,
    pub hook_timeout: Seconds,
}

/// How a shipment ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uploaded {
    /// Somebody else uploads it, or there is no need any more.
    NotOurs,
    /// This builder does not have the file.
    Elsewhere,
    Ready,
    Failed,
}

/// The file of a build in the format of a provider.
struct Freight {
    file: PathBuf,
    size: u64,
    sums: Checksums,
}

pub async fn upload(carrier: Carrier, shipment: Shipment) -> Uploaded {
    let (place, build) = (&shipment.place, &shipment.build.record);
    let (image, provider) = (&place.build.image, &place.provider);
    let freight = match freight(&carrier, &shipment).await {
        Ok(freight) => freight,
        Err(error) => {
            // The files of other builders lie elsewhere.
            if build.builder_id.as_ref() == Some(&carrier.build_env.builder_id) {
                error!(target: "nodepool.builder.UploadWorker", %image, %provider, "cannot upload: {error}");
            }
            return Uploaded::Elsewhere;
        }
    };
    let now = clock::now();
    if let Err(error) = external_name(&shipment, &UploadId::from("0000000001"), now) {
        error!(
            target: "nodepool.builder.UploadWorker",
            %image, %provider, "image-name-format {:?} cannot be used: {error}", shipment.name_format
        );
        return Uploaded::Failed;
    }
    let begun = ImageUpload {
        username: build.username.clone(),
        python_path: build.python_path.clone(),
        shell_type: build.shell_type.clone(),
        ..ImageUpload::bare(UploadState::Uploading, now)
    };
    let mut grant = match carrier.store.begin_upload(place, begun.clone()).await {
        Ok(grant) => grant,
        Err(WriteError::Contended | WriteError::Conflict) => return Uploaded::NotOurs,
        Err(error) => {
            warn!(target: "nodepool.builder.UploadWorker", %image, %provider, %error, "cannot begin an upload");
            return Uploaded::Failed;
        }
    };
    let began = Instant::now();
    let record = carry(&carrier, &shipment, &freight, &mut grant, begun).await;
    finish(&carrier, &shipment, &mut grant, &record, began).await
}

/// Records how it ended.
async fn finish(
    carrier: &Carrier,
    shipment: &Shipment,
    grant: &mut UploadGrant,
    record: &ImageUpload,
    began: Instant,
) -> Uploaded {
    let (build, provider) = (&shipment.place.build, &shipment.place.provider);
    let image = &build.image;
    let recorded = write_retry::write_with_retry(&carrier.store, "the end of an upload", async || {
        carrier.store.finish_upload(grant, record).await
    });
    match (record.state, recorded.await) {
        (UploadState::Ready, Ok(())) => {
            let duration_ms = began.elapsed().as_secs_f64() * 1000.0;
            builder_metrics::uploaded(image, provider, duration_ms)
                .into_iter()
                .for_each(|sample| carrier.build_env.samples.send(sample));
            let id = record.external_id.as_ref().map(ToString::to_string).unwrap_or_default();
            let build = build.file_name();
            info!(
                target: "nodepool.builder.UploadWorker",
                "Image build {build} (external_id {id}) in {provider} is ready"
            );
            Uploaded::Ready
        }
        (UploadState::Ready, Err(error)) => {
            error!(target: "nodepool.builder.UploadWorker", %image, %provider, %error, "the upload cannot be recorded");
            // With the session gone, the record says where the image is, and whoever takes over finds it.
            if error == WriteError::Conflict
                && let Some(id) = &record.external_id
            {
                remove(carrier, id).await;
            }
            Uploaded::Failed
        }
        (_, Ok(())) => Uploaded::Failed,
        (_, Err(error)) => {
            warn!(target: "nodepool.builder.UploadWorker", %image, %provider, %error, "the failure cannot be recorded");
            Uploaded::Failed
        }
    }
}

async fn freight(carrier: &Carrier, shipment: &Shipment) -> Result<Freight, String> {
    let file = carrier.build_env.images.file(&shipment.place.build, &shipment.format);
    on_a_thread_that_may_wait(move || {
        let about = std::fs::metadata(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let sums = checksums::read(&file);
        Ok(Freight { file, size: about.len(), sums })
    })
    .await
}

fn external_name(shipment: &Shipment, upload: &UploadId, now: Timestamp) -> Result<String, String> {
    let field = |name: &str| match name {
        "image_name" => Some(json!(shipment.place.build.image)),
        "upload_id" => Some(json!(upload)),
        "timestamp" => Some(Value::String(format!("{:.0}", now.0.floor()))),
        _ => None,
    };
    format::filled(&shipment.name_format, field)
}

/// From the record of the beginning to that of the end.
async fn carry(
    carrier: &Carrier,
    shipment: &Shipment,
    freight: &Freight,
    grant: &mut UploadGrant,
    begun: ImageUpload,
) -> ImageUpload {
    let (image, provider) = (&shipment.place.build.image, &shipment.place.provider);
    let progress = Progress::default();
    let order = match order(carrier, shipment, freight, grant, begun.state_time, progress) {
        Ok(order) => order,
        Err(error) => {
            error!(target: "nodepool.builder.UploadWorker", %image, %provider, "{error}");
            return ImageUpload::bare(UploadState::Failed, clock::now());
        }
    };
    info!(
        target: "nodepool.builder.UploadWorker",
        "Uploading DIB image build {} from {} to {provider}", shipment.place.build.build, freight.file.display()
    );
    let sending =
        ImageUpload { external_name: Some(order.name.clone()), format: Some(shipment.format.clone()), ..begun };
    let mut known = grant.prior_record.as_ref().and_then(|before| before.external_id.clone());
    let stall_timeout = MIN_STALL_TIMEOUT.max(shipment.timeout.to_duration() + STALL_MARGIN);
    let failure = match send(carrier, grant, &sending, order, stall_timeout, &mut known).await {
        Ok(id) => {
            known = Some(id.clone());
            match call_hook(carrier, shipment, freight, &id).await {
                Ok(()) => {
                    let mut ready = ImageUpload { external_id: Some(id), ..sending };
                    ready.set_state(UploadState::Ready, carrier.store.upload_ready_time(&grant.key, clock::now()));
                    return ready;
                }
                Err(error) => error,
            }
        }
        Err(error) => format!("Failed to upload image {image} to provider {provider}: {error}"),
    };
    error!(target: "nodepool.builder.UploadWorker", %image, %provider, "{failure}");
    let mut failed = ImageUpload::bare(UploadState::Failed, clock::now());
    if let Some(id) = known
        && !remove(carrier, &id).await
    {
        // The clean-up goes on with it.
        failed.external_id = Some(id);
    }
    failed
}

fn order(
    carrier: &Carrier,
    shipment: &Shipment,
    freight: &Freight,
    grant: &UploadGrant,
    now: Timestamp,
    progress: Progress,
) -> Result<UploadOrder, String> {
    let key = &grant.key;
    let marks = key.marks();
    let mut meta = carrier.image.metadata.clone();
    meta.extend(shipment.entry.meta.clone());
    meta.retain(|name, _| !marks.contains_key(name));
    Ok(UploadOrder {
        name: external_name(shipment, &key.upload, now)?,
        file: freight.file.clone(),
        size: freight.size,
        format: shipment.format.clone(),
        meta,
        marks,
        md5: freight.sums.md5.clone(),
        sha256: freight.sums.sha256.clone(),
        may_exist: grant.prior_record.is_some(),
        progress,
    })
}

/// The image's id in the cloud is recorded as soon as there is one, so that whoever takes over knows it.
async fn send(
    carrier: &Carrier,
    grant: &mut UploadGrant,
    sending: &ImageUpload,
    order: UploadOrder,
    stall_timeout: Duration,
    known: &mut Option<ExternalId>,
) -> Result<ExternalId, CloudError> {
    let (progress, size) = (order.progress.clone(), order.size);
    let mut asked = carrier.counter.ask(Job::Upload(Arc::new(order)));
    let (mut shown, mut most, mut moved) = (u64::MAX, 0, Instant::now());
    loop {
        tokio::select! {
            biased;
            event = asked.next() => match event {
                JobEvent::InstanceKnown(id) => {
                    *known = Some(id.clone());
                    let record = ImageUpload { external_id: Some(id), ..sending.clone() };
                    let noted = write_retry::write_with_retry(&carrier.store, "the id of an image", async || {
                        carrier.store.update_upload(grant, &record).await
                    });
                    if let Err(error) = noted.await {
                        warn!(target: "nodepool.builder.UploadWorker", %error, "cannot record the id of an image");
                        if error == WriteError::Conflict {
                            return Err(CloudError::given_up("its record is gone"));
                        }
                    }
                }
                JobEvent::Finished(Ok(Outcome::Uploaded(id))) => return Ok(id),
                JobEvent::Finished(Ok(_)) => return Err(CloudError::given_up("the upload ended without an image")),
                JobEvent::Finished(Err(error)) => return Err(error),
            },
            () = tokio::time::sleep(PROGRESS_INTERVAL) => {
                let bytes = progress.get();
                if bytes > most {
                    (most, moved) = (bytes, Instant::now());
                }
                if moved.elapsed() > stall_timeout {
                    return Err(CloudError::given_up(format!("no further than byte {most} for {} s", stall_timeout.as_secs())));
                }
                if bytes != shown && bytes > 0 {
                    shown = bytes;
                    carrier.store.write_progress(grant, json!({"bytes": bytes, "of": size}).to_string()).await;
                }
            }
        }
    }
}

/// The hook may do with the image what it likes; the upload is ready when it says so.
async fn call_hook(carrier: &Carrier, shipment: &Shipment, freight: &Freight, id: &ExternalId) -> Result<(), String> {
    let Some(command) = &shipment.hook else { return Ok(()) };
    let (id, file) = (id.to_string(), freight.file.display().to_string());
    let arguments = [shipment.place.provider.as_str(), &id, &file];
    let ended = hook::run(command, &arguments, carrier.hook_timeout).await;
    let ended = ended.map_err(|error| format!("Post upload hook {command} cannot be run: {error}"))?;
    match ended.end {
        End::Status(0) => {
            if !ended.output.is_empty() {
                info!(target: "nodepool.builder.UploadWorker", "Post upload hook: {}", ended.output);
            }
            Ok(())
        }
        End::Status(code) => Err(format!("Post upload hook failed with exit code {code}\n{}", ended.output)),
        End::TimedOut => {
            let limit = carrier.hook_timeout.0;
            Err(format!("Post upload hook {command} was ended after {limit} s\n{}", ended.output))
        }
    }
}

/// False where the image is still there.
async fn remove(carrier: &Carrier, id: &ExternalId) -> bool {
    let deleted = carrier.counter.delete_image(id, REMOVAL_TIMEOUT).await;
    if let Err(error) = &deleted {
        let provider = &carrier.counter.provider.provider;
        warn!(target: "nodepool.builder.UploadWorker", %provider, "Unable to delete image {id}: {error}");
    }
    deleted.is_ok()
}
