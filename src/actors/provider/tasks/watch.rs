//! Tasks: the watch of a cloud that reports changes by itself. While it is open, machines observe its inventories, and
//! no listings are needed for them.

use std::sync::Arc;

use tracing::{debug, warn};

use super::{Cancellation, Driver, Input, ListingState, Owner, Task, TaskId, Tasks};
use nodepool_driver::error::CloudError;
use nodepool_driver::instance::Inventory;
use nodepool_driver::job::{Job, Outcome};
use nodepool_model::records::time::Seconds;
use tokio::time::Instant;

/// First and last delay before a watch that failed is opened again.
const FIRST_DELAY: Seconds = Seconds(0.2);
const LAST_DELAY: Seconds = Seconds(60.0);

/// The watch of a provider, and the last inventory that it reported.
pub(super) struct Watch {
    state: WatchState,
    /// The inventory with its number, which tells the machines that have seen it from the others.
    inventory: Option<(u64, Arc<Inventory>)>,
    /// Consecutive failures.
    failures: u32,
    error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum WatchState {
    /// It is opened at this time.
    Closed(Seconds),
    Opening,
    /// `take_opened_watch` has yet to report it.
    Opened,
    Open,
}

impl Default for Watch {
    fn default() -> Self {
        Self { state: WatchState::Closed(Seconds::ZERO), inventory: None, failures: 0, error: None }
    }
}

impl Watch {
    fn is_open(&self) -> bool {
        matches!(self.state, WatchState::Opened | WatchState::Open)
    }
}

impl<D: Driver> Tasks<D> {
    /// Time at which `start_watch` must be called.
    pub fn watch_due(&self) -> Option<Seconds> {
        match self.watch.state {
            WatchState::Closed(at) if D::WATCHES => Some(at),
            _ => None,
        }
    }

    pub fn start_watch(&mut self) {
        let Some(machine) = self.driver.begin_watch() else { return };
        self.watch.state = WatchState::Opening;
        let id = TaskId(self.number());
        let (job, owner, cancellation) = (Job::List, Owner::Watch, Cancellation::NotRequested);
        let task = Task { job, owner, began: Instant::now(), cancellation, met_outage: self.is_down(), observed: 0 };
        self.advance(id, task, machine, Input::Start);
    }

    /// True once when the watch has been opened; its inventories must then be passed to `watched`.
    pub fn take_opened_watch(&mut self) -> bool {
        let is_new = self.watch.state == WatchState::Opened;
        if is_new {
            self.watch.state = WatchState::Open;
        }
        is_new
    }

    pub(super) fn on_watch_opened(&mut self, result: &Result<Outcome, CloudError>) {
        match result {
            Ok(Outcome::Listed(inventory)) => {
                (self.watch.state, self.watch.failures, self.watch.error) = (WatchState::Opened, 0, None);
                self.publish(inventory.clone());
            }
            Ok(other) => self.close_watch(&format!("unexpected outcome {other:?}")),
            Err(error) => self.close_watch(&error.to_string()),
        }
    }

    /// Handles the next inventory of the watch, or its end.
    pub fn watched(&mut self, result: Result<Arc<Inventory>, CloudError>) {
        match result {
            Ok(inventory) => self.publish(inventory),
            Err(error) => {
                // Most ends are ordinary: servers limit the duration of a watch.
                debug!(provider = %self.provider, %error, "watch ended");
                self.watch.state = WatchState::Closed(Seconds(self.now().0 + FIRST_DELAY.0));
                self.list_for_observers();
            }
        }
    }

    fn publish(&mut self, inventory: Arc<Inventory>) {
        let number = self.number();
        self.watch.inventory = Some((number, inventory.clone()));
        self.wake_observers(TaskId(number), &inventory);
    }

    fn close_watch(&mut self, error: &str) {
        if self.watch.error.as_deref() != Some(error) && !self.is_down() {
            warn!(provider = %self.provider, error, "cannot watch the instances; they are listed instead");
        }
        let delay = (FIRST_DELAY.0 * f64::from(2_u32.saturating_pow(self.watch.failures.min(10)))).min(LAST_DELAY.0);
        self.watch.failures += 1;
        self.watch.error = Some(error.to_owned());
        self.watch.state = WatchState::Closed(Seconds(self.now().0 + delay));
        self.list_for_observers();
    }

    fn list_for_observers(&mut self) {
        if self.listing == ListingState::NotNeeded && self.has_observers_after(None) {
            self.listing = ListingState::Due;
        }
    }

    /// The inventory of the open watch that a machine has not seen, with its number.
    pub(super) fn unseen_inventory(&self, task: &Task) -> Option<(u64, Arc<Inventory>)> {
        self.watch.inventory.clone().filter(|(number, _)| self.watch.is_open() && *number > task.observed)
    }

    /// Whether machines that observe need a listing.
    pub(super) fn needs_listings(&self) -> bool {
        !self.watch.is_open()
    }
}
