//! Processes that are killed at any step, lose their sessions, and are started again by somebody.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nodepool::actors::process::context::SessionEnd;
use nodepool::actors::process::files::ConfigFileSource;
use nodepool::actors::process::identity::Identity;
use nodepool_model::records::time::Seconds;
use nodepool_zk::memory::MemoryZooKeeper;
use nodepool_zk::{Connection, SessionState, Zk};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::cloud::Clouds;
use super::configuration::{Launcher, Participants, ReloadSizes};
use super::history::RunHistory;
use super::liveness::check_launcher;
use super::network::SimLink;
use super::step_budget::{KillableConnection, StepBudget};
use crate::in_process_launcher::InProcessDaemon;

/// What a ZooKeeper waits before it ends the session of somebody who has died.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// Whoever starts a process again takes so long: sooner, and later, than the session of its last life ends.
const RESTART_DELAYS: [Duration; 3] = [Duration::from_secs(5), Duration::from_secs(14), Duration::from_secs(1)];

pub fn restart_delay(run: usize) -> Duration {
    RESTART_DELAYS[run % RESTART_DELAYS.len()]
}

/// Where faults take hold of the process that runs under a name now. Clones are the same.
#[derive(Clone)]
pub struct ProcessHandle(Rc<RefCell<ProcessState>>);

struct ProcessState {
    budget: StepBudget,
    link: SimLink,
    session: i64,
    /// Of that session, if anybody sits there.
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

    /// Another session of the process behind this gate.
    pub fn connect(&self, budget: &StepBudget, zookeeper: &MemoryZooKeeper) -> Zk {
        let inner = zookeeper.connect();
        budget.track_session(inner.session());
        let (session, wire) = (inner.session_id(), SimLink::new(inner.session_id() as u64));
        let state = Some(inner.session());
        *self.0.borrow_mut() = ProcessState { budget: budget.clone(), link: wire.clone(), session, state };
        Arc::new(KillableConnection { inner, budget: budget.clone(), link: wire })
    }

    pub fn session(&self) -> i64 {
        self.0.borrow().session
    }

    /// Somebody sits there, with a session, and has not been killed.
    pub fn is_alive(&self) -> bool {
        let budget = self.budget();
        !budget.is_exhausted() && budget.live_session().is_some()
    }

    /// The session of who sits there, as long as nothing is wrong with its connection.
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

    /// Its server is so much behind the leader from now on, in the session that it has.
    pub fn set_lag(&self, lag: Duration, zookeeper: &MemoryZooKeeper) -> Lag {
        let lag = Lag { lag, session: self.session(), wire: self.link(), zookeeper: zookeeper.clone() };
        lag.set(lag.lag);
        lag
    }
}

/// That the server of a session is behind.
pub struct Lag {
    lag: Duration,
    session: i64,
    wire: SimLink,
    zookeeper: MemoryZooKeeper,
}

impl Lag {
    fn set(&self, lag: Duration) {
        self.zookeeper.lag(self.session, (!lag.is_zero()).then_some(lag));
        self.wire.set_lag(lag);
    }

    /// Unless it is another lag by now.
    pub fn end(&self) {
        if self.wire.lag() == self.lag {
            self.set(Duration::ZERO);
        }
    }
}

/// A program, in one of its lives.
pub struct Started {
    pub process: InProcessDaemon,
    pub run: StartActors,
}

/// Grows its tree on a session.
pub type StartActors = Box<dyn FnMut(&mut InProcessDaemon, Zk) -> JoinHandle<SessionEnd>>;

/// Keeps a program running: after a session with another one, after its death as another process.
pub fn keep_running(
    name: &'static str,
    zookeeper: &MemoryZooKeeper,
    start: impl Fn(&StepBudget) -> Started + 'static,
) -> ProcessHandle {
    let (process, zookeeper) = (ProcessHandle::absent(), zookeeper.clone());
    let handle = process.clone();
    actix_rt::spawn(async move {
        for run in 0.. {
            let gate = StepBudget::unlimited();
            run_until_killed(name, start(&gate), &gate, &handle, &zookeeper).await;
            tokio::time::sleep(restart_delay(run)).await;
        }
    });
    process
}

async fn run_until_killed(
    name: &str,
    mut started: Started,
    gate: &StepBudget,
    handle: &ProcessHandle,
    zookeeper: &MemoryZooKeeper,
) {
    while !gate.is_exhausted() {
        let running = (started.run)(&mut started.process, handle.connect(gate, zookeeper));
        tokio::select! {
            biased;
            ended = running => {
                let end = ended.expect("a tree ends in order");
                assert!(!matches!(end, SessionEnd::Panicked(_) | SessionEnd::StoreRolledBack), "{name}: {end:?}");
            }
            () = gate.exhausted() => break,
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // What is left of it does nothing any more that anybody would see.
    started.process.stop();
}

/// What was decided on an older configuration has been done by then.
const CONFIG_GRACE_PERIOD: Duration = Duration::from_secs(60);

/// The configuration file of a launcher. Clones are the same file.
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
    /// What it reads at its next look.
    pub fn set(&self, sizes: ReloadSizes) {
        let ConfigFileSource::InMemory(files) = &self.files else { unreachable!("simulated files are in memory") };
        files.lock().unwrap().insert("nodepool.yaml".into(), self.launcher.yaml(sizes, self.participants));
        for (pool, servers) in self.launcher.limits(sizes, self.participants) {
            self.history.limit(&pool, servers, CONFIG_GRACE_PERIOD);
        }
        self.reload_sizes.set(sizes);
        self.written.set(Instant::now());
    }

    /// It has had all for so long that the launcher knows.
    pub fn is_settled(&self) -> bool {
        self.reload_sizes.get().removed.is_none() && self.written.get().elapsed() > CONFIG_GRACE_PERIOD
    }

    /// It lacks nothing any more.
    pub fn restore_removed(&self) {
        self.set(ReloadSizes { removed: None, ..self.reload_sizes.get() });
    }
}

/// Keeps a launcher running.
pub fn launcher(
    launcher: &'static Launcher,
    cast: Participants,
    zookeeper: &MemoryZooKeeper,
    clouds: &Clouds,
    book: &RunHistory,
) -> (ProcessHandle, Configured) {
    let files = ConfigFileSource::InMemory(Arc::default());
    let (sizes, written) = (Rc::default(), Rc::new(Cell::new(Instant::now())));
    let configured = Configured {
        launcher,
        participants: cast,
        files: files.clone(),
        history: book.clone(),
        reload_sizes: sizes,
        written,
    };
    configured.set(ReloadSizes::default());
    let (clouds, book) = (clouds.clone(), book.clone());
    let handle = keep_running(launcher.name, zookeeper, move |gate| {
        let tune = |options: &mut nodepool::actors::process::context::LauncherOptions| {
            (options.files, options.config) = (files.clone(), "nodepool.yaml".into());
            options.delete_interval = Seconds(30.0);
            options.watermark_sleep = Seconds(30.0);
            // Seldom: nobody waits for a reload, and each look wakes the whole launcher.
            options.config_check = Seconds(11.0);
        };
        let process =
            InProcessDaemon::with_identity(Identity::named(launcher.name), "", tune, Some(clouds.drivers(gate)));
        actix_rt::spawn(check_launcher(launcher.name, process.shared.clone(), gate.clone(), book.clone()));
        Started { process, run: Box::new(|process, zk| process.run_on(zk)) }
    });
    (handle, configured)
}
