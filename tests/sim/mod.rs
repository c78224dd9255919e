//! An hour of two launchers, two builders, four clouds, hundreds of requests and two dozen faults, from one seed, in virtual time.
//!
//! Launchers and builders are the real ones, with all their actors; ZooKeeper is the real tree in memory; clouds, consumers and a
//! launcher of Nodepool 11 are models.

pub mod book;
pub mod builders;
pub mod cloud;
pub mod configuration;
pub mod entropy;
pub mod faults;
pub mod fewest;
pub mod gate;
pub mod inspector;
pub mod operator;
pub mod process;
pub mod python;
pub mod wire;
pub mod zuul;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nodepool::actors::runtime::{blocking, clock, invariant_guard};
use nodepool_model::records::time::Timestamp;
use nodepool_policy::invariants::nodes::Observation;
use nodepool_zk::memory::MemoryZooKeeper;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use self::book::RunHistory;
use self::builders::Luck;
use self::cloud::Clouds;
use self::configuration::{BUILDERS, Cast, HOSTS, LAUNCHERS, RACK, TENANT, TENANT_NODES};
use self::faults::{Chosen, Fault, Stage, Struck};
use self::process::Seat;
use self::zuul::Crowd;
use crate::grown::on_paused_time;

pub const HOUR: f64 = 3600.0;
const REQUESTS: usize = 300;
/// Bytes that transactions take where they take few: less than one node has.
const NARROW: usize = 1_000;
/// Fewer than so many that are served show nothing.
const FEWEST_SERVED: u32 = 200;
/// And so do fewer faults that meet somebody.
const FEWEST_FAULTS: usize = 10;
/// After all faults everything has to be at rest within this time.
const HEALING: Duration = Duration::from_secs(1800);

/// What came of a seed.
#[derive(Debug)]
pub struct Outcome {
    pub violations: Vec<String>,
    pub served: u32,
    pub failed: u32,
    pub given_up: u32,
    /// Those that met somebody.
    pub faults: usize,
    /// Launchers and builders that were killed.
    pub kills: usize,
    /// Changes in ZooKeeper, and what tells them from those of another run.
    pub digest: (u64, u64),
}

impl Outcome {
    pub fn has_held(&self) -> bool {
        self.violations.is_empty()
    }

    /// What came of it, and where a promise was broken, how to see it again.
    pub fn line(&self, seed: u64, chosen: &Chosen) -> String {
        let Self { violations, served, failed, given_up, faults, kills, digest: (changes, digest) } = self;
        let mut text = format!(
            "seed {seed}: {served} requests served, {failed} failed, {given_up} given up, {faults} faults, {kills} kills, \
             {changes} changes, digest {digest:016x}"
        );
        for violation in violations {
            text += &format!("\n    BROKEN {violation}");
        }
        if !violations.is_empty() {
            let chosen = chosen.text().map(|numbers| format!(" --faults {numbers}")).unwrap_or_default();
            text += &format!("\n    again: sim --seed {seed}{chosen} --tale hour.log");
        }
        text
    }
}

/// What panicked, wherever it did: a task that nobody waits for ends without a word otherwise.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn note_panics() {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        told(panic);
        PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(panic.to_string().replace('\n', " "));
    }));
}

/// Lives the hour of a seed, once in the life of a process.
pub fn live(seed: u64, chosen: &Chosen, history: RunHistory) -> Outcome {
    note_panics();
    entropy::seed(seed);
    nodepool_rng::seed(seed);
    blocking::run_blocking_inline();
    let faults = chosen.of(faults::schedule(seed));
    on_paused_time(async {
        clock::simulate(Timestamp(1_700_000_000.0));
        hour(seed, &faults, history).await
    })
}

