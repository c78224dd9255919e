//! One build from its lock to its record: what a BuildWorker does with an order.

use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt;
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::work_queue::WorkLease;
use super::write_retry;
use crate::actors::runtime::blocking::{StopOnDrop, run_blocking};
use crate::actors::runtime::clock;
use crate::actors::telemetry::builder_metrics;
use crate::actors::telemetry::samples::SampleSink;
use nodepool_drivers::common::checksums;
use nodepool_drivers::common::dib::{self, DibOutcome, DibRun, ImageBuilder};
use nodepool_drivers::common::image_files::{self, ImagesDir};
use nodepool_model::config::DiskImage;
use nodepool_model::records::ids::BuildId;
use nodepool_model::records::image_build::{BuildKey, BuildState, ImageBuild};
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::WriteError;
use nodepool_policy::images::build_schedule::{BuildOrder, BuildReason};
use nodepool_zk::txn::image_build::ManualRequest;
use nodepool_zk::txn::store::Store;

/// Who builds, where, and what is said of it.
#[derive(Clone)]
pub struct BuildEnvironment {
    pub builder: String,
    pub builder_id: String,
    pub images: ImagesDir,
    pub maker: Arc<dyn ImageBuilder>,
    pub samples: SampleSink,
    /// Between two looks whether a build that is under way is still wanted.
    pub poll_interval: Seconds,
}

/// What the configuration says of the build of one image, at its beginning.
#[derive(Clone)]
pub struct BuildSpec {
    pub image: Arc<DiskImage>,
    pub elements_dir: Option<String>,
    pub log_dir: PathBuf,
    pub log_retention: i64,
}

/// How an order ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildOutcome {
    /// Somebody else builds it, or there is no need any more.
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
    let begun = ImageBuild::started(&build_env.builder, &build_env.builder_id, order.formats.clone(), clock::now());
    let asked = if order.reason == BuildReason::Requested { ManualRequest::Yes } else { ManualRequest::No };
    let mut grant = match store.begin_build(key.clone(), begun.clone(), order.newest.as_ref(), asked).await {
        Ok(grant) => grant,
        Err(WriteError::Contended | WriteError::Conflict) => return BuildOutcome::Skipped,
        Err(error) => {
            warn!(target: "nodepool.builder.BuildWorker", image = %key.image, %error, "cannot begin a build");
            return BuildOutcome::Failed;
        }
    };
    lease.record_build(&key.build);
    info!(target: "nodepool.builder.BuildWorker", image = %key.image, build = %key.build, why = order.reason.text(), "building");
    let built = run_dib(&store, &build_env, &key, &order, &spec).await;
    let image = &spec.image;
    let record = match &built {
        Ok(()) => ImageBuild {
            state: BuildState::Ready,
            state_time: grant.ready_time(clock::now()),
            username: Some(image.username.clone()),
            python_path: Some(image.python_path.clone()),
            shell_type: image.shell_type.clone(),
            ..begun
        },
        Err(_) => {
            ImageBuild { state: BuildState::Failed, state_time: clock::now(), formats: Default::default(), ..begun }
        }
    };
    let recorded = write_retry::write_with_retry(&store, "the end of a build", async || {
        store.finish_build(&mut grant, &record, asked).await
    });
    let recorded = recorded.await;
    match (built, recorded) {
        (Ok(()), Ok(())) => {
            info!(target: "nodepool.builder.BuildWorker", build = %key.build, "DIB image {} is built", key.image);
            BuildOutcome::Ready
        }
        (Ok(()), Err(error)) => {
            error!(target: "nodepool.builder.BuildWorker", image = %key.image, build = %key.build, %error, "the build cannot be recorded");
            // Otherwise it may have been, and only the answer was lost. The clean-up removes what has no record.
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

/// Runs the command; an error is the reason for the log.
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
    let began = Instant::now();
    let unneeded = wait_until_unneeded(store, key, build_env.poll_interval).boxed();
    let ended = build_env.maker.build(&run, unneeded).await.map_err(|error| error.to_string())?;
    let (code, timed_out) = match ended {
        DibOutcome::Exited(code) => (code, false),
        DibOutcome::TimedOut => (1, true),
        DibOutcome::Cancelled => {
            return Err(format!("the build of {} is ended: somebody has removed its record", key.image));
        }
    };
    let duration_ms = began.elapsed().as_secs_f64() * 1000.0;
    builder_metrics::build_samples(&key.image, duration_ms, code, clock::now())
        .into_iter()
        .for_each(|sample| build_env.samples.send(sample));
    if timed_out {
        let (image, build, log) = (&key.image, &key.build, run.log.display());
        error!(target: "nodepool.builder.BuildWorker", "Build timeout for image {image}, build {build} (log: {log})");
    }
    if code != 0 {
        let (timed_out, log) = (python_bool(timed_out), run.log.display());
        let full = if build_env.images.is_full() { "; the disk of images-dir is full" } else { "" };
        return Err(format!("DIB failed creating {} ({code}) (timeout={timed_out}){full}; see {log}", key.image));
    }
    let sizes = measure(build_env, key, order).await?;
    sizes.into_iter().for_each(|(format, bytes)| {
        build_env.samples.send(builder_metrics::build_size_sample(&key.image, &format, bytes));
    });
    Ok(())
}

/// Resolves when nobody will ever use the build.
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

/// On one line: a script is worth no more than a mention.
fn display_command(command: &[String]) -> String {
    let word = |word: &String| if word.contains('\n') { "<script>".to_owned() } else { word.clone() };
    command.iter().map(word).collect::<Vec<_>>().join(" ")
}

async fn prepare(build_env: &BuildEnvironment, key: &BuildKey, spec: &BuildSpec) -> Result<(), String> {
    let (images, key) = (build_env.images.clone(), key.clone());
    let (logs, retention) = (spec.log_dir.clone(), spec.log_retention);
    let image = key.image.clone();
    run_blocking(move || {
        let place = images.path().display().to_string();
        images.claim(&key).map_err(|error| format!("cannot write to images-dir {place}: {error}"))?;
        match image_files::prune_logs(&logs, &image, retention) {
            Ok(pruned) => {
                for log in pruned {
                    info!(target: "nodepool.builder.BuildWorker", "Deleting old build log {}", log.display());
                }
            }
            // The build can do without; whether its own log can be written is seen when it is.
            Err(error) => warn!(target: "nodepool.builder.BuildWorker", %error, "cannot remove old build logs"),
        }
        Ok(())
    })
    .await
}

/// The bytes on disk of each format; a format without a file is no build. What has no checksums gets them.
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
                format!("the build of {} has succeeded without {}: {error}", key.image, file.display())
            })?;
            checksums::read_or_compute(&file, &stop)
                .map_err(|error| format!("cannot make checksums of {}: {error}", file.display()))?;
            Ok((format, bytes))
        };
        formats.into_iter().map(size).collect()
    })
    .await
}

pub async fn remove_files(images: &ImagesDir, key: &BuildKey) {
    let (images, key) = (images.clone(), key.clone());
    let removed = run_blocking(move || {
        images.remove(&key).map_err(|error| format!("cannot remove all files of {}: {error}", key.file_name()))
    });
    if let Err(error) = removed.await {
        warn!(target: "nodepool.builder", "{error}");
    }
}

fn python_bool(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}
