//! One build from its lock to its record: what a BuildWorker does with an order.

use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt;
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::work_queue::WorkLease;
use super::write_retry;
use crate::actors::runtime::blocking::{StopOnDrop, on_a_thread_that_may_wait};
use crate::actors::runtime::clock;
use crate::actors::telemetry::builder_metrics;
use crate::actors::telemetry::samples::SampleSink;
use nodepool_drivers::common::checksums;
use nodepool_drivers::common::dib::{self, DibEnd, DibRun, ImageMaker};
use nodepool_drivers::common::image_files::{self, ImagesDir};
use nodepool_model::config::DiskImage;
use nodepool_model::records::ids::BuildId;
use nodepool_model::records::image_build::{BuildKey, BuildState, ImageBuild};
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::WriteError;
use nodepool_policy::images::build_schedule::{Order, Why};
use nodepool_zk::txn::image_build::Asked;
use nodepool_zk::txn::store::Store;

/// Who builds, where, and what is said of it.
#[derive(Clone)]
pub struct Workshop {
    pub builder: String,
    pub builder_id: String,
    pub images: ImagesDir,
    pub maker: Arc<dyn ImageMaker>,
    pub samples: SampleSink,
    /// Between two looks whether a build that is under way is still wanted.
    pub poll_interval: Seconds,
}

/// What the configuration says of the build of one image, at its beginning.
#[derive(Clone)]
pub struct Recipe {
    pub image: Arc<DiskImage>,
    pub elements_dir: Option<String>,
    pub log_dir: PathBuf,
    pub log_retention: i64,
}

/// How an order ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Built {
    /// Somebody else builds it, or there is no need any more.
    NotOurs,
    Ready,
    Failed,
}

