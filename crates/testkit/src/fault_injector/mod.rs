//! Faults of real processes: drawn from a seed, and injected.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};
use std::time::Duration;

use nix::sys::signal::Signal;
use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokio::time::sleep;

pub mod cluster;
pub mod consumer;
pub mod proxy;
pub mod supervised_process;

use cluster::TestCluster;
use consumer::ZuulConsumer;
use proxy::LinkState;

use crate::disk_faults::SmallDisk;

/// A fault. Faults are injected one after the other.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// SIGKILL, and a restart after a while.
    Kill {
        process: usize,
        pause: Duration,
    },
    /// SIGSTOP, and SIGCONT.
    Suspend {
        process: usize,
        time: Duration,
    },
    /// The link between a launcher or a builder and all ZooKeeper servers changes its state.
    Link {
        process: usize,
        state: LinkState,
        time: Duration,
    },
    /// The leader is killed, and restarted after a while.
    KillLeader {
        time: Duration,
    },
    /// The leader is suspended, and resumed.
    FreezeLeader {
        time: Duration,
    },
    /// All three servers are killed, and restarted.
    KillEnsemble,
    /// Each fsync of ZooKeeper is delayed by this time.
    SlowDisk {
        milliseconds: u64,
        time: Duration,
    },
    /// The disks with the builds are full.
    FullDisk {
        time: Duration,
    },
    CloudCalls {
        kind: CloudFaultKind,
        time: Duration,
    },
    /// The wall clock of the first launcher jumps, and jumps back.
    ClockJump {
        seconds: i64,
        time: Duration,
    },
    /// The consumer is killed with its locks and requests.
    KillConsumer,
}

/// A way in which a cloud fails for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloudFaultKind {
    Unavailable,
    TooMany,
    Slow,
    Hanging,
    LostReplies,
    FailingBoots,
    StaleLists,
}

impl CloudFaultKind {
    const ALL: [Self; 7] = [
        Self::Unavailable,
        Self::TooMany,
        Self::Slow,
        Self::Hanging,
        Self::LostReplies,
        Self::FailingBoots,
        Self::StaleLists,
    ];

    fn knobs(self) -> Value {
        match self {
            Self::Unavailable => json!({"faults": ["503 every=2"]}),
            Self::TooMany => json!({"faults": ["429 every=2 service=compute"]}),
            Self::Slow => json!({"latency_ms": "200-900"}),
            Self::Hanging => json!({"hang_s": 6, "faults": ["hang every=5 service=compute"]}),
            Self::LostReplies => json!({"faults": ["lost-answer every=3 method=POST path=/servers$"]}),
            Self::FailingBoots => json!({"boot_fails_every": 2}),
            Self::StaleLists => json!({"stale_lists_s": 1.5}),
        }
    }

    /// Whether calls were affected, by the cloud's counters before and after.
    fn had_effect(self, before: &Value, after: &Value) -> bool {
        let more = |what: &str| after[what].as_u64().unwrap_or(0) - before[what].as_u64().unwrap_or(0);
        match self {
            Self::Unavailable | Self::TooMany | Self::Hanging | Self::LostReplies => {
                after["faults_struck"].as_array().is_some_and(|counts| counts.iter().any(|count| *count != json!(0)))
            }
            Self::Slow | Self::StaleLists => more("calls") > 0,
            // Every second boot fails.
            Self::FailingBoots => more("servers_created") > 1,
        }
    }

    fn no_faults() -> Value {
        json!({"faults": [], "boot_fails_every": 0, "stale_lists_s": 0, "latency_ms": "compute=5-60"})
    }
}

/// Time in which two servers detect that they lost the third, and elect a leader.
const ELECTION: Duration = Duration::from_secs(1);

/// Time for which failed and unanswered calls have effects: the launcher searches for a server that may still appear,
/// and backs off after throttled calls.
const CLOUD_FAULT_AFTERMATH: Duration = Duration::from_secs(10);

/// Kinds of faults, by the names under which they are counted.
pub const KINDS: [&str; 11] = [
    "kill",
    "suspended",
    "partition",
    "leader killed",
    "leader frozen",
    "ensemble killed",
    "cloud fault",
    "clock",
    "consumer killed",
    "slow disk",
    "full disk",
];

