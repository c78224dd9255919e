//! Signal handling: SIGINT, SIGUSR1 and SIGTERM stop the process, SIGUSR2 writes a dump of every actor's state.

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

/// Time limit of a shutdown. A service manager kills the process shortly after it sent SIGTERM.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of a log write during shutdown: a log pipe without a reader may block the writer.
const LOG_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether SIGINT waits for running builds until a second signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownMode {
    Immediate,
    Graceful,
}

/// The handled signals.
struct Listeners {
    interrupt: Signal,
    user: Signal,
    terminate: Signal,
    dump: Signal,
}

/// Installs the signal handlers; from then on the signals do not kill the process. The first stop signal sets the
/// returned channel. Dumps are written on `arbiter`; stop signals have their own thread, which no other task can block.
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
                // The receiver waits below.
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
                // Signals that arrived meanwhile requested the same dump; the listener queues one of them.
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
    // Logged before the stop request is sent: the process may exit before a later line is written.
    log_with_timeout(move || info!(signal, "stopping"));
    log_with_timeout(sd_notify::notify_stopping);
    if signal == "SIGINT" && mode == ShutdownMode::Graceful {
        stop.send_replace(Some(StopRequest { signal, is_graceful: true }));
        signal = next().await;
        log_with_timeout(move || info!(signal, "stopping at once"));
    }
    stop.send_replace(Some(StopRequest { signal, is_graceful: false }));
    // The timeout runs on its own thread, because arbiters end before the process. If no thread can be created, this
    // one is used.
    if thread::Builder::new().name("deadline".to_owned()).spawn(exit_after_timeout).is_err() {
        exit_after_timeout();
    }
}

#[allow(clippy::disallowed_methods)] // Must exit the process even if the runtimes and their timers have ended.
fn exit_after_timeout() {
    thread::sleep(STOP_TIMEOUT);
    log_with_timeout(|| error!(deadline_s = STOP_TIMEOUT.as_secs(), "shutdown timed out; exiting"));
    // Ephemeral znodes are deleted with the ZooKeeper session; other launchers and builders clean up the rest.
    std::process::exit(0);
}

/// Writes a log line on another thread, and continues if that takes too long.
fn log_with_timeout(line: impl FnOnce() + Send + 'static) {
    let (writing, written) = mpsc::channel::<()>();
    let body = move || {
        line();
        drop(writing);
    };
    // If no thread can be created, the line is dropped.
    let _ = thread::Builder::new().name("signals".to_owned()).spawn(body);
    let _ = written.recv_timeout(LOG_TIMEOUT);
}
