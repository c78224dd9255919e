//! Supervised processes: killed at any step, disconnected from their sessions, and restarted.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::cloud::Clouds;
use super::configuration::{Launcher, Participants, ReloadSizes};
use super::history::RunHistory;
use super::liveness::check_launcher;
use super::network::SimLink;
use super::step_budget::{KillableConnection, StepBudget};
use nodepool::actors::process::context::SessionEnd;
use nodepool::actors::process::files::ConfigFileSource;
use nodepool::actors::process::identity::Identity;
use nodepool_model::records::time::Seconds;
use nodepool_zk::memory::MemoryZooKeeper;
use nodepool_zk::{Connection, SessionState, Zk};
use testkit::in_process_launcher::InProcessDaemon;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Time after which ZooKeeper expires the session of a dead client.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// Delays of a restart: some end before the session of the previous process, some after it.
const RESTART_DELAYS: [Duration; 3] = [Duration::from_secs(5), Duration::from_secs(14), Duration::from_secs(1)];

pub fn restart_delay(run: usize) -> Duration {
    RESTART_DELAYS[run % RESTART_DELAYS.len()]
}

/// Handle by which faults reach the current process of a name. Clones share it.
#[derive(Clone)]
pub struct ProcessHandle(Rc<RefCell<ProcessState>>);

struct ProcessState {
    budget: StepBudget,
    link: SimLink,
    session: i64,
    /// State of that session; `None` if no process was started.
    state: Option<watch::Receiver<SessionState>>,
}

impl ProcessHandle {
    pub fn absent() -> Self {
        Self(Rc::new(RefCell::new(ProcessState {
            budget: StepBudget::unlimited(),
            link: SimLink::new(0),
            session: 0,
            state: None,
        })))
    }

    /// Opens another session of the process with this budget.
    pub fn connect(&self, budget: &StepBudget, zookeeper: &MemoryZooKeeper) -> Zk {
        let inner = zookeeper.connect();
        budget.track_session(inner.session());
        let (session, link) = (inner.session_id(), SimLink::new(inner.session_id() as u64));
        let state = Some(inner.session());
        *self.0.borrow_mut() = ProcessState { budget: budget.clone(), link: link.clone(), session, state };
        Arc::new(KillableConnection { inner, budget: budget.clone(), link })
    }

    pub fn session(&self) -> i64 {
        self.0.borrow().session
    }

    /// Whether the process has a live session and was not killed.
    pub fn is_alive(&self) -> bool {
        let budget = self.budget();
        !budget.is_exhausted() && budget.live_session().is_some()
    }

    /// The session of the process, if it is alive and its connection has no fault.
    pub fn healthy_session(&self) -> Option<i64> {
        let current = self.0.borrow();
        let is_connected = current.state.as_ref().is_some_and(|state| *state.borrow() == SessionState::Connected);
        (is_connected && current.link.is_undelayed() && self.is_alive()).then_some(current.session)
    }

    pub fn link(&self) -> SimLink {
        self.0.borrow().link.clone()
    }

    pub fn budget(&self) -> StepBudget {
        self.0.borrow().budget.clone()
    }

    /// Makes the server of the current session lag behind the leader.
    pub fn set_lag(&self, lag: Duration, zookeeper: &MemoryZooKeeper) -> Lag {
        let lag = Lag { lag, session: self.session(), link: self.link(), zookeeper: zookeeper.clone() };
        lag.set(lag.lag);
        lag
    }
}

/// Lag of the server of one session.
pub struct Lag {
    lag: Duration,
    session: i64,
    link: SimLink,
    zookeeper: MemoryZooKeeper,
}

impl Lag {
    fn set(&self, lag: Duration) {
        self.zookeeper.lag(self.session, (!lag.is_zero()).then_some(lag));
        self.link.set_lag(lag);
    }

    /// Ends the lag, unless another one replaced it.
    pub fn end(&self) {
        if self.link.lag() == self.lag {
            self.set(Duration::ZERO);
        }
    }
}

/// A started process.
pub struct Started {
    pub process: InProcessDaemon,
    pub run: StartActors,
}

/// Starts the actor tree of the process on a session.
pub type StartActors = Box<dyn FnMut(&mut InProcessDaemon, Zk) -> JoinHandle<SessionEnd>>;

