//! Faults as data: drawn from a seed, and filtered by number for minimization.

use std::cell::Cell;
use std::num::ParseIntError;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

use super::builders::BuildOutcomes;
use super::cloud::{CallFaultRates, Clouds};
use super::configuration::{
    BUILDERS, IMAGES, LAUNCHERS, NODEPOOL11_PROVIDERS, PROVIDERS, Participants, ReloadSizes, RemovedSection,
};
use super::history::RunHistory;
use super::process::{Configured, ProcessHandle, SESSION_TIMEOUT};
use super::workload::Workload;
use super::{RUN_LENGTH_S, operator};
use nodepool::actors::runtime::clock;
use nodepool_model::records::time::Timestamp;
use nodepool_zk::memory::{Fault as Loss, MemoryZooKeeper};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Kills a process after this many more steps.
    Kill { process: usize, steps: u64 },
    /// The ZooKeeper server expires the session of a process.
    Expire { process: usize },
    /// Cuts the connection of a process for a time that is longer or shorter than the session timeout.
    Disconnect { process: usize, seconds: f64 },
    /// Loses this many requests of a process, or the replies to them.
    LoseMessages { process: usize, requests: usize, answers: bool },
    /// Calls of a cloud fail in one way for a while.
    CloudCalls { provider: &'static str, kind: CloudFaultKind, seconds: f64 },
    /// Deletes a server behind the launcher's back.
    DeleteServer { nth: usize },
    /// The wall clock of all processes jumps.
    ClockJump { seconds: f64 },
    /// Delays all ZooKeeper requests, replies and events of a process by up to `max_ms`, for a while or until the
    /// process loses its session.
    NetworkDelay { process: usize, max_ms: u64, seconds: f64 },
    /// The ZooKeeper server of a process lags behind the leader, so that reads and events are stale, for a while or
    /// until the process loses its session.
    FollowerLag { process: usize, max_ms: u64, seconds: f64 },
    /// An operator deletes an idle node.
    DeleteNode { nth: usize },
    /// An operator holds an idle node for a while.
    HoldNode { nth: usize, seconds: f64 },
    /// An operator deletes the record of an idle node.
    DeleteRecord { nth: usize },
    /// An operator deletes an upload in state ready, whether or not the provider has another one.
    DeleteUpload { nth: usize },
    /// An operator requests a build of an image.
    RequestBuild { image: &'static str },
    /// All builds of an image fail for a while.
    FailBuilds { image: &'static str, seconds: f64 },
    /// A launcher reloads another configuration. A removed section is restored after a while.
    Reload { launcher: usize, sizes: ReloadSizes, seconds: f64 },
}

/// Kinds of cloud faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloudFaultKind {
    Errors,
    LostReplies,
    Throttling,
    FailingBoots,
    IgnoredDeletes,
    StaleLists,
    Slow,
    DuplicateCreates,
    ForeignServers,
    /// The cloud answers no call.
    Absent,
    /// The cloud has capacity for few servers, and reports more.
    Full,
    /// All clouds are full, so that requests queue.
    AllFull,
}

impl CloudFaultKind {
    const ALL: [Self; 12] = [
        Self::Errors,
        Self::LostReplies,
        Self::Throttling,
        Self::FailingBoots,
        Self::IgnoredDeletes,
        Self::StaleLists,
        Self::Slow,
        Self::DuplicateCreates,
        Self::ForeignServers,
        Self::Absent,
        Self::Full,
        Self::AllFull,
    ];
    /// Kinds by which no request may fail.
    const HARMLESS: [Self; 4] = [Self::Absent, Self::Full, Self::AllFull, Self::Slow];

    fn rates(self) -> CallFaultRates {
        let no_faults = CallFaultRates::default();
        match self {
            Self::Errors => CallFaultRates { refused: 0.4, ..no_faults },
            Self::LostReplies => CallFaultRates { lost_replies: 0.4, ..no_faults },
            Self::Throttling => CallFaultRates { throttled: 0.5, ..no_faults },
            Self::FailingBoots => CallFaultRates { failing_boots: 0.3, hanging_boots: 0.2, ..no_faults },
            Self::IgnoredDeletes => CallFaultRates { ignored_deletes: 0.5, ..no_faults },
            Self::StaleLists => CallFaultRates { list_lag_s: 20.0, ..no_faults },
            Self::Slow => CallFaultRates { max_extra_latency_s: 25.0, ..no_faults },
            Self::DuplicateCreates => CallFaultRates { duplicate_creates: 0.3, ..no_faults },
            Self::ForeignServers => CallFaultRates { foreign_servers: 7, ..no_faults },
            Self::Absent => CallFaultRates { is_absent: true, ..no_faults },
            Self::Full | Self::AllFull => CallFaultRates { hidden_limit: Some(2), ..no_faults },
        }
    }
}

/// The faults of a schedule to inject, by their numbers; by default all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultFilter(Option<Vec<usize>>);

impl FaultFilter {
    pub fn only(numbers: &[usize]) -> Self {
        Self(Some(numbers.to_vec()))
    }

    /// The value of `--faults`.
    pub fn to_argument(&self) -> Option<String> {
        let numbers = self.0.as_ref()?;
        let texts: Vec<String> = numbers.iter().map(usize::to_string).collect();
        Some(if texts.is_empty() { NONE.to_owned() } else { texts.join(",") })
    }

    pub fn apply(&self, schedule: Vec<(f64, Fault)>) -> Vec<(f64, Fault)> {
        let Some(numbers) = &self.0 else { return schedule };
        schedule.into_iter().enumerate().filter(|(at, _)| numbers.contains(at)).map(|(_, fault)| fault).collect()
    }
}

const NONE: &str = "none";

impl FromStr for FaultFilter {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        let numbers = text.split(',').filter(|number| *number != NONE);
        Ok(Self(Some(numbers.map(str::parse).collect::<Result<_, _>>()?)))
    }
}

