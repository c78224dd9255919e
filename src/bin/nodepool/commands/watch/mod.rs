//! `watch`: follows the state in ZooKeeper; a view on a terminal, a JSON document per change otherwise.

mod changes;
mod draw;
mod panes;
mod snapshot_source;
mod terminal;
mod view;

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nodepool::actors::runtime::clock;
use nodepool_model::config::Config;
use nodepool_model::snapshot::Snapshot;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::args::OutputFormat;
use crate::interrupts::Interrupts;
use crate::output::Output;
use changes::ChangeTracker;
use snapshot_source::SnapshotSource;
use terminal::Terminal;
use view::{View, ViewAction};

/// Minimum time between two redraws or two batches of changes.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Whether the view is shown: it needs a terminal for output and keys.
pub fn is_interactive(format: OutputFormat) -> bool {
    format == OutputFormat::Table && std::io::stdout().is_terminal() && std::io::stdin().is_terminal()
}

/// Runs `watch`; returns the exit status.
pub async fn watch(config: &Arc<Config>, output: &mut Output<'_>, limit: Option<Duration>) -> anyhow::Result<u8> {
    let mut interrupts = Interrupts::listen().context("cannot listen to signals")?;
    let mut source = tokio::select! {
        source = SnapshotSource::open(config.clone(), limit) => source?,
        interrupt = interrupts.next() => return Ok(interrupt.status()),
    };
    let result = match is_interactive(output.format) {
        true => show(&mut source.snapshots, &mut interrupts).await,
        false => print(&mut source.snapshots, &mut interrupts, output).await,
    };
    source.close().await;
    result
}

/// Prints a line per change, until a signal arrives or the output is closed.
async fn print(
    snapshots: &mut watch::Receiver<Arc<Snapshot>>,
    interrupts: &mut Interrupts,
    output: &mut Output<'_>,
) -> anyhow::Result<u8> {
    let mut tracker = ChangeTracker::default();
    let mut closed = output_closed();
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        for document in tracker.update(&snapshot, clock::now()) {
            output.json_line(&document)?;
        }
        output.flush()?;
        let next = Instant::now() + REDRAW_INTERVAL;
        tokio::select! {
            changed = snapshots.changed() => changed.context("the ZooKeeper snapshot feed stopped")?,
            interrupt = interrupts.next() => return Ok(interrupt.status()),
            Ok(()) = &mut closed => return Ok(0),
        }
        sleep_until(next).await;
    }
}

/// Resolves when the reader closes the pipe, which would otherwise be detected only at the next change.
fn output_closed() -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    // The poll runs on a thread of its own, which the runtime does not wait for.
    std::thread::spawn(move || {
        let output = std::io::stdout();
        let mut fds = [PollFd::new(output.as_fd(), PollFlags::empty())];
        // Two events are reported without being requested: POLLERR of a pipe, POLLHUP of a socket or a terminal.
        while poll(&mut fds, PollTimeout::NONE) == Err(nix::errno::Errno::EINTR) {}
        let _ = sender.send(());
    });
    receiver
}

async fn show(snapshots: &mut watch::Receiver<Arc<Snapshot>>, interrupts: &mut Interrupts) -> anyhow::Result<u8> {
    let mut terminal = Terminal::open()?;
    let mut view = View::new(snapshots.borrow_and_update().clone());
    let mut due = Instant::now();
    loop {
        let is_due = tokio::select! {
            biased;
            interrupt = interrupts.next() => return Ok(interrupt.status()),
            () = sleep_until(due) => true,
            key = terminal.key() => match view.handle_event(key?) {
                ViewAction::Quit => return Ok(0),
                ViewAction::Redraw => true,
                ViewAction::Nothing => false,
            },
            changed = snapshots.changed() => {
                changed.context("the ZooKeeper snapshot feed stopped")?;
                // Further changes until then are drawn at the same time.
                due = due.min(terminal.drawn_at() + REDRAW_INTERVAL);
                view.set_snapshot(snapshots.borrow_and_update().clone());
                false
            }
        };
        if is_due {
            terminal.draw(|frame| draw::draw(frame, &mut view, clock::now()))?;
            // Ages advance even if nothing else changes.
            due = terminal.drawn_at() + view.refresh_interval();
        }
    }
}
