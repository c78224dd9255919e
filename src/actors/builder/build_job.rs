//! One build job of a BuildWorker, from the lock on the image to the final record.

use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt;
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use super::work_queue::WorkLease;
use super::write_retry;
use crate::actors::process::config_status::ConfigStatus;
use crate::actors::runtime::blocking::{StopOnDrop, run_blocking};
use crate::actors::runtime::clock;
use crate::actors::telemetry::builder_metrics;
use crate::actors::telemetry::samples::SampleSink;
use nodepool_drivers::common::checksums;
use nodepool_drivers::common::dib::{self, DibOutcome, DibRun, ImageBuilder};
use nodepool_drivers::common::image_files::{self, ImagesDir};
use nodepool_model::config::{Config, DiskImage};
use nodepool_model::records::ids::BuildId;
use nodepool_model::records::image_build::{BuildKey, BuildState, ImageBuild};
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::WriteError;
use nodepool_policy::images::build_schedule::{BuildOrder, BuildReason};
use nodepool_zk::txn::image_build::ManualRequest;
use nodepool_zk::txn::store::Store;

/// Identity of the builder, its images directory and its metrics.
#[derive(Clone)]
pub struct BuildEnvironment {
    pub builder: String,
    pub builder_id: String,
    pub images: ImagesDir,
    pub maker: Arc<dyn ImageBuilder>,
    pub samples: SampleSink,
    /// Interval of the check whether a running build is still needed.
    pub poll_interval: Seconds,
    pub config_status: ConfigStatus,
}

/// Configuration of one image build, as of its start.
#[derive(Clone)]
pub struct BuildSpec {
    /// The configuration that decided the build.
    pub config: Arc<Config>,
    pub image: Arc<DiskImage>,
    pub elements_dir: Option<String>,
    pub log_dir: PathBuf,
    pub log_retention: i64,
}

/// Result of a build order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildOutcome {
    /// Another builder builds the image, no build is due any more, or the configuration is outdated.
    Skipped,
    Ready,
    Failed,
}

pub async fn build(
    store: Store,
    build_env: BuildEnvironment,
    order: BuildOrder,
    spec: BuildSpec,
    lease: &WorkLease,
) -> BuildOutcome {
    let key = BuildKey { image: order.image.clone(), build: BuildId::from(nodepool_rng::uuid().simple().to_string()) };
    let started = ImageBuild::started(&build_env.builder, &build_env.builder_id, order.formats.clone(), clock::now());
    let manual_request = if order.reason == BuildReason::Requested { ManualRequest::Yes } else { ManualRequest::No };
    if !build_env.config_status.may_begin(&spec.config).await {
        debug!(target: "nodepool.builder.BuildWorker", image = %key.image, "build postponed: the configuration has changed");
        return BuildOutcome::Skipped;
    }
    let mut grant = match store.begin_build(key.clone(), started.clone(), order.newest.as_ref(), manual_request).await {
        Ok(grant) => grant,
        Err(WriteError::Contended | WriteError::Conflict) => return BuildOutcome::Skipped,
        Err(error) => {
            warn!(target: "nodepool.builder.BuildWorker", image = %key.image, %error, "cannot start a build");
            return BuildOutcome::Failed;
        }
    };
    lease.record_build(&key.build);
    info!(target: "nodepool.builder.BuildWorker", image = %key.image, build = %key.build, reason = order.reason.text(), "building");
    let result = run_dib(&store, &build_env, &key, &order, &spec).await;
    let image = &spec.image;
    let record = match &result {
        Ok(()) => ImageBuild {
            state: BuildState::Ready,
            state_time: grant.ready_time(clock::now()),
            username: Some(image.username.clone()),
            python_path: Some(image.python_path.clone()),
            shell_type: image.shell_type.clone(),
            ..started
        },
        Err(_) => {
            ImageBuild { state: BuildState::Failed, state_time: clock::now(), formats: Default::default(), ..started }
        }
    };
    let recorded = write_retry::write_with_retry(&store, "build result", async || {
        store.finish_build(&mut grant, &record, manual_request).await
    });
    let recorded = recorded.await;
    match (result, recorded) {
        (Ok(()), Ok(())) => {
            info!(target: "nodepool.builder.BuildWorker", build = %key.build, "DIB image {} is built", key.image);
            BuildOutcome::Ready
        }
        (Ok(()), Err(error)) => {
            error!(target: "nodepool.builder.BuildWorker", image = %key.image, build = %key.build, %error, "cannot record the build");
            // After any other error the record may exist, because possibly only the reply was lost. The CleanupWorker
            // deletes files without a record.
            if error == WriteError::Conflict {
                remove_files(&build_env.images, &key).await;
            }
            BuildOutcome::Failed
        }
        (Err(reason), _) => {
            error!(target: "nodepool.builder.BuildWorker", image = %key.image, build = %key.build, "{reason}");
            BuildOutcome::Failed
        }
    }
}