impl Fault {
    pub fn kind(&self) -> &'static str {
        KINDS[match self {
            Self::Kill { .. } => 0,
            Self::Suspend { .. } => 1,
            Self::Link { .. } => 2,
            Self::KillLeader { .. } => 3,
            Self::FreezeLeader { .. } => 4,
            Self::KillEnsemble => 5,
            Self::CloudCalls { .. } => 6,
            Self::ClockJump { .. } => 7,
            Self::KillConsumer => 8,
            Self::SlowDisk { .. } => 9,
            Self::FullDisk { .. } => 10,
        }]
    }

    /// A fault of this kind.
    pub fn of_kind(kind: &str, cluster: &TestCluster, rng: &mut StdRng) -> Fault {
        let (session, process) = (cluster.session, rng.gen_range(0..cluster.processes.len()));
        // Shorter than a session timeout, longer than it, or about as long.
        let time = session.mul_f64(rng.gen_range(0.2..2.5));
        match KINDS.iter().position(|name| *name == kind).expect("the kind is one of KINDS") {
            0 => Self::Kill { process, pause: time.mul_f64(if rng.gen_ratio(3, 4) { 0.0 } else { 1.0 }) },
            1 => Self::Suspend { process, time },
            2 => {
                let delay = Duration::from_millis(rng.gen_range(20..400));
                let states = [
                    LinkState::Blocked,
                    LinkState::BlockedToServer,
                    LinkState::BlockedToClient,
                    LinkState::Reset,
                    LinkState::Delayed(delay),
                ];
                Self::Link { process, state: states[rng.gen_range(0..states.len())], time }
            }
            3 => Self::KillLeader { time },
            // In half of the cases, the time suffices for the election of another leader.
            4 => Self::FreezeLeader {
                time: if rng.gen_bool(0.5) { cluster.sync_timeout + ELECTION + time } else { time },
            },
            5 => Self::KillEnsemble,
            6 => Self::CloudCalls {
                kind: CloudFaultKind::ALL[rng.gen_range(0..CloudFaultKind::ALL.len())],
                time: 2 * time,
            },
            7 => {
                let seconds = [-3600, -30, -1, 1, 30, 120, 86_400][rng.gen_range(0..7)];
                Self::ClockJump { seconds, time }
            }
            8 => Self::KillConsumer,
            9 => Self::SlowDisk { milliseconds: [10, 100, 400, 1500][rng.gen_range(0..4)], time: 2 * time },
            _ => Self::FullDisk { time: 2 * time },
        }
    }

    pub fn draw(cluster: &TestCluster, rng: &mut StdRng) -> Fault {
        let kind = match rng.gen_range(0..22) {
            0..7 => 0,
            7..9 => 1,
            9..13 => 2,
            13 => 3,
            14 => 4,
            15..17 => 6,
            17 => 7,
            18 => 8,
            19 => 9,
            20 => 10,
            _ => {
                if rng.gen_ratio(1, 3) {
                    5
                } else {
                    0
                }
            }
        };
        Self::of_kind(KINDS[kind], cluster, rng)
    }

    /// Time after the end of the fault in which it may still delay requests.
    pub fn aftermath(&self) -> Duration {
        match self {
            Self::CloudCalls { kind, .. } => match kind {
                CloudFaultKind::Unavailable
                | CloudFaultKind::TooMany
                | CloudFaultKind::Hanging
                | CloudFaultKind::LostReplies => CLOUD_FAULT_AFTERMATH,
                CloudFaultKind::Slow | CloudFaultKind::FailingBoots | CloudFaultKind::StaleLists => Duration::ZERO,
            },
            _ => Duration::ZERO,
        }
    }

    /// Whether the fault affects all clients of ZooKeeper, also those that are not connected through a proxy.
    pub fn affects_zookeeper(&self) -> bool {
        matches!(self, Self::KillLeader { .. } | Self::FreezeLeader { .. } | Self::KillEnsemble | Self::SlowDisk { .. })
    }

    /// Injects the fault and ends it. Returns the name under which it is counted, or `None` if it had no effect.
    pub async fn inject(&self, cluster: &mut TestCluster, zuul: &ZuulConsumer) -> Option<String> {
        let had_effect = match *self {
            Self::Kill { process, pause } => {
                let role = cluster.processes[process].role().name();
                cluster.processes[process].kill();
                sleep(pause).await;
                cluster.processes[process].start_again();
                return Some(format!("kill: {role}"));
            }
            Self::Suspend { process, time } => {
                cluster.processes[process].signal(Signal::SIGSTOP);
                sleep(time).await;
                cluster.processes[process].signal(Signal::SIGCONT);
                true
            }
            Self::Link { process, state, time } => {
                let before = cluster.processes[process].affected_messages();
                cluster.processes[process].link.send_replace(state);
                sleep(time).await;
                cluster.processes[process].link.send_replace(LinkState::Up);
                cluster.processes[process].affected_messages() > before
            }
            Self::KillLeader { time } => {
                let leader = cluster.ensemble.leader().await;
                cluster.ensemble.kill(leader);
                sleep(time).await;
                cluster.ensemble.start_again(leader).await;
                cluster.ensemble.wait_until_settled().await;
                true
            }
            Self::FreezeLeader { time } => {
                let leader = cluster.ensemble.leader().await;
                cluster.ensemble.servers[leader].freeze();
                sleep(time).await;
                cluster.ensemble.servers[leader].thaw();
                cluster.ensemble.wait_until_settled().await;
                let another = if cluster.ensemble.leader().await == leader { "" } else { ": new leader elected" };
                return Some(format!("{}{another}", self.kind()));
            }
            Self::KillEnsemble => {
                for index in 0..cluster.ensemble.servers.len() {
                    cluster.ensemble.kill(index);
                }
                cluster.ensemble.start_all_again().await;
                cluster.ensemble.wait_until_settled().await;
                true
            }
            Self::SlowDisk { milliseconds, time } => {
                let before = cluster.zookeeper_disk.sync_count();
                cluster.zookeeper_disk.set_delay_ms(milliseconds);
                sleep(time).await;
                cluster.zookeeper_disk.set_delay_ms(0);
                cluster.ensemble.wait_until_settled().await;
                cluster.zookeeper_disk.sync_count() > before
            }
            Self::FullDisk { time } => {
                let before = cluster.builds_out_of_space();
                cluster.builder_disks.iter().for_each(|disk| disk.fill(0));
                cluster.request_build().await;
                sleep(time).await;
                cluster.builder_disks.iter().for_each(SmallDisk::empty);
                cluster.builds_out_of_space() > before
            }
            Self::CloudCalls { kind, time } => {
                let before = cluster.cloud.state().await;
                cluster.cloud.knobs(kind.knobs()).await;
                sleep(time).await;
                let after = cluster.cloud.state().await;
                cluster.cloud.knobs(CloudFaultKind::no_faults()).await;
                kind.had_effect(&before, &after)
            }
            Self::ClockJump { seconds, time } => {
                cluster.processes[0].set_clock(seconds);
                sleep(time).await;
                cluster.processes[0].set_clock(0);
                cluster.processes[0].has_own_clock()
            }
            Self::KillConsumer => zuul.kill_and_restart().await,
        };
        had_effect.then(|| self.name())
    }

    /// Kind and variant of the fault.
    fn name(&self) -> String {
        let kind = self.kind();
        match self {
            Self::Link { state: LinkState::Delayed(_), .. } => format!("{kind}: slow"),
            Self::Link { state, .. } => format!("{kind}: {state:?}"),
            Self::CloudCalls { kind: cloud_fault, .. } => format!("{kind}: {cloud_fault:?}"),
            Self::ClockJump { seconds, .. } => format!("{kind}: {seconds:+} s"),
            Self::SlowDisk { milliseconds, .. } => format!("{kind}: {milliseconds} ms"),
            _ => kind.to_owned(),
        }
    }
}

/// Number of effective faults by kind and variant.
#[derive(Clone, Debug, Default)]
pub struct RunStats(pub BTreeMap<String, usize>);

impl RunStats {
    pub fn count(&mut self, name: String) {
        *self.0.entry(name).or_default() += 1;
    }

    pub fn add(&mut self, other: &RunStats) {
        for (name, count) in &other.0 {
            *self.0.entry(name.clone()).or_default() += count;
        }
    }

    pub fn has(&self, kind: &str) -> bool {
        self.0.keys().any(|name| name.split(':').next() == Some(kind))
    }
}

impl Display for RunStats {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|(name, count)| writeln!(f, "{count:6}  {name}"))
    }
}
