//! Runs a command with the nodes: their description in files and variables, signals passed on, its status ours.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::commands::request::consumer::LockedNode;
use crate::commands::request::inventory::{self, Credentials};
use crate::interrupts::{Interrupt, Interrupts};
use crate::output::Output;

/// How long a command may take to end after it was asked to, before it is killed.
const GRACE_PERIOD: Duration = Duration::from_secs(10);

/// A private directory with what a command reads; it goes when this does.
struct NodeFiles {
    directory: PathBuf,
}

impl NodeFiles {
    fn write(nodes: &[LockedNode]) -> anyhow::Result<Self> {
        let name = format!("nodepool-request-{}", uuid::Uuid::new_v4().simple());
        let directory = std::env::temp_dir().join(name);
        let create = std::fs::DirBuilder::new().mode(0o700).create(&directory);
        create.with_context(|| format!("cannot create {}", directory.display()))?;
        let files = Self { directory };
        let list: Value = nodes.iter().map(|node| inventory::describe(node, Credentials::Included)).collect();
        files.put("nodes.json", &format!("{list:#}\n"))?;
        files.put("known_hosts", &inventory::known_hosts(nodes))?;
        let inventory = inventory::ansible(nodes, &files.path("known_hosts").to_string_lossy());
        files.put("inventory.yaml", &serde_yaml::to_string(&inventory).context("cannot write the inventory")?)?;
        Ok(files)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn put(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.path(name);
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Drop for NodeFiles {
    fn drop(&mut self) {
        // The nodes are what must be given back; a file left in the directory for temporary files is not worth more.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Runs the command to its end and returns its status. It is asked to end when we are, and when the nodes are lost.
pub async fn run(
    nodes_lost: impl Future<Output = ()>,
    nodes: &[LockedNode],
    command: &[OsString],
    interrupts: &mut Interrupts,
    output: &mut Output<'_>,
) -> anyhow::Result<u8> {
    let files = NodeFiles::write(nodes)?;
    let (program, arguments) = command.split_first().context("there is no command to run")?;
    let mut prepared = Command::new(program);
    prepared
        .args(arguments)
        .envs(inventory::variables(nodes))
        .env("NODEPOOL_NODES", files.path("nodes.json"))
        .env("NODEPOOL_INVENTORY", files.path("inventory.yaml"))
        .env("NODEPOOL_KNOWN_HOSTS", files.path("known_hosts"))
        .kill_on_drop(true);
    set_parent_death_signal(&mut prepared);
    let spawned = prepared.spawn();
    let child = match spawned {
        Ok(child) => child,
        Err(error) => {
            // The statuses that shells give.
            let status = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
            let message = format!("cannot run {}: {error}", Path::new(program).display());
            output.outcome(json!({"outcome": "failed", "message": message}))?;
            output.note(format_args!("nodepool: {message}"))?;
            return Ok(status);
        }
    };
    supervise(nodes_lost, child, interrupts, output).await
}

/// Where we are killed, the nodes go to others, and the command must not go on with them.
#[allow(unsafe_code)]
fn set_parent_death_signal(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call, which takes no lock and no memory.
    unsafe {
        command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?));
    }
}

async fn supervise(
    nodes_lost: impl Future<Output = ()>,
    mut child: Child,
    interrupts: &mut Interrupts,
    output: &mut Output<'_>,
) -> anyhow::Result<u8> {
    let mut has_lost_nodes = false;
    let source = tokio::select! {
        ended = child.wait() => return Ok(status(ended?)),
        interrupt = interrupts.next() => request_exit(&child, interrupt),
        () = nodes_lost => {
            let why = "the ZooKeeper session is over, or may be soon, and with it the claim to the nodes";
            output.note(format_args!("WARNING {why}; ending the command"))?;
            has_lost_nodes = true;
            request_exit(&child, Interrupt::Terminated)
        }
    };
    let exit_status = wait_for_exit(child, source, interrupts, output).await?;
    if has_lost_nodes && exit_status == 0 {
        bail!("the nodes were lost while the command ran");
    }
    Ok(exit_status)
}

/// Who has told a command to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InterruptSource {
    Nodepool,
    /// We believe so.
    Terminal,
}

/// Waits for a command that was asked to end.
async fn wait_for_exit(
    mut child: Child,
    mut source: InterruptSource,
    interrupts: &mut Interrupts,
    output: &mut Output<'_>,
) -> anyhow::Result<u8> {
    let (half, deadline) = (tokio::time::sleep(GRACE_PERIOD / 2), tokio::time::sleep(GRACE_PERIOD));
    tokio::pin!(half, deadline);
    loop {
        tokio::select! {
            ended = child.wait() => return Ok(status(ended?)),
            interrupt = interrupts.next() => source = request_exit(&child, interrupt),
            // It may have been somebody else, who meant us alone.
            () = &mut half, if source == InterruptSource::Terminal => source = request_exit(&child, Interrupt::Terminated),
            () = &mut deadline => {
                output.note(format_args!("WARNING the command did not end within {} s, killing it", GRACE_PERIOD.as_secs()))?;
                child.start_kill()?;
                return Ok(status(child.wait().await?));
            }
        }
    }
}

/// Passes a signal on, unless the terminal has sent it to the command as well.
fn request_exit(child: &Child, interrupt: Interrupt) -> InterruptSource {
    if interrupt == Interrupt::Interrupted && is_in_the_foreground() {
        return InterruptSource::Terminal;
    }
    if let Some(id) = child.id().and_then(|id| i32::try_from(id).ok()) {
        // One that has ended meanwhile is found by the wait that follows.
        let _ = nix::sys::signal::kill(Pid::from_raw(id), interrupt.signal());
    }
    InterruptSource::Nodepool
}

/// Whether Ctrl-C goes to our process group, which is the command's as well. Where standard input comes from says nothing of that.
fn is_in_the_foreground() -> bool {
    let foreground = File::open("/dev/tty").ok().and_then(|terminal| nix::unistd::tcgetpgrp(terminal).ok());
    foreground == Some(nix::unistd::getpgrp())
}

fn status(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
