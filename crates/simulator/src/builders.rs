//! Builders with their production actors, real files of small images, and a model of diskimage-builder.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::cloud::Clouds;
use super::configuration::builders_yaml;
use super::process::{ProcessHandle, Started, keep_running};
use super::step_budget::StepBudget;
use futures::FutureExt;
use futures::future::BoxFuture;
use nodepool::actors::builder::builder::{BuilderOptions, BuilderSetup, run_session};
use nodepool::actors::process::files::ConfigFileSource;
use nodepool::actors::process::identity::Identity;
use nodepool_drivers::common::dib::{DibError, DibOutcome, DibRun, ImageBuilder};
use nodepool_drivers::common::image_files::ImagesDir;
use nodepool_model::records::image_build::BuildKey;
use nodepool_model::records::time::Seconds;
use nodepool_zk::memory::MemoryZooKeeper;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;
use testkit::in_process_launcher::InProcessDaemon;

/// A builder and its folder of images.
pub struct Builder {
    pub process: ProcessHandle,
    folder: TempDir,
}

impl Builder {
    /// Files of builds whose records are deleted.
    pub fn leftover_files(&self, is_built: impl Fn(&BuildKey) -> bool) -> Vec<String> {
        let claimed = ImagesDir::new(self.folder.path()).claimed().expect("the images can be listed");
        let leftovers = claimed.into_iter().filter(|key| !is_built(key));
        leftovers.map(|key| format!("files of {} were not deleted", key.file_name())).collect()
    }
}

/// Keeps a builder running. Its images outlive its processes.
pub fn builder(
    name: &'static str,
    seed: u64,
    zookeeper: &MemoryZooKeeper,
    clouds: &Clouds,
    outcomes: &BuildOutcomes,
) -> Builder {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let files = ConfigFileSource::InMemory(Arc::default());
    let ConfigFileSource::InMemory(texts) = &files else { unreachable!("simulated files are in memory") };
    texts.lock().unwrap().insert("nodepool.yaml".into(), builders_yaml(folder.path()));
    let (clouds, rng, outcomes) = (clouds.clone(), Arc::new(Mutex::new(StdRng::seed_from_u64(seed))), outcomes.clone());
    let handle = keep_running(name, zookeeper, move |budget| {
        let tune = |options: &mut nodepool::actors::process::context::LauncherOptions| {
            (options.files, options.config) = (files.clone(), "nodepool.yaml".into());
            // The configuration never changes.
            options.config_check = Seconds(601.0);
        };
        let process =
            InProcessDaemon::with_identity(Identity::named(name), "", tune, Some(clouds.drivers(name, budget)));
        let maker = Arc::new(SimulatedDib { rng: rng.clone(), outcomes: outcomes.clone(), budget: budget.clone() });
        let session = BuilderSetup { options: BuilderOptions::default(), builder_id: format!("id-of-{name}"), maker };
        let run = move |process: &mut InProcessDaemon, zk| {
            let (shared, session) = (process.shared.clone(), session.clone());
            actix_rt::spawn(async move {
                let loaded = shared.options.load().await.expect("the configuration loads");
                run_session(zk, shared, session, loaded).await
            })
        };
        Started { process, run: Box::new(run) }
    });
    Builder { process: handle, folder }
}

/// Outcomes of builds.
#[derive(Clone, Default)]
pub struct BuildOutcomes {
    /// Whether faults have ended: then all builds succeed.
    faults_ended: Arc<AtomicBool>,
    /// Images whose builds all fail, once per active fault.
    failing_images: Arc<Mutex<Vec<&'static str>>>,
}

impl BuildOutcomes {
    pub fn end_faults(&self) {
        self.faults_ended.store(true, Ordering::Relaxed);
    }

    /// All builds of an image fail for a while.
    pub fn fail_builds(&self, image: &'static str, duration: Duration) {
        self.failing_images.lock().unwrap().push(image);
        let failing_images = self.failing_images.clone();
        actix_rt::spawn(async move {
            tokio::time::sleep(duration).await;
            let mut failing = failing_images.lock().unwrap();
            let at = failing.iter().position(|name| *name == image).expect("the fault of this image is active");
            failing.swap_remove(at);
        });
    }

    fn draw_outcome(&self, base: &str, rng: &mut StdRng) -> u32 {
        let outcome = rng.gen_range(0..=SUCCEEDS);
        if self.faults_ended.load(Ordering::Relaxed) {
            return SUCCEEDS;
        }
        let is_failing = |image: &&'static str| base.contains(&format!("/{image}-"));
        if self.failing_images.lock().unwrap().iter().any(is_failing) { FAILS } else { outcome }
    }
}

/// Values that may be drawn for a build; all others mean success.
const HANGS: u32 = 0;
const FAILS: u32 = 1;
const SUCCEEDS: u32 = 9;

/// Model of diskimage-builder: runs for minutes, sometimes fails or hangs, and ends with its builder.
struct SimulatedDib {
    rng: Arc<Mutex<StdRng>>,
    outcomes: BuildOutcomes,
    budget: StepBudget,
}

impl ImageBuilder for SimulatedDib {
    fn build<'a>(
        &'a self,
        run: &'a DibRun,
        cancelled: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<DibOutcome, DibError>> {
        let after = |option: &str| {
            let mut words = run.command.iter().skip_while(move |word| *word != option);
            words.nth(1).expect("the command line of diskimage-builder has this option").clone()
        };
        let (base, formats) = (after("-o"), after("-t"));
        let (duration, outcome) = {
            let mut rng = self.rng.lock().unwrap();
            let outcome = self.outcomes.draw_outcome(&base, &mut rng);
            (Duration::from_secs_f64(rng.gen_range(30.0..240.0)), outcome)
        };
        let write =
            move |suffix: &str| fs::write(PathBuf::from(format!("{base}.{suffix}")), "image").expect("a small file");
        let build = async move {
            write("half-made");
            tokio::time::sleep(duration).await;
            if self.budget.is_exhausted() || outcome == HANGS {
                std::future::pending::<()>().await;
            }
            if outcome == FAILS {
                return DibOutcome::Exited(1);
            }
            for format in formats.split(',') {
                ["", ".md5", ".sha256"].iter().for_each(|sum| write(&format!("{format}{sum}")));
            }
            DibOutcome::Exited(0)
        };
        async move {
            tokio::select! {
                biased;
                end = build => Ok(end),
                () = cancelled => Ok(DibOutcome::Cancelled),
                () = tokio::time::sleep(run.timeout.to_duration()) => Ok(DibOutcome::TimedOut),
            }
        }
        .boxed()
    }
}