async fn hour(seed: u64, faults: &[(f64, Fault)], history: RunHistory) -> Outcome {
    let mut rng = StdRng::seed_from_u64(seed);
    let zookeeper = MemoryZooKeeper::with_clock(|| (clock::now().0 * 1000.0) as i64);
    let seen = history.clone();
    zookeeper.observe(Box::new(move |path, data| seen.znode(path, data)));
    let clouds = Clouds::new(seed, history.clone());
    let cast = Cast::of(seed);
    if cast.narrow {
        zookeeper.limit_transactions(NARROW);
        history.validate_every_record();
    }
    if !cast.old {
        // Only that one has its own picture from the book.
        history.keep_checked_fields_only();
    }
    let launcher = |launcher| process::launcher(launcher, cast, &zookeeper, &clouds, &history);
    let (mut seats, launchers): (Vec<_>, Vec<_>) = LAUNCHERS.iter().map(launcher).unzip();
    let luck = Luck::default();
    let mut builder = |name: &&'static str| builders::builder(name, rng.r#gen(), &zookeeper, &clouds, &luck);
    let builders: Vec<_> = BUILDERS.iter().filter(|_| cast.builders).map(&mut builder).collect();
    // Those who do not take part leave their seats empty.
    seats.extend(
        (0..BUILDERS.len()).map(|at| builders.get(at).map_or_else(Seat::empty, |builder| builder.seat.clone())),
    );
    seats.push(if cast.old { python::keep_running(&zookeeper, &clouds, &history) } else { Seat::empty() });
    let crowd = Crowd::of(&zookeeper, &history);
    for _ in 0..REQUESTS {
        crowd.join(Duration::from_secs_f64(rng.gen_range(20.0..HOUR)), rng.r#gen(), cast.wishes());
    }
    if cast.tenant {
        history.observe(Observation::TenantLimit(&TENANT.into(), TENANT_NODES));
    }
    if cast.rack {
        HOSTS.iter().for_each(|(host, jobs)| history.observe(Observation::HostSlots(&RACK.into(), host, *jobs)));
    }
    actix_rt::spawn(inspector::seek_strays(clouds.clone(), history.clone()));
    let sitting = seats.iter().cloned().zip(launchers.iter().cloned()).collect();
    actix_rt::spawn(inspector::seek_neglected(sitting, clouds.clone(), history.clone()));
    let struck = Struck::default();
    let stage = Stage { zookeeper, clouds, seats, launchers, crowd, luck, history: history.clone(), struck };
    let started = Instant::now();
    for (at, fault) in faults {
        tokio::time::sleep_until(started + Duration::from_secs_f64(*at)).await;
        history.remark(&format!("FAULT {fault:?}"));
        faults::strike(fault, &stage);
    }
    tokio::time::sleep_until(started + Duration::from_secs_f64(HOUR)).await;
    history.remark("HEALED");
    faults::heal(&stage);
    let unrest = || {
        let files = builders.iter().flat_map(|builder| builder.left_over(|key| history.is_built(key)));
        history
            .unrest(cast)
            .iter()
            .map(ToString::to_string)
            .chain(files)
            .map(|left| format!("after healing: {left}"))
            .collect()
    };
    let mut violations = rest(unrest, stage.crowd.members()).await;
    violations.splice(0..0, history.violations());
    violations
        .extend(PANICS.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|panic| format!("a panic: {panic}")));
    violations.extend(
        invariant_guard::recorded_violations()
            .iter()
            .map(|broken| format!("a program refused to break a promise: {broken}")),
    );
    let served = stage.crowd.stats.served.get();
    if served < FEWEST_SERVED {
        violations.push(format!("only {served} of {REQUESTS} requests were served"));
    }
    let (met, kills) = (stage.struck.all(), stage.struck.kills());
    if met < FEWEST_FAULTS.min(faults.len()) {
        violations.push(format!("only {met} of {} faults met somebody", faults.len()));
    }
    Outcome {
        violations,
        served,
        failed: stage.crowd.stats.failed.get(),
        given_up: stage.crowd.stats.given_up.get(),
        faults: met,
        kills,
        digest: history.digest(),
    }
}

/// Until every consumer has what it wanted and nothing is left over; what there still is when that takes too long.
async fn rest(unrest: impl Fn() -> Vec<String>, consumers: Vec<tokio::task::JoinHandle<()>>) -> Vec<String> {
    let deadline = Instant::now() + HEALING;
    for consumer in consumers {
        match tokio::time::timeout_at(deadline, consumer).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return vec![format!("a consumer: {error}")],
            Err(_) => return [vec!["after healing: a consumer still waits".to_owned()], unrest()].concat(),
        }
    }
    while !unrest().is_empty() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    unrest()
}
