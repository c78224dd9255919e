//! Going into the background, before any thread or runtime exists.

use std::fs::{self, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};

use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{ForkResult, chdir, close, dup2_stderr, dup2_stdin, dup2_stdout, fork, setsid};

#[derive(Debug, thiserror::Error)]
#[error("cannot go into the background: {action}")]
pub struct DaemonError {
    action: &'static str,
    source: io::Error,
}

/// Closes what the starting program left open beside the three standard streams. To be called before we open
/// anything ourselves.
pub fn close_inherited_files() {
    let Ok(listing) = fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<i32> = listing.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2) {
        // The one that read the listing is among them and closed already.
        let _ = close(descriptor);
    }
}

/// A daemon that is not yet on its own: whoever started it waits until it is ready or has failed, so that what goes
/// wrong at the start is seen on the terminal and in the exit status.
#[must_use = "the starting process waits for `ready`"]
pub struct Detached {
    ready_pipe: PipeWriter,
}

/// Leaves the terminal's session and goes on in a child of a child. The calling process waits there for `ready` and
/// ends; this returns in the last child only.
///
/// The folder is `/`, the file mode mask 0 and no core is dumped from here on. The standard streams stay until
/// `ready`.
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
    /// Lets the starter end with success and leads the standard streams nowhere. Dropped without it, it lets the starter
    /// end with a failure.
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
        // A starter that was killed meanwhile does not want to know.
        let _ = (&self.ready_pipe).write_all(b"+");
        Ok(())
    }
}

/// The exit status: success where the daemon said that it is ready, failure where it ended before.
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
        // SAFETY: ignoring a signal installs no handler that could run at a bad moment.
        unsafe { signal(stop, SigHandler::SigIgn) }?;
    }
    Ok(())
}
