//! Supervised process: a launcher or builder that is restarted after each kill.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::proxy::{LinkState, LinkStats, Proxy};
use crate::programs;
use crate::real::{self, nodepool_process::NodepoolProcess};
use nix::sys::signal::Signal;
use tokio::sync::watch;

/// Number of previous processes whose logs are kept.
const MAX_KEPT_RUNS: usize = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Launcher,
    Builder,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Self::Launcher => "launcher",
            Self::Builder => "builder",
        }
    }

    /// Program and flags. Periodic rules run often, so that they take effect within the test.
    fn command(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Launcher => {
                let flags = &["-d", "--no-webapp", "--cleanup-interval", "2", "--delete-interval", "1"];
                (programs::launcher(), flags)
            }
            Self::Builder => {
                let flags = &["-d", "--cleanup-interval", "1", "--build-interval", "1", "--upload-interval", "1"];
                (programs::builder(), flags)
            }
        }
    }
}

/// Parameters of a supervised process.
pub struct ProcessSpec {
    pub role: Role,
    pub configuration: String,
    /// User of the process in the cloud.
    pub user: String,
    pub clouds: PathBuf,
    /// The file with the offset of the process's wall clock.
    pub clock: Option<PathBuf>,
}

impl ProcessSpec {
    fn start(&self) -> NodepoolProcess {
        let mut environment = vec![("OS_CLIENT_CONFIG_FILE", self.clouds.as_path())];
        let library = PathBuf::from(real::setting("NODEPOOL_TEST_FAKETIME"));
        if let Some(clock) = &self.clock {
            environment.extend([
                ("LD_PRELOAD", library.as_path()),
                ("FAKETIME_TIMESTAMP_FILE", clock),
                ("FAKETIME_NO_CACHE", Path::new("1")),
                // Only the wall clock is changed; monotonic time is not.
                ("FAKETIME_DONT_FAKE_MONOTONIC", Path::new("1")),
            ]);
        }
        let (executable, flags) = self.role.command();
        NodepoolProcess::start_in(&environment, executable, &self.configuration, flags)
    }
}

pub struct SupervisedProcess {
    pub process: NodepoolProcess,
    pub link: watch::Sender<LinkState>,
    pub link_stats: LinkStats,
    /// Killed processes, for their logs.
    previous: VecDeque<NodepoolProcess>,
    spec: ProcessSpec,
    _proxies: Vec<Proxy>,
}

impl SupervisedProcess {
    pub fn start(
        spec: ProcessSpec,
        link: watch::Sender<LinkState>,
        link_stats: LinkStats,
        proxies: Vec<Proxy>,
    ) -> SupervisedProcess {
        if let Some(clock) = &spec.clock {
            std::fs::write(clock, "+0").expect("a new directory is writable");
        }
        SupervisedProcess {
            process: spec.start(),
            link,
            link_stats,
            previous: VecDeque::new(),
            spec,
            _proxies: proxies,
        }
    }

    /// User of the process in the cloud.
    pub fn user(&self) -> &str {
        &self.spec.user
    }

    pub fn role(&self) -> Role {
        self.spec.role
    }

    /// Number of messages that the link of the process delayed or refused.
    pub fn affected_messages(&self) -> usize {
        self.link_stats.affected_messages.load(Ordering::Relaxed)
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts the process again after a kill.
    pub fn start_again(&mut self) {
        let next = self.spec.start();
        self.previous.push_back(std::mem::replace(&mut self.process, next));
        self.previous.drain(..self.previous.len().saturating_sub(MAX_KEPT_RUNS));
    }

    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Sets the offset of the process's wall clock.
    pub fn set_clock(&self, seconds: i64) {
        let clock = self.spec.clock.as_ref().expect("the process was started with a clock file");
        // Rename, so that the process never reads a partial file.
        let next = clock.with_extension("next");
        std::fs::write(&next, format!("{seconds:+}")).expect("the directory is writable");
        std::fs::rename(&next, clock).expect("the directory is writable");
    }

    /// Whether libfaketime is loaded in the process.
    pub fn has_own_clock(&self) -> bool {
        let mapped = std::fs::read_to_string(format!("/proc/{}/maps", self.process.pid())).expect("the process runs");
        mapped.contains("faketime")
    }

    /// The logs of the kept processes.
    pub fn log(&self) -> String {
        let runs = self.previous.iter().chain([&self.process]);
        runs.map(|run| format!("=== {}\n{}", run.pid(), run.log())).collect()
    }
}
