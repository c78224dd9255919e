//! A child process and its descendants, which are terminated together.

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

/// Time from SIGTERM to SIGKILL, in which a build can unmount its file systems.
pub const GRACE_PERIOD: Duration = Duration::from_secs(8);

/// Number of process groups that have not ended.
static RUNNING_GROUPS: LazyLock<watch::Sender<usize>> = LazyLock::new(|| watch::Sender::new(0));

/// Waits until all process groups have ended. An earlier exit would end the threads that terminate them, and leave
/// their file systems mounted.
pub async fn wait_until_all_ended() {
    // The sender is never dropped.
    let _ = RUNNING_GROUPS.subscribe().wait_for(|running| *running == 0).await;
}

/// A child and its descendants in its process group. If dropped, the group is terminated in the background.
pub struct ProcessGroup(Option<Running>);

struct Running {
    child: Child,
    id: Option<Pid>,
}

impl ProcessGroup {
    pub fn new(child: Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        RUNNING_GROUPS.send_modify(|running| *running += 1);
        Self(Some(Running { child, id }))
    }

    /// Sends SIGTERM, and SIGKILL after the grace period.
    pub async fn terminate(&mut self) {
        if let Some(running) = &mut self.0 {
            running.terminate().await;
        }
        self.0 = None;
    }

    /// Waits for the child only, not for its descendants.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        match &mut self.0 {
            Some(running) => running.child.wait().await,
            None => Err(io::Error::other("the process group was terminated")),
        }
    }

    /// The child has exited by itself. Its remaining background processes are not terminated.
    pub fn mark_exited(&mut self) {
        if let Some(mut running) = self.0.take() {
            running.id = None;
        }
    }
}

impl Running {
    async fn terminate(&mut self) {
        self.signal(Signal::SIGTERM);
        // The rest of the group is killed in any case, whether the child has exited or not.
        let _ = tokio::time::timeout(GRACE_PERIOD, self.child.wait()).await;
        self.signal(Signal::SIGKILL);
        let _ = self.child.wait().await;
        self.id = None;
    }

    fn signal(&self, signal: Signal) {
        if let Some(id) = self.id {
            // The group may have ended already.
            let _ = killpg(id, signal);
        }
    }
}

/// The exit code; the negated signal number if a signal killed the process.
pub fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| -status.signal().unwrap_or_default())
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // Without a runtime, dropping `Running` kills the group at once.
        if let (Some(mut running), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(async move { running.terminate().await });
        }
    }
}

/// Kills a group that has not ended, without a grace period: the runtime is shutting down.
impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::SIGTERM);
        self.signal(Signal::SIGKILL);
        RUNNING_GROUPS.send_modify(|running| *running -= 1);
    }
}
