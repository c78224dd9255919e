//! Builders with all their actors, the real files of small images, and a model of what makes them.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use nodepool::actors::builder::{BuilderLife, BuilderOptions, run_session};
use nodepool::actors::files::Files;
use nodepool::actors::identity::Identity;
use nodepool::drivers::dib::{DibEnd, DibError, DibRun, ImageMaker};
use nodepool::drivers::image_files::ImagesDir;
use nodepool::model::build::BuildKey;
use nodepool::model::time::Span;
use nodepool::zk::memory::MemoryZooKeeper;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

use super::cloud::Clouds;
use super::configuration::builders_yaml;
use super::gate::Gate;
use super::process::{Seat, Started, keep_running};
use crate::grown::Process;

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
pub fn builder(name: &'static str, seed: u64, zookeeper: &MemoryZooKeeper, clouds: &Clouds, calm: &Calm) -> Builder {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let files = Files::InMemory(Arc::default());
    let Files::InMemory(texts) = &files else { unreachable!("simulated files are in memory") };
    texts.lock().unwrap().insert("nodepool.yaml".into(), builders_yaml(folder.path()));
    let (clouds, dice, calm) = (clouds.clone(), Arc::new(Mutex::new(StdRng::seed_from_u64(seed))), calm.clone());
    let seat = keep_running(name, zookeeper, move |gate| {
        let tune = |options: &mut nodepool::actors::shared::LauncherOptions| {
            (options.files, options.config) = (files.clone(), "nodepool.yaml".into());
            // It never changes.
            options.config_check = Span(601.0);
        };
        let process = Process::named(Identity::named(name), "", tune, Some(clouds.behind(gate)));
        let maker = Arc::new(Model { dice: dice.clone(), calm: calm.clone(), gate: gate.clone() });
        let life = BuilderLife { options: BuilderOptions::default(), builder_id: format!("id-of-{name}"), maker };
        let run = move |process: &mut Process, zk| {
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

/// Whether faults are over, for what fails by itself.
pub type Calm = Arc<AtomicBool>;

/// 0 is a build that hangs, 1 one that fails, all else are well.
const FINE: u32 = 9;

/// What makes images: it takes minutes, and fails, or hangs, now and then. It ends with its builder.
struct Model {
    dice: Arc<Mutex<StdRng>>,
    calm: Calm,
    gate: Gate,
}

impl ImageMaker for Model {
    fn make<'a>(&'a self, run: &'a DibRun, in_vain: BoxFuture<'a, ()>) -> BoxFuture<'a, Result<DibEnd, DibError>> {
        let (duration, fate) = {
            let mut dice = self.dice.lock().unwrap();
            let fate = if self.calm.load(Ordering::Relaxed) { FINE } else { dice.gen_range(0..=FINE) };
            (Duration::from_secs_f64(dice.gen_range(30.0..240.0)), fate)
        };
        let after = |option: &str| {
            let mut words = run.command.iter().skip_while(move |word| *word != option);
            words.nth(1).expect("a command line of diskimage-builder's").clone()
        };
        let (base, formats) = (after("-o"), after("-t"));
        let write =
            move |suffix: &str| fs::write(PathBuf::from(format!("{base}.{suffix}")), "image").expect("a small file");
        let made = async move {
            write("half-made");
            tokio::time::sleep(duration).await;
            if self.gate.is_closed() || fate == 0 {
                std::future::pending::<()>().await;
            }
            if fate == 1 {
                return DibEnd::Status(1);
            }
            for format in formats.split(',') {
                ["", ".md5", ".sha256"].iter().for_each(|sum| write(&format!("{format}{sum}")));
            }
            DibEnd::Status(0)
        };
        async move {
            tokio::select! {
                biased;
                end = made => Ok(end),
                () = in_vain => Ok(DibEnd::Stopped),
                () = tokio::time::sleep(run.timeout.to_duration()) => Ok(DibEnd::TimedOut),
            }
        }
        .boxed()
    }
}
