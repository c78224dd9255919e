//! Signals: stop in order, or write down the state of every actor.

use std::sync::mpsc;
use std::time::Duration;
use std::{io, thread};

use actix::{Arbiter, ArbiterHandle};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{error, info};

use super::context::StopRequest;
use super::sd_notify;
use crate::actors::runtime::dump;
use crate::actors::runtime::dump::DumpWriter;

/// Who sent SIGTERM will not wait much longer than this before it kills.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A log that nobody reads any more may block whoever writes to it; what has to end does not wait longer for that.
const LOG_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether SIGINT leaves time for what takes hours, until there is a second signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownMode {
    Immediate,
    Graceful,
}

/// The signals we answer.
struct Listeners {
    interrupt: Signal,
    user: Signal,
    terminate: Signal,
    dump: Signal,
}

/// Takes the signals over; from here on they do not kill. What it returns is set by the first one that stops us. Dumps are
/// written on `arbiter`; those that stop have a thread of their own, which nothing else can block.
pub fn listen(
    arbiter: &ArbiterHandle,
    registry: dump::DumpRegistry,
    mode: ShutdownMode,
) -> io::Result<watch::Receiver<Option<StopRequest>>> {
    let (stop, stopped) = watch::channel(None);
    let (outcome, installed) = mpsc::channel();
    let arbiter = arbiter.clone();
    Arbiter::new().spawn(async move {
        match Listeners::install() {
            Ok(Listeners { interrupt, user, terminate, dump }) => {
                // The other end waits for it right below.
                let _ = outcome.send(Ok(()));
                arbiter.spawn(handle_dump_signals(dump, registry));
                handle_stop_signals([interrupt, user, terminate], stop, mode).await;
            }
            Err(error) => drop(outcome.send(Err(error))),
        }
    });
    match installed.recv() {
        Ok(result) => result.map(|()| stopped),
        Err(_) => Err(io::Error::other("the thread for signals ended")),
    }
}

impl Listeners {
    fn install() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            user: signal(SignalKind::user_defined1())?,
            terminate: signal(SignalKind::terminate())?,
            dump: signal(SignalKind::user_defined2())?,
        })
    }
}

async fn handle_dump_signals(mut dump_signal: Signal, registry: dump::DumpRegistry) {
    let mut dumps = DumpWriter::default();
    loop {
        tokio::select! {
            signal = dump_signal.recv() => {
                if signal.is_none() {
                    break;
                }
                dumps.write(&registry).await;
                // Those that came meanwhile were for the same dump; the listener keeps one of them.
                let _ = futures::FutureExt::now_or_never(dump_signal.recv());
            }
            () = dumps.profile_expired() => dumps.discard_profile().await,
        }
    }
}

async fn handle_stop_signals(signals: [Signal; 3], stop: watch::Sender<Option<StopRequest>>, mode: ShutdownMode) {
    let [mut interrupt, mut user, mut terminate] = signals;
    let mut next = async || {
        tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = user.recv() => "SIGUSR1",
            _ = terminate.recv() => "SIGTERM",
        }
    };
    let mut signal = next().await;
    // Before it stops us: the process may end sooner than a line is written.
    log_with_timeout(move || info!(signal, "stopping"));
    log_with_timeout(sd_notify::notify_stopping);
    if signal == "SIGINT" && mode == ShutdownMode::Graceful {
        stop.send_replace(Some(StopRequest { signal, is_graceful: true }));
        signal = next().await;
        log_with_timeout(move || info!(signal, "stopping at once"));
    }
    stop.send_replace(Some(StopRequest { signal, is_graceful: false }));
    // Not here, for arbiters end before the process does. Where there are no more threads, this one is free.
    if thread::Builder::new().name("deadline".to_owned()).spawn(exit_after_timeout).is_err() {
        exit_after_timeout();
    }
}

#[allow(clippy::disallowed_methods)] // It has to end us whatever becomes of runtimes and their timers.
fn exit_after_timeout() {
    thread::sleep(STOP_TIMEOUT);
    log_with_timeout(|| error!(deadline_s = STOP_TIMEOUT.as_secs(), "not everything ended in time, leaving it"));
    // What is left behind goes with the ZooKeeper session and is cleaned up by whoever comes next.
    std::process::exit(0);
}

/// Logs it, and goes on without it where that takes too long.
fn log_with_timeout(line: impl FnOnce() + Send + 'static) {
    let (writing, written) = mpsc::channel::<()>();
    let body = move || {
        line();
        drop(writing);
    };
    // Without a thread there is no line, and nothing to wait for.
    let _ = thread::Builder::new().name("signals".to_owned()).spawn(body);
    let _ = written.recv_timeout(LOG_TIMEOUT);
}