impl Fault {
    fn applies_to(&self, participants: Participants) -> bool {
        match self {
            Self::Kill { process, .. }
            | Self::Expire { process }
            | Self::Disconnect { process, .. }
            | Self::LoseMessages { process, .. }
            | Self::FollowerLag { process, .. }
            | Self::NetworkDelay { process, .. } => match *process {
                NODEPOOL11_PROCESS => participants.nodepool11,
                process => process < LAUNCHERS.len() || participants.builders,
            },
            Self::DeleteUpload { .. } | Self::RequestBuild { .. } | Self::FailBuilds { .. } => participants.builders,
            Self::DeleteServer { .. } => !participants.harmless_clouds,
            Self::CloudCalls { .. } | Self::ClockJump { .. } => true,
            Self::DeleteNode { .. } | Self::HoldNode { .. } | Self::DeleteRecord { .. } | Self::Reload { .. } => true,
        }
    }
}

/// The faults of a seed, 16 to 33, ordered by time.
pub fn schedule(seed: u64) -> Vec<(f64, Fault)> {
    let rng = &mut StdRng::seed_from_u64(seed ^ 0xfa17);
    let (participants, number) = (Participants::draw(seed), rng.gen_range(16..30));
    let fault = |rng: &mut StdRng| loop {
        let fault = draw(rng, participants);
        if fault.applies_to(participants) {
            break (rng.gen_range(60.0..RUN_LENGTH_S - 120.0), fault);
        }
    };
    let mut faults: Vec<(f64, Fault)> = (0..number).map(|_| fault(rng)).collect();
    if participants.harmless_clouds {
        // Each kind once more: few of the other faults concern clouds.
        let kinds = CloudFaultKind::HARMLESS.iter();
        faults.extend(kinds.map(|kind| (rng.gen_range(60.0..RUN_LENGTH_S - 400.0), cloud_fault(rng, *kind))));
    }
    faults.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    faults
}

