//! Terminal of the view: raw keys and the alternate screen. The previous modes are restored at the end.

use std::io::Stdout;

use anyhow::Context;
use crossterm::event::{Event, EventStream};
use futures::StreamExt;
use ratatui::Frame;
use ratatui::backend::CrosstermBackend;
use tokio::time::Instant;

pub struct Terminal {
    screen: ratatui::Terminal<CrosstermBackend<Stdout>>,
    events: EventStream,
    drawn_at: Instant,
}

impl Terminal {
    /// Opens the terminal. From then on, a panic restores it before the panic message is printed.
    pub fn open() -> anyhow::Result<Self> {
        let screen = ratatui::try_init().context("cannot draw on this terminal")?;
        Ok(Self { screen, events: EventStream::new(), drawn_at: Instant::now() })
    }

    /// The next key, or a change of the size.
    pub async fn key(&mut self) -> anyhow::Result<Event> {
        let event = self.events.next().await.context("the terminal was closed")?;
        event.context("cannot read from the terminal")
    }

    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> anyhow::Result<()> {
        self.drawn_at = Instant::now();
        self.screen.draw(draw).context("cannot draw on this terminal")?;
        Ok(())
    }

    pub fn drawn_at(&self) -> Instant {
        self.drawn_at
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A terminal that was closed needs no restoring.
        let _ = ratatui::try_restore();
    }
}
