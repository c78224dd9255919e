//! Infrastructure of all actors: the reconcile loop, owned tasks, the clock, panics, the actor registry and dumps.

pub(crate) mod actor_tasks;
pub mod blocking;
pub mod clock;
pub mod dump;
pub mod invariant_guard;
pub(crate) mod log_context;
pub mod messages;
pub mod panics;
pub(crate) mod profile;
pub mod reconcile;
pub mod registry;
pub mod snapshot_feed;
