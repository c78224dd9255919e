//! Builders with all their actors, the real files of small images, and a model of what makes them.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

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

use super::cloud::Clouds;
use super::configuration::builders_yaml;
use super::gate::StepBudget;
use super::process::{Seat, Started, keep_running};
use crate::grown::InProcessDaemon;

/// A builder, and where its files are.
pub struct Builder {
    pub seat: Seat,
    folder: TempDir,
}

impl Builder {
    /// Files of builds that are none any more.
    pub fn left_over(&self, is_built: impl Fn(&BuildKey) -> bool) -> Vec<String> {
        let claimed = ImagesDir::new(self.folder.path()).claimed().expect("the images can be listed");
        let left = claimed.into_iter().filter(|key| !is_built(key));
        left.map(|key| format!("files of {} are left over", key.file_name())).collect()
    }
}

/// Keeps a builder running, whose images stay where they are over its lives.
pub fn builder(name: &'static str, seed: u64, zookeeper: &MemoryZooKeeper, clouds: &Clouds, luck: &Luck) -> Builder {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let files = ConfigFileSource::InMemory(Arc::default());
    let ConfigFileSource::InMemory(texts) = &files else { unreachable!("simulated files are in memory") };
    texts.lock().unwrap().insert("nodepool.yaml".into(), builders_yaml(folder.path()));
    let (clouds, rng, luck) = (clouds.clone(), Arc::new(Mutex::new(StdRng::seed_from_u64(seed))), luck.clone());
    let seat = keep_running(name, zookeeper, move |budget| {
        let tune = |options: &mut nodepool::actors::process::context::LauncherOptions| {
            (options.files, options.config) = (files.clone(), "nodepool.yaml".into());
            // It never changes.
            options.config_check = Seconds(601.0);
        };
        let process = InProcessDaemon::with_identity(Identity::named(name), "", tune, Some(clouds.behind(budget)));
        let maker = Arc::new(Model { rng: rng.clone(), luck: luck.clone(), budget: budget.clone() });
        let life = BuilderSetup { options: BuilderOptions::default(), builder_id: format!("id-of-{name}"), maker };
        let run = move |process: &mut InProcessDaemon, zk| {
            let (shared, life) = (process.shared.clone(), life.clone());
            actix_rt::spawn(async move {
                let loaded = shared.options.load().await.expect("the configuration loads");
                run_session(zk, shared, life, loaded).await
            })
        };
        Started { process, run: Box::new(run) }
    });
    Builder { seat, folder }
}

/// What becomes of builds.
#[derive(Clone, Default)]
pub struct Luck {
    /// Faults are over: all are well.
    is_calm: Arc<AtomicBool>,
    /// Images of which all fail, and how often somebody said so.
    doomed: Arc<Mutex<Vec<&'static str>>>,
}

impl Luck {
    pub fn calm(&self) {
        self.is_calm.store(true, Ordering::Relaxed);
    }

    /// All builds of an image fail for a while.
    pub fn doom(&self, image: &'static str, duration: Duration) {
        self.doomed.lock().unwrap().push(image);
        let doomed = self.doomed.clone();
        actix_rt::spawn(async move {
            tokio::time::sleep(duration).await;
            let mut doomed = doomed.lock().unwrap();
            let at = doomed.iter().position(|name| *name == image).expect("it is doomed until now");
            doomed.swap_remove(at);
        });
    }

    fn fate(&self, base: &str, rng: &mut StdRng) -> u32 {
        let fate = rng.gen_range(0..=FINE);
        if self.is_calm.load(Ordering::Relaxed) {
            return FINE;
        }
        let is_doomed = |image: &&'static str| base.contains(&format!("/{image}-"));
        if self.doomed.lock().unwrap().iter().any(is_doomed) { FAILS } else { fate }
    }
}

/// What may become of a build; all between is well.
const HANGS: u32 = 0;
const FAILS: u32 = 1;
const FINE: u32 = 9;

/// What makes images: it takes minutes, and fails, or hangs, now and then. It ends with its builder.
struct Model {
    rng: Arc<Mutex<StdRng>>,
    luck: Luck,
    budget: StepBudget,
}

impl ImageBuilder for Model {
    fn build<'a>(&'a self, run: &'a DibRun, in_vain: BoxFuture<'a, ()>) -> BoxFuture<'a, Result<DibOutcome, DibError>> {
        let after = |option: &str| {
            let mut words = run.command.iter().skip_while(move |word| *word != option);
            words.nth(1).expect("a command line of diskimage-builder's").clone()
        };
        let (base, formats) = (after("-o"), after("-t"));
        let (duration, fate) = {
            let mut rng = self.rng.lock().unwrap();
            let fate = self.luck.fate(&base, &mut rng);
            (Duration::from_secs_f64(rng.gen_range(30.0..240.0)), fate)
        };
        let write =
            move |suffix: &str| fs::write(PathBuf::from(format!("{base}.{suffix}")), "image").expect("a small file");
        let made = async move {
            write("half-made");
            tokio::time::sleep(duration).await;
            if self.budget.is_exhausted() || fate == HANGS {
                std::future::pending::<()>().await;
            }
            if fate == FAILS {
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
                end = made => Ok(end),
                () = in_vain => Ok(DibOutcome::Cancelled),
                () = tokio::time::sleep(run.timeout.to_duration()) => Ok(DibOutcome::TimedOut),
            }
        }
        .boxed()
    }
}
