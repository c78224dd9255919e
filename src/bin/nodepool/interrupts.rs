//! Termination signals as a queue: each step of a command decides how it stops.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// Ctrl-C.
    Interrupted,
    Terminated,
    /// The terminal was closed.
    HungUp,
}

impl Interrupt {
    pub fn signal(self) -> nix::sys::signal::Signal {
        match self {
            Interrupt::Interrupted => nix::sys::signal::Signal::SIGINT,
            Interrupt::Terminated => nix::sys::signal::Signal::SIGTERM,
            Interrupt::HungUp => nix::sys::signal::Signal::SIGHUP,
        }
    }

    /// The exit status that a shell reports for a program terminated by this signal.
    pub fn status(self) -> u8 {
        128 + self.signal() as u8
    }
}

pub struct Interrupts {
    queue: mpsc::Receiver<Interrupt>,
}

impl Interrupts {
    /// Receives the signals. From then on, they no longer terminate the process.
    pub fn listen() -> std::io::Result<Self> {
        let mut interrupted = signal(SignalKind::interrupt())?;
        let mut terminated = signal(SignalKind::terminate())?;
        let mut hung_up = signal(SignalKind::hangup())?;
        let (sender, queue) = mpsc::channel(8);
        tokio::spawn(async move {
            loop {
                let interrupt = tokio::select! {
                    _ = interrupted.recv() => Interrupt::Interrupted,
                    _ = terminated.recv() => Interrupt::Terminated,
                    _ = hung_up.recv() => Interrupt::HungUp,
                };
                // A step that has not handled eight signals does not need the ninth.
                let _ = sender.try_send(interrupt);
            }
        });
        Ok(Self { queue })
    }

    #[cfg(test)]
    pub fn channel() -> (mpsc::Sender<Interrupt>, Self) {
        let (sender, queue) = mpsc::channel(8);
        (sender, Self { queue })
    }

    pub async fn next(&mut self) -> Interrupt {
        match self.queue.recv().await {
            Some(interrupt) => interrupt,
            None => std::future::pending().await,
        }
    }
}