fn draw(rng: &mut StdRng, participants: Participants) -> Fault {
    let kinds = if participants.harmless_clouds { &CloudFaultKind::HARMLESS[..] } else { &CloudFaultKind::ALL };
    // Launchers are drawn more often than builders. The launcher of Nodepool 11 is only killed and slowed down: its
    // writes after the end of its session are not under test.
    let process = [0, 0, 1, 1, 2, 3][rng.gen_range(0..6)];
    let any_process = if rng.gen_ratio(1, 8) { NODEPOOL11_PROCESS } else { process };
    match rng.gen_range(0..22) {
        0..3 => Fault::Kill { process, steps: rng.gen_range(0..60) },
        3 => Fault::Kill { process: NODEPOOL11_PROCESS, steps: rng.gen_range(0..60) },
        4 => Fault::Expire { process },
        5 => Fault::Disconnect { process, seconds: rng.gen_range(0.5..20.0) },
        6 => Fault::LoseMessages { process, requests: rng.gen_range(1..6), answers: rng.r#gen() },
        7..9 => {
            let kind = kinds[rng.gen_range(0..kinds.len())];
            cloud_fault(rng, kind)
        }
        9 => Fault::DeleteServer { nth: rng.gen_range(0..20) },
        10 if rng.gen_ratio(1, 3) => Fault::ClockJump { seconds: rng.gen_range(-RUN_LENGTH_S..RUN_LENGTH_S) },
        10 => Fault::ClockJump { seconds: rng.gen_range(-30.0..120.0) },
        11..13 => {
            let max_ms = [5, 20, 100, 400, 1500][rng.gen_range(0..5)];
            Fault::NetworkDelay { process: any_process, max_ms, seconds: rng.gen_range(60.0..900.0) }
        }
        13..15 => Fault::DeleteNode { nth: rng.gen_range(0..20) },
        15 => Fault::DeleteUpload { nth: rng.gen_range(0..12) },
        16 => {
            let image = IMAGES[rng.gen_range(0..IMAGES.len())].0;
            let seconds = rng.gen_range(300.0..RUN_LENGTH_S);
            if rng.r#gen() { Fault::RequestBuild { image } } else { Fault::FailBuilds { image, seconds } }
        }
        17 => Fault::DeleteRecord { nth: rng.gen_range(0..20) },
        19..21 => {
            let max_ms = [5, 50, 300, 1500][rng.gen_range(0..4)];
            Fault::FollowerLag { process: any_process, max_ms, seconds: rng.gen_range(60.0..900.0) }
        }
        18 => Fault::HoldNode { nth: rng.gen_range(0..20), seconds: rng.gen_range(1.0..300.0) },
        _ => Fault::Reload {
            launcher: rng.gen_range(0..2),
            sizes: ReloadSizes {
                max_servers: rng.gen_range(5..9),
                min_ready: rng.gen_range(0..3),
                removed: [None, Some(RemovedSection::Label), Some(RemovedSection::Provider)][rng.gen_range(0..3)],
            },
            seconds: rng.gen_range(15.0..400.0),
        },
    }
}

fn cloud_fault(rng: &mut StdRng, kind: CloudFaultKind) -> Fault {
    Fault::CloudCalls {
        provider: PROVIDERS[rng.gen_range(0..PROVIDERS.len())],
        kind,
        seconds: if rng.gen_ratio(1, 5) { rng.gen_range(400.0..2400.0) } else { rng.gen_range(30.0..400.0) },
    }
}

/// Number of the Nodepool 11 launcher. The numbers before it are launchers and builders, in the order of the
/// configuration.
pub const NODEPOOL11_PROCESS: usize = LAUNCHERS.len() + BUILDERS.len();

/// Components into which faults are injected.
pub struct FaultTargets {
    pub zookeeper: MemoryZooKeeper,
    pub clouds: Clouds,
    pub processes: Vec<ProcessHandle>,
    pub launchers: Vec<Configured>,
    pub workload: Workload,
    pub build_outcomes: BuildOutcomes,
    pub history: RunHistory,
    pub effective: EffectiveFaults,
}

/// Number of faults that had an effect: a dead process is not killed again, and an idle node may not exist. Clones
/// count together.
#[derive(Clone, Debug, Default)]
pub struct EffectiveFaults {
    all: Rc<Cell<usize>>,
    kills: Rc<Cell<usize>>,
}

impl EffectiveFaults {
    pub fn all(&self) -> usize {
        self.all.get()
    }

    /// Kills of launchers and builders, without those of Nodepool 11.
    pub fn kills(&self) -> usize {
        self.kills.get()
    }

    fn record(&self, had_effect: bool) {
        self.all.set(self.all.get() + usize::from(had_effect));
    }

    /// Records the result of an operator action when it completes.
    fn record_later(&self, act: impl Future<Output = bool> + 'static) {
        let effective = self.clone();
        actix_rt::spawn(async move { effective.record(act.await) });
    }
}

impl FaultTargets {
    /// Kills a process after this many more steps. False if it is already dead.
    fn kill(&self, process: usize, steps: u64) -> bool {
        let handle = self.processes[process].clone();
        let (budget, zookeeper, effective) = (handle.budget(), self.zookeeper.clone(), self.effective.clone());
        if !handle.is_alive() {
            return false;
        }
        budget.limit_to(steps);
        actix_rt::spawn(async move {
            // A process that makes fewer steps is killed after a minute.
            let _ = tokio::time::timeout(Duration::from_secs(60), budget.exhausted()).await;
            budget.limit_to(0);
            if process < NODEPOOL11_PROCESS && budget.count_death() {
                effective.kills.set(effective.kills.get() + 1);
            }
            // The current session of the process, which may be newer than the one at the start of the fault. The
            // process has not been restarted yet.
            let session = handle.session();
            tokio::time::sleep(SESSION_TIMEOUT).await;
            zookeeper.expire(session);
        });
        true
    }

    fn disconnect(&self, process: usize, duration: Duration) {
        let (zookeeper, handle) = (self.zookeeper.clone(), &self.processes[process]);
        let (session, budget) = (handle.session(), handle.budget());
        let number = budget.last_session();
        zookeeper.suspend(session);
        actix_rt::spawn(async move {
            tokio::time::sleep(duration.min(SESSION_TIMEOUT)).await;
            if duration > SESSION_TIMEOUT {
                budget.record_session_end(number);
                zookeeper.expire_unnoticed(session);
                tokio::time::sleep(duration - SESSION_TIMEOUT).await;
            }
            zookeeper.resume(session);
        });
    }

    fn reload(&self, launcher: usize, sizes: ReloadSizes, duration: Duration) {
        let configured = self.launchers[launcher].clone();
        configured.set(sizes);
        actix_rt::spawn(async move {
            tokio::time::sleep(duration).await;
            configured.restore_removed();
        });
    }

    /// Starts an operator action. True if it had its effect at once; otherwise the effect is recorded when the action
    /// completes.
    fn run_operator_action(&self, fault: &Fault) -> bool {
        let (zookeeper, workload, history) = (self.zookeeper.clone(), self.workload.clone(), self.history.clone());
        match *fault {
            Fault::DeleteNode { nth } => {
                self.processes[..LAUNCHERS.len()].iter().for_each(|launcher| slow_down(launcher, 300, 10.0));
                self.effective.record_later(operator::delete_idle(zookeeper, workload, nth));
            }
            Fault::HoldNode { nth, seconds } => {
                self.effective.record_later(operator::hold_idle(
                    zookeeper,
                    workload,
                    nth,
                    Duration::from_secs_f64(seconds),
                ));
            }
            Fault::DeleteRecord { nth } => {
                self.effective.record_later(operator::delete_record(zookeeper, history, nth))
            }
            Fault::DeleteUpload { nth } => {
                self.effective.record_later(operator::delete_upload(zookeeper, history, nth))
            }
            Fault::RequestBuild { image } => {
                actix_rt::spawn(operator::request_build(zookeeper, image));
                return true;
            }
            _ => unreachable!("{fault:?} is not an operator action"),
        }
        false
    }
}

pub fn inject(fault: &Fault, targets: &FaultTargets) {
    let FaultTargets { zookeeper, clouds, processes, .. } = targets;
    let had_effect = match *fault {
        Fault::Kill { process, steps } => targets.kill(process, steps),
        Fault::Expire { process } => {
            zookeeper.expire(processes[process].session());
            processes[process].is_alive()
        }
        Fault::Disconnect { process, seconds } => {
            targets.disconnect(process, Duration::from_secs_f64(seconds));
            processes[process].is_alive()
        }
        Fault::LoseMessages { process, requests, answers } => {
            let message_fault = if answers { Loss::AfterApplying } else { Loss::BeforeApplying };
            zookeeper.fail_next(processes[process].session(), requests, message_fault);
            processes[process].is_alive()
        }
        Fault::CloudCalls { provider, kind, seconds } => {
            let providers = if kind == CloudFaultKind::AllFull { &PROVIDERS[..] } else { &[provider] };
            let duration = Duration::from_secs_f64(seconds);
            providers.iter().for_each(|provider| clouds.set_fault_rates(provider, kind.rates(), duration));
            true
        }
        Fault::DeleteServer { nth } => clouds.delete_any_server(nth),
        Fault::ClockJump { seconds } => {
            clock::simulate(Timestamp(clock::now().0 + seconds));
            true
        }
        Fault::FollowerLag { process, max_ms, seconds } => {
            let lag = processes[process].set_lag(Duration::from_millis(max_ms), zookeeper);
            actix_rt::spawn(async move {
                tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
                lag.end();
            });
            processes[process].is_alive()
        }
        Fault::NetworkDelay { process, max_ms, seconds } => {
            slow_down(&processes[process], max_ms, seconds);
            processes[process].is_alive()
        }
        Fault::DeleteNode { .. }
        | Fault::HoldNode { .. }
        | Fault::DeleteRecord { .. }
        | Fault::DeleteUpload { .. }
        | Fault::RequestBuild { .. } => targets.run_operator_action(fault),
        Fault::FailBuilds { image, seconds } => {
            targets.build_outcomes.fail_builds(image, Duration::from_secs_f64(seconds));
            true
        }
        Fault::Reload { launcher, sizes, seconds } => {
            targets.reload(launcher, sizes, Duration::from_secs_f64(seconds));
            true
        }
    };
    targets.effective.record(had_effect);
}

fn slow_down(process: &ProcessHandle, max_ms: u64, seconds: f64) {
    let link = process.link();
    let max_delay = Duration::from_millis(max_ms);
    link.set_max_delay(max_delay);
    actix_rt::spawn(async move {
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        // Has no effect if another delay was set meanwhile.
        link.clear_delay(max_delay);
    });
}

/// Ends all faults.
pub fn end_faults(targets: &FaultTargets) {
    let FaultTargets { zookeeper, clouds, processes, launchers, build_outcomes, .. } = targets;
    build_outcomes.end_faults();
    clouds.clear_faults();
    for process in processes {
        zookeeper.resume(process.session());
        process.link().set_max_delay(Duration::ZERO);
        process.set_lag(Duration::ZERO, zookeeper);
    }
    launchers.iter().for_each(Configured::restore_removed);
    drop(actix_rt::spawn(operator::delete_abandoned_nodes(zookeeper.clone(), NODEPOOL11_PROVIDERS[0])));
}
