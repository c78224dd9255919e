//! Simulation run: an hour of two launchers, two builders, four clouds, hundreds of requests and two dozen faults, from
//! one seed, in virtual time.
//!
//! Launchers and builders run their production actors; ZooKeeper is the production tree in memory. Clouds, consumers
//! and a launcher of Nodepool 11 are models.

pub mod builders;
pub mod cloud;
pub mod configuration;
pub mod faults;
pub mod history;
pub mod liveness;
pub mod min_ready;
pub mod minimize;
pub mod network;
pub mod nodepool11_model;
pub mod operator;
pub mod process;
pub mod rng;
pub mod step_budget;
pub mod workload;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use self::builders::BuildOutcomes;
use self::cloud::Clouds;
use self::configuration::{BUILDERS, HOSTS, LAUNCHERS, Participants, STATIC_PROVIDER, TENANT, TENANT_NODES};
use self::faults::{EffectiveFaults, Fault, FaultFilter, FaultTargets};
use self::history::RunHistory;
use self::process::ProcessHandle;
use self::workload::Workload;
use nodepool::actors::runtime::{blocking, clock, invariant_guard};
use nodepool_model::records::time::Timestamp;
use nodepool_policy::invariants::nodes::Observation;
use nodepool_zk::memory::MemoryZooKeeper;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::in_process_launcher::on_paused_time;
use tokio::time::Instant;

pub const RUN_LENGTH_S: f64 = 3600.0;
const REQUESTS: usize = 300;
/// Limit of a transaction in runs with small transactions: less than the record of one node.
const SMALL_TRANSACTION_BYTES: usize = 1_000;
/// Minimum of served requests. A run that serves fewer fails, because it proves nothing.
const MIN_SERVED: u32 = 200;
/// Minimum of effective faults. A run with fewer fails for the same reason.
const MIN_EFFECTIVE_FAULTS: usize = 10;
/// After the faults ended, every request must end and every leftover be deleted within this time.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(1800);

/// Result of one simulation run.
#[derive(Debug)]
pub struct Outcome {
    pub violations: Vec<String>,
    pub served: u32,
    pub failed: u32,
    pub cancelled: u32,
    /// Faults that had an effect.
    pub faults: usize,
    /// Launchers and builders that were killed.
    pub kills: usize,
    /// Number of changes in ZooKeeper, and their hash, to compare two runs.
    pub digest: (u64, u64),
}

impl Outcome {
    pub fn has_passed(&self) -> bool {
        self.violations.is_empty()
    }

    /// The result in one line, then the violations and the command that reproduces them.
    pub fn report(&self, seed: u64, filter: &FaultFilter) -> String {
        let Self { violations, served, failed, cancelled, faults, kills, digest: (changes, digest) } = self;
        let mut text = format!(
            "seed {seed}: {served} requests served, {failed} failed, {cancelled} cancelled, {faults} faults, {kills} kills, \
             {changes} changes, digest {digest:016x}"
        );
        for violation in violations {
            text += &format!("\n    VIOLATION {violation}");
        }
        if !violations.is_empty() {
            let faults_flag = filter.to_argument().map(|numbers| format!(" --faults {numbers}")).unwrap_or_default();
            text += &format!("\n    reproduce: sim --seed {seed}{faults_flag} --trace run.log");
        }
        text
    }
}

/// Panics of all tasks. Without this list, the panic of a detached task would not be reported.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn record_panics() {
    let previous_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        previous_hook(panic);
        PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(panic.to_string().replace('\n', " "));
    }));
}

/// Runs a seed. Call it once per process, because the random number generators are seeded once.
pub fn run(seed: u64, filter: &FaultFilter, history: RunHistory) -> Outcome {
    record_panics();
    rng::seed(seed);
    nodepool_rng::seed(seed);
    blocking::run_blocking_inline();
    let faults = filter.apply(faults::schedule(seed));
    on_paused_time(async {
        clock::simulate(Timestamp(1_700_000_000.0));
        simulate(seed, &faults, history).await
    })
}

