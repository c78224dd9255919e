//! Scheduler: decides which pool serves a request and with which nodes. Its parts are verdicts, capacity, placement,
//! reservations, eviction and min-ready.

pub mod allocate;
pub mod capacity;
pub(crate) mod eviction;
pub mod launch_line;
pub mod matching;
pub mod min_ready;
pub mod pool_context;
pub mod reason;
pub mod reservations;
pub mod shared_pools;
pub mod tenant_usage;
pub mod verdicts;
