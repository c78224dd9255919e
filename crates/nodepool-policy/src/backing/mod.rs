//! Backing nodes of a metastatic provider: which node gets which slot, and which backing node is requested, kept,
//! retired and released.
//!
//! All of it follows from the snapshot. In memory are only the time of last use, counts of failures, and what is in
//! flight; no decision about slots depends on them, so a restart, a reload and a second launcher need no code of their
//! own.

mod demand;
pub mod planner;
mod requests;
pub mod status;
pub mod view;

#[cfg(test)]
mod tests;
