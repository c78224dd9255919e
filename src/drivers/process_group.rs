//! A child process and all that it has started, which end together.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Child;

/// From the request to end to the end by force: what a build has mounted it should be able to take down.
const GRACE: Duration = Duration::from_secs(10);

/// A child and all that it has started, as far as it stayed in its process group.
pub struct Group {
    child: Child,
    id: Option<Pid>,
    has_ended: bool,
}

impl Group {
    pub fn of(child: Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        Self { child, id, has_ended: false }
    }

    /// By request first, and then by force.
    pub async fn end(&mut self) {
        self.signal(Signal::SIGTERM);
        // Whether it ended by itself or not: what is left of the group goes with it.
        let _ = tokio::time::timeout(GRACE, self.child.wait()).await;
        self.signal(Signal::SIGKILL);
        let _ = self.child.wait().await;
        self.has_ended = true;
    }

    /// For the child alone.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// The child has ended by itself, and what it has left running is its own business.
    pub fn has_ended(&mut self) {
        self.has_ended = true;
    }

    fn signal(&self, signal: Signal) {
        if let Some(id) = self.id {
            // A group that is gone needs none.
            let _ = killpg(id, signal);
        }
    }
}

/// By a signal it is the signal's number below zero.
pub fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| -status.signal().unwrap_or_default())
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.has_ended {
            self.signal(Signal::SIGTERM);
            self.signal(Signal::SIGKILL);
        }
    }
}
