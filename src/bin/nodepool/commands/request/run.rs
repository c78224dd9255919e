//! Runs a command with the nodes: describes them in files and variables, forwards signals, and returns its exit status.

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
use crate::commands::request::inventory::{self, Credentials, Paths};
use crate::commands::request::kubeconfig::kubeconfig;
use crate::interrupts::{Interrupt, Interrupts};
use crate::output::Output;

/// Time that a command has to exit after a signal, before it is killed.
const GRACE_PERIOD: Duration = Duration::from_secs(10);

/// A private directory with the files for a command; deleted on drop.
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
        if let Some(kubeconfig) = kubeconfig(nodes) {
            files.put("kubeconfig", &format!("{kubeconfig:#}\n"))?;
        }
        let paths = ["known_hosts", "kubeconfig"].map(|name| files.path(name).to_string_lossy().into_owned());
        let [known_hosts, kubeconfig] = paths;
        let inventory = inventory::ansible(nodes, &Paths { known_hosts, kubeconfig });
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
        // Releasing the nodes must not fail because of a leftover temporary file.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Runs the command and returns its exit status. Signals are forwarded to it, and it is terminated if the nodes are
/// lost.
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
    if files.path("kubeconfig").exists() {
        prepared.env("KUBECONFIG", files.path("kubeconfig"));
    }
    set_parent_death_signal(&mut prepared);
    let spawned = prepared.spawn();
    let child = match spawned {
        Ok(child) => child,
        Err(error) => {
            // The exit statuses of shells.
            let status = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
            let message = format!("cannot run {}: {error}", Path::new(program).display());
            output.outcome(json!({"outcome": "failed", "message": message}))?;
            output.note(format_args!("nodepool: {message}"))?;
            return Ok(status);
        }
    };
    supervise(nodes_lost, child, interrupts, output).await
}

/// Terminates the command if this process is killed: the nodes are then reassigned.
#[allow(unsafe_code)]
fn set_parent_death_signal(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call, which takes no lock and allocates no memory.
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
            let reason = "the ZooKeeper session expired or is about to; the nodes may be reassigned";
            output.note(format_args!("WARNING {reason}; terminating the command"))?;
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

/// Sender of the signal that asks a command to exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InterruptSource {
    Nodepool,
    /// Assumed, because the signal does not name its sender.
    Terminal,
}

/// Waits for a command that was asked to exit.
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
            // Another process may have sent the signal to this process only.
            () = &mut half, if source == InterruptSource::Terminal => source = request_exit(&child, Interrupt::Terminated),
            () = &mut deadline => {
                output.note(format_args!("WARNING the command did not exit within {} s, killing it", GRACE_PERIOD.as_secs()))?;
                child.start_kill()?;
                return Ok(status(child.wait().await?));
            }
        }
    }
}

/// Forwards a signal, unless the terminal has sent it to the command as well.
fn request_exit(child: &Child, interrupt: Interrupt) -> InterruptSource {
    if interrupt == Interrupt::Interrupted && is_in_the_foreground() {
        return InterruptSource::Terminal;
    }
    if let Some(id) = child.id().and_then(|id| i32::try_from(id).ok()) {
        // If the command has exited meanwhile, the following wait returns.
        let _ = nix::sys::signal::kill(Pid::from_raw(id), interrupt.signal());
    }
    InterruptSource::Nodepool
}

/// Whether Ctrl-C is sent to our process group, which includes the command. Standard input does not have to be that
/// terminal.
fn is_in_the_foreground() -> bool {
    let foreground = File::open("/dev/tty").ok().and_then(|terminal| nix::unistd::tcgetpgrp(terminal).ok());
    foreground == Some(nix::unistd::getpgrp())
}

fn status(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
