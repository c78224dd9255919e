//! Daemonization, before any thread or runtime exists.

use std::fs::{self, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};

use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{ForkResult, chdir, close, dup2_stderr, dup2_stdin, dup2_stdout, fork, setsid};

#[derive(Debug, thiserror::Error)]
#[error("cannot run as a daemon: failed to {action}")]
pub struct DaemonError {
    action: &'static str,
    source: io::Error,
}

/// Closes inherited file descriptors other than the three standard streams. Must run before this process opens a file.
pub fn close_inherited_files() {
    let Ok(listing) = fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<i32> = listing.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2) {
        // The list includes the descriptor of the listing itself, which is closed already.
        let _ = close(descriptor);
    }
}

/// A daemon during start-up. The starting process waits until it is ready or has failed, so that start-up errors appear
/// on the terminal and in the exit status.
#[must_use = "the starting process waits for `ready`"]
pub struct Detached {
    ready_pipe: PipeWriter,
}

/// Forks twice and starts a new session. The calling process waits for `ready` and exits; the function returns only in
/// the grandchild.
///
/// From then on the working directory is `/`, the file mode mask is 0, and no core is dumped. The standard streams stay
/// open until `ready`.
pub fn detach() -> Result<Detached, DaemonError> {
    let (outcome, ready_pipe) = pipe().map_err(|source| DaemonError { action: "open a pipe", source })?;
    if let ForkSide::Parent = fork_process().map_err(|error| failed("fork", error))? {
        drop(ready_pipe);
        std::process::exit(wait_for_ready(outcome));
    }
    drop(outcome);
    setsid().map_err(|error| failed("start a session", error))?;
    // The second child does not lead the session, so it can never get a terminal again.
    if let ForkSide::Parent = fork_process().map_err(|error| failed("fork again", error))? {
        std::process::exit(0);
    }
    chdir("/").map_err(|error| failed("change to /", error))?;
    umask(Mode::empty());
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(|error| failed("turn off core dumps", error))?;
    ignore_terminal_stops().map_err(|error| failed("ignore the terminal's signals", error))?;
    Ok(Detached { ready_pipe })
}

impl Detached {
    /// Lets the starting process exit with success, and redirects the standard streams to `/dev/null`. If `Detached` is
    /// dropped without this call, the starting process exits with a failure.
    pub fn ready(&self) -> Result<(), DaemonError> {
        let dev_null = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/null")
            .map_err(|source| DaemonError { action: "open /dev/null", source })?;
        dup2_stdin(&dev_null)
            .and_then(|()| dup2_stdout(&dev_null))
            .and_then(|()| dup2_stderr(&dev_null))
            .map_err(|error| failed("redirect the standard streams", error))?;
        // Fails if the starting process was killed meanwhile; it no longer needs the result.
        let _ = (&self.ready_pipe).write_all(b"+");
        Ok(())
    }
}

/// Exit status: success if the daemon reported that it is ready, failure if it exited before.
fn wait_for_ready(mut outcome: PipeReader) -> i32 {
    let mut byte = [0];
    match outcome.read_exact(&mut byte) {
        Ok(()) => 0,
        Err(_) => 1,
    }
}

fn failed(action: &'static str, error: Errno) -> DaemonError {
    DaemonError { action, source: error.into() }
}

enum ForkSide {
    Parent,
    Child,
}

#[allow(unsafe_code)]
fn fork_process() -> Result<ForkSide, Errno> {
    // SAFETY: after a fork in a program with several threads the child may call only a few functions. This program
    // has one thread here: `main` calls this before it builds a runtime, and nothing earlier starts a thread.
    match unsafe { fork() }? {
        ForkResult::Parent { .. } => Ok(ForkSide::Parent),
        ForkResult::Child => Ok(ForkSide::Child),
    }
}

#[allow(unsafe_code)]
fn ignore_terminal_stops() -> Result<(), Errno> {
    for stop in [Signal::SIGTTIN, Signal::SIGTTOU, Signal::SIGTSTP] {
        // SAFETY: ignoring a signal installs no handler.
        unsafe { signal(stop, SigHandler::SigIgn) }?;
    }
    Ok(())
}