/// Runs the command. An error is the reason of the failure, as a text for the log.
async fn run_dib(
    store: &Store,
    build_env: &BuildEnvironment,
    key: &BuildKey,
    order: &BuildOrder,
    spec: &BuildSpec,
) -> Result<(), String> {
    let base = build_env.images.base(key);
    let run = DibRun {
        command: dib::command(&spec.image, &order.formats, &base)?,
        environment: dib::environment(&spec.image, &base, spec.elements_dir.as_deref()),
        log: spec.log_dir.join(format!("{}.log", key.file_name())),
        timeout: spec.image.build_timeout,
    };
    prepare(build_env, key, spec).await?;
    info!(target: "nodepool.builder.BuildWorker", "Running {}", display_command(&run.command));
    info!(target: "nodepool.builder.BuildWorker", "Logging to {}", run.log.display());
    let started_at = Instant::now();
    let unneeded = wait_until_unneeded(store, key, build_env.poll_interval).boxed();
    let outcome = build_env.maker.build(&run, unneeded).await.map_err(|error| error.to_string())?;
    let (code, timed_out) = match outcome {
        DibOutcome::Exited(code) => (code, false),
        DibOutcome::TimedOut => (1, true),
        DibOutcome::Cancelled => {
            return Err(format!("build of {} cancelled: its record was deleted", key.image));
        }
    };
    let duration_ms = started_at.elapsed().as_secs_f64() * 1000.0;
    builder_metrics::build_samples(&key.image, duration_ms, code, clock::now())
        .into_iter()
        .for_each(|sample| build_env.samples.send(sample));
    if timed_out {
        let (image, build, log) = (&key.image, &key.build, run.log.display());
        error!(target: "nodepool.builder.BuildWorker", "Build timeout for image {image}, build {build} (log: {log})");
    }
    if code != 0 {
        let (timed_out, log) = (python_bool(timed_out), run.log.display());
        let disk_full = if build_env.images.is_full() { "; the disk of images-dir is full" } else { "" };
        return Err(format!("DIB failed creating {} ({code}) (timeout={timed_out}){disk_full}; see {log}", key.image));
    }
    let sizes = measure(build_env, key, order).await?;
    sizes.into_iter().for_each(|(format, bytes)| {
        build_env.samples.send(builder_metrics::build_size_sample(&key.image, &format, bytes));
    });
    Ok(())
}

/// Resolves when the record of the build no longer exists or is no longer `building`.
async fn wait_until_unneeded(store: &Store, key: &BuildKey, poll_interval: Seconds) {
    loop {
        tokio::time::sleep(poll_interval.to_duration()).await;
        let is_unneeded = store.mirror().with_snapshot(|snapshot| {
            let build = snapshot.images.build(key);
            snapshot.connected && build.is_none_or(|stored| stored.record.state != BuildState::Building)
        });
        if is_unneeded {
            return;
        }
    }
}

/// The command on one line. An argument of several lines is an inline script and is abbreviated.
fn display_command(command: &[String]) -> String {
    let word = |word: &String| if word.contains('\n') { "<script>".to_owned() } else { word.clone() };
    command.iter().map(word).collect::<Vec<_>>().join(" ")
}

async fn prepare(build_env: &BuildEnvironment, key: &BuildKey, spec: &BuildSpec) -> Result<(), String> {
    let (images, key) = (build_env.images.clone(), key.clone());
    let (logs, retention) = (spec.log_dir.clone(), spec.log_retention);
    let image = key.image.clone();
    run_blocking(move || {
        let path = images.path().display().to_string();
        images.claim(&key).map_err(|error| format!("cannot write to images-dir {path}: {error}"))?;
        match image_files::prune_logs(&logs, &image, retention) {
            Ok(pruned) => {
                for log in pruned {
                    info!(target: "nodepool.builder.BuildWorker", "Deleting old build log {}", log.display());
                }
            }
            // This error does not fail the build. An unwritable log directory is reported when the command starts.
            Err(error) => warn!(target: "nodepool.builder.BuildWorker", %error, "cannot delete old build logs"),
        }
        Ok(())
    })
    .await
}

/// Bytes on disk of each format. A missing file is an error; missing checksums are computed and written.
async fn measure(
    build_env: &BuildEnvironment,
    key: &BuildKey,
    order: &BuildOrder,
) -> Result<Vec<(String, u64)>, String> {
    let (images, key, formats) = (build_env.images.clone(), key.clone(), order.formats.clone());
    let stop_on_drop = StopOnDrop::default();
    let stop = stop_on_drop.0.clone();
    run_blocking(move || {
        let size = |format: String| {
            let file = images.file(&key, &format);
            let bytes = images.size(&key, &format).map_err(|error| {
                format!("the build of {} succeeded, but {} cannot be read: {error}", key.image, file.display())
            })?;
            checksums::read_or_compute(&file, &stop)
                .map_err(|error| format!("cannot compute checksums of {}: {error}", file.display()))?;
            Ok((format, bytes))
        };
        formats.into_iter().map(size).collect()
    })
    .await
}

pub async fn remove_files(images: &ImagesDir, key: &BuildKey) {
    let (images, key) = (images.clone(), key.clone());
    let removed = run_blocking(move || {
        images.remove(&key).map_err(|error| format!("cannot delete all files of {}: {error}", key.file_name()))
    });
    if let Err(error) = removed.await {
        warn!(target: "nodepool.builder", "{error}");
    }
}

fn python_bool(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}