pub async fn build(store: Store, workshop: Workshop, order: Order, recipe: Recipe, claim: &Claim) -> Built {
    let key = BuildKey { image: order.image.clone(), build: BuildId::from(nodepool_rng::uuid().simple().to_string()) };
    let begun = ImageBuild::begun(&workshop.builder, &workshop.builder_id, order.formats.clone(), clock::now());
    let asked = if order.why == Why::Asked { Asked::Yes } else { Asked::No };
    let mut grant = match store.begin_build(key.clone(), begun.clone(), order.newest.as_ref(), asked).await {
        Ok(grant) => grant,
        Err(WriteError::Contended | WriteError::Conflict) => return Built::NotOurs,
        Err(error) => {
            warn!(target: "nodepool.builder.BuildWorker", image = %key.image, %error, "cannot begin a build");
            return Built::Failed;
        }
    };
    lease.record_build(&key.build);
    info!(target: "nodepool.builder.BuildWorker", image = %key.image, build = %key.build, why = order.why.text(), "building");
    let made = make(&store, &workshop, &key, &order, &recipe).await;
    let image = &recipe.image;
    let record = match &made {
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
    match (made, recorded) {
        (Ok(()), Ok(())) => {
            info!(target: "nodepool.builder.BuildWorker", build = %key.build, "DIB image {} is built", key.image);
            Built::Ready
        }
        (Ok(()), Err(error)) => {
            error!(target: "nodepool.builder.BuildWorker", image = %key.image, build = %key.build, %error, "the build cannot be recorded");
            // Otherwise it may have been, and only the answer was lost. The clean-up removes what has no record.
            if error == WriteError::Conflict {
                remove_files(&workshop.images, &key).await;
            }
            Built::Failed
        }
        (Err(reason), _) => {
            error!(target: "nodepool.builder.BuildWorker", image = %key.image, build = %key.build, "{reason}");
            Built::Failed
        }
    }
}

/// Runs the command; an error is the reason for the log.
async fn make(
    store: &Store,
    workshop: &Workshop,
    key: &BuildKey,
    order: &Order,
    recipe: &Recipe,
) -> Result<(), String> {
    let base = workshop.images.base(key);
    let run = DibRun {
        command: dib::command(&recipe.image, &order.formats, &base)?,
        environment: dib::environment(&recipe.image, &base, recipe.elements_dir.as_deref()),
        log: recipe.log_dir.join(format!("{}.log", key.file_name())),
        timeout: recipe.image.build_timeout,
    };
    prepare(workshop, key, recipe).await?;
    info!(target: "nodepool.builder.BuildWorker", "Running {}", shown(&run.command));
    info!(target: "nodepool.builder.BuildWorker", "Logging to {}", run.log.display());
    let began = Instant::now();
    let in_vain = is_in_vain(store, key, workshop.poll_interval).boxed();
    let ended = workshop.maker.make(&run, in_vain).await.map_err(|error| error.to_string())?;
    let (code, timed_out) = match ended {
        DibEnd::Status(code) => (code, false),
        DibEnd::TimedOut => (1, true),
        DibEnd::Stopped => return Err(format!("the build of {} is ended: somebody has removed its record", key.image)),
    };
    let duration_ms = began.elapsed().as_secs_f64() * 1000.0;
    builder_metrics::build_ended(&key.image, duration_ms, code, clock::now())
        .into_iter()
        .for_each(|sample| workshop.samples.send(sample));
    if timed_out {
        let (image, build, log) = (&key.image, &key.build, run.log.display());
        error!(target: "nodepool.builder.BuildWorker", "Build timeout for image {image}, build {build} (log: {log})");
    }
    if code != 0 {
        let (timed_out, log) = (python_bool(timed_out), run.log.display());
        let full = if workshop.images.is_full() { "; the disk of images-dir is full" } else { "" };
        return Err(format!("DIB failed creating {} ({code}) (timeout={timed_out}){full}; see {log}", key.image));
    }
    let sizes = measure(workshop, key, order).await?;
    sizes.into_iter().for_each(|(format, bytes)| {
        workshop.samples.send(builder_metrics::size(&key.image, &format, bytes));
    });
    Ok(())
}

/// Resolves when nobody will ever use the build.
async fn is_in_vain(store: &Store, key: &BuildKey, poll_interval: Seconds) {
    loop {
        tokio::time::sleep(poll_interval.to_duration()).await;
        let is_going = store.mirror().look(|snapshot| {
            let build = snapshot.images.build(key);
            snapshot.connected && build.is_none_or(|stored| stored.record.state != BuildState::Building)
        });
        if is_going {
            return;
        }
    }
}

/// On one line: a script is worth no more than a mention.
fn shown(command: &[String]) -> String {
    let word = |word: &String| if word.contains('\n') { "<script>".to_owned() } else { word.clone() };
    command.iter().map(word).collect::<Vec<_>>().join(" ")
}

async fn prepare(workshop: &Workshop, key: &BuildKey, recipe: &Recipe) -> Result<(), String> {
    let (images, key) = (workshop.images.clone(), key.clone());
    let (logs, retention) = (recipe.log_dir.clone(), recipe.log_retention);
    let image = key.image.clone();
    on_a_thread_that_may_wait(move || {
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
async fn measure(workshop: &Workshop, key: &BuildKey, order: &Order) -> Result<Vec<(String, u64)>, String> {
    let (images, key, formats) = (workshop.images.clone(), key.clone(), order.formats.clone());
    let wanted = StopOnDrop::default();
    let stop = wanted.0.clone();
    on_a_thread_that_may_wait(move || {
        let size = |format: String| {
            let file = images.file(&key, &format);
            let bytes = images.size(&key, &format).map_err(|error| {
                format!("the build of {} has succeeded without {}: {error}", key.image, file.display())
            })?;
            checksums::read_or_make(&file, &stop)
                .map_err(|error| format!("cannot make checksums of {}: {error}", file.display()))?;
            Ok((format, bytes))
        };
        formats.into_iter().map(size).collect()
    })
    .await
}

pub async fn remove_files(images: &ImagesDir, key: &BuildKey) {
    let (images, key) = (images.clone(), key.clone());
    let removed = on_a_thread_that_may_wait(move || {
        images.remove(&key).map_err(|error| format!("cannot remove all files of {}: {error}", key.file_name()))
    });
    if let Err(error) = removed.await {
        warn!(target: "nodepool.builder", "{error}");
    }
}

fn python_bool(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}
