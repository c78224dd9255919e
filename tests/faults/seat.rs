//! The place of a launcher or a builder, which is taken by one process after another.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use nix::sys::signal::Signal;
use tokio::sync::watch;

use super::proxy::{LinkState, Seen, Wire};
use crate::support::real::{self, process::Nodepool};

/// Lives of a process whose logs are kept.
const LIVES: usize = 60;

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

    /// One whose slow rules run often, so that what they find is found within the test.
    fn command(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Launcher => {
                let flags = &["-d", "--no-webapp", "--cleanup-interval", "2", "--delete-interval", "1"];
                (env!("CARGO_BIN_EXE_nodepool-launcher"), flags)
            }
            Self::Builder => {
                let flags = &["-d", "--cleanup-interval", "1", "--build-interval", "1", "--upload-interval", "1"];
                (env!("CARGO_BIN_EXE_nodepool-builder"), flags)
            }
        }
    }
}

/// What each of the processes is started with.
pub struct Post {
    pub role: Role,
    pub configuration: String,
    /// Who it is for the cloud.
    pub user: String,
    pub clouds: PathBuf,
    /// The file that says how wrong its wall clock is.
    pub clock: Option<PathBuf>,
}

impl Post {
    fn start(&self) -> Nodepool {
        let mut environment = vec![("OS_CLIENT_CONFIG_FILE", self.clouds.as_path())];
        let library = PathBuf::from(real::setting("NODEPOOL_TEST_FAKETIME"));
        if let Some(clock) = &self.clock {
            environment.extend([
                ("LD_PRELOAD", library.as_path()),
                ("FAKETIME_TIMESTAMP_FILE", clock),
                ("FAKETIME_NO_CACHE", Path::new("1")),
                // Time goes on as it does: it is what clocks show that is wrong.
                ("FAKETIME_DONT_FAKE_MONOTONIC", Path::new("1")),
            ]);
        }
        let (executable, flags) = self.role.command();
        Nodepool::start_in(&environment, executable, &self.configuration, flags)
    }
}

pub struct Seat {
    pub process: Nodepool,
    pub link: watch::Sender<Wire>,
    pub seen: Seen,
    /// Processes that are no more.
    past: VecDeque<Nodepool>,
    post: Post,
    _proxies: Vec<Proxy>,
}

impl Seat {
    pub fn take(post: Post, link: watch::Sender<Wire>, seen: Seen, proxies: Vec<Proxy>) -> Seat {
        if let Some(clock) = &post.clock {
            std::fs::write(clock, "+0").expect("a new directory is writable");
        }
        Seat { process: post.start(), link, seen, past: VecDeque::new(), post, _proxies: proxies }
    }

    /// Who it is for the cloud.
    pub fn user(&self) -> &str {
        &self.post.user
    }

    pub fn role(&self) -> Role {
        self.post.role
    }

    /// What happened to what it asks and hears.
    pub fn struck(&self) -> usize {
        self.seen.struck.load(Ordering::Relaxed)
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// After a kill.
    pub fn start_again(&mut self) {
        let next = self.post.start();
        self.past.push_back(std::mem::replace(&mut self.process, next));
        self.past.drain(..self.past.len().saturating_sub(LIVES));
    }

    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Its wall clock shows that much more, or less, than it should.
    pub fn set_clock(&self, seconds: i64) {
        let clock = self.post.clock.as_ref().expect("it was started with a clock that can be set");
        // Whoever reads it meanwhile finds one or the other.
        let next = clock.with_extension("next");
        std::fs::write(&next, format!("{seconds:+}")).expect("the directory is writable");
        std::fs::rename(&next, clock).expect("the directory is writable");
    }

    /// Whether what shows it another time is in the process at all.
    pub fn has_own_clock(&self) -> bool {
        let mapped = std::fs::read_to_string(format!("/proc/{}/maps", self.process.pid())).expect("it runs");
        mapped.contains("faketime")
    }

    /// Of all lives that are remembered.
    pub fn log(&self) -> String {
        let lives = self.past.iter().chain([&self.process]);
        lives.map(|life| format!("=== {}\n{}", life.pid(), life.log())).collect()
    }
}