/// Keeps a program running: opens a new session after one ended, and starts a new process after a kill.
pub fn keep_running(
    name: &'static str,
    zookeeper: &MemoryZooKeeper,
    start: impl Fn(&StepBudget) -> Started + 'static,
) -> ProcessHandle {
    let (process, zookeeper) = (ProcessHandle::absent(), zookeeper.clone());
    let handle = process.clone();
    actix_rt::spawn(async move {
        for run in 0.. {
            let budget = StepBudget::unlimited();
            run_until_killed(name, start(&budget), &budget, &handle, &zookeeper).await;
            tokio::time::sleep(restart_delay(run)).await;
        }
    });
    process
}

async fn run_until_killed(
    name: &str,
    mut started: Started,
    budget: &StepBudget,
    handle: &ProcessHandle,
    zookeeper: &MemoryZooKeeper,
) {
    while !budget.is_exhausted() {
        let running = (started.run)(&mut started.process, handle.connect(budget, zookeeper));
        tokio::select! {
            biased;
            ended = running => {
                let end = ended.expect("the actor tree ends without a panic");
                assert!(!matches!(end, SessionEnd::Panicked(_) | SessionEnd::StoreRolledBack), "{name}: {end:?}");
            }
            () = budget.exhausted() => break,
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // The remaining tasks of the killed process have no visible effect.
    started.process.stop();
}

/// Time after which the effects of decisions on the previous configuration are complete.
pub const CONFIG_GRACE_PERIOD: Duration = Duration::from_secs(60);

/// The configuration file of a launcher. Clones share the file.
#[derive(Clone)]
pub struct Configured {
    pub launcher: &'static Launcher,
    participants: Participants,
    files: ConfigFileSource,
    history: RunHistory,
    reload_sizes: Rc<Cell<ReloadSizes>>,
    written: Rc<Cell<Instant>>,
}

impl Configured {
    /// Writes the file, which the launcher reads at its next poll.
    pub fn set(&self, sizes: ReloadSizes) {
        let ConfigFileSource::InMemory(files) = &self.files else { unreachable!("simulated files are in memory") };
        files.lock().unwrap().insert("nodepool.yaml".into(), self.launcher.yaml(sizes, self.participants));
        for (pool, servers) in self.launcher.limits(sizes, self.participants) {
            self.history.limit(&pool, servers, CONFIG_GRACE_PERIOD);
        }
        for (label, number) in self.launcher.min_ready(sizes, self.participants) {
            self.history.min_ready(self.launcher.name, &label.into(), number);
        }
        self.reload_sizes.set(sizes);
        self.written.set(Instant::now());
    }

    /// Whether no section is removed from the file, and the launcher has had the time to read it.
    pub fn is_settled(&self) -> bool {
        self.reload_sizes.get().removed.is_none() && self.written.get().elapsed() > CONFIG_GRACE_PERIOD
    }

    /// Restores a removed section.
    pub fn restore_removed(&self) {
        self.set(ReloadSizes { removed: None, ..self.reload_sizes.get() });
    }
}

/// Keeps a launcher running.
pub fn launcher(
    launcher: &'static Launcher,
    participants: Participants,
    zookeeper: &MemoryZooKeeper,
    clouds: &Clouds,
    history: &RunHistory,
) -> (ProcessHandle, Configured) {
    let files = ConfigFileSource::InMemory(Arc::default());
    let (sizes, written) = (Rc::default(), Rc::new(Cell::new(Instant::now())));
    let configured = Configured {
        launcher,
        participants,
        files: files.clone(),
        history: history.clone(),
        reload_sizes: sizes,
        written,
    };
    configured.set(ReloadSizes::default());
    let (clouds, history, sessions) = (clouds.clone(), history.clone(), history.clone());
    let handle = keep_running(launcher.name, zookeeper, move |budget| {
        let tune = |options: &mut nodepool::actors::process::context::LauncherOptions| {
            (options.files, options.config) = (files.clone(), "nodepool.yaml".into());
            options.delete_interval = Seconds(30.0);
            options.watermark_sleep = Seconds(30.0);
            // Polls are rare, because no consumer waits for a reload, and each poll wakes all actors of the launcher.
            options.config_check = Seconds(11.0);
        };
        let process = InProcessDaemon::with_identity(
            Identity::named(launcher.name),
            "",
            tune,
            Some(clouds.drivers(launcher.name, budget)),
        );
        actix_rt::spawn(check_launcher(launcher.name, process.shared.clone(), budget.clone(), history.clone()));
        let sessions = sessions.clone();
        let run = move |process: &mut InProcessDaemon, zk: Zk| {
            sessions.session(zk.session_id(), launcher.name);
            process.run_on(zk)
        };
        Started { process, run: Box::new(run) }
    });
    (handle, configured)
}
