//! Signals: stop in order, or write down the state of every actor.

use std::io;
use std::time::Duration;

use actix::ArbiterHandle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{error, info};

use super::dump::Dumps;
use super::shared::Stop;
use super::{dump, notify};

/// Who sent SIGTERM will not wait much longer than this before it kills.
pub const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// Whether SIGINT leaves time for what takes hours, until there is a second signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    Seconds,
    Hours,
}

/// The signals we answer, on a thread that nothing else can block.
struct Listeners {
    interrupt: Signal,
    user: Signal,
    terminate: Signal,
    dump: Signal,
}

/// Takes the signals over; from here on they do not kill. What it returns is set by the first one that stops us.
pub fn listen(
    arbiter: &ArbiterHandle,
    registry: dump::Registry,
    patience: Patience,
) -> io::Result<watch::Receiver<Option<Stop>>> {
    let (stop, stopped) = watch::channel(None);
    let (outcome, installed) = std::sync::mpsc::channel();
    arbiter.spawn(async move {
        match Listeners::install() {
            Ok(listeners) => {
                // The other end waits for it right below.
                let _ = outcome.send(Ok(()));
                listeners.serve(stop, registry, patience).await;
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

    async fn serve(self, stop: watch::Sender<Option<Stop>>, registry: dump::Registry, patience: Patience) {
        let Listeners { mut interrupt, mut user, mut terminate, dump: mut dump_asked } = self;
        actix_rt::spawn(async move {
            let mut dumps = Dumps::default();
            loop {
                tokio::select! {
                    asked = dump_asked.recv() => {
                        if asked.is_none() {
                            break;
                        }
                        dumps.write(&registry).await;
                        // Those that came meanwhile were for the same dump; the listener keeps one of them.
                        let _ = futures::FutureExt::now_or_never(dump_asked.recv());
                    }
                    () = dumps.forgotten() => dumps.forget().await,
                }
            }
        });
        let mut next = async || {
            tokio::select! {
                _ = interrupt.recv() => "SIGINT",
                _ = user.recv() => "SIGUSR1",
                _ = terminate.recv() => "SIGTERM",
            }
        };
        let mut signal = next().await;
        info!(signal, "stopping");
        notify::stopping();
        if signal == "SIGINT" && patience == Patience::Hours {
            stop.send_replace(Some(Stop { signal, has_time: true }));
            signal = next().await;
            info!(signal, "stopping at once");
        }
        stop.send_replace(Some(Stop { signal, has_time: false }));
        tokio::time::sleep(STOP_DEADLINE).await;
        error!(deadline_s = STOP_DEADLINE.as_secs(), "not everything ended in time, leaving it");
        // What is left behind goes with the ZooKeeper session and is cleaned up by whoever comes next.
        std::process::exit(0);
    }
}
