//! A child process and all that it has started, which end together.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::LazyLock;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// From the request to end to the end by force: what a build has mounted it should be able to take down.
pub const GRACE_PERIOD: Duration = Duration::from_secs(8);

/// Groups of this process that have not ended.
static RUNNING_GROUPS: LazyLock<watch::Sender<usize>> = LazyLock::new(|| watch::Sender::new(0));

/// Once none is left. Whoever exits before that takes the threads along that end them, and leaves what they have mounted.
pub async fn wait_until_all_ended() {
    // The sender is there as long as the program.
    let _ = RUNNING_GROUPS.subscribe().wait_for(|running| *running == 0).await;
}

/// A child and all that it has started, as far as it stayed in its process group. Dropped, it ends as by `end`, in the background.
pub struct ProcessGroup(Option<Running>);

struct Running {
    child: Child,
    id: Option<Pid>,
}

impl ProcessGroup {
    pub fn new(child: Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        RUNNING_GROUPS.send_modify(|living| *living += 1);
        Self(Some(Running { child, id }))
    }

    /// By request first, and then by force.
    pub async fn terminate(&mut self) {
        if let Some(running) = &mut self.0 {
            running.terminate().await;
        }
        self.0 = None;
    }

    /// For the child alone.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        match &mut self.0 {
            Some(running) => running.child.wait().await,
            None => Err(io::Error::other("it was ended")),
        }
    }

    /// The child has ended by itself, and what it has left running is its own business.
    pub fn mark_exited(&mut self) {
        if let Some(mut running) = self.0.take() {
            running.id = None;
        }
    }
}

impl Running {
    async fn terminate(&mut self) {
        self.signal(Signal::SIGTERM);
        // Whether it ended by itself or not: what is left of the group goes with it.
        let _ = tokio::time::timeout(GRACE_PERIOD, self.child.wait()).await;
        self.signal(Signal::SIGKILL);
        let _ = self.child.wait().await;
        self.id = None;
    }

    fn signal(&self, signal: Signal) {
        if let Some(id) = self.id {
            // A group that is gone needs none.
            let _ = killpg(id, signal);
        }
    }
}

/// By a signal it is the signal's number below zero.
pub fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| -status.signal().unwrap_or_default())
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // Without a runtime it ends by force at once.
        if let (Some(mut running), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(async move { running.terminate().await });
        }
    }
}

/// By force where there is no time: the runtime ends.
impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::SIGTERM);
        self.signal(Signal::SIGKILL);
        RUNNING_GROUPS.send_modify(|living| *living -= 1);
    }
}
