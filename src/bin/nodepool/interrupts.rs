//! Signals that ask us to end, as a queue, so that each step decides for itself what ending means.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// Ctrl-C.
    Interrupted,
    Terminated,
    /// The terminal is gone.
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

    /// The status a shell gives to a program that ended by this signal.
    pub fn status(self) -> u8 {
        128 + self.signal() as u8
    }
}

pub struct Interrupts {
    queue: mpsc::Receiver<Interrupt>,
}

impl Interrupts {
    /// From now on the signals no longer end the process by themselves.
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
                // Who does not look at eight of them will not look at the ninth.
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