async fn simulate(seed: u64, faults: &[(f64, Fault)], history: RunHistory) -> Outcome {
    let mut rng = StdRng::seed_from_u64(seed);
    let zookeeper = MemoryZooKeeper::with_clock(|| (clock::now().0 * 1000.0) as i64);
    let observer = history.clone();
    zookeeper.observe(Box::new(move |path, znode| observer.znode(path, znode)));
    let clouds = Clouds::new(seed, history.clone());
    let participants = Participants::draw(seed);
    history.check_launches(participants);
    if participants.small_transactions {
        zookeeper.limit_transactions(SMALL_TRANSACTION_BYTES);
        history.validate_every_record();
    }
    if !participants.nodepool11 {
        // Only the model of Nodepool 11 reads whole records from the history.
        history.keep_checked_fields_only();
    }
    let launcher = |launcher| process::launcher(launcher, participants, &zookeeper, &clouds, &history);
    let (mut processes, launchers): (Vec<_>, Vec<_>) = LAUNCHERS.iter().map(launcher).unzip();
    let build_outcomes = BuildOutcomes::default();
    let mut builder = |name: &&'static str| builders::builder(name, rng.r#gen(), &zookeeper, &clouds, &build_outcomes);
    let builders: Vec<_> = BUILDERS.iter().filter(|_| participants.builders).map(&mut builder).collect();
    // The handles of absent builders exist, so that the process numbers of faults do not change.
    processes.extend(
        (0..BUILDERS.len())
            .map(|at| builders.get(at).map_or_else(ProcessHandle::absent, |builder| builder.process.clone())),
    );
    processes.push(if participants.nodepool11 {
        nodepool11_model::keep_running(&zookeeper, &clouds, &history)
    } else {
        ProcessHandle::absent()
    });
    let workload = Workload::of(&zookeeper, &history);
    for _ in 0..REQUESTS {
        workload.add_consumer(
            Duration::from_secs_f64(rng.gen_range(20.0..RUN_LENGTH_S)),
            rng.r#gen(),
            participants.weighted_labels(),
        );
    }
    if participants.tenant_limit {
        history.observe(Observation::TenantLimit(&TENANT.into(), TENANT_NODES));
    }
    if participants.static_hosts {
        HOSTS
            .iter()
            .for_each(|(host, jobs)| history.observe(Observation::HostSlots(&STATIC_PROVIDER.into(), host, *jobs)));
    }
    actix_rt::spawn(liveness::check_stray_servers(clouds.clone(), history.clone()));
    let configured_launchers = processes.iter().cloned().zip(launchers.iter().cloned()).collect();
    actix_rt::spawn(liveness::check_neglected_requests(configured_launchers, clouds.clone(), history.clone()));
    let effective = EffectiveFaults::default();
    let targets = FaultTargets {
        zookeeper,
        clouds,
        processes,
        launchers,
        workload,
        build_outcomes,
        history: history.clone(),
        effective,
    };
    let started = Instant::now();
    for (at, fault) in faults {
        tokio::time::sleep_until(started + Duration::from_secs_f64(*at)).await;
        history.trace_remark(&format!("FAULT {fault:?}"));
        faults::inject(fault, &targets);
    }
    tokio::time::sleep_until(started + Duration::from_secs_f64(RUN_LENGTH_S)).await;
    history.trace_remark("FAULTS ENDED");
    faults::end_faults(&targets);
    let leftovers = || {
        let files = builders.iter().flat_map(|builder| builder.leftover_files(|key| history.is_built(key)));
        history
            .leftovers(participants)
            .iter()
            .map(ToString::to_string)
            .chain(files)
            .map(|leftover| format!("after the faults: {leftover}"))
            .collect()
    };
    let mut violations = wait_until_idle(leftovers, targets.workload.take_consumers()).await;
    violations.splice(0..0, history.violations());
    violations
        .extend(PANICS.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|panic| format!("a panic: {panic}")));
    violations.extend(
        invariant_guard::recorded_violations()
            .iter()
            .map(|violation| format!("a program refused an action that would violate an invariant: {violation}")),
    );
    let served = targets.workload.stats.served.get();
    if served < MIN_SERVED {
        violations.push(format!("only {served} of {REQUESTS} requests were served"));
    }
    let (effective, kills) = (targets.effective.all(), targets.effective.kills());
    if effective < MIN_EFFECTIVE_FAULTS.min(faults.len()) {
        violations.push(format!("only {effective} of {} faults had an effect", faults.len()));
    }
    Outcome {
        violations,
        served,
        failed: targets.workload.stats.failed.get(),
        cancelled: targets.workload.stats.cancelled.get(),
        faults: effective,
        kills,
        digest: history.digest(),
    }
}

/// Waits until every consumer ended and every leftover is deleted. Returns what remains at the deadline.
async fn wait_until_idle(
    leftovers: impl Fn() -> Vec<String>,
    consumers: Vec<tokio::task::JoinHandle<()>>,
) -> Vec<String> {
    let deadline = Instant::now() + RECOVERY_TIMEOUT;
    for consumer in consumers {
        match tokio::time::timeout_at(deadline, consumer).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return vec![format!("a consumer panicked: {error}")],
            Err(_) => return [vec!["after the faults: a consumer is still waiting".to_owned()], leftovers()].concat(),
        }
    }
    while !leftovers().is_empty() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    leftovers()
}
